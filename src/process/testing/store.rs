//! The memory store as one life of a JobManager uses it: transactions are written down, and each may be its last step.

use async_trait::async_trait;
use bytes::Bytes;
use tanist_ha::keys::{Key, Kind};
use tanist_ha::memory::MemoryStore;
use tanist_ha::store::{
    Change, CommitReply, CommitRequest, CoordinationStore, Guard, Limits, Page, PageToken, Touched,
};
use tanist_ha::{Error, Result};
use tokio::sync::watch;

use super::history::{Event, Record};
use super::world::{Step, World};

#[derive(Debug)]
pub struct ObservedStore {
    pub inner: MemoryStore,
    pub world: World,
    pub life: String,
}

impl ObservedStore {
    /// Returns only to the living.
    async fn alive(&self) {
        if self.world.is_dead(&self.life) {
            std::future::pending().await
        }
    }
}

#[async_trait]
impl CoordinationStore for ObservedStore {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Bytes>>> {
        self.alive().await;
        self.inner.get(keys).await
    }

    async fn list(&self, kind: Kind, page: Option<PageToken>, limit: usize) -> Result<Page> {
        self.alive().await;
        self.inner.list(kind, page, limit).await
    }

    async fn guard(&self) -> Result<Guard> {
        self.alive().await;
        self.inner.guard().await
    }

    fn changes(&self) -> watch::Receiver<Option<Change>> {
        self.inner.changes()
    }

    async fn touched(&self, first: u64, last: u64) -> Result<Vec<Option<Touched>>> {
        self.alive().await;
        self.inner.touched(first, last).await
    }

    async fn commit(&self, request: &CommitRequest) -> Result<CommitReply> {
        let records: Vec<Record> = request.writes.iter().map(Record::of).collect();
        if !self.world.takes(&self.life, &Step::Committing(&records)) {
            return std::future::pending().await;
        }
        let reply = self.inner.commit(request).await;
        if !matches!(reply, Ok(CommitReply::Applied)) {
            self.alive().await;
            return reply;
        }
        self.world.note(Event::Committed {
            epoch: request.fence.epoch.get(),
            records: records.clone(),
        });
        if !self.world.takes(&self.life, &Step::Committed(&records)) {
            return std::future::pending().await;
        }
        if self.world.loses_reply() {
            let reason = "it was lost".to_owned();
            return Err(Error::NoAnswer {
                store: "the memory store",
                reason,
            });
        }
        reply
    }

    async fn delete_unnumbered(&self, request: &CommitRequest) -> Result<CommitReply> {
        self.alive().await;
        self.inner.delete_unnumbered(request).await
    }
}
