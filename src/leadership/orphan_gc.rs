//! When a term sweeps orphaned objects and looks at their storage. Which objects are orphans, and how they are
//! removed, is up to the store (`dispatcher/job_store/orphan_gc.rs`).

use std::sync::Arc;
use std::time::Duration;

use tanist_dispatcher::{JobStore, JobStoreError, StorageUser};
use tanist_ha::election::LeaderSession;
use tanist_ha::retry::Backoff;
use tracing::{debug, warn};

use super::term::{FIRST_RETRY, SLOWEST_RETRY};

/// Interval between two sweeps: short if orphans are kept only for a short time.
const SHORTEST_SWEEP: Duration = Duration::from_millis(500);
const LONGEST_SWEEP: Duration = Duration::from_secs(3600);
/// Maximum time from the beginning of a term to its first sweep.
const FIRST_SWEEP: Duration = Duration::from_secs(60);

/// Maximum interval between two checks that the storage of large objects is there, and this cluster's alone.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(10);

fn sweep_interval(grace: Duration) -> Duration {
    (grace / 4).clamp(SHORTEST_SWEEP, LONGEST_SWEEP)
}

/// More frequent than sweeps: a copy of this cluster's store that shares the storage is noticed before a sweep.
fn check_interval(grace: Duration) -> Duration {
    sweep_interval(grace).min(MAX_CHECK_INTERVAL)
}

/// Whether work that failed with this error is tried again. Otherwise the term is over; errors of uploads and restores
/// do not occur in this work.
fn is_tried_again(error: &JobStoreError) -> bool {
    match error {
        JobStoreError::Refused(_) | JobStoreError::OutOfSpace(_) => true,
        JobStoreError::NotWritten
        | JobStoreError::Unknown
        | JobStoreError::NotUploaded(_)
        | JobStoreError::NotRestored(_) => false,
    }
}

/// Sets up the storage if that was never done, and checks it at intervals.
pub(super) async fn watch_storage(
    store: Arc<JobStore>,
    session: LeaderSession,
    user: StorageUser,
    grace: Duration,
) {
    let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    loop {
        let pause = match store.storage().check(&user).await {
            Ok(()) => {
                backoff.reset();
                check_interval(grace)
            }
            Err(error) if is_tried_again(&error) => {
                debug!(%error, "the storage of large objects can't be checked: retrying");
                backoff.next_delay()
            }
            Err(_) => return,
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = session.over() => return,
        }
    }
}

/// Removes the chunks that former leaders left without a record, and at intervals orphaned objects.
pub(super) async fn sweep(store: Arc<JobStore>, session: LeaderSession, grace: Duration) {
    let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    loop {
        match store.orphan_gc().remove_chunks().await {
            Err(error) if is_tried_again(&error) => {
                warn!(%error, "chunks without a record can't be searched: retrying");
            }
            Err(_) => return,
            Ok(()) => break,
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_delay()) => {}
            () = session.over() => return,
        }
    }
    let interval = sweep_interval(grace);
    // Short terms sweep too.
    let mut pause = interval.min(FIRST_SWEEP);
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = session.over() => return,
        }
        pause = interval;
        match store
            .orphan_gc()
            .sweep(grace, 2 * check_interval(grace))
            .await
        {
            Err(error) if is_tried_again(&error) => {
                warn!(%error, "orphaned objects can't be removed: retrying");
            }
            Err(_) => return,
            Ok(_) => {}
        }
    }
}
