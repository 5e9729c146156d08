//! The cache over the memory backend, with writes and failures between any two of its reads.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use proptest::prelude::*;
use tokio::sync::watch;

use super::*;
use crate::clock::Clock;
use crate::election::{Attempt, ElectionDriver as _, Epoch, EpochRecord, LeaderKey, ProcessId};
use crate::memory::{Faults, MemoryCluster, MemoryElection, MemoryStore};
use crate::store::{
    CommitReply, CommitRequest, Fence, Guard, Limits, Page, PageToken, Touched, Write,
};

const ROOM: usize = 1 << 20;

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(kind: Kind, name: &str) -> Key {
    Key::new(kind, Name::new(name).expect("a name"))
}

fn state(name: &str) -> Key {
    key(Kind::States, name)
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
    /// Takes or deposes.
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

    /// The number under this term, as a pipeline reads it.
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

/// What happens right before one of the cache's reads.
#[derive(Debug, Clone)]
enum Act {
    Nothing,
    Commit(Term, Vec<Write>),
    Fail,
}

/// A store whose reads are counted, and met by acts.
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
        lock(&self.acts).extend(acts);
    }

    fn faults(&self) -> Faults {
        self.inner.faults()
    }

    /// What was read since the last time.
    fn reads(&self) -> Vec<&'static str> {
        std::mem::take(&mut lock(&self.reads))
    }

    async fn meet(&self, read: &'static str) -> Result<()> {
        lock(&self.reads).push(read);
        let act = lock(&self.acts).pop_front();
        match act.unwrap_or(Act::Nothing) {
            Act::Nothing => Ok(()),
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
        kinds: vec![Kind::Graphs, Kind::States, Kind::Results],
        max_bytes,
    };
    WarmCache::new(store.clone(), options, watch::Sender::default())
}

