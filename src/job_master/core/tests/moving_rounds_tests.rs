//! Regions that wait for slots beside a move: which gets which slots, and that neither delays the other
//! without limit.

use tanist_gateway::Leave;
use tanist_proto::v1::ExecutionState as S;

use super::moving_tests::{TURN_MS, asked, assert_no_failure, freed, leaves, with_slots};
use super::recovered::{Recovered, report, slot};
use super::testing::apart;
use crate::core::Event;

/// The first region, of one slot, waits without any. The other one runs in two slots that have to be left.
fn one_waits_and_one_is_to_be_moved() -> Recovered {
    let mut job = with_slots(&apart(&[1, 2]), &["tm0", "tm1", "tm2"]);
    leaves(&mut job, &[("tm0", Leave::AtOnce)]);
    job.reports("tm0", vec![report(1, 0, 1, S::Canceled)]);
    assert_eq!(job.generations(), [2, 1]);
    leaves(&mut job, &[("tm1", Leave::Moved), ("tm2", Leave::Moved)]);
    job
}

fn deployed_since(job: &Recovered, first: usize) -> Vec<String> {
    let since = job.deployed().split_off(first);
    since.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn waiting_regions_are_served_before_running_ones_are_moved() {
    let mut job = one_waits_and_one_is_to_be_moved();
    // The slots of the move are not requested with it: there may be enough for the waiting region alone.
    assert_eq!(asked(&job), (3, 5));
    job.register("tm3", "1", vec![]);
    assert_eq!(deployed_since(&job, 3), ["tm3"]);
    assert_eq!(asked(&job), (5, 5));
    job.register("tm4", "1", vec![]);
    assert_eq!(job.generations(), [2, 1], "one is too few");
    job.register("tm5", "1", vec![]);
    assert_eq!(job.generations(), [2, 2]);
    assert_no_failure(&job);
}

#[test]
fn no_waiting_region_takes_slots_that_are_collected_for_a_move_in_its_round() {
    let mut job = one_waits_and_one_is_to_be_moved();
    let next_ms = job.core.next_deadline_ms();
    assert_eq!(next_ms, Some(job.now_ms + TURN_MS));
    job.pass(TURN_MS);
    // The slots that the other one lacks are not requested either: there may be enough for the move alone.
    assert_eq!(asked(&job), (4, 5));
    job.register("tm3", "1", vec![]);
    assert_eq!(deployed_since(&job, 3), [] as [&str; 0]);
    job.register("tm4", "1", vec![]);
    assert_eq!(job.generations(), [2, 2]);
    assert_eq!(deployed_since(&job, 3), [] as [&str; 0], "they stop first");
    job.reports("tm1", vec![report(2, 0, 1, S::Canceled)]);
    let mut second = report(2, 1, 1, S::Canceled);
    second.allocation_id = slot(2).to_string();
    job.reports("tm2", vec![second]);
    let mut next = deployed_since(&job, 3);
    next.sort();
    assert_eq!(next, ["tm3", "tm4"]);
    assert_eq!(asked(&job), (2, 3), "nothing more is moved");
    job.register("tm5", "1", vec![]);
    assert_eq!(deployed_since(&job, 5), ["tm5"]);
    assert_no_failure(&job);
}

#[test]
fn slots_too_few_for_a_move_go_to_waiting_regions_after_its_round() {
    let mut job = one_waits_and_one_is_to_be_moved();
    job.pass(TURN_MS);
    job.register("tm3", "1", vec![]);
    assert_eq!(deployed_since(&job, 3), [] as [&str; 0]);
    job.pass(TURN_MS);
    assert_eq!(deployed_since(&job, 3), ["tm3"]);
    assert_eq!(job.generations(), [2, 1]);
    assert_no_failure(&job);
}

/// The first region, of one slot, runs on `tm0`. The other one, of three, runs on the other TaskManagers.
fn one_and_three() -> Recovered {
    with_slots(&apart(&[1, 3]), &["tm0", "tm1", "tm2", "tm3"])
}

/// The other region has stopped, and its slots were given back.
fn three_stop(job: &mut Recovered) {
    for (name, subtask) in [("tm1", 0), ("tm2", 1), ("tm3", 2)] {
        let mut ended = report(2, subtask, 1, S::Canceled);
        ended.allocation_id = slot(subtask + 1).to_string();
        job.reports(name, vec![ended]);
    }
    assert_eq!(freed(job), ["tm1", "tm2", "tm3"]);
}

#[test]
fn a_move_does_not_begin_with_slots_that_arrived_for_waiting_regions() {
    let mut job = one_and_three();
    let all = ["tm1", "tm2", "tm3"].map(|name| (name, Leave::AtOnce));
    leaves(&mut job, &all);
    three_stop(&mut job);
    leaves(&mut job, &[("tm0", Leave::Moved)]);
    assert_eq!(asked(&job), (4, 5));
    for name in ["tm4", "tm5", "tm6"] {
        job.register(name, "1", vec![]);
        assert_eq!(job.generations(), [1, 2], "they are not its own");
    }
    assert_eq!(deployed_since(&job, 4), ["tm4", "tm5", "tm6"]);
    job.register("tm7", "1", vec![]);
    assert_eq!(job.generations(), [2, 2]);
    assert_no_failure(&job);
}

#[test]
fn a_stopped_region_that_finds_no_slots_does_not_delay_other_moves() {
    let mut job = one_and_three();
    let mut all = ["tm1", "tm2", "tm3"]
        .map(|name| (name, Leave::AtOnce))
        .to_vec();
    all.push(("tm0", Leave::Moved));
    leaves(&mut job, &all);
    three_stop(&mut job);
    job.pass(0);
    assert_eq!(asked(&job), (4, 5), "it has the first round");
    job.pass(TURN_MS);
    assert_eq!(asked(&job), (2, 5));
    job.register("tm4", "1", vec![]);
    assert_eq!(job.generations(), [2, 2]);
    assert_no_failure(&job);
}

#[test]
fn slots_too_few_for_a_move_go_back_when_they_have_idled() {
    let mut job = with_slots(&apart(&[2]), &["tm0", "tm1"]);
    leaves(&mut job, &[("tm0", Leave::Moved), ("tm1", Leave::Moved)]);
    job.register("tm2", "1", vec![]);
    job.pass(1);
    assert_eq!(freed(&job), [] as [&str; 0]);
    job.pass(5_000);
    // Otherwise two jobs could each hold what the other lacks.
    assert_eq!(freed(&job), ["tm2"]);
    assert_eq!(asked(&job), (4, 4), "it still waits for all of them");
    job.register("tm3", "1", vec![]);
    job.register("tm4", "1", vec![]);
    assert_eq!(job.generations(), [2]);
    assert_no_failure(&job);
}

#[test]
fn without_room_elsewhere_no_region_fails_that_would_have_slots_without_the_move() {
    let mut job = one_waits_and_one_is_to_be_moved();
    job.hear(Event::HasRoom(false));
    job.pass(2 * TURN_MS);
    assert_eq!(asked(&job), (3, 5), "the round of the waiting regions");
    job.register("tm3", "1", vec![]);
    assert_eq!(deployed_since(&job, 3), ["tm3"]);
    for _ in 0..100 {
        job.pass(TURN_MS);
    }
    assert_eq!(job.generations(), [2, 1], "what is to be moved runs on");
    assert_no_failure(&job);
}
