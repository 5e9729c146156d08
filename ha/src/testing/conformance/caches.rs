//! A standby's cache follows the store, and the records proven at a takeover equal the store's.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::{BOUND, CaseResult, Process, Subject, key, put, put_bytes, until_definite};
use crate::election::{LeaderSession, ProcessId};
use crate::keys::{CHANGES_RING, Key};
use crate::store::cache::compare::{StoredNames, as_stored};
use crate::store::cache::{CacheOptions, CacheStatus, Proof, Proven, WarmCache};
use crate::store::health::ServerRole;
use crate::store::{Change, CoordinationStore, Write};
use crate::testing::kinds::{ITEMS, REPORTS};
use crate::testing::wait::wait_until;

fn delete(name: &str) -> Write {
    Write::Delete { key: key(name) }
}

fn cache_of(store: &Arc<dyn CoordinationStore>) -> (WarmCache, watch::Receiver<CacheStatus>) {
    let options = CacheOptions {
        kinds: vec![ITEMS, REPORTS],
        max_bytes: 64 << 20,
        compare_interval: Duration::from_millis(200),
    };
    let (sender, status) = watch::channel(CacheStatus::default());
    (WarmCache::new(store.clone(), options, sender), status)
}

/// Follows until the cache is at a transaction.
async fn follow_to(
    cache: &mut WarmCache,
    status: &mut watch::Receiver<CacheStatus>,
    change: Change,
) -> CaseResult {
    tokio::select! {
        never = cache.follow() => match never {},
        stands = tokio::time::timeout(BOUND, status.wait_for(|it| it.change == Some(change))) => {
            stands.map_err(|_| format!("the cache does not come to {change:?}"))??;
        }
    }
    Ok(())
}

/// Proves the cache for a term that has not written yet, and compares it with the store.
async fn prove(
    cache: &mut WarmCache,
    store: &dyn CoordinationStore,
    term: &LeaderSession,
) -> CaseResult<Proven> {
    let guard = until_definite(async || store.guard().await).await?;
    assert_eq!(guard.epoch.map(|(epoch, ..)| epoch), Some(term.epoch()));
    let incarnation = term.incarnation().clone();
    let proven = wait_until("a proof", BOUND, async || {
        cache.prove(&incarnation, guard.change).await
    })
    .await;
    let mut all: Vec<(Key, Bytes)> = Vec::new();
    for kind in [ITEMS, REPORTS] {
        let mut page = None;
        loop {
            let listed = until_definite(async || store.list(kind, page.clone(), 100).await).await?;
            all.extend(
                listed
                    .items
                    .into_iter()
                    .map(|(name, value)| (Key::new(kind, name), value)),
            );
            page = listed.next;
            if page.is_none() {
                break;
            }
        }
    }
    assert_eq!(proven.records, all.into_iter().collect());
    assert_eq!(proven.from_cache + proven.read, proven.records.len());
    Ok(proven)
}

