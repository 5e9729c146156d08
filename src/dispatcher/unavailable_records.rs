//! Jobs and results whose records can't be read for now, because the blob store that has one of them does not
//! answer or denies access. That says nothing about the records. They are read again until that succeeds or it
//! is certain that it can't.

use std::time::Duration;

use tanist_ha::Error;
use tanist_ha::keys::Kind;
use tanist_ha::retry::Backoff;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::debug;

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

impl JobStore {
    /// Reads a job again until the outcome is definite. Does not decode its graph if that is dangerous.
    pub(super) async fn await_job(&self, job: JobId) -> Result<RecoveredJob, JobStoreError> {
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
                self.note_blob(job, Kind::States, stored.blob.clone());
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
    pub(super) async fn await_result(
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
                    self.lock_chunks().forget(job);
                    self.lock_holdings().forget_result(job);
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