/// Follows until it stands at this number.
async fn follow_to(cache: &mut WarmCache, number: u64) {
    let mut status = cache.status.subscribe();
    let following = async {
        tokio::select! {
            never = cache.follow() => match never {},
            stands = status.wait_for(|it| it.change.is_some_and(|it| it.number == number)) => {
                stands.expect("the cache lives");
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
    for kind in [Kind::Graphs, Kind::States, Kind::Results] {
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

/// A term that has written five states, and a cache that stands there.
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

#[tokio::test(start_paused = true)]
async fn a_cache_that_stands_at_the_number_is_proven_without_a_read() {
    let (cluster, term, store, mut cache) = followed().await;
    term.put("f", "1").await;
    term.put("a", "2").await;
    follow_to(&mut cache, 7).await;
    let status = *cache.status.borrow();
    assert_eq!((status.records, status.lag()), (6, Some(0)));
    store.reads();
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.proof, Proof::Current);
    assert_eq!((proven.from_cache, proven.read), (6, 0));
    assert!(store.reads().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_was_written_between_the_last_look_and_the_deposing_is_read() {
    let (cluster, term, store, mut cache) = followed().await;
    term.put("b", "2").await;
    term.put("f", "1").await;
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.proof, Proof::CaughtUp);
    assert_eq!((proven.from_cache, proven.read), (4, 2));
    assert_eq!(store.reads(), ["touched", "get"]);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_ended_right_before_the_deposing_is_not_there_any_more() {
    let (cluster, term, _, mut cache) = followed().await;
    let ended = vec![
        Write::Delete { key: state("c") },
        put(key(Kind::Results, "c"), "finished"),
    ];
    term.commit(ended).await;
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.records.get(&state("c")), None);
    assert!(proven.records.get(&key(Kind::Results, "c")).is_some());
    assert_eq!((proven.from_cache, proven.read), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_went_and_came_again_is_the_new_one() {
    let (cluster, term, _, mut cache) = followed().await;
    term.delete("a").await;
    term.put("a", "again").await;
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.records.get(&state("a")), Some(&Bytes::from("again")));
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_younger_than_the_position_is_read_again() {
    let (cluster, term, store, mut cache) = followed().await;
    term.put("a", "2").await;
    // After the ring was read, and before the value is.
    let delete = vec![Write::Delete { key: state("a") }, put(state("b"), "2")];
    store.act([Act::Nothing, Act::Commit(term.clone(), delete)]);
    follow_to(&mut cache, 6).await;
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.proof, Proof::CaughtUp);
    assert_eq!(proven.records.get(&state("a")), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_written_while_everything_is_listed_is_not_missed() {
    let cluster = MemoryCluster::default();
    let term = Term::begin(&cluster, "first").await;
    for number in 0..9 {
        term.put(&format!("job-{number}"), "1").await;
    }
    for place in 0..6 {
        let store = Met::new(&cluster);
        let mut cache = cache_of(&store, ROOM);
        let number = term.number().await.number;
        let writes = vec![
            put(state(&format!("a-first-{place}")), "x"),
            put(state("job-4"), format!("{place}")),
            Write::Delete {
                key: state(&format!("job-{place}")),
            },
        ];
        store.act(std::iter::repeat_n(Act::Nothing, place));
        store.act([Act::Commit(term.clone(), writes)]);
        follow_to(&mut cache, number + 1).await;
        let at = term.number().await;
        assert_eq!(at.number, number + 1);
        let proven = cache
            .prove(&term.fence.incarnation, at)
            .await
            .expect("proven");
        assert_eq!(proven.proof, Proof::Current);
        assert_eq!(
            proven.records,
            stored(&cluster).await,
            "written at read {place}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_the_ring_has_left_behind_lists_again() {
    for behind in [CHANGES_RING, CHANGES_RING + 1] {
        let (cluster, term, store, mut cache) = followed().await;
        term.delete("a").await;
        for _ in 1..behind {
            term.put("b", "x").await;
        }
        let proven = taken_over(&cluster, &mut cache).await;
        if behind == CHANGES_RING {
            assert_eq!(proven.proof, Proof::CaughtUp);
            assert!(!store.reads().contains(&"list"));
        } else {
            assert_eq!(proven.proof, Proof::Listed);
            assert_eq!((proven.from_cache, proven.read), (0, 4));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_ring_that_is_passed_while_it_is_read_is_noticed() {
    let (cluster, term, store, mut cache) = followed().await;
    term.delete("a").await;
    // The watch told of one transaction; by the time its entry is read, that is another one's.
    let mut status = cache.status.subscribe();
    let many = (0..CHANGES_RING).map(|number| {
        let writes = vec![put(state("b"), number.to_string())];
        (term.clone(), writes)
    });
    let many: Vec<_> = many.collect();
    tokio::select! {
        never = cache.follow() => match never {},
        () = async {
            for (term, writes) in many {
                term.commit(writes).await;
            }
            let end = term.number().await;
            status.wait_for(|it| it.change == Some(end)).await.expect("it lives");
        } => {}
    }
    drop(store);
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.records.get(&state("a")), None);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_tells_nothing_costs_time_and_no_record() {
    let (cluster, term, store, mut cache) = followed().await;
    store.faults().watch_lag(Duration::from_secs(3600));
    term.put("a", "2").await;
    term.delete("b").await;
    let following = tokio::time::timeout(Duration::from_secs(60), cache.follow()).await;
    assert!(following.is_err());
    assert_eq!(cache.status.borrow().change.map(|it| it.number), Some(5));
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!((proven.proof, proven.read), (Proof::CaughtUp, 1));
}

#[tokio::test(start_paused = true)]
async fn records_beyond_the_bound_are_known_by_name_and_read_at_the_takeover() {
    let cluster = MemoryCluster::default();
    let term = Term::begin(&cluster, "first").await;
    let store = Met::new(&cluster);
    let mut cache = cache_of(&store, 3000);
    for number in 1..=8 {
        term.put(&format!("job-{number}"), &"x".repeat(500)).await;
        follow_to(&mut cache, number).await;
    }
    let status = *cache.status.borrow();
    assert_eq!((status.records, status.named_only), (8, 4));
    // Room for some of the others.
    term.delete("job-1").await;
    term.delete("job-2").await;
    follow_to(&mut cache, 10).await;
    let status = *cache.status.borrow();
    assert_eq!((status.records, status.named_only), (6, 2));
    assert!(status.bytes <= 3000, "{status:?}");
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.proof, Proof::Current);
    assert_eq!((proven.from_cache, proven.read), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn another_incarnation_at_the_same_number_is_read_anew() {
    let (cluster, term, _, mut cache) = followed().await;
    cluster.wipe();
    let other = Term::begin(&cluster, "other").await;
    assert_eq!(other.fence.epoch, term.fence.epoch);
    for _ in 0..5 {
        other.put("z", "1").await;
    }
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.proof, Proof::Listed);
    assert_eq!(proven.records.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_went_back_is_listed_again_by_whoever_follows() {
    let (cluster, _, _, mut cache) = followed().await;
    cluster.wipe();
    let other = Term::begin(&cluster, "other").await;
    other.put("z", "1").await;
    follow_to(&mut cache, 1).await;
    assert_eq!(cache.status.borrow().records, 1);
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!((proven.from_cache, proven.read), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_empty_store_is_nothing_to_stand_on() {
    let cluster = MemoryCluster::default();
    let store = Met::new(&cluster);
    let mut cache = cache_of(&store, ROOM);
    let following = tokio::time::timeout(Duration::from_secs(1), cache.follow()).await;
    assert!(following.is_err());
    assert_eq!(cache.status.borrow().lag(), None);
    // The first leader, with nothing to recover.
    let term = Term::begin(&cluster, "first").await;
    let at = term.number().await;
    let proven = cache
        .prove(&term.fence.incarnation, at)
        .await
        .expect("proven");
    assert!(proven.records.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_proof_gives_the_records_away_and_leaves_nothing() {
    let (cluster, term, store, mut cache) = followed().await;
    taken_over(&cluster, &mut cache).await;
    let status = *cache.status.borrow();
    assert_eq!((status.change, status.records, status.bytes), (None, 0, 0));
    drop(term);
    store.reads();
    // After the term it starts anew.
    follow_to(&mut cache, 5).await;
    assert_eq!(store.reads().first(), Some(&"guard"));
    assert_eq!(cache.status.borrow().records, 5);
}

#[tokio::test(start_paused = true)]
async fn a_number_that_moved_on_proves_nothing() {
    let (cluster, _, _, mut cache) = followed().await;
    let deposed = Term::begin(&cluster, "deposed").await;
    let at = deposed.number().await;
    let younger = Term::begin(&cluster, "younger").await;
    younger.put("a", "2").await;
    follow_to(&mut cache, 6).await;
    let proven = cache.prove(&deposed.fence.incarnation, at).await;
    assert!(proven.is_err(), "{proven:?}");
    let at = younger.number().await;
    let proven = cache
        .prove(&younger.fence.incarnation, at)
        .await
        .expect("proven");
    assert_eq!(proven.records, stored(&cluster).await);
}

#[tokio::test(start_paused = true)]
async fn a_proof_that_fails_at_any_read_succeeds_when_it_is_tried_again() {
    for failing in 0..8 {
        let (cluster, term, store, mut cache) = followed().await;
        let is_cold = failing % 2 == 0;
        if is_cold {
            cache = cache_of(&store, ROOM);
        }
        term.put("a", "2").await;
        store.act(std::iter::repeat_n(Act::Nothing, failing / 2));
        store.act([Act::Fail]);
        let successor = Term::begin(&cluster, "successor").await;
        let at = successor.number().await;
        let incarnation = &successor.fence.incarnation;
        let mut proven = cache.prove(incarnation, at).await;
        if proven.is_err() {
            proven = cache.prove(incarnation, at).await;
        }
        assert_eq!(proven.expect("proven").records, stored(&cluster).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_is_interrupted_at_any_moment_stays_right() {
    for stop_after in 0..40 {
        let (cluster, term, store, mut cache) = followed().await;
        if stop_after % 2 == 0 {
            cache = cache_of(&store, ROOM);
        }
        store.faults().delay(Duration::from_millis(10));
        term.put("a", "2").await;
        term.delete("b").await;
        let bound = Duration::from_millis(3 * stop_after);
        let _ = tokio::time::timeout(bound, cache.follow()).await;
        term.put("c", "2").await;
        taken_over(&cluster, &mut cache).await;
    }
}

#[derive(Debug, Clone)]
enum Move {
    Put(u8, usize),
    Delete(u8),
    /// A put in the middle of what the cache reads next, after so many reads.
    PutDuring(usize, u8, usize),
    FailDuring(usize),
    Follow(u64),
    Depose,
    LoseWatch(bool),
    TakeOver,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => (0_u8..6, 0_usize..700).prop_map(|(name, size)| Move::Put(name, size)),
        2 => (0_u8..6).prop_map(Move::Delete),
        3 => (0_usize..5, 0_u8..6, 0_usize..700)
            .prop_map(|(after, name, size)| Move::PutDuring(after, name, size)),
        1 => (0_usize..5).prop_map(Move::FailDuring),
        4 => (0_u64..50).prop_map(Move::Follow),
        1 => Just(Move::Depose),
        1 => any::<bool>().prop_map(Move::LoseWatch),
        1 => Just(Move::TakeOver),
    ];
    prop::collection::vec(one, 1..40)
}

async fn play(moves: Vec<Move>) {
    let cluster = MemoryCluster::default();
    let mut term = Term::begin(&cluster, "first").await;
    let store = Met::new(&cluster);
    store.faults().delay(Duration::from_millis(3));
    let mut cache = cache_of(&store, 2000);
    let value = |size: usize| vec![b'v'; size];
    for one in moves {
        match one {
            Move::Put(name, size) => {
                let write = put(state(&name.to_string()), value(size));
                term.commit(vec![write]).await;
            }
            Move::Delete(name) => {
                term.delete(&name.to_string()).await;
            }
            Move::PutDuring(after, name, size) => {
                let write = put(state(&name.to_string()), value(size));
                store.act(std::iter::repeat_n(Act::Nothing, after));
                store.act([Act::Commit(term.clone(), vec![write])]);
            }
            Move::FailDuring(after) => {
                store.act(std::iter::repeat_n(Act::Nothing, after));
                store.act([Act::Fail]);
            }
            Move::Follow(millis) => {
                let bound = Duration::from_millis(millis);
                let _ = tokio::time::timeout(bound, cache.follow()).await;
            }
            Move::Depose => {
                lock(&store.acts).clear();
                term = Term::begin(&cluster, "next").await;
            }
            Move::LoseWatch(lost) => {
                let lag = if lost { 3600 } else { 0 };
                store.faults().watch_lag(Duration::from_secs(lag));
            }
            Move::TakeOver => {
                // Whatever the deposed term still sends is refused.
                lock(&store.acts).clear();
                term = Term::begin(&cluster, "next").await;
                let at = term.number().await;
                let proven = cache
                    .prove(&term.fence.incarnation, at)
                    .await
                    .expect("proven");
                assert_eq!(proven.records, stored(&cluster).await);
            }
        }
        let status = *cache.status.borrow();
        assert!(status.bytes <= 2000 + 6 * 200, "{status:?}");
    }
    lock(&store.acts).clear();
    taken_over(&cluster, &mut cache).await;
    assert!(term.fence.epoch >= Epoch::new(1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn whatever_happens_a_proven_cache_is_what_the_store_holds(moves in moves()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(play(moves));
    }
}
