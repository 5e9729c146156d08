//! Crash suspects: jobs whose recovery is delayed because earlier terms died in recovery
//! (`docs/adr/0012-crash-loop-recovery.md`).
//!
//! Only the state of such a job is read, and no JobMaster is started before its turn. A job that is or was
//! cancelled meanwhile ends without being led: its result CANCELED replaces its records in one transaction,
//! then the request is acknowledged. After a crash before the transaction the job waits again; after it the job
//! has ended. If its turn comes while the result is being written, the job is skipped; if that write fails, it
//! is started then.
//!
//! The job's record puts a cancellation and a finish in order. If the record says that all tasks have finished,
//! an earlier term may have made their output visible: such a job ends only at its turn, by the decision of its
//! JobMaster.

use futures::stream::{self, StreamExt as _};
use tanist_gateway::GatewayError;
use tanist_ha::clock::wall_clock_ms;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::actor::{DispatcherActor, Event};
use super::core::{Entry, Quarantined, Suspect, state_key};
use super::handle::Reply;
use super::job_store::JobStoreError;
use super::recovery::RecoveredJob;

/// Number of jobs that are read at the same time.
const READ_AT_ONCE: usize = 16;

impl DispatcherActor {
    /// Delays the job, unless its cancellation was acknowledged before.
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
            why: "an earlier term died in recovery: this job is started when its turn comes",
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
        info!(%job, "a job is cancelled before it is recovered");
        suspect.known.is_busy = true;
        *why = "it was cancelled before its turn to be recovered came, and its result is being written";
        let epoch = self.context.session.epoch().get();
        let now_ms = wall_clock_ms();
        let result = suspect.known.canceled_in_wait(job, epoch, now_ms);
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
        *why = "its cancellation could not be written: this job is started when its turn comes";
        if suspect.was_passed_over {
            self.read_crash_suspects(vec![job], oneshot::channel().0);
        }
    }

    /// Reads all records of jobs whose turn has come.
    pub(super) fn read_crash_suspects(&mut self, jobs: Vec<JobId>, reply: Reply<()>) {
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let reads = jobs.into_iter().map(|job| {
                let store = store.clone();
                async move { (job, store.reread(job).await) }
            });
            let found = stream::iter(reads).buffered(READ_AT_ONCE).collect().await;
            Event::CrashSuspectsRead { found, reply }
        });
    }

    pub(super) fn start_crash_suspects(
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
                // The job has ended.
                (Ok(_), _) => {}
            }
        }
        let _ = reply.send(Ok(()));
    }
}
