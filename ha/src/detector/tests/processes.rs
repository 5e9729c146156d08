//! Whole processes over a scripted network: which leader is deposed, by which detection, and which is not.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::network::{Cut, Network, Process};
use crate::detector::TransferError;
use crate::detector::peer_heartbeat::{Invitation, LivenessQuery, Reply};
use crate::detector::service::PEER;
use crate::election::{Detection, Epoch, Leadership, ProcessId};

const BOUND: Duration = Duration::from_secs(5);

/// `a` leads, each process on the host named beside it; all hear it.
async fn cluster<const N: usize>(hosts: [(&str, &str); N]) -> (Network, [Process; N]) {
    let network = Network::default();
    let mut processes = Vec::new();
    for (name, host) in hosts {
        let process = network.start(name, host).await;
        if processes.is_empty() {
            process.leads(1).await;
        }
        processes.push(process);
    }
    sleep(Duration::from_secs(1)).await;
    let processes = processes.try_into();
    (
        network,
        processes.unwrap_or_else(|_| unreachable!("as many as were started")),
    )
}

async fn detection_of(process: &Process) -> Detection {
    let session = process.leads(2).await;
    let takeover = session.takeover().expect("it followed a term");
    assert_eq!(takeover.former_epoch.get(), 1);
    takeover.evidence.detection
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_on_the_same_host_is_followed_at_once() {
    let (network, [a, b]) = cluster([("a", "x"), ("b", "x")]).await;
    let start = Instant::now();
    network.kill("a");
    assert_eq!(detection_of(&b).await, Detection::ProcessGone);
    assert!(
        start.elapsed() < Duration::from_millis(100),
        "{:?}",
        start.elapsed()
    );
    a.until("over", |now| matches!(now, Leadership::Over(_)))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_opening_panicked_is_opened_again() {
    let network = Network::default();
    let a = network.start("a", "x").await;
    a.leads(1).await;
    network.panic_once("b");
    let b = network.start("b", "x").await;
    sleep(Duration::from_secs(1)).await;
    assert!(!network.will_panic("b"), "it has tried to open a stream");
    network.kill("a");
    assert_eq!(detection_of(&b).await, Detection::ProcessGone);
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_elsewhere_is_followed_when_another_lost_it_too() {
    let (network, [_a, b, c]) = cluster([("a", "x"), ("b", "y"), ("c", "z")]).await;
    let start = Instant::now();
    network.kill("a");
    let detection = tokio::select! {
        detection = detection_of(&b) => detection,
        detection = detection_of(&c) => detection,
    };
    assert_eq!(detection, Detection::LostBySeveral);
    assert!(
        start.elapsed() < Duration::from_millis(500),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_frozen_leader_is_followed_when_a_witness_does_not_reach_it_either() {
    let network = Network::default();
    network.add_witness("tm");
    let a = network.start("a", "x").await;
    a.leads(1).await;
    let b = network.start("b", "x").await;
    sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    network.freeze("a");
    assert_eq!(detection_of(&b).await, Detection::SilentConfirmed);
    assert!(
        start.elapsed() < Duration::from_millis(1500),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_broken_link_between_one_standby_and_the_leader_deposes_no_leader() {
    for cut in [Cut::Silent, Cut::Refused] {
        let (network, [a, _b, _c]) = cluster([("a", "x"), ("b", "y"), ("c", "z")]).await;
        network.cut("b", "a", cut);
        sleep(Duration::from_secs(120)).await;
        assert!(a.holds(1), "{cut:?}");
        let leadership = a.election.leadership();
        assert!(
            matches!(&*leadership.borrow(), Leadership::Granted(_)),
            "{cut:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_link_and_one_witness_that_lost_the_leader_depose_no_leader() {
    for cut in [Cut::Silent, Cut::Refused] {
        let network = Network::default();
        network.add_witness("tm-1");
        network.add_witness("tm-2");
        let a = network.start("a", "x").await;
        a.leads(1).await;
        let _b = network.start("b", "y").await;
        sleep(Duration::from_secs(1)).await;
        network.cut("b", "a", cut);
        network.cut("tm-1", "a", cut);
        sleep(Duration::from_secs(120)).await;
        assert!(a.holds(1), "{cut:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_elsewhere_is_followed_at_once_when_task_managers_are_the_witnesses() {
    let network = Network::default();
    network.add_witness("tm-1");
    network.add_witness("tm-2");
    let a = network.start("a", "x").await;
    a.leads(1).await;
    let b = network.start("b", "y").await;
    sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    network.kill("a");
    assert_eq!(detection_of(&b).await, Detection::LostBySeveral);
    assert!(
        start.elapsed() < Duration::from_millis(100),
        "{:?}",
        start.elapsed()
    );
}

/// `a` was confirmed, and lost its lease before `b` started.
async fn suspended_alone() -> (Network, Process) {
    let network = Network::default();
    let a = network.start("a", "x").await;
    let session = a.leads(1).await;
    let addresses = std::collections::BTreeMap::from([(PEER.to_owned(), "a".to_owned())]);
    let confirmed = a.election.confirm(&session, addresses, BOUND).await;
    confirmed.expect("confirmed");
    network.store.partition(&ProcessId::new("a"));
    network.store.expire(&ProcessId::new("a"));
    a.until("suspended", |now| matches!(now, Leadership::Suspended(_)))
        .await;
    (network, a)
}

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_while_the_leader_is_suspended_leaves_the_term_to_it() {
    let (network, a) = suspended_alone().await;
    let b = network.start("b", "y").await;
    sleep(Duration::from_secs(3)).await;
    assert!(!b.holds(2), "it hears the suspended term");
    network.store.heal(&ProcessId::new("a"));
    a.leads(1).await;
    sleep(Duration::from_secs(60)).await;
    assert!(a.holds(1));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_while_the_leader_stays_suspended_follows_it_once_its_own_store_has_answered_long_enough()
 {
    let (network, _a) = suspended_alone().await;
    let start = Instant::now();
    let b = network.start("b", "y").await;
    assert_eq!(detection_of(&b).await, Detection::LeaseExpired);
    let took = start.elapsed();
    assert!(took > Duration::from_secs(4), "{took:?}");
    assert!(took < Duration::from_secs(7), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_after_the_last_leader_died_or_fell_silent_waits_a_short_time() {
    let (network, _a) = suspended_alone().await;
    network.kill("a");
    let start = Instant::now();
    let b = network.start("b", "y").await;
    b.leads(2).await;
    let took = start.elapsed();
    assert!(took < Duration::from_millis(300), "{took:?}");

    let (network, _a) = suspended_alone().await;
    network.freeze("a");
    let start = Instant::now();
    let b = network.start("b", "y").await;
    b.leads(2).await;
    let took = start.elapsed();
    assert!(took < Duration::from_millis(1500), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_is_cut_off_from_all_deposes_no_leader() {
    let (network, [a, _b, _c]) = cluster([("a", "x"), ("b", "y"), ("c", "z")]).await;
    network.cut("b", "a", Cut::Silent);
    network.cut("b", "c", Cut::Silent);
    sleep(Duration::from_secs(120)).await;
    assert!(a.holds(1));
}

#[tokio::test(start_paused = true)]
async fn a_lone_standby_elsewhere_waits_for_the_lease() {
    let (network, [a, b]) = cluster([("a", "x"), ("b", "y")]).await;
    network.freeze("a");
    sleep(Duration::from_secs(60)).await;
    assert!(a.holds(1), "its lease lives");
    network.store.partition(&ProcessId::new("a"));
    network.store.expire(&ProcessId::new("a"));
    assert_eq!(detection_of(&b).await, Detection::LeaseExpired);
}

#[tokio::test(start_paused = true)]
async fn a_term_that_lost_its_lease_by_trouble_of_the_store_is_left_to_its_leader() {
    let (network, [a, b]) = cluster([("a", "x"), ("b", "y")]).await;
    for name in ["a", "b"] {
        network.store.partition(&ProcessId::new(name));
    }
    network.store.expire(&ProcessId::new("a"));
    a.until("suspended", |now| matches!(now, Leadership::Suspended(_)))
        .await;
    sleep(Duration::from_secs(10)).await;
    // One reaches the store again before the other.
    network.store.heal(&ProcessId::new("b"));
    sleep(Duration::from_secs(3)).await;
    assert!(!b.holds(2), "it hears the suspended term");
    network.store.heal(&ProcessId::new("a"));
    a.leads(1).await;
    sleep(Duration::from_secs(60)).await;
    assert!(a.holds(1));
}

#[tokio::test(start_paused = true)]
async fn a_term_whose_leader_alone_lost_its_lease_is_left_to_it_for_a_short_time() {
    let (network, [a, b]) = cluster([("a", "x"), ("b", "y")]).await;
    sleep(Duration::from_secs(10)).await;
    network.store.partition(&ProcessId::new("a"));
    network.store.expire(&ProcessId::new("a"));
    sleep(Duration::from_millis(200)).await;
    assert!(!b.holds(2), "it hears the suspended term");
    network.store.heal(&ProcessId::new("a"));
    a.leads(1).await;
    sleep(Duration::from_secs(60)).await;
    assert!(a.holds(1));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_alone_stays_cut_off_from_the_store_is_followed_soon_after_its_lease() {
    let (network, [_a, b]) = cluster([("a", "x"), ("b", "y")]).await;
    sleep(Duration::from_secs(10)).await;
    network.store.partition(&ProcessId::new("a"));
    network.store.expire(&ProcessId::new("a"));
    let start = Instant::now();
    assert_eq!(detection_of(&b).await, Detection::LeaseExpired);
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(2), "{took:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_term_that_stays_without_its_store_after_trouble_of_all_is_followed_after_the_bound() {
    let (network, [_a, b]) = cluster([("a", "x"), ("b", "y")]).await;
    for name in ["a", "b"] {
        network.store.partition(&ProcessId::new(name));
    }
    network.store.expire(&ProcessId::new("a"));
    sleep(Duration::from_secs(10)).await;
    // Its contact with the store comes and goes.
    let start = Instant::now();
    for _ in 0..3 {
        network.store.heal(&ProcessId::new("b"));
        sleep(Duration::from_millis(500)).await;
        network.store.partition(&ProcessId::new("b"));
        sleep(Duration::from_millis(3400)).await;
        assert!(!b.holds(2), "{:?}", start.elapsed());
    }
    network.store.heal(&ProcessId::new("b"));
    assert_eq!(detection_of(&b).await, Detection::LeaseExpired);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_died_while_the_store_was_away_is_followed_on_its_return() {
    let (network, [_a, b]) = cluster([("a", "x"), ("b", "x")]).await;
    network.store.unavailable(true);
    sleep(Duration::from_secs(60)).await;
    network.kill("a");
    sleep(Duration::from_secs(60)).await;
    let start = Instant::now();
    network.store.unavailable(false);
    assert_eq!(detection_of(&b).await, Detection::ProcessGone);
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_reachable_again_before_the_store_is_back_leads_on() {
    let (network, [a, _b, _c]) = cluster([("a", "x"), ("b", "y"), ("c", "z")]).await;
    network.store.unavailable(true);
    network.freeze("a");
    sleep(Duration::from_secs(10)).await;
    network.thaw("a");
    sleep(Duration::from_secs(10)).await;
    network.store.unavailable(false);
    a.leads(1).await;
    sleep(Duration::from_secs(60)).await;
    assert!(a.holds(1));
}

#[tokio::test(start_paused = true)]
async fn an_invited_standby_follows_and_the_leader_leads_until_then() {
    let (_network, [a, b]) = cluster([("a", "x"), ("b", "y")]).await;
    let epoch = a
        .detector
        .transfer(None, BOUND)
        .await
        .expect("b takes over");
    assert_eq!(epoch.get(), 2);
    assert_eq!(detection_of(&b).await, Detection::Invited);
    assert!(!a.holds(1));
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_is_held_up_for_a_moment_is_invited_when_it_answers() {
    let (network, [a, b]) = cluster([("a", "x"), ("b", "y")]).await;
    network.freeze("b");
    let transfer = a.detector.transfer(None, BOUND);
    let thaw = async {
        sleep(BOUND / 2).await;
        network.thaw("b");
    };
    let (epoch, ()) = tokio::join!(transfer, thaw);
    assert_eq!(epoch.expect("b takes over").get(), 2);
    assert_eq!(detection_of(&b).await, Detection::Invited);
}

#[tokio::test(start_paused = true)]
async fn an_invitation_that_no_standby_accepts_changes_nothing() {
    let (network, [a, b, c]) = cluster([("a", "x"), ("b", "y"), ("c", "z")]).await;
    let b_name = ProcessId::new("b");
    network.kill("b");
    assert_eq!(
        a.detector.transfer(Some(&b_name), BOUND).await,
        Err(TransferError::NoSuchStandby(b_name))
    );
    // The remaining one can't reach the store: the invitation expires before it can again.
    network.store.partition(&ProcessId::new("c"));
    let failed = a.detector.transfer(None, BOUND).await;
    assert!(
        matches!(failed, Err(TransferError::Failed(_))),
        "{failed:?}"
    );
    network.store.heal(&ProcessId::new("c"));
    sleep(Duration::from_secs(60)).await;
    assert!(a.holds(1) && !b.holds(2) && !c.holds(2));
}

#[tokio::test(start_paused = true)]
async fn an_invitation_whose_inviter_stopped_waiting_ends_at_its_bound() {
    let (network, [a, b]) = cluster([("a", "x"), ("b", "y")]).await;
    network.store.partition(&ProcessId::new("b"));
    let (leader, epoch) = (ProcessId::new("a"), Epoch::new(1));
    let invited = b
        .detector
        .accept(leader, epoch, Invitation::Requested, BOUND);
    let answer = tokio::time::timeout(BOUND / 2, invited).await;
    assert!(answer.is_err(), "the store does not answer it: {answer:?}");
    sleep(BOUND).await;
    network.store.heal(&ProcessId::new("b"));
    sleep(Duration::from_secs(60)).await;
    assert!(a.holds(1) && !b.holds(2));
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_has_just_connected_has_lost_no_leader() {
    let (network, [_a]) = cluster([("a", "x")]).await;
    network.cut("c", "a", Cut::Silent);
    let c = network.start("c", "z").await;
    let query = LivenessQuery {
        leader: ProcessId::new("a"),
        epoch: Epoch::new(1),
        address: "a".to_owned(),
        timeout: Duration::from_millis(250),
    };
    sleep(Duration::from_millis(20)).await;
    let mended = async {
        sleep(Duration::from_millis(100)).await;
        network.mend();
    };
    let (reply, ()) = tokio::join!(c.detector.answer(&query), mended);
    assert_eq!(reply, Reply::Reachable);
}

#[tokio::test(start_paused = true)]
async fn two_processes_with_one_id_stop_deposing_each_other() {
    let (network, [_first]) = cluster([("a", "x")]).await;
    // The second takes the first for an earlier start of itself, as it can't be asked; but not the other way
    // round.
    let second = network.start("a", "y").await;
    second.leads(2).await;
    sleep(Duration::from_secs(60)).await;
    assert!(second.holds(2));
}

#[tokio::test(start_paused = true)]
async fn the_address_of_an_earlier_start_is_no_evidence() {
    let (network, [_a, b]) = cluster([("a", "x"), ("b", "x")]).await;
    // The members still list the port of `b`'s earlier start.
    network.cut("a", "b", Cut::Refused);
    b.election.depose(Epoch::new(1)).await.expect("deposed");
    b.leads(2).await;
    sleep(Duration::from_secs(60)).await;
    assert!(b.holds(2));
}
