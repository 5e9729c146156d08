//! The election actor and the commit pipeline over the memory backend, on paused time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::timeout;

use crate::clock::Clock;
use crate::election::core::Timing;
use crate::election::{
    ElectionDriver, ElectionOptions, Epoch, LeaderElection, LeaderSession, Leadership, NotLeading,
    ProcessId, accept, propose, random_start,
};
use crate::keys::{Key, Name};
use crate::memory::{Faults, MemoryCluster, MemoryElection, MemoryOptions};
use crate::store::pipeline::{CommitError, CommitPipeline};
use crate::store::{CoordinationStore as _, Write};
use crate::testing::faulty::{self, Faulty, Operation};
use crate::testing::kinds::ITEMS;

const LONG: Duration = Duration::from_secs(600);

struct Process {
    election: LeaderElection,
    faults: Faults,
    clock: Clock,
}

fn start(cluster: &MemoryCluster, name: &str) -> Process {
    let clock = Clock::tokio();
    let driver: MemoryElection = cluster.election(ProcessId::new(name), clock);
    let faults = driver.faults();
    let options = ElectionOptions {
        process: ProcessId::new(name),
        start: random_start(),
        timing: Timing::default(),
        clock,
    };
    Process {
        election: LeaderElection::start(Arc::new(driver), options),
        faults,
        clock,
    }
}

impl Process {
    async fn until(&self, what: &str, wanted: impl Fn(&Leadership) -> bool) -> Leadership {
        let mut leadership = self.election.leadership();
        let reached = timeout(LONG, leadership.wait_for(|now| wanted(now))).await;
        match reached {
            Ok(Ok(now)) => now.clone(),
            Ok(Err(_)) => panic!("the election ended before {what}"),
            Err(_) => {
                panic!(
                    "never {what}, last seen: {:?}",
                    self.election.leadership().borrow().clone()
                )
            }
        }
    }

    async fn until_granted(&self, epoch: u64) -> LeaderSession {
        let leads = |now: &Leadership| matches!(now, Leadership::Granted(session) if session.epoch() == Epoch::new(epoch));
        match self
            .until(&format!("leading in epoch {epoch}"), leads)
            .await
        {
            Leadership::Granted(session) => session,
            other => panic!("{other:?}"),
        }
    }

    async fn until_suspended(&self) {
        self.until("suspended", |now| matches!(now, Leadership::Suspended(_)))
            .await;
    }
}

