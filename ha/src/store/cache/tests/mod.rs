//! Shared code of the cache tests: the cache over the memory backend, with writes and failures between any
//! two of its reads.

mod cases;
mod interleavings;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::*;
use crate::clock::Clock;
use crate::election::{Attempt, ElectionDriver as _, Epoch, EpochRecord, LeaderKey, ProcessId};
use crate::memory::{Faults, MemoryCluster, MemoryElection, MemoryStore};
use crate::store::{
    CommitReply, CommitRequest, Fence, Guard, Limits, Page, PageToken, Touched, Write,
};
use crate::testing::kinds::{DOCUMENTS, ITEMS, REPORTS};

const ROOM: usize = 1 << 20;

fn key(kind: Kind, name: &str) -> Key {
    Key::new(kind, Name::new(name).expect("a name"))
}

fn state(name: &str) -> Key {
    key(ITEMS, name)
}

fn put(key: Key, value: impl AsRef<[u8]>) -> Write {
    let value = Bytes::copy_from_slice(value.as_ref());
    Write::Put { key, value }
}

/// A term that writes.
#[derive(Debug, Clone)]
struct Term {
    store: Arc<MemoryStore>,
    fence: Fence,
    _election: Arc<MemoryElection>,
}

impl Term {
    /// Takes leadership or deposes.
    async fn begin(cluster: &MemoryCluster, name: &str) -> Term {
        let process = ProcessId::new(name);
        let election = cluster.election(process.clone(), Clock::tokio());
        let mut session = election.session();
        let alive = session.wait_for(|state| state.nonce().is_some()).await;
        let nonce = alive
            .expect("it lives")
            .nonce()
            .cloned()
            .expect("waited for");
        let seen = election.read().await.expect("read");
        let known = seen.epoch.as_ref().map(|(record, _)| &record.incarnation);
        let next = EpochRecord {
            epoch: seen.youngest().next(),
            incarnation: known.cloned().unwrap_or_else(ClusterIncarnation::generate),
            holder: None,
            store: None,
        };
        let leader = LeaderKey {
            epoch: next.epoch,
            process,
            nonce,
        };
        let attempt = election.advance(&seen, &next, &leader).await;
        let Ok(Attempt::Applied(token)) = attempt else {
            panic!("{attempt:?}")
        };
        Term {
            store: Arc::new(cluster.store()),
            fence: Fence {
                epoch: next.epoch,
                token,
                incarnation: next.incarnation,
            },
            _election: Arc::new(election),
        }
    }

    /// The change number under this term, as a pipeline reads it.
    async fn number(&self) -> Change {
        let guard = self.store.guard().await.expect("guard");
        assert_eq!(guard.epoch.expect("led").0, self.fence.epoch);
        guard.change
    }

    async fn commit(&self, writes: Vec<Write>) -> Change {
        let request = CommitRequest {
            fence: self.fence.clone(),
            after: self.store.guard().await.expect("guard").change,
            writes,
        };
        let reply = self.store.commit(&request).await.expect("commit");
        assert_eq!(reply, CommitReply::Applied);
        request.change()
    }

    async fn put(&self, name: &str, value: &str) -> Change {
        self.commit(vec![put(state(name), value)]).await
    }

    async fn delete(&self, name: &str) -> Change {
        self.commit(vec![Write::Delete { key: state(name) }]).await
    }
}

/// An action right before one of the cache's reads.
#[derive(Debug, Clone)]
enum Act {
    Nothing,
    Commit(Term, Vec<Write>),
    Fail,
    /// The read is never answered.
    Hang,
}

/// A store that counts its reads and runs an action before each.
#[derive(Debug)]
struct Met {
    inner: MemoryStore,
    acts: Mutex<VecDeque<Act>>,
    reads: Mutex<Vec<&'static str>>,
}

impl Met {
    fn new(cluster: &MemoryCluster) -> Arc<Met> {
        Arc::new(Met {
            inner: cluster.store(),
            acts: Mutex::default(),
            reads: Mutex::default(),
        })
    }

    fn act(&self, acts: impl IntoIterator<Item = Act>) {
        self.acts.lock().extend(acts);
    }

