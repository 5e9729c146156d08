//! The backends under test: how each is opened, and its operations. Each case owns its subject; cases with
//! [`Place::Shared`] share a server, each in its own namespace.

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
    /// SQLite in its own directory.
    Embedded,
    /// Real etcd servers.
    Etcd,
    /// Real ZooKeeper servers.
    ZooKeeper,
}

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

/// Opens a backend in a namespace that no other case uses.
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

/// The lease for the test: the shortest that the store grants, or with `TANIST_TEST_ALL=1` the users'
/// default.
fn lease(shortest: Duration, default: Duration) -> Duration {
    let all = std::env::var_os("TANIST_TEST_ALL").is_some_and(|value| value == "1");
    if all { default } else { shortest }
}
