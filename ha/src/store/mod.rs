//! The records of a cluster in a coordination store: read, list, follow, and commit under a fence.
//!
//! [`CoordinationStore`] is what each backend implements: single attempts, no decisions. What a term writes goes through
//! the [`pipeline`], which orders all of it by the change number and settles ambiguous answers.
//!
//! Invariants: no transaction of a term is applied after a younger term began (the fence); no transaction is applied
//! twice, however often it is sent (the change number).

pub mod cache;
pub mod feed;
pub mod health;
pub mod pipeline;

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::election::{ClusterIncarnation, Epoch, EpochToken};
use crate::error::{Error, Result};
use crate::keys::{Key, Kind, Name};
use crate::store::health::StoreHealth;

/// How many items are listed at once where only their names are wanted, and the backend has no other way.
const NAMES_AT_ONCE: usize = 500;

/// What lets a term write: `epoch` is still at the token, in this incarnation of the cluster, and `leader` is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// The term's epoch.
    pub epoch: Epoch,
    /// The guard of its writes.
    pub token: EpochToken,
    /// The cluster's incarnation. Backends whose token could repeat after the store was wiped check it as well.
    pub incarnation: ClusterIncarnation,
}

/// The value of the key `changes`: number and epoch of the last committed transaction. Number 0: none yet.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Change {
    /// Counts transactions of all terms.
    pub number: u64,
    /// The term that committed it.
    pub epoch: Epoch,
}

/// The value of a key `changes/<n>`: what a transaction touched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touched {
    /// The transaction.
    pub change: Change,
    /// The keys it put or deleted, as `<kind>/<name>`.
    pub keys: Vec<String>,
}

/// One write of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Creates the item or replaces its value.
    Put {
        /// Which item.
        key: Key,
        /// Its value.
        value: Bytes,
    },
    /// Removes the item; nothing happens if it is not there.
    Delete {
        /// Which item.
        key: Key,
    },
}

impl Write {
    /// The item it touches.
    pub fn key(&self) -> &Key {
        match self {
            Write::Put { key, .. } | Write::Delete { key } => key,
        }
    }

    /// Bytes it takes in a request, about.
    pub fn size(&self) -> usize {
        let value = match self {
            Write::Put { value, .. } => value.len(),
            Write::Delete { .. } => 0,
        };
        // Key path with namespace, and framing.
        value + self.key().name.as_str().len() + 128
    }
}

/// A transaction as it is sent, and sent again unchanged until the answer is definite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRequest {
    /// Which term commits.
    pub fence: Fence,
    /// The transaction that this one follows: the value that `changes` must have.
    pub after: Change,
    /// What it writes; no key twice.
    pub writes: Vec<Write>,
}

impl CommitRequest {
    /// The value that `changes` gets.
    pub fn change(&self) -> Change {
        Change {
            number: self.after.number + 1,
            epoch: self.fence.epoch,
        }
    }

    /// The value that the ring gets.
    pub fn touched(&self) -> Touched {
        let keys = self
            .writes
            .iter()
            .map(|write| write.key().to_string())
            .collect();
        Touched {
            change: self.change(),
            keys,
        }
    }
}

/// What the guards of a transaction look at, read at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// The youngest epoch and its token; `None`: the store is empty.
    pub epoch: Option<(Epoch, EpochToken, ClusterIncarnation)>,
    /// Whether `leader` is there.
    pub leader_present: bool,
    /// The last committed transaction.
    pub change: Change,
}

/// The store's definite answer to a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitReply {
    /// Applied now.
    Applied,
    /// Not applied now: a guard did not hold. This is what they found.
    Refused(Guard),
}

/// Why a transaction was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// An earlier copy of this very transaction had been applied.
    AlreadyApplied,
    /// The term is over.
    Fenced(Epoch),
    /// The store holds another incarnation of the cluster, or none.
    OtherIncarnation(Option<ClusterIncarnation>),
    /// `leader` is gone, and nobody took: attach again, then send it again.
    Detached,
    /// Another transaction came in between, which no member of this cluster may do in this term.
    Overtaken(Change),
}