    /// Cancels the actions that have not run yet.
    fn act_no_more(&self) {
        self.acts.lock().clear();
    }

    fn faults(&self) -> Faults {
        self.inner.faults()
    }

    /// The reads since the last call.
    fn reads(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.reads.lock())
    }

    async fn meet(&self, read: &'static str) -> Result<()> {
        self.reads.lock().push(read);
        let act = self.acts.lock().pop_front();
        match act.unwrap_or(Act::Nothing) {
            Act::Nothing => Ok(()),
            Act::Hang => std::future::pending().await,
            Act::Commit(term, writes) => {
                term.commit(writes).await;
                Ok(())
            }
            Act::Fail => Err(Error::Unavailable {
                store: "the memory store",
                reason: "as the test wants it".to_owned(),
            }),
        }
    }
}

#[async_trait]
impl CoordinationStore for Met {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Bytes>>> {
        self.meet("get").await?;
        self.inner.get(keys).await
    }

    async fn list(&self, kind: Kind, page: Option<PageToken>, limit: usize) -> Result<Page> {
        self.meet("list").await?;
        // Small pages, so that more can happen between them.
        self.inner.list(kind, page, limit.min(3)).await
    }

    async fn guard(&self) -> Result<Guard> {
        self.meet("guard").await?;
        self.inner.guard().await
    }

    fn changes(&self) -> watch::Receiver<Option<Change>> {
        self.inner.changes()
    }

    async fn touched(&self, first: u64, last: u64) -> Result<Vec<Option<Touched>>> {
        self.meet("touched").await?;
        self.inner.touched(first, last).await
    }

    async fn commit(&self, request: &CommitRequest) -> Result<CommitReply> {
        self.inner.commit(request).await
    }
}

fn cache_of(store: &Arc<Met>, max_bytes: usize) -> WarmCache {
    let options = CacheOptions {
        kinds: vec![DOCUMENTS, ITEMS, REPORTS],
        max_bytes,
        compare_interval: Duration::from_secs(60),
    };
    WarmCache::new(store.clone(), options, watch::Sender::default())
}

/// Follows until the cache is at this number.
async fn follow_to(cache: &mut WarmCache, number: u64) {
    let mut status = cache.status.subscribe();
    let following = async {
        tokio::select! {
            never = cache.follow() => match never {},
            position = status.wait_for(|it| it.change.is_some_and(|it| it.number == number)) => {
                position.expect("the cache lives");
            }
        }
    };
    let followed = tokio::time::timeout(Duration::from_secs(600), following).await;
    assert!(followed.is_ok(), "{cache:?} does not come to {number}");
}

/// All records of the cache's kinds, as the store has them.
async fn stored(cluster: &MemoryCluster) -> Records {
    let store = cluster.store();
    let mut all = BTreeMap::new();
    for kind in [DOCUMENTS, ITEMS, REPORTS] {
        let page = store.list(kind, None, usize::MAX).await.expect("list");
        let items = page.items.into_iter();
        all.extend(items.map(|(name, value)| (Key::new(kind, name), value)));
    }
    Records { all }
}

/// Another term begins and proves the cache.
async fn taken_over(cluster: &MemoryCluster, cache: &mut WarmCache) -> Proven {
    let term = Term::begin(cluster, "successor").await;
    let at = term.number().await;
    let proven = cache
        .prove(&term.fence.incarnation, at)
        .await
        .expect("proven");
    assert_eq!(proven.records, stored(cluster).await);
    assert_eq!(proven.from_cache + proven.read, proven.records.len());
    proven
}

/// A term that has written five records, and a cache that is at its number.
async fn followed() -> (MemoryCluster, Term, Arc<Met>, WarmCache) {
    let cluster = MemoryCluster::default();
    let term = Term::begin(&cluster, "first").await;
    for name in ["a", "b", "c", "d", "e"] {
        term.put(name, "1").await;
    }
    let store = Met::new(&cluster);
    let mut cache = cache_of(&store, ROOM);
    follow_to(&mut cache, 5).await;
    store.reads();
    (cluster, term, store, cache)
}
