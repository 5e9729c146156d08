//! The memory backend itself: leases on paused time, and the injected faults.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{MemoryCluster, MemoryElection};
use crate::clock::Clock;
use crate::election::{
    Attempt, ClusterIncarnation, ElectionDriver, EpochRecord, EpochToken, LeaderInformation,
    LeaderKey, Member, Nonce, ProcessId,
};
use crate::error::{Error, Outcome};
use crate::keys::{Key, Name};
use crate::store::{Change, CommitReply, CommitRequest, CoordinationStore, Fence, Verdict, Write};
use crate::testing::kinds::DOCUMENTS;

fn process(name: &str) -> ProcessId {
    ProcessId::new(name)
}

async fn nonce(election: &MemoryElection) -> Nonce {
    let mut session = election.session();
    let state = session
        .wait_for(|state| state.nonce().is_some())
        .await
        .expect("the handle lives");
    state.nonce().expect("waited for it").clone()
}

async fn try_take(election: &MemoryElection, name: &str) -> crate::Result<(Fence, Attempt)> {
    let seen = election.read().await?;
    let incarnation = seen
        .epoch
        .as_ref()
        .map(|(record, _)| record.incarnation.clone());
    let incarnation = incarnation.unwrap_or_else(|| ClusterIncarnation::new("first"));
    let next = EpochRecord {
        epoch: seen.youngest().next(),
        incarnation,
        holder: None,
        store: None,
    };
    let leader = LeaderKey {
        epoch: next.epoch,
        process: process(name),
        nonce: nonce(election).await,
    };
    let attempt = election.advance(&seen, &next, &leader).await?;
    let token = match &attempt {
        Attempt::Applied(token) => *token,
        Attempt::Refused(_) => EpochToken(0),
    };
    let fence = Fence {
        epoch: next.epoch,
        token,
        incarnation: next.incarnation,
    };
    Ok((fence, attempt))
}

async fn take(election: &MemoryElection, name: &str) -> Fence {
    let (fence, attempt) = try_take(election, name).await.expect("the store answers");
    assert!(matches!(attempt, Attempt::Applied(_)), "{attempt:?}");
    fence
}

fn key(name: &str) -> Key {
    Key::new(DOCUMENTS, Name::new(name).expect("a name"))
}

fn put(fence: &Fence, after: Change, name: &str) -> CommitRequest {
    let write = Write::Put {
        key: key(name),
        value: Bytes::from_static(b"value"),
    };
    CommitRequest {
        fence: fence.clone(),
        after,
        writes: vec![write],
    }
}

async fn verdict(store: &impl CoordinationStore, request: &CommitRequest) -> Option<Verdict> {
    match store.commit(request).await.expect("the store answers") {
        CommitReply::Applied => None,
        CommitReply::Refused(guard) => Some(guard.verdict(request)),
    }
}

#[tokio::test(start_paused = true)]
async fn a_deposed_term_commits_nothing_and_the_younger_one_does() {
    let cluster = MemoryCluster::default();
    let (a, b) = (
        cluster.election(process("a"), Clock::tokio()),
        cluster.election(process("b"), Clock::tokio()),
    );
    let store = cluster.store();
    let first = take(&a, "a").await;
    let request = put(&first, Change::default(), "x");
    assert_eq!(verdict(&store, &request).await, None);
    assert_eq!(
        verdict(&store, &request).await,
        Some(Verdict::AlreadyApplied)
    );
    let second = take(&b, "b").await;
    assert!(second.epoch > first.epoch);
    let late = put(&first, request.change(), "y");
    assert_eq!(
        verdict(&store, &late).await,
        Some(Verdict::Fenced(second.epoch))
    );
    assert_eq!(
        verdict(&store, &put(&second, request.change(), "z")).await,
        None
    );
    let values = store
        .get(&[key("x"), key("y"), key("z")])
        .await
        .expect("get");
    assert_eq!(
        values.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, false, true]
    );
}

#[tokio::test(start_paused = true)]
async fn of_two_deposers_that_saw_the_same_one_wins() {
    let cluster = MemoryCluster::default();
    let (a, b) = (
        cluster.election(process("a"), Clock::tokio()),
        cluster.election(process("b"), Clock::tokio()),
    );
    let seen = a.read().await.expect("read");
    take(&a, "a").await;
    let next = EpochRecord {
        epoch: seen.youngest().next(),
        incarnation: ClusterIncarnation::new("other"),
        holder: None,
        store: None,
    };
    let leader = LeaderKey {
        epoch: next.epoch,
        process: process("b"),
        nonce: nonce(&b).await,
    };
    let attempt = b
        .advance(&seen, &next, &leader)
        .await
        .expect("the store answers");
    let Attempt::Refused(view) = attempt else {
        panic!("{attempt:?}")
    };
    assert_eq!(view.leader.map(|leader| leader.process), Some(process("a")));
}

