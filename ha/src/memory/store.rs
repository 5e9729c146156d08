//! The records part of the memory backend. A handle has its connection and a copy of the last change number; the
//! records are in the server ([`super::state`]).

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::link::{Faults, Link, STORE};
use crate::error::{Error, Result};
use crate::keys::{CHANGES_RING, Key, Kind, Kinds};
use crate::store::{
    Change, CommitReply, CommitRequest, CoordinationStore, Guard, Limits, Page, PageToken, Touched,
};

/// The records handle on a [`MemoryCluster`](super::MemoryCluster).
#[derive(Debug)]
pub struct MemoryStore {
    link: Arc<Link>,
    /// `None`: any kind.
    kinds: Option<Kinds>,
    changes: watch::Receiver<Option<Change>>,
    /// Ends the task when dropped.
    _tasks: JoinSet<()>,
}

impl MemoryStore {
    pub(super) fn new(link: Arc<Link>, kinds: Option<Kinds>) -> MemoryStore {
        let (sender, changes) = watch::channel(None);
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&link).follow(link.server.change.subscribe(), sender));
        MemoryStore {
            link,
            kinds,
            changes,
            _tasks: tasks,
        }
    }

    /// Controls the faults of this handle's requests.
    pub fn faults(&self) -> Faults {
        Faults::of(&self.link)
    }

    fn check(&self, kinds: impl IntoIterator<Item = Kind>) -> Result<()> {
        self.kinds.map_or(Ok(()), |declared| declared.check(kinds))
    }
}

#[async_trait]
impl CoordinationStore for MemoryStore {
    fn limits(&self) -> Limits {
        self.link.server.options.limits
    }

    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Bytes>>> {
        self.check(keys.iter().map(|key| key.kind))?;
        self.link.get(|state| state.get(keys)).await
    }

    async fn list(&self, kind: Kind, page: Option<PageToken>, limit: usize) -> Result<Page> {
        self.check([kind])?;
        let after = page.map(|page| page.after);
        self.link
            .read(|state| state.list(kind, after.as_ref(), limit))
            .await
    }

    async fn guard(&self) -> Result<Guard> {
        self.link.read(|state| state.guard()).await
    }

    fn changes(&self) -> watch::Receiver<Option<Change>> {
        self.changes.clone()
    }

    async fn touched(&self, first: u64, last: u64) -> Result<Vec<Option<Touched>>> {
        let last = last.min(first.saturating_add(CHANGES_RING - 1));
        self.link.read(|state| state.touched(first, last)).await
    }

    async fn commit(&self, request: &CommitRequest) -> Result<CommitReply> {
        self.check(request.kinds())?;
        self.limits().check(STORE, &request.writes)?;
        if self.link.server.outage.borrow().out_of_space {
            self.link.reachable().await;
            return Err(Error::OutOfSpace {
                store: STORE,
                reason: "a test filled it".to_owned(),
            });
        }
        let request = request.clone();
        self.link.write(move |state| state.commit(&request)).await
    }

    async fn delete_unnumbered(&self, request: &CommitRequest) -> Result<CommitReply> {
        self.check(request.kinds())?;
        let request = request.clone();
        self.link
            .write(move |state| state.delete_unnumbered(&request))
            .await
    }
}
