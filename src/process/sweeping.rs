//! When a term looks for what nothing points to. What that is, and how it goes, is the store's (`dispatcher/sweep.rs`).

use std::sync::Arc;
use std::time::Duration;

use tanist_ha::election::LeaderSession;
use tanist_ha::retry::Backoff;
use tracing::{debug, warn};

use super::term::{FIRST_RETRY, SLOWEST_RETRY};
use crate::dispatcher::{JobStore, JobStoreError, StorageUser};

/// How often objects that nothing points to are looked for: often where they are kept for a short time only.
const SHORTEST_SWEEP: Duration = Duration::from_millis(500);
const LONGEST_SWEEP: Duration = Duration::from_secs(3600);
/// How long after the beginning of a term the first time is, at most.
const FIRST_SWEEP: Duration = Duration::from_secs(60);

/// How often the storage of large objects is looked at, at most: whether it is there, and this cluster's alone.
const LONGEST_LOOK: Duration = Duration::from_secs(10);

fn sweep_interval(grace: Duration) -> Duration {
    (grace / 4).clamp(SHORTEST_SWEEP, LONGEST_SWEEP)
}

/// More often than is swept: who shares the storage with a copy of this cluster's store is seen before.
fn look_interval(grace: Duration) -> Duration {
    sweep_interval(grace).min(LONGEST_LOOK)
}

/// Begins the storage if that was never done, and looks at it now and then.
pub(super) async fn watch_storage(
    store: Arc<JobStore>,
    session: LeaderSession,
    user: StorageUser,
    grace: Duration,
) {
    let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    loop {
        let pause = match store.look_at_storage(&user).await {
            Ok(()) => {
                backoff.reset();
                look_interval(grace)
            }
            Err(JobStoreError::Refused(error) | JobStoreError::OutOfSpace(error)) => {
                debug!(%error, "the storage of large objects is looked at again");
                backoff.next_delay()
            }
            Err(
                JobStoreError::NotWritten | JobStoreError::Unknown | JobStoreError::NotUploaded(_),
            ) => return,
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = session.over() => return,
        }
    }
}

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
    let interval = sweep_interval(grace);
    // Also terms that are short do it.
    let mut pause = interval.min(FIRST_SWEEP);
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = session.over() => return,
        }
        pause = interval;
        match store.sweep(grace, 2 * look_interval(grace)).await {
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
