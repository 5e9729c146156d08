//! Writes an application's records to the store: retries for the whole term, even while the store has no space.

use std::time::Duration;

use tanist_ha::Error;
use tanist_ha::retry::Backoff;
use tanist_ha::store::Write;
use tanist_ha::store::pipeline::{CommitError, CommitPipeline};
use tracing::warn;

/// Why a write was not made.
#[derive(Debug)]
pub(super) enum NotCommitted {
    /// The term is over; whether the write was applied is for the next term to find out.
    TermOver,
    /// The write can never be made.
    TooLarge(Error),
}

/// Commits all writes, or none. Callers that hold a lock must release it before they wait for the end of a term
/// that is over.
pub(super) async fn commit(
    pipeline: &CommitPipeline,
    writes: Vec<Write>,
) -> Result<(), NotCommitted> {
    let mut backoff = retries();
    loop {
        match pipeline.commit(writes.clone()).await {
            Ok(_) => return Ok(()),
            Err(error @ CommitError::OutOfSpace(_)) => {
                warn!(%error, "the application's record can't be written: retrying");
            }
            Err(CommitError::TooLarge(error)) => return Err(NotCommitted::TooLarge(error)),
            Err(CommitError::NotApplied | CommitError::Unknown) => {
                return Err(NotCommitted::TermOver);
            }
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// The pauses between an application's retries at its own cluster.
pub(super) fn retries() -> Backoff {
    Backoff::new(Duration::from_millis(50), Duration::from_secs(2))
}
