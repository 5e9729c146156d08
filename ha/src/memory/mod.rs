//! A coordination store inside the process: for tests on paused time and simulations, with faults to inject.
//!
//! Not for production: it lives as long as its [`MemoryCluster`]. Deterministic: no threads, no clock but tokio's, no
//! randomness. Handles spawn tasks, so they are made inside a tokio runtime. A dropped [`MemoryElection`] is a process
//! that died: its lease ends by itself.

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
use crate::keys::Key;
use crate::store::Limits;

/// How the memory "server" behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryOptions {
    /// How long a lease lives without renewal. It is renewed three times as often.
    pub ttl: Duration,
    /// How long a request waits for a server that can't be reached.
    pub request_timeout: Duration,
    /// What one transaction takes.
    pub limits: Limits,
    /// Whether it shows which store it is; some don't.
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

/// The "server": what all handles share. A cheap clone.
#[derive(Debug, Clone)]
pub struct MemoryCluster {
    server: Arc<Server>,
}

/// What a cluster kept at some moment ([`MemoryCluster::backup`]).
#[derive(Debug)]
pub struct Backup {
    state: state::State,
}

impl Default for MemoryCluster {
    fn default() -> MemoryCluster {
        MemoryCluster::new(MemoryOptions::default())
    }
}

impl MemoryCluster {
    /// An empty one.
    pub fn new(options: MemoryOptions) -> MemoryCluster {
        MemoryCluster {
            server: Arc::new(Server::new(options)),
        }
    }

    /// A process that contends.
    pub fn election(&self, process: ProcessId, clock: Clock) -> MemoryElection {
        MemoryElection::contender(self.link(Some(process.clone())), process, clock)
    }

    /// A process that only watches.
    pub fn observer(&self) -> MemoryElection {
        MemoryElection::observer(self.link(None))
    }

    /// A process that only watches, cut off by its partition.
    pub fn observer_of(&self, process: ProcessId) -> MemoryElection {
        MemoryElection::observer(self.link(Some(process)))
    }

    /// The records, by a connection that no partition of a process cuts.
    pub fn store(&self) -> MemoryStore {
        MemoryStore::new(self.link(None))
    }

    /// The records, by a connection of `process`, cut by its partition.
    pub fn store_of(&self, process: ProcessId) -> MemoryStore {
        MemoryStore::new(self.link(Some(process)))
    }

    /// Ends the leases of a process, as if they had not been renewed.
    pub fn expire(&self, process: &ProcessId) {
        self.server.apply(|state| {
            for nonce in state.leases_of(process) {
                state.revoke(&nonce);
            }
        });
    }

    /// A stranger puts or deletes an item by hand: no transaction tells.
    pub fn overwrite(&self, key: &Key, value: Option<Bytes>) {
        self.server.apply(|state| state.overwrite(key, value));
    }

    /// Cuts a process off: it reaches nothing, its lease is not renewed, its watches tell nothing.
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

    /// Takes the quorum away, or gives it back. Without it nothing is served and no lease ends; when it is back each
    /// lease starts again, as after a change of etcd's raft leader.
    pub fn unavailable(&self, unavailable: bool) {
        if !unavailable {
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

    /// Takes no transaction with a put any more, as etcd under its alarm NOSPACE, or takes them again.
    pub fn out_of_space(&self, out_of_space: bool) {
        self.server
            .outage
            .send_modify(|outage| outage.out_of_space = out_of_space);
    }

    /// Loses everything, leases too: what comes next is another incarnation.
    pub fn wipe(&self) {
        self.server.apply(state::State::wipe);
    }

    /// A stranger overwrites `epoch` with something that can't be read; nothing: puts back what was there.
    pub fn overwrite_epoch(&self, rubbish: Option<&str>) {
        self.server.apply(|state| state.overwrite_epoch(rubbish));
    }

    /// A stranger deletes `leader-info`.
    pub fn delete_leader_info(&self) {
        self.server.apply(state::State::forget_info);
    }

    /// A copy of all that is kept.
    pub fn backup(&self) -> Backup {
        Backup {
            state: self.server.apply(|state| state.clone()),
        }
    }

    /// Goes back to what was kept then, under the same incarnation. All leases are gone.
    pub fn restore(&self, backup: &Backup) {
        self.server.apply(|state| state.restore(&backup.state));
    }

    /// Another store with the same content, as one that was restored from a snapshot of this one: what is kept under leases is
    /// not in it, and it shows another identity, if it shows one.
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
