//! The election actor and the commit pipeline over the memory backend, on paused time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use crate::clock::Clock;
use crate::election::core::Timing;
use crate::election::{
    ElectionDriver as _, ElectionOptions, Epoch, LeaderElection, LeaderSession, Leadership,
    NotLeading, ProcessId, random_start,
};
use crate::keys::{Key, Kind, Name};
use crate::memory::{Faults, MemoryCluster, MemoryElection};
use crate::store::pipeline::{CommitError, CommitPipeline};
use crate::store::{CoordinationStore as _, Write};

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
        key: Key::new(Kind::States, Name::new(name).expect("a name")),
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

    // No lease ends while there is no quorum, so the old term is still there and goes on.
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
async fn a_term_is_over_when_a_message_of_a_younger_one_arrives() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let session = a.until_granted(1).await;
    a.election.told(Epoch::new(7), "b".to_owned());
    timeout(LONG, session.over()).await.expect("over");
}

#[tokio::test(start_paused = true)]
async fn a_wiped_store_is_refused_loudly() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let session = a.until_granted(1).await;
    cluster.wipe();
    a.until("refused, with what to do", |now| {
        let is_told = |text: &String| text.contains("if that is meant, start this process again");
        matches!(now, Leadership::Refused(text) if is_told(text))
    })
    .await;
    assert_eq!(session.check(), Err(NotLeading::Over));
}

#[tokio::test(start_paused = true)]
async fn who_is_started_again_accepts_the_store_as_it_is() {
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
async fn a_store_restored_from_an_earlier_epoch_is_refused_by_all_and_accepted_by_who_is_started_again()
 {
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
        .commit(vec![put("job", "one")])
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
        .commit(vec![put("job", "late")])
        .await
        .expect_err("fenced");
    assert!(matches!(refused, CommitError::NotApplied), "{refused:?}");
    let key = Key::new(Kind::States, Name::new("job").expect("a name"));
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
        .commit(vec![put("job", "created")])
        .await
        .expect("committed");

    let mut held = store.faults().hold_next();
    let committed = tokio::spawn({
        let pipeline = pipeline.clone();
        async move { pipeline.commit(vec![put("job", "updated")]).await }
    });
    held.reached().await;
    committed
        .await
        .expect("no panic")
        .expect("committed by its second copy");
    pipeline
        .commit(vec![put("job", "final")])
        .await
        .expect("committed");
    held.release();

    let key = Key::new(Kind::States, Name::new("job").expect("a name"));
    let value = store.get(&[key]).await.expect("a read").remove(0);
    assert_eq!(value, Some(Bytes::from_static(b"final")));
}

#[tokio::test(start_paused = true)]
async fn two_processes_that_were_given_one_id_do_not_depose_each_other_for_ever() {
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
async fn a_leader_that_is_told_to_depose_itself_refuses_and_goes_on() {
    let cluster = MemoryCluster::default();
    let a = start(&cluster, "a");
    let session = a.until_granted(1).await;
    a.election
        .depose(Epoch::new(1))
        .await
        .expect_err("it leads itself");
    assert_eq!(session.check(), Ok(()));
}