#[tokio::test(start_paused = true)]
async fn a_resigned_term_neither_commits_nor_attaches() {
    let cluster = MemoryCluster::default();
    let a = cluster.election(process("a"), Clock::tokio());
    let fence = take(&a, "a").await;
    let leader = LeaderKey {
        epoch: fence.epoch,
        process: process("a"),
        nonce: nonce(&a).await,
    };
    let resigned = a.resign(fence.token).await.expect("resign");
    assert!(
        matches!(resigned, Attempt::Applied(moved) if moved > fence.token),
        "{resigned:?}"
    );
    let attached = a.attach(fence.token, &leader).await.expect("attach");
    assert!(matches!(attached, Attempt::Refused(_)), "{attached:?}");
    let refused = verdict(&cluster.store(), &put(&fence, Change::default(), "x")).await;
    assert_eq!(refused, Some(Verdict::Fenced(fence.epoch)));
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_dead_process_ends_and_its_keys_with_it() {
    let cluster = MemoryCluster::default();
    let a = cluster.election(process("a"), Clock::tokio());
    let observer = cluster.observer();
    take(&a, "a").await;
    let member = Member::named("a");
    a.announce(&member).await.expect("announce");
    // Many times the ttl: renewals keep it.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(observer.members().await.expect("members"), [member]);
    drop(a);
    let mut observed = observer.observed();
    let gone = observed.wait_for(|view| {
        view.as_ref()
            .is_some_and(|v| v.leader.is_none() && v.epoch.is_some())
    });
    tokio::time::timeout(Duration::from_secs(6), gone)
        .await
        .expect("in time")
        .expect("alive");
    assert!(observer.members().await.expect("members").is_empty());
}

/// Uses threads, because the two race between granting a lease and publishing it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_announces_while_the_lease_is_granted_is_a_member() {
    for round in 0..2_000 {
        let cluster = MemoryCluster::default();
        let a = cluster.election(process("a"), Clock::tokio());
        a.announce(&Member::named("a")).await.expect("announce");
        nonce(&a).await;
        let members = cluster.observer().members().await.expect("members");
        assert_eq!(members, [Member::named("a")], "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_partitioned_leader_loses_its_lease_and_attaches_again_in_the_same_epoch() {
    let cluster = MemoryCluster::default();
    let a = cluster.election(process("a"), Clock::tokio());
    let store = cluster.store();
    let fence = take(&a, "a").await;
    let old = nonce(&a).await;
    cluster.partition(&process("a"));
    assert_eq!(
        a.read().await.expect_err("cut off").outcome(),
        Outcome::Transient
    );
    tokio::time::sleep(Duration::from_secs(10)).await;
    let request = put(&fence, Change::default(), "x");
    assert_eq!(verdict(&store, &request).await, Some(Verdict::Detached));
    cluster.heal(&process("a"));
    let mut session = a.session();
    session
        .wait_for(|state| state.nonce().is_some_and(|new| *new != old))
        .await
        .expect("alive");
    let leader = LeaderKey {
        epoch: fence.epoch,
        process: process("a"),
        nonce: nonce(&a).await,
    };
    let attached = a.attach(fence.token, &leader).await.expect("attach");
    assert_eq!(attached, Attempt::Applied(fence.token));
    assert_eq!(verdict(&store, &request).await, None);
}

#[tokio::test(start_paused = true)]
async fn without_quorum_requests_fail_as_transient_and_no_lease_ends() {
    let cluster = MemoryCluster::default();
    let clock = Clock::tokio();
    let a = cluster.election(process("a"), clock);
    let fence = take(&a, "a").await;
    cluster.unavailable(true);
    let error = cluster
        .store()
        .commit(&put(&fence, Change::default(), "x"))
        .await;
    assert_eq!(error.expect_err("no quorum").outcome(), Outcome::Transient);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!a.session().borrow().is_valid_at(clock.now()));
    cluster.unavailable(false);
    let view = a.read().await.expect("read");
    assert_eq!(view.leader.map(|leader| leader.epoch), Some(fence.epoch));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        verdict(&cluster.store(), &put(&fence, Change::default(), "x")).await,
        None
    );
}

