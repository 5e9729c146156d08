//! How an application's records get into the store: however long that has no space, as long as the term lasts.

use std::time::Duration;

use tanist_ha::Error;
use tanist_ha::retry::Backoff;
use tanist_ha::store::Write;
use tanist_ha::store::pipeline::{CommitError, CommitPipeline};
use tracing::warn;

/// Why something was not written.
#[derive(Debug)]
pub(super) enum NotCommitted {
    /// It is the next term's to know.
    TermOver,
    /// It never will be.
    TooLarge(Error),
}

/// Commits all writes, or none. Callers that hold a lock let go of it before they wait for the end of a term that is over.
pub(super) async fn commit(
    pipeline: &CommitPipeline,
    writes: Vec<Write>,
) -> Result<(), NotCommitted> {
    let mut backoff = retries();
    loop {
        match pipeline.commit(writes.clone()).await {
            Ok(_) => return Ok(()),
            Err(error @ CommitError::OutOfSpace(_)) => {
                warn!(%error, "how the application stands is written again");
            }
            Err(CommitError::TooLarge(error)) => return Err(NotCommitted::TooLarge(error)),
            Err(CommitError::NotApplied | CommitError::Unknown) => {
                return Err(NotCommitted::TermOver);
            }
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// The pauses between tries of an application at its own cluster.
pub(super) fn retries() -> Backoff {
    Backoff::new(Duration::from_millis(50), Duration::from_secs(2))
}
