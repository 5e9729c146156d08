//! The backends under test: how each is opened, and what can be done to it.

mod embedded;
mod etcd;
mod gates;
mod memory;
mod network;
mod served;
mod zookeeper;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{CaseResult, Subject};

/// The backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// In this process.
    Memory,
    /// SQLite in a directory of its own.
    Embedded,
    /// Real etcd servers.
    Etcd,
    /// Real ZooKeeper servers.
    ZooKeeper,
}

/// Which servers a case needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The one that all cases share, in a namespace of its own.
    Shared,
    /// A single one of its own, to be restarted.
    Own,
    /// Three of its own.
    Ensemble,
}

/// Opens a backend in a namespace that nobody else uses.
pub(super) async fn open(
    backend: Backend,
    place: Place,
    case: &str,
) -> CaseResult<Box<dyn Subject>> {
    static NAMESPACES: AtomicU64 = AtomicU64::new(0);
    let number = NAMESPACES.fetch_add(1, Ordering::Relaxed);
    let namespace = format!("/tanist-test/{case}-{number}");
    Ok(match backend {
        Backend::Memory => Box::new(memory::MemorySubject::new()),
        Backend::Embedded => Box::new(embedded::EmbeddedSubject::new()?),
        Backend::Etcd => Box::new(etcd::open(place, namespace).await?),
        Backend::ZooKeeper => Box::new(zookeeper::open(place, namespace).await?),
    })
}

/// The lease to test with: the shortest that the store grants, or with `TANIST_TEST_ALL=1` what users get by default.
fn lease(shortest: Duration, default: Duration) -> Duration {
    let all = std::env::var_os("TANIST_TEST_ALL").is_some_and(|value| value == "1");
    if all { default } else { shortest }
}
