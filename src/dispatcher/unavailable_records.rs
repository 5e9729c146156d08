//! Jobs and results whose records can't be read for now, because the blob store that has one of them does not
//! answer or denies access. That says nothing about the records. They are read again until that succeeds or it
//! is certain that it can't.
//!
//! Such a job is RECONCILING, and its tasks keep running. It can be cancelled if its state was readable, like a
//! suspect job. It can't be retried or deleted, and an unavailable result can neither be forgotten nor
//! its job be run again. None of this is written: the next term finds out for itself. A missing blob, or one
//! with wrong content, is not such a case.

use std::time::Duration;

use tanist_ha::Error;
use tanist_ha::keys::Kind;
use tanist_ha::retry::Backoff;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use super::actor::{DispatcherActor, Event};
use super::core::{Entry, SubmissionKey, result_key};
use super::job_store::{
    GraphRecord, JobStore, JobStoreError, ResultRecord, StateRecord, may_pass, name_of,
};
use super::recovery::{RecoveredJob, is_dangerous, unreadable_kind};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// A minute at most, with the jitter.
const LONGEST_PAUSE: Duration = Duration::from_secs(50);
/// Number of records read at the same time.
pub(super) const READ_AT_ONCE: usize = 16;
/// Timeout of one read, so that a blob store that hangs does not block others.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

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

impl JobStore {
    /// Reads a job again until the outcome is definite. Does not decode its graph if that is dangerous.
    async fn await_job(&self, job: JobId) -> Result<RecoveredJob, JobStoreError> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            tokio::time::sleep(backoff.next_delay()).await;
            let reading = self.try_read_job(job);
            match self.within_bounds(reading).await {
                Some(RecoveredJob::Unavailable { reason, .. }) => {
                    debug!(%job, reason, "a job can't be read yet");
                }
                Some(found) => return Ok(found),
                None => debug!(%job, "a job can't be read yet: no answer"),
            }
        }
    }

    async fn try_read_job(&self, job: JobId) -> RecoveredJob {
        let name = name_of(job);
        let state = self.records.get::<StateRecord>(&name).await;
        let later = |error: &Error| RecoveredJob::Unavailable {
            state: None,
            reason: error.to_string(),
        };
        match &state {
            Err(error) if may_pass(error) => return later(error),
            Ok(Some(stored)) if is_dangerous(&stored.record.0) => {
                self.ledger
                    .note_blob(job, Kind::States, stored.blob.clone());
                let state = Box::new(stored.record.0.clone());
                return RecoveredJob::SetAside { state, graph: None };
            }
            Ok(_) | Err(_) => {}
        }
        let graph = self.records.get::<GraphRecord>(&name).await;
        match &graph {
            Err(error) if may_pass(error) => later(error),
            Ok(_) | Err(_) => self.recovered_job(job, graph.transpose(), state.transpose()),
        }
    }

    /// The same for a result.
    async fn await_result(
        &self,
        job: JobId,
    ) -> Result<pb::JobResult, (pb::QuarantineKind, String)> {
        let name = name_of(job);
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            tokio::time::sleep(backoff.next_delay()).await;
            let reading = self.records.get::<ResultRecord>(&name);
            match self.within_bounds(reading).await {
                Some(Ok(Some(stored))) => {
                    let result = self.recovered_result(job, stored);
                    // The objects that it names are known now, so the sweep keeps them.
                    self.ledger.forget_unreadable_results(&[job]);
                    return Ok(result);
                }
                Some(Ok(None)) => {
                    let reason = format!("results/{job} is missing");
                    return Err((pb::QuarantineKind::Unreadable, reason));
                }
                Some(Err(error)) if may_pass(&error) => {
                    debug!(%job, %error, "the result of an ended job can't be read yet");
                }
                Some(Err(error)) => {
                    self.note_unreadable(&error);
                    return Err((unreadable_kind(&error), error.to_string()));
                }
                None => debug!(%job, "the result of an ended job can't be read yet: no answer"),
            }
        }
    }

    /// Runs one of a limited number of reads, with a timeout. `None`: no answer in time.
    async fn within_bounds<T>(&self, reading: impl Future<Output = T>) -> Option<T> {
        let _turn = self.late_reads.acquire().await.ok()?;
        tokio::time::timeout(READ_TIMEOUT, reading).await.ok()
    }
}
