//! Which standby follows a leader that gives up: the most current one, the one that reaches the followers;
//! by which detection.

use std::time::Duration;

use tokio::time::sleep;

use super::network::{Cut, Network, Process};
use crate::detector::TransferError;
use crate::election::{Detection, Epoch};

const BOUND: Duration = Duration::from_secs(5);
const TASK_MANAGERS: [&str; 3] = ["tm1", "tm2", "tm3"];

/// `a` leads, `b` and `c` stand by, each on its own host, and there are followers.
async fn cluster() -> (Network, Process, Process, Process) {
    let network = Network::default();
    for name in TASK_MANAGERS {
        network.add_witness(name);
    }
    let a = network.start("a", "x").await;
    a.leads(1).await;
    let b = network.start("b", "y").await;
    let c = network.start("c", "z").await;
    sleep(Duration::from_secs(1)).await;
    (network, a, b, c)
}

fn all() -> Vec<String> {
    TASK_MANAGERS.map(str::to_owned).to_vec()
}

fn cut_off(network: &Network, name: &str) {
    for task_manager in TASK_MANAGERS {
        network.cut(name, task_manager, Cut::Silent);
    }
}

async fn detection_of(process: &Process) -> Detection {
    let session = process.leads(2).await;
    let takeover = session.takeover().expect("it followed a term");
    takeover.evidence.detection
}

#[tokio::test(start_paused = true)]
async fn a_standby_with_an_empty_cache_is_not_invited_where_another_is_current() {
    let (network, a, _b, c) = cluster().await;
    network.caches("c", 7);
    let handed = a.detector.transfer(None, BOUND).await;
    assert_eq!(handed, Ok(Epoch::new(2)));
    assert_eq!(detection_of(&c).await, Detection::Invited);
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_task_managers_hands_over_to_the_standby_that_reaches_them() {
    let (network, a, b, c) = cluster().await;
    cut_off(&network, "a");
    cut_off(&network, "b");
    network.caches("b", 7);
    let handed = a.detector.hand_over(&all(), BOUND).await;
    assert_eq!(handed, Ok(Some(Epoch::new(2))));
    assert_eq!(detection_of(&c).await, Detection::HandedOver);
    assert!(!a.holds(1) && !b.holds(2));
}

#[tokio::test(start_paused = true)]
async fn of_standbys_that_reach_equally_many_the_most_current_one_follows() {
    let (network, a, _b, c) = cluster().await;
    cut_off(&network, "a");
    network.caches("c", 7);
    let handed = a.detector.hand_over(&all(), BOUND).await;
    assert_eq!(handed, Ok(Some(Epoch::new(2))));
    assert_eq!(detection_of(&c).await, Detection::HandedOver);
}

#[tokio::test(start_paused = true)]
async fn task_managers_that_no_process_reaches_or_that_answer_the_leader_cause_no_hand_over() {
    let (network, a, _b, _c) = cluster().await;
    assert_eq!(a.detector.hand_over(&all(), BOUND).await, Ok(None));
    for name in TASK_MANAGERS {
        network.freeze(name);
    }
    assert_eq!(a.detector.hand_over(&all(), BOUND).await, Ok(None));
    network.thaw("tm1");
    network.cut("a", "tm1", Cut::Silent);
    assert_eq!(
        a.detector.hand_over(&all(), BOUND).await,
        Ok(None),
        "one of three is not most of them"
    );
    assert!(a.holds(1));
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_a_possible_successor_keeps_its_term() {
    let (network, a, _b, _c) = cluster().await;
    cut_off(&network, "a");
    network.kill("b");
    network.kill("c");
    let kept = a.detector.hand_over(&all(), BOUND).await;
    assert_eq!(kept, Err(TransferError::NoStandby));
    assert!(a.holds(1));
}

#[tokio::test(start_paused = true)]
async fn a_term_that_is_given_up_because_it_stood_still_is_followed_under_that_name() {
    let (network, a, b, c) = cluster().await;
    network.gives_up("a", Epoch::new(1));
    sleep(Duration::from_millis(300)).await;
    assert!(a.holds(1), "its report alone ends no term");
    a.election.resign().await;
    let detection = tokio::select! {
        detection = detection_of(&b) => detection,
        detection = detection_of(&c) => detection,
    };
    assert_eq!(detection, Detection::Stalled);
}
