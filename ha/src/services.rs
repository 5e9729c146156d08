//! Opens a [`Backend`], with retries: the election, the records and the blobs of one process.
//!
//! A store that can't be reached, or that denies access, is logged once per change of reason and tried again
//! with backoff for the life of the process: it may come back, or its password may be corrected.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use crate::backend::{Access, Backend};
use crate::blob::{BlobPlaces, BlobStore};
use crate::election::{ElectionDriver, ElectionOptions, LeaderElection, ProcessId};
use crate::error::{Error, Result};
use crate::keys::Kinds;
use crate::records::store::RecordStore;
use crate::retry::Backoff;
use crate::store::CoordinationStore;

const FIRST_RETRY: Duration = Duration::from_millis(200);
const SLOWEST_RETRY: Duration = Duration::from_secs(5);
/// Pauses between two checks for contenders.
const FIRST_POLL: Duration = Duration::from_millis(10);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// What a contending process uses.
#[derive(Debug, Clone)]
pub struct HaServices {
    /// The election; runs on a thread and a connection of its own.
    pub election: LeaderElection,
    /// The records, on another connection.
    pub store: Arc<dyn CoordinationStore>,
    /// Large objects, if there is a place for them.
    pub blobs: Option<Arc<BlobStore>>,
}

/// Opens everything for a process that contends. Retries until it succeeds.
pub async fn open(
    backend: Arc<dyn Backend>,
    kinds: Kinds,
    blobs: Option<&BlobPlaces>,
    election: &ElectionOptions,
) -> HaServices {
    let backoff = || Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    let blobs = match blobs {
        Some(places) => {
            let opening = retry_open("the blob store", backoff(), no_report, || places.open());
            Some(Arc::new(opening.await))
        }
        None => None,
    };
    let store = retry_open("the store's records", backoff(), no_report, || {
        backend.open_store(kinds, Access::Contend)
    });
    let store = store.await;
    let started = retry_open("the store's election", backoff(), no_report, || {
        let (backend, process) = (backend.clone(), election.process.clone());
        LeaderElection::start_on_thread(election.clone(), async move || {
            backend.open_election(process, Access::Contend).await
        })
    });
    let started = started.await;
    info!(store = backend.name(), process = %election.process, "connected to the store");
    HaServices {
        election: started,
        store,
        blobs,
    }
}

/// Opens the election's keys for watching only. Retries until it succeeds; `report` gets each new reason of a
/// failure.
pub async fn observe(
    backend: &Arc<dyn Backend>,
    process: &ProcessId,
    report: impl Fn(&str),
) -> Arc<dyn ElectionDriver> {
    let opening = retry_open("the store", backend.observer_backoff(), report, || {
        backend.open_election(process.clone(), Access::Observe)
    });
    opening.await
}

/// Opens the records of these kinds for a process that does not contend. One attempt.
pub async fn open_records(
    backend: &Arc<dyn Backend>,
    kinds: Kinds,
    blobs: Option<&BlobPlaces>,
) -> Result<RecordStore> {
    let store = backend.open_store(kinds, Access::Observe).await?;
    let blobs = match blobs {
        Some(places) => Some(Arc::new(places.open().await?)),
        None => None,
    };
    Ok(RecordStore::new(store, blobs, 0))
}

/// Waits, for at most `timeout`, until no process contends for the cluster any more. Returns whether that is so.
pub async fn until_no_contender(backend: &Arc<dyn Backend>, timeout: Duration) -> Result<bool> {
    let process = ProcessId::new("observer");
    let driver = backend.open_election(process, Access::Observe).await?;
    let waiting = async {
        let mut backoff = Backoff::new(FIRST_POLL, MAX_POLL_INTERVAL);
        while !driver.members().await?.is_empty() {
            tokio::time::sleep(backoff.next_delay()).await;
        }
        Ok(true)
    };
    let waited = tokio::time::timeout(timeout, waiting).await;
    driver.close().await;
    waited.unwrap_or(Ok(false))
}

/// The `report` of callers that need only the log.
fn no_report(_reason: &str) {}

/// Tries to open `what` until it succeeds. Logs each new reason of a failure, and passes it to `report`.
async fn retry_open<T, F>(
    what: &str,
    mut backoff: Backoff,
    report: impl Fn(&str),
    mut open: impl FnMut() -> F,
) -> T
where
    F: Future<Output = Result<T>>,
{
    let mut last_logged = String::new();
    loop {
        let error: Error = match open().await {
            Ok(opened) => return opened,
            Err(error) => error,
        };
        let reason = error.to_string();
        if reason != last_logged {
            warn!(%reason, "{what} can't be opened: retrying");
            report(&reason);
            last_logged = reason;
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}