/// A cache that followed everything reads nothing at its takeover; one that missed something reads that.
pub async fn a_cache_that_followed_is_proven_from_memory(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let pipeline = a.pipeline(subject, &term).await?;
    let mut last = pipeline.last();
    for number in 0..40 {
        let value = Bytes::from(vec![7; 1 + 500 * number]);
        last = pipeline
            .commit(vec![put_bytes(&format!("item-{number:02}"), value)])
            .await?;
    }
    let b = Process::start(subject, "b").await?;
    let store = subject.store(&b.id).await?;
    let (mut cache, mut status) = cache_of(&store);
    follow_to(&mut cache, &mut status, last).await?;
    pipeline
        .commit(vec![put("item-07", "2"), delete("item-08")])
        .await?;
    last = pipeline.commit(vec![put("item-40", "1")]).await?;
    follow_to(&mut cache, &mut status, last).await?;
    assert_eq!(
        (status.borrow().records, status.borrow().lag()),
        (40, Some(0))
    );

    b.election.depose(term.epoch()).await?;
    let young = b.leads_after(term.epoch()).await;
    let proven = prove(&mut cache, &*store, &young).await?;
    assert_eq!(proven.proof, Proof::Current);
    assert_eq!((proven.from_cache, proven.read), (40, 0));

    // The next cache has seen only this term's first transaction.
    let pipeline = b.pipeline(subject, &young).await?;
    let first = pipeline.commit(vec![put("item-41", "1")]).await?;
    let store = subject.store(&a.id).await?;
    let (mut cache, mut status) = cache_of(&store);
    follow_to(&mut cache, &mut status, first).await?;
    pipeline
        .commit(vec![delete("item-00"), put("item-01", "2")])
        .await?;
    pipeline.commit(vec![put("item-02", "2")]).await?;
    a.election.depose(young.epoch()).await?;
    let third = a.leads_after(young.epoch()).await;
    let proven = prove(&mut cache, &*store, &third).await?;
    assert_eq!(proven.proof, Proof::CaughtUp);
    assert_eq!((proven.from_cache, proven.read), (38, 2));
    Ok(())
}

/// Manual changes in the store are noticed by a following cache and at a takeover, and the store's values are
/// used.
pub async fn a_cache_notices_what_was_changed_by_hand(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let pipeline = a.pipeline(subject, &term).await?;
    let mut last = pipeline.last();
    for number in 0..30 {
        last = pipeline
            .commit(vec![put(&format!("item-{number:02}"), "1")])
            .await?;
    }
    let b = Process::start(subject, "b").await?;
    let store = subject.store(&b.id).await?;
    let (mut cache, mut status) = cache_of(&store);
    follow_to(&mut cache, &mut status, last).await?;
    subject.write_by_hand(&key("item-03"), None).await?;
    subject.write_by_hand(&key("item-17"), Some(b"2")).await?;
    subject.write_by_hand(&key("item-31"), Some(b"1")).await?;
    tokio::select! {
        never = cache.follow() => match never {},
        noticed = tokio::time::timeout(BOUND, status.wait_for(|it| it.differed >= 3)) => {
            noticed.map_err(|_| "the cache notices nothing")??;
        }
    }
    // A change by a transaction is not a difference.
    last = pipeline
        .commit(vec![put("item-18", "2"), delete("item-19")])
        .await?;
    follow_to(&mut cache, &mut status, last).await?;
    assert_eq!((status.borrow().differed, status.borrow().records), (3, 29));
    b.election.depose(term.epoch()).await?;
    let young = b.leads_after(term.epoch()).await;
    let proven = prove(&mut cache, &*store, &young).await?;
    assert_eq!(proven.proof, Proof::Current);

    // Changes that no round has compared yet are found by name.
    let kinds = [ITEMS, REPORTS];
    let names = until_definite(async || StoredNames::list(&*store, &kinds).await).await?;
    assert_eq!(names.differing(&proven.records), []);
    subject.write_by_hand(&key("item-04"), None).await?;
    subject.write_by_hand(&key("item-32"), Some(b"1")).await?;
    let names = until_definite(async || StoredNames::list(&*store, &kinds).await).await?;
    let differing = names.differing(&proven.records);
    assert_eq!(differing, [key("item-04"), key("item-32")]);
    let compared = async || as_stored(&*store, &differing, &proven.records).await;
    let found = until_definite(compared).await?;
    assert_eq!((found.get(&key("item-04")), found.len()), (None, 29));
    assert_eq!(found.get(&key("item-32")), Some(&Bytes::from_static(b"1")));
    // A record that was restored since the names were listed is not a difference.
    subject.write_by_hand(&key("item-04"), Some(b"1")).await?;
    subject.write_by_hand(&key("item-32"), None).await?;
    assert_eq!(until_definite(compared).await?, proven.records);
    Ok(())
}

