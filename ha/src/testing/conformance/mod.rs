//! The conformance suite: the required behaviour of every backend, each case written once, over [`Subject`].
//!
//! A case is an async function over a subject; `tests/conformance.rs` generates a test for each case and
//! backend. Cases depend only on their own subject, so they run in parallel; cases that break servers get
//! their own servers. Cases wait for states that the backend must reach, never for a fixed time, and expect
//! nothing of a busy machine but progress: a lease that ends because its renewal was starved fails no case.

pub mod ambiguity;
pub mod caches;
pub mod chunks;
pub mod fencing;
pub mod foreign_writes;
pub(crate) mod gates;
pub mod kinds;
pub mod late_duplicates;
pub mod mutual_exclusion;
pub(crate) mod network;
pub mod outages;
mod process;
pub mod resign;
pub mod scale;
pub(crate) mod served;
pub mod sessions;
pub mod watches;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::LocalBoxFuture;

pub use self::process::{Process, key, names, put, put_bytes, raw, read_item, until_definite};
use crate::election::{ElectionDriver, ProcessId};
use crate::error::Result;
use crate::keys::Key;
use crate::store::CoordinationStore;

/// The result of a case. Cases check their expectations with assertions.
pub type CaseResult<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Longer than any lease, server start and backoff here.
pub const BOUND: Duration = Duration::from_secs(60);

/// The servers that a case needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The server that all cases share, in a separate namespace.
    Shared,
    /// A separate server, which may be restarted.
    Own,
    /// Three separate servers.
    Ensemble,
}

/// Opens the election part of a process; called on the process's own thread.
pub type OpenElection =
    Box<dyn FnOnce() -> LocalBoxFuture<'static, Result<Arc<dyn ElectionDriver>>> + Send>;

/// A backend under test: one of its namespaces, and the operations on it.
///
/// An operation that does not exist for a store does nothing there, which its implementation documents: the
/// case then shows that its claim holds anyway.
#[async_trait(?Send)]
pub trait Subject: fmt::Debug + Send + Sync {
    /// Lifetime of its leases or sessions without renewal; `None`: the lifetime of the process.
    fn lease(&self) -> Option<Duration>;

    /// Opens the election part of a contending process.
    async fn contender(&self, process: &ProcessId) -> CaseResult<OpenElection>;

    /// The election part of a process that only observes.
    async fn observer(&self, process: &ProcessId) -> CaseResult<Arc<dyn ElectionDriver>>;

    /// The records part of a process.
    async fn store(&self, process: &ProcessId) -> CaseResult<Arc<dyn CoordinationStore>>;

    /// Stops the upkeep of a contending process, as if its thread were starved: no part of its election runs.
    async fn stop(&self, process: &ProcessId);

    /// Ends [`Subject::stop`].
    async fn cont(&self, process: &ProcessId);

    /// Makes the following drop of the process look like a kill: the store is not notified.
    async fn crash(&self, process: &ProcessId);

    /// Cuts a process off from the store silently: no data arrives, no connection ends.
    async fn isolate(&self, process: &ProcessId);

    /// Ends [`Subject::isolate`].
    async fn heal(&self, process: &ProcessId);

    /// Breaks all connections of a process once.
    async fn interrupt(&self, process: &ProcessId);

    /// Deletes the key `leader`, like another writer.
    async fn delete_leader(&self) -> CaseResult;

    /// Overwrites or deletes a fixed key, like another writer. The text of its record restores `epoch`; any
    /// other text is unreadable.
    async fn overwrite(&self, path: &str, value: Option<&str>) -> CaseResult;

    /// Puts or deletes an item like another writer, without a change number.
    async fn write_by_hand(&self, key: &Key, value: Option<&[u8]>) -> CaseResult;

    /// Removes the quorum.
    async fn lose_quorum(&self) -> CaseResult;

    /// Restores the quorum.
    async fn regain_quorum(&self) -> CaseResult;

    /// Kills the server, or all servers, and starts them again with their data.
    async fn restart(&self) -> CaseResult;

    /// Kills the server, or all servers, and starts them again without their data.
    async fn restart_wiped(&self) -> CaseResult;
}

/// Runs a case on a backend, within a timeout. Panics if it fails.
pub async fn run(
    backend: &str,
    open: impl AsyncFnOnce(Place, String) -> CaseResult<Box<dyn Subject>>,
    place: Place,
    name: &str,
    case: impl AsyncFnOnce(&dyn Subject) -> CaseResult,
) {
    static NAMESPACES: AtomicU64 = AtomicU64::new(0);
    let number = NAMESPACES.fetch_add(1, Ordering::Relaxed);
    let subject = match open(place, format!("/tanist-test/{name}-{number}")).await {
        Ok(subject) => subject,
        Err(error) => panic!("{backend} can't be tested: {error}"),
    };
    match tokio::time::timeout(BOUND * 4, case(&*subject)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => panic!("{name} on {backend}: {error}"),
        Err(_) => panic!("{name} on {backend} does not end"),
    }
}

/// The lease for the test: the shortest that the store grants, or with `TANIST_TEST_ALL=1` the users'
/// default.
pub(crate) fn lease(shortest: Duration, default: Duration) -> Duration {
    let all = std::env::var_os("TANIST_TEST_ALL").is_some_and(|value| value == "1");
    if all { default } else { shortest }
}
