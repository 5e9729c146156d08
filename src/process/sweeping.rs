//! When a term looks for what nothing points to. What that is, and how it goes, is the store's (`dispatcher/sweep.rs`).

use std::sync::Arc;
use std::time::Duration;

use tanist_ha::election::LeaderSession;
use tanist_ha::retry::Backoff;
use tracing::warn;

use super::term::{FIRST_RETRY, SLOWEST_RETRY};
use crate::dispatcher::{JobStore, JobStoreError};

/// How often objects that nothing points to are looked for: often where they are kept for a short time only.
const SHORTEST_SWEEP: Duration = Duration::from_millis(500);
const LONGEST_SWEEP: Duration = Duration::from_secs(3600);
/// How long after the beginning of a term the first time is, at most.
const FIRST_SWEEP: Duration = Duration::from_secs(60);

/// Removes what former leaders left between the parts of a record and the record, and now and then objects that nothing points
/// to.
pub(super) async fn sweep(store: Arc<JobStore>, session: LeaderSession, grace: Duration) {
    let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    loop {
        match store.remove_orphaned_parts().await {
            Err(JobStoreError::Refused(error) | JobStoreError::OutOfSpace(error)) => {
                warn!(%error, "parts without a record can't be looked for, this is tried again");
            }
            Err(
                JobStoreError::NotWritten | JobStoreError::Unknown | JobStoreError::NotUploaded(_),
            ) => return,
            Ok(()) => break,
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_delay()) => {}
            () = session.over() => return,
        }
    }
    let interval = (grace / 4).clamp(SHORTEST_SWEEP, LONGEST_SWEEP);
    // Also terms that are short do it.
    let mut pause = interval.min(FIRST_SWEEP);
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = session.over() => return,
        }
        pause = interval;
        match store.sweep(grace).await {
            Err(JobStoreError::Refused(error) | JobStoreError::OutOfSpace(error)) => {
                warn!(%error, "objects that nothing points to can't be removed at present");
            }
            Err(
                JobStoreError::NotWritten | JobStoreError::Unknown | JobStoreError::NotUploaded(_),
            ) => return,
            Ok(_) => {}
        }
    }
}
