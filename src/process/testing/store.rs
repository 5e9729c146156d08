//! The memory store as one life of a JobManager uses it: transactions are recorded, and each may be its last
//! step.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tanist_ha::keys::{Key, Kind};
use tanist_ha::memory::MemoryStore;
use tanist_ha::store::{
    Change, CommitReply, CommitRequest, CoordinationStore, Guard, Limits, Page, PageToken, Touched,
    Verdict,
};
use tanist_ha::{Error, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::history::{Event, Record};
use super::random_faults::Fate;
use super::reached::Landmark;
use super::world::{Step, World, process_of};

#[derive(Debug)]
pub(crate) struct ObservedStore {
    pub inner: MemoryStore,
    /// Delivers late transactions, also after the death of their sender.
    pub late: Arc<MemoryStore>,
    pub world: World,
    pub life: String,
}

impl ObservedStore {
    /// Returns only if the process lives, and not while it is frozen.
    async fn alive(&self) {
        let way = self.world.store_delay();
        if !way.is_zero() {
            tokio::time::sleep(way).await;
        }
        self.goes_on().await;
    }

    async fn goes_on(&self) {
        self.world.goes_on(process_of(&self.life)).await;
        if self.world.is_dead(&self.life) {
            std::future::pending().await
        }
    }

    /// Delivers a copy of a transaction after this time.
    fn send_late(
        &self,
        request: &CommitRequest,
        after: Duration,
    ) -> JoinHandle<Result<CommitReply>> {
        let (store, world, request) = (self.late.clone(), self.world.clone(), request.clone());
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let reply = store.commit(&request).await;
            note(&world, &request, reply.as_ref().ok());
            reply
        })
    }
}

/// Records what the store did.
fn note(world: &World, request: &CommitRequest, reply: Option<&CommitReply>) {
    match reply {
        Some(CommitReply::Applied) => world.note(Event::Committed {
            epoch: request.fence.epoch.get(),
            records: request.writes.iter().map(Record::of).collect(),
        }),
        Some(CommitReply::Refused(guard)) => {
            if matches!(guard.verdict(request), Verdict::Fenced(_)) {
                world.reached.note(Landmark::WriteOfDeposedTermRefused);
                if guard.change == request.after && guard.leader_present {
                    world.reached.note(Landmark::WriteRefusedByEpochAlone);
                }
            }
        }
        None => {}
    }
}

fn no_answer<T>(reason: &str) -> Result<T> {
    Err(Error::NoAnswer {
        store: "the memory store",
        reason: reason.to_owned(),
    })
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
        if let Some(time) = self.world.held_write() {
            // It arrives even if its sender does not wait for it any more.
            let arrived = self.send_late(request, time).await;
            self.goes_on().await;
            return arrived.unwrap_or_else(|_| no_answer("it was delayed"));
        }
        self.alive().await;
        let fate = self.world.fate();
        match fate {
            Fate::IsDuplicated(after) => drop(self.send_late(request, after)),
            Fate::ComesLate(after) => {
                drop(self.send_late(request, after));
                return no_answer("it is late");
            }
            Fate::Passes | Fate::LosesReply => {}
        }
        let reply = self.inner.commit(request).await;
        note(&self.world, request, reply.as_ref().ok());
        let is_applied = matches!(reply, Ok(CommitReply::Applied));
        if is_applied && !self.world.takes(&self.life, &Step::Committed(&records)) {
            return std::future::pending().await;
        }
        self.goes_on().await;
        if is_applied && fate == Fate::LosesReply {
            return no_answer("it was lost");
        }
        reply
    }

    async fn delete_unnumbered(&self, request: &CommitRequest) -> Result<CommitReply> {
        self.alive().await;
        self.inner.delete_unnumbered(request).await
    }
}
