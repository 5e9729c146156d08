//! The conformance suite: what every backend must do, each case written once, over [`Subject`].
//!
//! A case is an async function over a subject; `tests/conformance.rs` makes a test of each case and backend. Cases rely
//! on nothing but their own subject, so they run in parallel; those that break servers get servers of their own. The
//! cases wait on what the backend must reach, never on the clock, and don't expect more of a busy machine than that
//! things happen at all: a lease that ends because nobody had time to renew it fails no case.

pub mod ambiguity;
pub mod caches;
pub mod fencing;
pub mod late_twins;
pub mod mutual_exclusion;
pub mod outages;
pub mod parts;
mod process;
pub mod resign;
pub mod scale;
pub mod sessions;
pub mod strangers;
pub mod subjects;
pub mod watches;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::LocalBoxFuture;

pub use self::process::{Process, key, names, put, put_bytes, raw, read_item, settled};
pub use self::subjects::{Backend, Place};
use crate::election::{ElectionDriver, ProcessId};
use crate::error::Result;
use crate::keys::Key;
use crate::store::CoordinationStore;

/// What a case returns. What it expects, it asserts.
pub type CaseResult<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Longer than any lease, any start of a server and any backoff here.
pub const BOUND: Duration = Duration::from_secs(60);

/// Opens the election's half of a process; run on the process's own thread.
pub type OpenElection =
    Box<dyn FnOnce() -> LocalBoxFuture<'static, Result<Arc<dyn ElectionDriver>>> + Send>;

/// A backend under test: one namespace of it, and what can be done to it.
///
/// What a store has no notion of does nothing there, and says so at its implementation: the case then shows that its
/// claim holds all the same.
#[async_trait(?Send)]
pub trait Subject: fmt::Debug + Send + Sync {
    /// How long its leases or sessions last without renewal; `None`: as long as the process lives.
    fn lease(&self) -> Option<Duration>;

    /// How a process that contends opens the election's half.
    async fn contender(&self, process: &ProcessId) -> CaseResult<OpenElection>;

    /// The election's half of a process that only watches.
    async fn observer(&self, process: &ProcessId) -> CaseResult<Arc<dyn ElectionDriver>>;

    /// The records' half of a process.
    async fn store(&self, process: &ProcessId) -> CaseResult<Arc<dyn CoordinationStore>>;

    /// Stops the upkeep of a contending process, as if its thread got no time: nothing of its election goes on.
    async fn stop(&self, process: &ProcessId);

    /// Ends [`Subject::stop`].
    async fn cont(&self, process: &ProcessId);

    /// Makes what follows (the process is dropped) as if it had been killed: nothing tells the store.
    async fn crash(&self, process: &ProcessId);

    /// Cuts a process off from the store without a word: nothing arrives, no connection ends.
    async fn isolate(&self, process: &ProcessId);

    /// Ends [`Subject::isolate`].
    async fn heal(&self, process: &ProcessId);

    /// Breaks all connections of a process once.
    async fn interrupt(&self, process: &ProcessId);

    /// A stranger deletes the key `leader`.
    async fn delete_leader(&self) -> CaseResult;

    /// A stranger overwrites a fixed key, or deletes it. `epoch` is put back as it was by the text of its record; any other text
    /// can't be read.
    async fn overwrite(&self, path: &str, value: Option<&str>) -> CaseResult;

    /// A stranger puts an item, or deletes it: no transaction tells.
    async fn write_by_hand(&self, key: &Key, value: Option<&[u8]>) -> CaseResult;

    /// Takes the quorum away.
    async fn lose_quorum(&self) -> CaseResult;

    /// Gives the quorum back.
    async fn regain_quorum(&self) -> CaseResult;

    /// Kills the server, or all of them, and starts it again with its data.
    async fn restart(&self) -> CaseResult;

    /// Kills the server, or all of them, and starts it again without its data.
    async fn restart_wiped(&self) -> CaseResult;
}

/// Runs a case on a backend, within bounds. Panics if it fails.
pub async fn run(
    backend: Backend,
    place: Place,
    name: &str,
    case: impl AsyncFnOnce(&dyn Subject) -> CaseResult,
) {
    let subject = match subjects::open(backend, place, name).await {
        Ok(subject) => subject,
        Err(error) => panic!("{backend:?} can't be tested: {error}"),
    };
    match tokio::time::timeout(BOUND * 4, case(&*subject)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => panic!("{name} on {backend:?}: {error}"),
        Err(_) => panic!("{name} on {backend:?} does not end"),
    }
}
