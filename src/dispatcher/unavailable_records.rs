//! Jobs and results whose records can't be read for now, because the blob store that has one of them does not
//! answer or denies access. That says nothing about the records. They are read again until that succeeds or it
//! is certain that it can't.
//!
//! Such a job is RECONCILING, and its tasks keep running. It can be cancelled if its state was readable, like a
//! suspect job. It can't be retried or deleted, and an unavailable result can neither be forgotten nor
//! its job be run again. None of this is written: the next term finds out for itself. A missing blob, or one
//! with wrong content, is not such a case.

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::actor::{DispatcherActor, Event};
use super::core::{Entry, SubmissionKey, result_key};

const JOB_AWAITED: &str = "the blob store gives no answer for its records, or denies access: the job is led again once they can be read";
const RESULT_AWAITED: &str = "it has ended, and the blob store gives no answer for its result, or denies access: reading is retried";

impl DispatcherActor {
    /// One of this job's records can't be read for now.
    pub(super) fn await_records(
        &mut self,
        job: JobId,
        state: Option<Box<pb::JobState>>,
        reason: &str,
    ) {
        warn!(%job, reason, "a job can't be read for now; reading is retried");
        match state {
            Some(state) => {
                let ends = state.wanted() == pb::WantedStatus::Canceled;
                self.suspect(job, *state);
                if let Some(Entry::Rebuilding { why, .. }) = self.jobs.get_mut(&job)
                    && !ends
                {
                    *why = JOB_AWAITED;
                }
            }
            None => match self.jobs.get_mut(&job) {
                // What was known of the job before still holds.
                Some(Entry::Rebuilding { why, .. }) => *why = JOB_AWAITED,
                _ => {
                    self.jobs.insert(job, unknown(JOB_AWAITED));
                }
            },
        }
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let found = vec![(job, store.await_job(job).await)];
            let reply = oneshot::channel().0;
            Event::CrashSuspectsRead { found, reply }
        });
    }

    /// The result of this job can't be read for now.
    pub(super) fn await_result(&mut self, job: JobId, reason: &str) {
        warn!(%job, reason, "the result of an ended job can't be read for now; reading is retried");
        self.jobs.insert(job, unknown(RESULT_AWAITED));
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let found = store.await_result(job).await.map(Box::new);
            Event::ResultRead { job, found }
        });
    }

    pub(super) fn on_result_read(
        &mut self,
        job: JobId,
        found: Result<Box<pb::JobResult>, (pb::QuarantineKind, String)>,
    ) {
        match found {
            Ok(result) => {
                info!(%job, "the result of an ended job is read");
                self.retention.found(self.started.uptime(), job, &result);
                self.take_up_ended(job, *result);
            }
            Err((kind, reason)) => self.quarantine_ended(job, kind, &reason),
        }
    }

    /// Continues with a job that has ended.
    pub(super) fn take_up_ended(&mut self, job: JobId, result: pb::JobResult) {
        let is_dirty = result.dirty;
        let ended = Entry::Ended {
            key: result_key(&result),
            result: Box::new(result),
            waiting: Vec::new(),
            left: None,
        };
        self.jobs.insert(job, ended);
        if is_dirty {
            info!(%job, "the cleanup of an ended job is resumed");
            self.start_cleanup(job);
        }
    }
}

/// Entry of a job about which nothing is known.
fn unknown(why: &'static str) -> Entry {
    Entry::Rebuilding {
        key: SubmissionKey::unknown(),
        name: String::new(),
        why,
        suspect: None,
    }
}
