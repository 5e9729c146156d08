//! An in-process coordination store, for tests on paused time and simulations, with fault injection.
//!
//! Not for production: it lives as long as its [`MemoryCluster`]. Deterministic: no threads, no clock but
//! tokio's, no randomness. Handles spawn tasks, so create them inside a tokio runtime. Dropping a
//! [`MemoryElection`] simulates the death of its process: its lease expires.

mod backend;
#[cfg(feature = "testing")]
pub mod conformance;
mod election;
mod link;
mod state;
mod store;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use self::election::MemoryElection;
pub use self::link::{Faults, Held};
use self::link::{Link, Server};
pub use self::store::MemoryStore;
use crate::clock::Clock;
use crate::election::ProcessId;
use crate::keys::{Key, Kinds};
use crate::store::Limits;

/// Behaviour of the memory "server".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Lifetime of a lease without renewal. It is renewed three times within this time.
    pub ttl: Duration,
    /// Timeout of a request to an unreachable server.
    pub request_timeout: Duration,
    /// The limits of one transaction.
    pub limits: Limits,
    /// Whether it shows a store identity; not all stores do.
    pub shows_identity: bool,
}

impl Default for MemoryOptions {
    fn default() -> MemoryOptions {
        MemoryOptions {
            ttl: Duration::from_secs(5),
            request_timeout: Duration::from_secs(1),
            limits: Limits {
                writes: 120,
                bytes: 1_000_000,
            },
            shows_identity: true,
        }
    }
}

/// The "server", shared by all handles. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MemoryCluster {
    server: Arc<Server>,
}

/// The content of a cluster at some moment ([`MemoryCluster::backup`]).
#[derive(Debug)]
pub struct Backup {
    state: state::StoreState,
}

impl Default for MemoryCluster {
    fn default() -> MemoryCluster {
        MemoryCluster::new(MemoryOptions::default())
    }
}

impl MemoryCluster {
    /// An empty cluster.
    pub fn new(options: MemoryOptions) -> MemoryCluster {
        MemoryCluster {
            server: Arc::new(Server::new(options)),
        }
    }

    /// The election handle of a process that contends.
    pub fn election(&self, process: ProcessId, clock: Clock) -> MemoryElection {
        MemoryElection::contender(self.link(Some(process.clone())), process, clock)
    }

    /// The election handle of a process that only observes.
    pub fn observer(&self) -> MemoryElection {
        MemoryElection::observer(self.link(None))
    }

    /// The election handle of a process that only observes; affected by its partition.
    pub fn observer_of(&self, process: ProcessId) -> MemoryElection {
        MemoryElection::observer(self.link(Some(process)))
    }

    /// A handle to the records, of any kind, not affected by the partition of any process.
    pub fn store(&self) -> MemoryStore {
        MemoryStore::new(self.link(None), None)
    }

    /// A handle to the records, of any kind, of `process`, affected by its partition.
    pub fn store_of(&self, process: ProcessId) -> MemoryStore {
        MemoryStore::new(self.link(Some(process)), None)
    }

    /// Same as [`MemoryCluster::store_of`], for records of these kinds only.
    pub fn store_with(&self, process: ProcessId, kinds: Kinds) -> MemoryStore {
        MemoryStore::new(self.link(Some(process)), Some(kinds))
    }

    /// Expires the leases of a process.
    pub fn expire(&self, process: &ProcessId) {
        self.server.apply(|state| {
            for nonce in state.leases_of(process) {
                state.revoke(&nonce);
            }
        });
    }

    /// Puts or deletes an item like an operator by hand, without a change number.
    pub fn overwrite(&self, key: &Key, value: Option<Bytes>) {
        self.server.apply(|state| state.overwrite(key, value));
    }

    /// Cuts a process off: its requests fail, its lease is not renewed, its watches get no updates.
    pub fn partition(&self, process: &ProcessId) {
        self.server.outage.send_modify(|outage| {
            outage.partitioned.insert(process.clone());
        });
    }

    /// Ends the partition of a process.
    pub fn heal(&self, process: &ProcessId) {
        self.server.outage.send_modify(|outage| {
            outage.partitioned.remove(process);
        });
    }

    /// Removes or restores the quorum. Without it no request is served and no lease expires; when it is back,
    /// each lease restarts, like after a change of etcd's raft leader.
    pub fn unavailable(&self, unavailable: bool) {
        if !unavailable {
            // Before the quorum is back, so that no lease expires in between.
            let deadline = link::deadline(&self.server.options);
            self.server.apply(|state| {
                for lease in state.leases_mut() {
                    lease.deadline = deadline;
                }
            });
        }
        self.server
            .outage
            .send_modify(|outage| outage.quorum_lost = unavailable);
    }

    /// Starts or stops refusing transactions with a put, like etcd under its alarm NOSPACE.
    pub fn out_of_space(&self, out_of_space: bool) {
        self.server
            .outage
            .send_modify(|outage| outage.out_of_space = out_of_space);
    }

    /// Deletes everything, including leases: the next content is another incarnation.
    pub fn wipe(&self) {
        self.server.apply(state::StoreState::wipe);
    }

    /// Overwrites `epoch` with unreadable text, like another writer; `None` restores the previous value.
    pub fn overwrite_epoch(&self, rubbish: Option<&str>) {
        self.server.apply(|state| state.overwrite_epoch(rubbish));
    }

    /// Deletes `leader-info`, like another writer.
    pub fn delete_leader_info(&self) {
        self.server.apply(state::StoreState::drop_info);
    }

    /// A copy of the whole content.
    pub fn backup(&self) -> Backup {
        Backup {
            state: self.server.apply(|state| state.clone()),
        }
    }

    /// Returns to the content of the backup, under the same incarnation. All leases are gone.
    pub fn restore(&self, backup: &Backup) {
        self.server.apply(|state| state.restore(&backup.state));
    }

    /// Another store with the same content, as if restored from a snapshot of this one: without keys under
    /// leases, and with another identity, if it shows one.
    #[must_use]
    pub fn copy(&self) -> MemoryCluster {
        let copy = MemoryCluster::new(self.server.options.clone());
        copy.restore(&self.backup());
        copy
    }

    fn link(&self, process: Option<ProcessId>) -> Arc<Link> {
        Link::new(Arc::clone(&self.server), process)
    }
}