fn put(name: &str, value: &'static str) -> Write {
    Write::Put {
        key: Key::new(ITEMS, Name::new(name).expect("a name")),
        value: Bytes::from_static(value.as_bytes()),
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_process_leads_and_the_second_stands_by_until_it_deposes() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let first = a.until_granted(1).await;
    let b = start(&cluster, "b");

    assert_eq!(
        b.election.depose(Epoch::new(1)).await.expect("deposed"),
        Epoch::new(2)
    );
    let second = b.until_granted(2).await;
    timeout(LONG, first.over())
        .await
        .expect("the deposed term learns that it is over");

    assert_eq!(first.check(), Err(NotLeading::Over));
    assert_eq!(second.check(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_term_survives_a_store_that_is_away_for_longer_than_every_lease() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let session = a.until_granted(1).await;
    let _b = start(&cluster, "b");

    cluster.unavailable(true);
    a.until_suspended().await;
    assert_eq!(session.check(), Err(NotLeading::Suspended));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    cluster.unavailable(false);

    // Leases do not expire while there is no quorum, so the old term is still there and continues.
    assert_eq!(a.until_granted(1).await, session);
    assert_eq!(session.check(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_lone_leader_that_lost_its_lease_leads_again_in_the_same_epoch() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let session = a.until_granted(1).await;

    cluster.partition(&ProcessId::new("a"));
    a.until_suspended().await;
    cluster.expire(&ProcessId::new("a"));
    cluster.heal(&ProcessId::new("a"));

    assert_eq!(a.until_granted(1).await, session);
    assert_eq!(session.check(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_process_whose_reply_to_taking_is_lost_finds_out_that_it_leads() {
    let cluster = MemoryCluster::default();
    let clock = Clock::tokio();
    let driver = cluster.election(ProcessId::new("a"), clock);
    driver.faults().lose_replies(1);
    let options = ElectionOptions {
        process: ProcessId::new("a"),
        start: random_start(),
        timing: Timing::default(),
        clock,
    };
    let a = Process {
        faults: driver.faults(),
        election: LeaderElection::start(Arc::new(driver), options),
        clock,
    };
    let session = a
        .until("leading", |now| matches!(now, Leadership::Granted(_)))
        .await
        .session()
        .cloned();
    assert!(session.expect("a session").epoch() <= Epoch::new(2));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_panicked_is_sent_again() {
    let cluster = MemoryCluster::default();
    let clock = Clock::tokio();
    let driver = cluster.election(ProcessId::new("a"), clock);
    let (faults, panics) = (driver.faults(), faulty::Faults::default());
    let driver: Arc<dyn ElectionDriver> = Arc::new(driver);
    let driver = Arc::new(Faulty::new(driver, panics.clone()));
    let options = ElectionOptions {
        process: ProcessId::new("a"),
        start: random_start(),
        timing: Timing::default(),
        clock,
    };
    panics.panic_next(Operation::Advance);
    let a = Process {
        election: LeaderElection::start(driver, options),
        faults,
        clock,
    };
    a.until_granted(1).await;
    panics.panic_next(Operation::Resign);
    timeout(LONG, a.election.resign())
        .await
        .expect("the store has confirmed it");
    a.until_granted(2).await;
}

#[tokio::test(start_paused = true)]
async fn resigning_hands_over_without_waiting_for_the_lease() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    a.until_granted(1).await;
    let b = start(&cluster, "b");
    b.faults.watch_lag(Duration::ZERO);

    let before = b.clock.now();
    a.election.resign().await;
    b.until_granted(2).await;
    let took = b.clock.now().since(before);
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_term_is_over_when_a_message_names_a_younger_one_that_the_store_has() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let session = a.until_granted(1).await;
    let b = start(&cluster, "b");
    // Its watch would report it far too late.
    a.faults.watch_lag(LONG * 2);
    b.election.depose(Epoch::new(1)).await.expect("deposed");
    let before = a.clock.now();
    a.election.report_claim(Epoch::new(2), "b".to_owned());
    timeout(LONG, session.over()).await.expect("over");
    assert!(a.clock.now().since(before) < Duration::from_secs(1));
    assert!(a.election.claims().borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_forged_epoch_ends_no_term_and_its_sender_is_named() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let session = a.until_granted(1).await;
    for _ in 0..3 {
        a.election
            .report_claim(Epoch::new(1001), "10.0.0.9:5000".to_owned());
        let mut claims = a.election.claims();
        let named = claims.wait_for(|claims| !claims.is_empty());
        let named = timeout(LONG, named).await.expect("it is named");
        let claim = named.expect("the election goes on")[0].clone();
        assert_eq!(
            (claim.sender.as_str(), claim.epoch, claim.found),
            ("10.0.0.9:5000", Epoch::new(1001), Epoch::new(1))
        );
    }
    tokio::time::sleep(LONG).await;
    assert_eq!(a.election.claims().borrow().len(), 1);
    assert_eq!(session.check(), Ok(()));
    // The next term also has the next epoch.
    let b = start(&cluster, "b");
    b.election
        .report_claim(Epoch::new(1001), "10.0.0.9:5000".to_owned());
    b.election.depose(Epoch::new(1)).await.expect("deposed");
    b.until_granted(2).await;
}

#[tokio::test(start_paused = true)]
async fn a_wiped_store_is_refused_with_advice() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let session = a.until_granted(1).await;
    cluster.wipe();
    a.until("refused, with what to do", |now| {
        let is_told =
            |text: &String| text.contains("if this is intended, start this process again");
        matches!(now, Leadership::Refused(text) if is_told(text))
    })
    .await;
    assert_eq!(session.check(), Err(NotLeading::Over));
}

#[tokio::test(start_paused = true)]
async fn a_restarted_process_accepts_the_store_as_it_is() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let former = a.until_granted(1).await.incarnation().clone();
    cluster.wipe();
    a.until("refused", |now| matches!(now, Leadership::Refused(_)))
        .await;
    a.election.close().await;
    let again = start(&cluster, "a");
    let session = again.until_granted(1).await;
    assert_ne!(*session.incarnation(), former);
}

#[tokio::test(start_paused = true)]
async fn a_store_restored_from_an_earlier_epoch_is_refused_by_all_and_accepted_after_a_restart() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let first = a.until_granted(1).await;
    let backup = cluster.backup();
    let b = start(&cluster, "b");
    b.election.depose(Epoch::new(1)).await.expect("deposed");
    let session = b.until_granted(2).await;
    a.until("over", |now| matches!(now, Leadership::Over(_)))
        .await;
    cluster.restore(&backup);
    for process in [&a, &b] {
        process
            .until("refused, with what to do", |now| {
                let is_told = |text: &String| text.contains("from epoch 2 to epoch 1");
                matches!(now, Leadership::Refused(text) if is_told(text))
            })
            .await;
    }
    assert_eq!(session.check(), Err(NotLeading::Over));
    for process in [a, b] {
        process.election.close().await;
    }
    let again = start(&cluster, "a");
    let session = again.until_granted(2).await;
    assert_eq!(session.incarnation(), first.incarnation());
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_answers_are_lost_is_applied_once() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let session = a.until_granted(1).await;
    let store = Arc::new(cluster.store());
    let pipeline = CommitPipeline::start(store.clone(), session)
        .await
        .expect("a pipeline");

    store.faults().lose_replies(3);
    let change = pipeline
        .commit(vec![put("item", "one")])
        .await
        .expect("committed");
    assert_eq!(change.number, 1);
    assert_eq!(store.guard().await.expect("a guard").change, change);
}

#[tokio::test(start_paused = true)]
async fn a_deposed_term_cannot_commit() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let session = a.until_granted(1).await;
    let store = Arc::new(cluster.store());
    let pipeline = CommitPipeline::start(store.clone(), session)
        .await
        .expect("a pipeline");
    let b = start(&cluster, "b");
    b.until("standing by", |now| matches!(now, Leadership::Standby))
        .await;

    // The old leader does not know yet: its watch lags.
    a.faults.watch_lag(LONG);
    b.election.depose(Epoch::new(1)).await.expect("deposed");
    b.until_granted(2).await;

    let refused = pipeline
        .commit(vec![put("item", "late")])
        .await
        .expect_err("fenced");
    assert!(matches!(refused, CommitError::NotApplied), "{refused:?}");
    let key = Key::new(ITEMS, Name::new("item").expect("a name"));
    assert_eq!(store.get(&[key]).await.expect("a read"), vec![None]);
}

#[tokio::test(start_paused = true)]
async fn a_late_copy_of_a_settled_transaction_changes_nothing() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let session = a.until_granted(1).await;
    let store = Arc::new(cluster.store());
    let pipeline = CommitPipeline::start(store.clone(), session)
        .await
        .expect("a pipeline");
    pipeline
        .commit(vec![put("item", "created")])
        .await
        .expect("committed");

    let mut held = store.faults().hold_next();
    let committed = tokio::spawn({
        let pipeline = pipeline.clone();
        async move { pipeline.commit(vec![put("item", "updated")]).await }
    });
    held.reached().await;
    committed
        .await
        .expect("no panic")
        .expect("committed by its second copy");
    pipeline
        .commit(vec![put("item", "final")])
        .await
        .expect("committed");
    held.release();

    let key = Key::new(ITEMS, Name::new("item").expect("a name"));
    let value = store.get(&[key]).await.expect("a read").remove(0);
    assert_eq!(value, Some(Bytes::from_static(b"final")));
}

#[tokio::test(start_paused = true)]
async fn two_processes_with_one_id_do_not_depose_each_other_forever() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "same");
    a.until_granted(1).await;
    let b = start(&cluster, "same");
    b.until_granted(2).await;
    a.until("over", |now| matches!(now, Leadership::Over(_)))
        .await;

    tokio::time::sleep(LONG).await;
    let view = cluster.observer().read().await.expect("a view");
    assert_eq!(view.youngest(), Epoch::new(2));
}

#[tokio::test(start_paused = true)]
async fn a_leader_refuses_a_request_to_depose_itself_and_leads_on() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let session = a.until_granted(1).await;
    a.election
        .depose(Epoch::new(1))
        .await
        .expect_err("it leads itself");
    assert_eq!(session.check(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_process_on_a_copy_of_the_store_is_refused_until_the_copy_is_accepted() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let first = a.until_granted(1).await;
    let copy = cluster.copy();
    let drill = start(&copy, "a");
    drill
        .until("refused, with what to do", |now| {
            let is_told = |text: &String| text.contains("tanist ha accept");
            matches!(now, Leadership::Refused(text) if is_told(text))
        })
        .await;
    let operator = copy.observer();
    let wanted = propose(&operator).await.expect("it was led");
    assert_eq!(
        wanted.seen.youngest(),
        Epoch::new(1),
        "the drill took nothing"
    );
    accept(&operator, &wanted, false).await.expect("accepted");
    let again = start(&copy, "a");
    let session = again.until_granted(3).await;
    assert_ne!(session.incarnation(), first.incarnation());
    assert_ne!(session.store(), first.store());

    // The first store's processes would belong to another incarnation on the copy; on their own store nothing
    // has changed.
    assert_eq!(first.check(), Ok(()));
    let view = cluster.observer().read().await.expect("read");
    assert_eq!(view.youngest(), Epoch::new(1));
}

/// The worst case: the copy shows no identity, so its processes lead in it under the first store's
/// incarnation.
async fn claim_from_a_copy(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let options = MemoryOptions {
        shows_identity: false,
        ..MemoryOptions::default()
    };
    let first = MemoryCluster::new(options);
    let a = start(&first, "a");
    let mut session = a.until_granted(1).await;
    let ours = [a, start(&first, "b"), start(&first, "c")];
    let copy = first.copy();
    let theirs = ["a", "x"].map(|name| start(&copy, name));
    let (observer, of_copy) = (first.observer(), copy.observer());
    let (mut epoch, mut leader) = (1, 0);
    for round in 0..60 {
        let copied = of_copy.read().await.expect("read");
        match random.random_range(0..6) {
            0 | 1 => {
                // They depose each other, so that the copy's epochs run ahead.
                let leads = copied.leader.as_ref().map(|leader| &leader.process);
                let deposer = usize::from(leads == Some(&ProcessId::new("a")));
                let deposed = theirs[deposer].election.depose(copied.youngest()).await;
                deposed.expect("deposed");
            }
            2..=4 => {
                let told = Epoch::new(copied.youngest().get() + random.random_range(0..3));
                let sender = format!("x of round {round}");
                ours[random.random_range(0..3)]
                    .election
                    .report_claim(told, sender);
            }
            _ => {
                let next = (leader + 1) % ours.len();
                let deposed = ours[next].election.depose(Epoch::new(epoch)).await;
                deposed.expect("deposed");
                (epoch, leader) = (epoch + 1, next);
                session = ours[next].until_granted(epoch).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..300))).await;
        let view = observer.read().await.expect("read");
        assert_eq!(
            view.youngest(),
            Epoch::new(epoch),
            "seed {seed}, round {round}"
        );
        assert_eq!(session.check(), Ok(()), "seed {seed}, round {round}");
        for process in &ours {
            let now = process.election.leadership().borrow().clone();
            let refused = matches!(now, Leadership::Refused(_));
            assert!(!refused, "seed {seed}, round {round}: {now:?}");
        }
    }
    let claims = ours.map(|process| process.election.claims().borrow().clone());
    let claims = claims.concat();
    assert!(!claims.is_empty(), "seed {seed}: no claim was recorded");
    assert!(claims.iter().all(|claim| claim.epoch > claim.found));
}

#[tokio::test(start_paused = true)]
async fn leaders_on_a_copy_of_the_store_that_claim_their_epochs_depose_no_leader() {
    for seed in 0..30 {
        claim_from_a_copy(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_does_not_show_the_confirmed_leader_yet_costs_few_reads() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let session = a.until_granted(1).await;
    a.faults.watch_lag(Duration::from_secs(3600));
    let retry_interval = Duration::from_millis(20);
    let addresses = std::collections::BTreeMap::new();
    let confirmed = a.election.confirm(&session, addresses, retry_interval);
    confirmed.await.expect("it leads");
    let before = a.faults.reads();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let reads = a.faults.reads() - before;
    assert!((100..200).contains(&reads), "{reads} reads in ten minutes");

    // The store is polled nevertheless, although the watch reports nothing.
    let observer = cluster.observer();
    cluster.delete_leader_info();
    let mut is_there = false;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        is_there = observer.read().await.expect("readable").info.is_some();
        if is_there {
            break;
        }
    }
    assert!(is_there, "leader-info was not published again");
}