impl Guard {
    /// What a refusal of `request` means, given what its guards found.
    pub fn verdict(&self, request: &CommitRequest) -> Verdict {
        // The number carries the epoch, so it proves itself, also when the term is over by now.
        if self.change == request.change() {
            return Verdict::AlreadyApplied;
        }
        let Some((epoch, token, incarnation)) = &self.epoch else {
            return Verdict::OtherIncarnation(None);
        };
        if *incarnation != request.fence.incarnation {
            return Verdict::OtherIncarnation(Some(incarnation.clone()));
        }
        if *token != request.fence.token {
            return Verdict::Fenced(*epoch);
        }
        if !self.leader_present {
            return Verdict::Detached;
        }
        Verdict::Overtaken(self.change)
    }
}

/// What a backend takes in one transaction. The backend's own guards and ring entry are already subtracted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Writes.
    pub writes: usize,
    /// Bytes, as [`Write::size`] counts them.
    pub bytes: usize,
}

/// Where a listing goes on. Opaque; made by the backend that reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageToken {
    /// Items up to and including this name were listed.
    pub after: Name,
    /// The store's revision at which the listing is pinned, where the store can do that (etcd).
    pub revision: Option<i64>,
}

/// A part of a listing, ordered by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// Items with their values.
    pub items: Vec<(Name, Bytes)>,
    /// Where to go on; `None`: that was all.
    pub next: Option<PageToken>,
}

/// The records' half of a backend. Opened once a process, on a connection of its own.
#[async_trait]
pub trait CoordinationStore: Send + Sync + fmt::Debug + 'static {
    /// What one transaction takes.
    fn limits(&self) -> Limits;

    /// The values of `keys`, in their order: linearizable, but each value for itself.
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Bytes>>>;

    /// The items of a kind, at most `limit` of them, from `page` on. Items that are written while a listing goes on may
    /// or may not be in it; whoever needs an exact state compares the change number before and after.
    async fn list(&self, kind: Kind, page: Option<PageToken>, limit: usize) -> Result<Page>;

    /// The keys of all items of these kinds, by kind and name: no more of it is exact than of [`CoordinationStore::list`].
    async fn keys(&self, kinds: &[Kind]) -> Result<Vec<Key>> {
        let mut keys = Vec::new();
        for kind in kinds {
            let mut page = None;
            loop {
                let listed = self.list(*kind, page, NAMES_AT_ONCE).await?;
                let names = listed.items.into_iter().map(|(name, _)| name);
                keys.extend(names.map(|name| Key::new(*kind, name)));
                page = listed.next;
                if page.is_none() {
                    break;
                }
            }
        }
        Ok(keys)
    }

    /// What the guards of a transaction would find: linearizable.
    async fn guard(&self) -> Result<Guard>;

    /// The last committed transaction, followed through every reconnect; `None` until first read. A level: numbers in
    /// between may be skipped, see [`CoordinationStore::touched`].
    fn changes(&self) -> watch::Receiver<Option<Change>>;

    /// The ring's entries for the transactions `first..=last` (at most 1024), in order; `None` where the ring has
    /// gone on and the entry is another transaction's.
    async fn touched(&self, first: u64, last: u64) -> Result<Vec<Option<Touched>>>;

    /// Tries the transaction once: fence and number checked, writes applied, `changes` and its ring set, all or
    /// nothing.
    async fn commit(&self, request: &CommitRequest) -> Result<CommitReply>;

    /// Tries once to make the deletions of a request under its guards, without taking its number: for a store that is out
    /// of space, and still deletes. An error where that is not so.
    async fn delete_unnumbered(&self, request: &CommitRequest) -> Result<CommitReply> {
        let _ = request;
        Err(Error::OutOfSpace {
            store: "the store",
            reason: "it deletes nothing either".to_owned(),
        })
    }

    /// How the store is: at least how long a linearizable read takes. An error: it does not answer that.
    async fn health(&self) -> Result<StoreHealth> {
        let asked = Instant::now();
        self.guard().await?;
        Ok(StoreHealth {
            latency: asked.elapsed(),
            ..StoreHealth::default()
        })
    }

    /// What a leader must be allowed in the store and this process is not, in words. Changes nothing.
    async fn lacking_permissions(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}
