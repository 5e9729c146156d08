//! The records of a cluster in a coordination store: read, list, watch, and commit under a fence.
//!
//! Each backend implements [`CoordinationStore`]: single attempts, no decisions. Writes of a term go through
//! the [`pipeline`], which orders them by change number and resolves ambiguous answers.
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

/// Items per listing request when only names are needed and the backend has no cheaper way.
const NAMES_AT_ONCE: usize = 500;

/// The condition under which a term may write: `epoch` is still at the token, in this incarnation of the
/// cluster, and `leader` is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// The term's epoch.
    pub epoch: Epoch,
    /// The guard of its writes.
    pub token: EpochToken,
    /// The cluster's incarnation. Checked by backends whose token could repeat after the store was wiped.
    pub incarnation: ClusterIncarnation,
}

/// The value of the key `changes`: number and epoch of the last committed transaction. Number 0: none yet.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Change {
    /// Number of the transaction, counted across all terms.
    pub number: u64,
    /// The term that committed it.
    pub epoch: Epoch,
}

/// The value of a key `changes/<n>`: the keys that a transaction touched.
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
        /// The item.
        key: Key,
        /// Its value.
        value: Bytes,
    },
    /// Removes the item; nothing happens if it is not there.
    Delete {
        /// The item.
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

    /// Approximate size in a request, in bytes.
    pub fn size(&self) -> usize {
        let value = match self {
            Write::Put { value, .. } => value.len(),
            Write::Delete { .. } => 0,
        };
        // Key path with namespace, and framing.
        value + self.key().name.as_str().len() + 128
    }
}

/// A transaction, sent unchanged until the answer is definite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRequest {
    /// The fence of the committing term.
    pub fence: Fence,
    /// The transaction that this one follows: the required value of `changes`.
    pub after: Change,
    /// The writes; no key twice.
    pub writes: Vec<Write>,
}

impl CommitRequest {
    /// The new value of `changes`.
    pub fn change(&self) -> Change {
        Change {
            number: self.after.number + 1,
            epoch: self.fence.epoch,
        }
    }

    /// The kinds of the items that it touches, once for each write.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.writes.iter().map(|write| write.key().kind)
    }

    /// The new ring entry.
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

/// The keys that the guards of a transaction check, read at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// The youngest epoch, its token and the incarnation; `None`: the store is empty.
    pub epoch: Option<(Epoch, EpochToken, ClusterIncarnation)>,
    /// Whether `leader` is there.
    pub leader_present: bool,
    /// The last committed transaction.
    pub change: Change,
}

/// The store's definite answer to a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitReply {
    /// Applied by this request.
    Applied,
    /// Not applied by this request: a guard did not hold. Contains the values that the guards found.
    Refused(Guard),
}

/// The reason why a transaction was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// An earlier copy of this transaction was already applied.
    AlreadyApplied,
    /// The term is over.
    Fenced(Epoch),
    /// The store holds another incarnation of the cluster, or none.
    OtherIncarnation(Option<ClusterIncarnation>),
    /// `leader` is missing and no other term began: attach again, then send the transaction again.
    Detached,
    /// Another transaction was committed in between. No member of this cluster may do that in this term.
    Overtaken(Change),
}

impl Guard {
    /// Returns what a refusal of `request` means, from the values that its guards found. The order matters: each
    /// check may trust only what the checks before it have shown.
    pub fn verdict(&self, request: &CommitRequest) -> Verdict {
        // First: the change contains the epoch, so it is conclusive even if the term is over by now.
        if self.change == request.change() {
            return Verdict::AlreadyApplied;
        }
        let Some((epoch, token, incarnation)) = &self.epoch else {
            return Verdict::OtherIncarnation(None);
        };
        // Before the token: tokens repeat in another incarnation.
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

/// The limits of a backend's transaction. The backend's own guards and ring entry are already subtracted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Writes.
    pub writes: usize,
    /// Bytes, as [`Write::size`] counts them.
    pub bytes: usize,
}

impl Limits {
    /// Checks that a transaction is within them. `store` is the name of the store.
    pub fn check(self, store: &'static str, writes: &[Write]) -> Result<()> {
        let size: usize = writes.iter().map(Write::size).sum();
        if size > self.bytes {
            return Err(Error::TooLarge {
                store,
                what: "a transaction",
                size,
                limit: self.bytes,
            });
        }
        if writes.len() > self.writes {
            return Err(Error::TooManyWrites {
                store,
                writes: writes.len(),
                limit: self.writes,
            });
        }
        Ok(())
    }
}

/// The position from which a listing continues. Opaque; made by the backend that reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageToken {
    /// Items up to and including this name were listed.
    pub after: Name,
    /// The store's revision at which the listing is pinned, if the store supports that (etcd).
    pub revision: Option<i64>,
}

/// One page of a listing, ordered by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// Items with their values.
    pub items: Vec<(Name, Bytes)>,
    /// The position of the next page; `None`: this was the last page.
    pub next: Option<PageToken>,
}

/// The records part of a backend. Opened once a process, on its own connection, with the kinds that the cluster
/// has: a call that names another kind is `Misconfigured`.
#[async_trait]
pub trait CoordinationStore: Send + Sync + fmt::Debug + 'static {
    /// The limits of one transaction.
    fn limits(&self) -> Limits;

    /// The values of `keys`, in their order. Linearizable for each value, but not one snapshot.
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Bytes>>>;

    /// The items of a kind, at most `limit` of them, starting at `page`. Items written during a listing may
    /// or may not be in it; a caller that needs an exact state compares the change number before and after.
    async fn list(&self, kind: Kind, page: Option<PageToken>, limit: usize) -> Result<Page>;

    /// The keys of all items of these kinds, by kind and name. Same consistency as
    /// [`CoordinationStore::list`].
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

    /// The values that the guards of a transaction would find: linearizable.
    async fn guard(&self) -> Result<Guard>;

    /// The last committed transaction, watched across reconnects; `None` until first read. Only the latest
    /// value: numbers in between may be skipped, see [`CoordinationStore::touched`].
    fn changes(&self) -> watch::Receiver<Option<Change>>;

    /// The ring's entries for the transactions `first..=last` (at most 1024), in order; `None` if the entry
    /// was overwritten by a later transaction.
    async fn touched(&self, first: u64, last: u64) -> Result<Vec<Option<Touched>>>;

    /// Tries the transaction once: checks fence and number, applies the writes, sets `changes` and its ring;
    /// all or nothing.
    async fn commit(&self, request: &CommitRequest) -> Result<CommitReply>;

    /// Tries once to apply the deletions of a request under its guards, without using its number. For a store
    /// that is out of space and still accepts deletions; returns an error if it does not.
    async fn delete_unnumbered(&self, request: &CommitRequest) -> Result<CommitReply> {
        let _ = request;
        Err(Error::OutOfSpace {
            store: "the store",
            reason: "it refuses deletions, too".to_owned(),
        })
    }

    /// The health of the store; at least the latency of a linearizable read. An error: the store gave no
    /// answer.
    async fn health(&self) -> Result<StoreHealth> {
        let asked = Instant::now();
        self.guard().await?;
        Ok(StoreHealth {
            latency: asked.elapsed(),
            ..StoreHealth::default()
        })
    }

    /// The permissions that a leader needs and this process lacks, in words. Changes nothing.
    async fn missing_permissions(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}
