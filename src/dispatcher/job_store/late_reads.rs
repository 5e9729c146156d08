//! Reads records again that can't be read for now, until that succeeds or it is certain that it can't.

use std::time::Duration;

use tanist_ha::retry::Backoff;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::Semaphore;
use tracing::debug;

use super::job_reader::JobReader;
use crate::recovery::RecoveredJob;

/// Number of records read at the same time.
const READ_AT_ONCE: usize = 16;
/// Timeout of one read, so that a blob store that hangs does not block others.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the backoff between two reads: a minute at most, with the jitter.
fn read_backoff() -> Backoff {
    Backoff::new(Duration::from_secs(1), Duration::from_secs(50))
}

/// Limits the reads of records that could not be read before.
#[derive(Debug)]
pub(super) struct LateReads {
    permits: Semaphore,
}

impl LateReads {
    pub(super) fn new() -> LateReads {
        LateReads {
            permits: Semaphore::new(READ_AT_ONCE),
        }
    }

    /// Reads a job again until the outcome is definite. Does not decode its graph if that is dangerous.
    pub(super) async fn read_job(&self, reader: JobReader<'_>, job: JobId) -> RecoveredJob {
        let mut backoff = read_backoff();
        loop {
            tokio::time::sleep(backoff.next_delay()).await;
            match self.try_read(reader.try_read(job)).await {
                Some(RecoveredJob::Unavailable { reason, .. }) => {
                    debug!(%job, reason, "a job can't be read yet");
                }
                Some(found) => return found,
                None => debug!(%job, "a job can't be read yet: no answer"),
            }
        }
    }

    /// The same for a result.
    pub(super) async fn read_result(
        &self,
        reader: JobReader<'_>,
        job: JobId,
    ) -> Result<pb::JobResult, (pb::QuarantineKind, String)> {
        let mut backoff = read_backoff();
        loop {
            tokio::time::sleep(backoff.next_delay()).await;
            match self.try_read(reader.try_read_result(job)).await {
                Some(Some(definite)) => return definite,
                Some(None) => {}
                None => debug!(%job, "the result of an ended job can't be read yet: no answer"),
            }
        }
    }

    /// Runs one of a limited number of reads, with a timeout. `None`: no answer in time.
    async fn try_read<T>(&self, reading: impl Future<Output = T>) -> Option<T> {
        let _permit = self.permits.acquire().await.ok()?;
        tokio::time::timeout(READ_TIMEOUT, reading).await.ok()
    }
}