#[tokio::test(start_paused = true)]
async fn a_late_duplicate_of_a_settled_commit_changes_nothing() {
    let cluster = MemoryCluster::default();
    let a = cluster.election(process("a"), Clock::tokio());
    let store = cluster.store();
    let fence = take(&a, "a").await;
    let request = put(&fence, Change::default(), "x");
    let mut held = store.faults().hold_next();
    let error = store.commit(&request).await.expect_err("held");
    assert_eq!(error.outcome(), Outcome::Ambiguous);
    held.reached().await;
    assert_eq!(verdict(&store, &request).await, None);
    let delete = CommitRequest {
        fence: fence.clone(),
        after: request.change(),
        writes: vec![Write::Delete { key: key("x") }],
    };
    assert_eq!(verdict(&store, &delete).await, None);
    assert!(held.release());
    assert_eq!(store.get(&[key("x")]).await.expect("get"), [None]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_ambiguous_and_the_write_is_there() {
    let cluster = MemoryCluster::default();
    let a = cluster.election(process("a"), Clock::tokio());
    nonce(&a).await;
    a.faults().lose_replies(1);
    let error = try_take(&a, "a").await.expect_err("lost");
    assert_eq!(error.outcome(), Outcome::Ambiguous);
    let leader = a.read().await.expect("read").leader.expect("taken");
    assert_eq!(leader.nonce, nonce(&a).await);
}

#[tokio::test(start_paused = true)]
async fn a_wiped_cluster_refuses_the_old_incarnation_though_its_token_repeats() {
    let cluster = MemoryCluster::default();
    let a = cluster.election(process("a"), Clock::tokio());
    let old = take(&a, "a").await;
    cluster.wipe();
    let b = cluster.election(process("b"), Clock::tokio());
    let seen = b.read().await.expect("read");
    assert_eq!(seen.epoch, None);
    let other = ClusterIncarnation::new("other");
    let next = EpochRecord {
        epoch: seen.youngest().next(),
        incarnation: other.clone(),
        holder: None,
        store: None,
    };
    let leader = LeaderKey {
        epoch: next.epoch,
        process: process("b"),
        nonce: nonce(&b).await,
    };
    let attempt = b.advance(&seen, &next, &leader).await.expect("advance");
    assert_eq!(attempt, Attempt::Applied(old.token));
    let refused = verdict(&cluster.store(), &put(&old, Change::default(), "x")).await;
    assert_eq!(refused, Some(Verdict::OtherIncarnation(Some(other))));
    let info = LeaderInformation {
        epoch: old.epoch,
        process: process("a"),
        addresses: Default::default(),
        since_ms: 0,
    };
    let published = a.publish(old.token, &info).await.expect("publish");
    assert!(matches!(published, Attempt::Refused(_)), "{published:?}");
}

#[tokio::test(start_paused = true)]
async fn an_expired_session_takes_nothing_and_a_new_one_follows() {
    let cluster = MemoryCluster::default();
    let a = Arc::new(cluster.election(process("a"), Clock::tokio()));
    let old = nonce(&a).await;
    cluster.expire(&process("a"));
    assert!(matches!(try_take(&a, "a").await, Err(Error::SessionLost)));
    let mut session = a.session();
    session
        .wait_for(|state| state.nonce().is_some_and(|new| *new != old))
        .await
        .expect("alive");
    take(&a, "a").await;
    a.close().await;
    let view = a.read().await.expect("read");
    assert_eq!(view.leader, None);
    assert_eq!(a.session().borrow().nonce(), None);
}

#[tokio::test(start_paused = true)]
async fn a_listing_goes_on_page_by_page_and_changes_are_followed() {
    let cluster = MemoryCluster::default();
    let a = cluster.election(process("a"), Clock::tokio());
    let fence = take(&a, "a").await;
    let store = cluster.store();
    store.faults().watch_lag(Duration::from_millis(100));
    let mut after = Change::default();
    for i in 0..25 {
        let request = put(&fence, after, &format!("item-{i:02}"));
        assert_eq!(verdict(&store, &request).await, None);
        after = request.change();
    }
    let (mut names, mut page) = (Vec::new(), None);
    loop {
        let listed = store.list(DOCUMENTS, page, 10).await.expect("list");
        names.extend(listed.items.iter().map(|(name, _)| name.to_string()));
        page = listed.next;
        if page.is_none() {
            break;
        }
    }
    assert_eq!(
        names,
        (0..25).map(|i| format!("item-{i:02}")).collect::<Vec<_>>()
    );
    let mut changes = store.changes();
    changes
        .wait_for(|change| *change == Some(after))
        .await
        .expect("alive");
    let touched = store.touched(24, 26).await.expect("touched");
    let keys = touched
        .iter()
        .map(|entry| entry.as_ref().map(|entry| entry.keys.concat()));
    let expected = [
        Some("documents/item-23".to_owned()),
        Some("documents/item-24".to_owned()),
        None,
    ];
    assert_eq!(keys.collect::<Vec<_>>(), expected);
}
