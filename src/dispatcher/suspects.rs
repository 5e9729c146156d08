//! Jobs that wait for their turn to be recovered, as terms before died in recovery (`docs/adr/0012-careful-recovery.md`).
//!
//! Only the state of such a job is known, and no JobMaster is started for it before its turn. One that is cancelled meanwhile, or
//! was before, ends without being led: its result CANCELED takes the place of its records in one transaction, then that is
//! acknowledged. A crash before the transaction: it waits again; after it: it has ended. A turn that comes while the result is
//! being written passes it over; should the result not get into the store, it is started then.
//!
//! Whether a job is cancelled or finishes, its record orders. Where that says that all tasks have finished, a former term may have made
//! visible what they wrote: such a job ends when its turn has come, as its JobMaster finds.

use futures::stream::{self, StreamExt as _};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::actor::{DispatcherActor, Event};
use super::entry::{Entry, state_key};
use super::handle::Reply;
use super::job_store::JobStoreError;
use super::quarantined::Quarantined;
use super::recovery::RecoveredJob;
use crate::gateway::GatewayError;

/// How many jobs whose turn has come are read at once.
const READ_AT_ONCE: usize = 16;

/// A job whose turn has not come.
#[derive(Debug)]
pub(super) struct Suspect {
    /// What is known of it, as for one that is set aside.
    pub(super) known: Quarantined,
    /// It came while its result was being written.
    was_passed_over: bool,
}

impl DispatcherActor {
    /// It waits, unless that it is to end was acknowledged before.
    pub(super) fn suspect(&mut self, job: JobId, mut state: pb::JobState) {
        let is_canceled = state.wanted() == pb::WantedStatus::Canceled;
        let reason = "its turn to be recovered has not come".to_owned();
        let quarantine = self.found(pb::QuarantineKind::Unspecified, reason);
        let suspect = Suspect {
            known: Quarantined::of(&mut state, quarantine, None),
            was_passed_over: false,
        };
        let entry = Entry::Rebuilding {
            key: state_key(&state),
            name: state.name,
            why: "a term before died in recovery: this job is started when its turn comes",
            suspect: Some(Box::new(suspect)),
        };
        self.jobs.insert(job, entry);
        if is_canceled {
            self.cancel_suspect(job, oneshot::channel().0);
        }
    }

    /// Ends a job before its turn. Where it is not known whether what it leaves is visible, its turn has to come.
    pub(super) fn cancel_suspect(&mut self, job: JobId, reply: Reply<pb::Ack>) {
        let Some(Entry::Rebuilding {
            suspect: Some(suspect),
            why,
            ..
        }) = self.jobs.get_mut(&job)
        else {
            let text = format!("job {job} has no JobMaster at present");
            let _ = reply.send(Err(GatewayError::NotYet(text)));
            return;
        };
        if suspect.known.is_busy || suspect.known.has_finished {
            let _ = reply.send(Err(GatewayError::NotYet(format!("job {job}: {why}"))));
            return;
        }
        info!(%job, "it is cancelled before its turn to be recovered has come");
        suspect.known.is_busy = true;
        *why = "it was cancelled before its turn to be recovered came, and its result is being written";
        let epoch = self.context.session.epoch().get();
        let result = suspect.known.canceled_in_wait(job, epoch);
        self.cancel_quarantined(job, result, reply);
    }

    /// The result of a job that was cancelled before its turn could not be written.
    pub(super) fn cancel_failed(&mut self, job: JobId) {
        let Some(Entry::Rebuilding {
            suspect: Some(suspect),
            why,
            ..
        }) = self.jobs.get_mut(&job)
        else {
            return;
        };
        suspect.known.is_busy = false;
        *why = "it could not be written that it was cancelled: this job is started when its turn comes";
        if suspect.was_passed_over {
            self.read_suspects(vec![job], oneshot::channel().0);
        }
    }

    /// Reads jobs whose turn has come, all of each.
    pub(super) fn read_suspects(&mut self, jobs: Vec<JobId>, reply: Reply<()>) {
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let reads = jobs.into_iter().map(|job| {
                let store = store.clone();
                async move { (job, store.reread(job).await) }
            });
            let found = stream::iter(reads).buffered(READ_AT_ONCE).collect().await;
            Event::SuspectsRead { found, reply }
        });
    }

    pub(super) fn start_suspects(
        &mut self,
        found: Vec<(JobId, Result<RecoveredJob, JobStoreError>)>,
        reply: Reply<()>,
    ) {
        for (job, found) in found {
            match (found, self.jobs.get_mut(&job)) {
                (Err(failure), _) => warn!(%job, %failure, "the term is ending"),
                (
                    Ok(_),
                    Some(Entry::Rebuilding {
                        suspect: Some(suspect),
                        ..
                    }),
                ) if suspect.known.is_busy => suspect.was_passed_over = true,
                (Ok(found), Some(Entry::Rebuilding { .. })) => self.take_up(job, found),
                // It has ended.
                (Ok(_), _) => {}
            }
        }
        let _ = reply.send(Ok(()));
    }
}