/// A cache that is further behind than the ring reads everything again, at a takeover and while following.
pub async fn a_cache_that_the_ring_has_left_behind_reads_everything(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let pipeline = a.pipeline(subject, &term).await?;
    let first = pipeline
        .commit(vec![put("old", "1"), put("item", "0")])
        .await?;
    let store = subject.store(&ProcessId::new("reader")).await?;
    let (mut followed, mut followed_status) = cache_of(&store);
    let (mut cache, mut status) = cache_of(&store);
    follow_to(&mut followed, &mut followed_status, first).await?;
    follow_to(&mut cache, &mut status, first).await?;
    let mut last = pipeline.commit(vec![delete("old")]).await?;
    for _ in 0..CHANGES_RING {
        last = pipeline.commit(vec![put("item", "x")]).await?;
    }
    follow_to(&mut followed, &mut followed_status, last).await?;
    assert_eq!(followed_status.borrow().records, 1);
    let b = Process::start(subject, "b").await?;
    b.election.depose(term.epoch()).await?;
    let young = b.leads_after(term.epoch()).await;
    let proven = prove(&mut cache, &*store, &young).await?;
    assert_eq!((proven.proof, proven.read), (Proof::Listed, 1));
    let proven = prove(&mut followed, &*store, &young).await?;
    assert_eq!((proven.proof, proven.from_cache), (Proof::Current, 1));
    Ok(())
}

/// Connections break and servers restart while a cache follows: it catches up, and is correct.
pub async fn a_cache_that_loses_its_watches_is_right_all_the_same(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let pipeline = a.pipeline(subject, &term).await?;
    let first = pipeline.commit(vec![put("item-00", "0")]).await?;
    let reader = ProcessId::new("reader");
    let store = subject.store(&reader).await?;
    let (mut cache, mut status) = cache_of(&store);
    follow_to(&mut cache, &mut status, first).await?;
    let mut following = status.clone();
    let follower = tokio::spawn(async move {
        let last = first.number + 40;
        let end = following.wait_for(|it| it.change.is_some_and(|it| it.number == last));
        tokio::select! {
            never = cache.follow() => match never {},
            end = tokio::time::timeout(BOUND * 2, end) => end.map(drop).map_err(|_| ()).ok(),
        };
        cache
    });
    for number in 1..=40 {
        match number {
            8 | 25 => subject.interrupt(&reader).await,
            16 => subject.restart().await?,
            _ => {}
        }
        let mut writes = vec![put(&format!("item-{number:02}"), "1")];
        if number > 29 {
            writes.push(delete(&format!("item-{:02}", number - 30)));
        }
        pipeline.commit(writes).await?;
    }
    let mut cache = follower.await?;
    assert_eq!(
        (status.borrow().records, status.borrow().lag()),
        (30, Some(0))
    );
    // Once more, with changes that the cache could not follow.
    subject.isolate(&reader).await;
    pipeline
        .commit(vec![delete("item-40"), put("item-39", "2")])
        .await?;
    let b = Process::start(subject, "b").await?;
    b.election
        .depose(a.agrees_with_the_store().await?.youngest())
        .await?;
    let young = b.leads_after(term.epoch()).await;
    subject.heal(&reader).await;
    let proven = prove(&mut cache, &*store, &young).await?;
    assert_eq!(proven.records.len(), 29);
    Ok(())
}

/// Each store reports its latency, and more if that needs no special permission.
pub async fn a_store_says_how_it_is(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    a.pipeline(subject, &term)
        .await?
        .commit(vec![put("item", "1")])
        .await?;
    let store = subject.store(&ProcessId::new("reader")).await?;
    let health = until_definite(async || store.health().await).await?;
    assert!(
        !health.latency.is_zero() || health.servers.is_empty(),
        "{health:?}"
    );
    assert!(health.alarms.is_empty(), "{health:?}");
    for server in &health.servers {
        let leads = matches!(server.role, ServerRole::Leader | ServerRole::Standalone);
        assert!(
            leads && server.version.is_some(),
            "the only server leads: {health:?}"
        );
    }
    Ok(())
}
