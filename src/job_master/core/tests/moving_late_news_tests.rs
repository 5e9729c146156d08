//! Moves with late events or changes of the leader: TaskManagers that are drained while regions move to them,
//! cancelled drains, leaders that end after each step of a move, and clusters without room.

use tanist_gateway::Leave;
use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus};

use super::moving_tests::{asked, assert_no_failure, freed, leaves, with_slots};
use super::recovered::{Recovered, both, one_region, report, slot};
use crate::core::Event;

/// A job of one region on `tm0` and `tm1`. It has to leave `tm1` and has a slot of `tm2` for that, so it
/// stops.
fn moving() -> Recovered {
    let mut job = with_slots(&one_region(), &["tm0", "tm1"]);
    leaves(&mut job, &[("tm1", Leave::Moved)]);
    job.register("tm2", "1", vec![]);
    assert_eq!(job.generations(), [2]);
    job
}

fn all_stops(job: &mut Recovered) {
    for (name, subtask) in [("tm0", 0), ("tm1", 1)] {
        job.reports(name, both(subtask, 1, S::Canceled));
    }
}

/// The TaskManagers to which tasks of a generation were deployed, each once.
fn deployed_in(job: &Recovered, generation: u64) -> Vec<String> {
    let all = job.deployed().into_iter();
    let in_it = all.filter(|(_, of)| *of == generation);
    let mut on: Vec<String> = in_it.map(|(name, _)| name).collect();
    on.sort();
    on.dedup();
    on
}

#[test]
fn a_region_that_stops_for_a_task_manager_that_is_drained_meanwhile_waits_for_another_one() {
    let mut job = moving();
    leaves(&mut job, &[("tm1", Leave::Moved), ("tm2", Leave::Moved)]);
    assert_eq!(freed(&job), ["tm2"]);
    all_stops(&mut job);
    assert_eq!(job.deployed().len(), 4, "nothing begins there");
    assert_eq!(asked(&job), (2, 2));
    job.register("tm3", "1", vec![]);
    assert_eq!(deployed_in(&job, 2), ["tm0", "tm3"]);
    assert_no_failure(&job);
}

#[test]
fn regions_moved_to_a_task_manager_that_is_drained_meanwhile_move_again() {
    let mut job = moving();
    all_stops(&mut job);
    assert_eq!(deployed_in(&job, 2), ["tm0", "tm2"]);
    leaves(&mut job, &[("tm2", Leave::Moved)]);
    assert_eq!((asked(&job), job.generations()), ((3, 3), vec![2]));
    job.register("tm3", "1", vec![]);
    assert_eq!(job.generations(), [3]);
    assert_no_failure(&job);
}

#[test]
fn a_drain_that_is_cancelled_while_slots_arrive_moves_nothing() {
    let mut job = with_slots(&one_region(), &["tm0", "tm1"]);
    leaves(&mut job, &[("tm0", Leave::Moved), ("tm1", Leave::Moved)]);
    job.register("tm2", "1", vec![]);
    assert_eq!((asked(&job), job.generations()), ((4, 4), vec![1]));
    leaves(&mut job, &[]);
    assert_eq!(asked(&job), (2, 2));
    // The slot was offered before the drain was cancelled.
    job.register("tm3", "1", vec![]);
    job.pass(5_000);
    assert_eq!((job.generations(), job.cancelled()), (vec![1], vec![]));
    assert_eq!(freed(&job).len(), 2, "they idle");
    assert_no_failure(&job);
}

#[test]
fn a_drain_that_is_cancelled_while_regions_stop_lets_them_start_anywhere() {
    let mut job = moving();
    leaves(&mut job, &[]);
    all_stops(&mut job);
    assert_eq!(deployed_in(&job, 2), ["tm0", "tm1"], "where it was");
    assert_eq!(asked(&job), (2, 2));
    job.pass(5_000);
    assert_eq!(freed(&job), ["tm2"]);
    assert_eq!(job.generations(), [2]);
    assert_no_failure(&job);
}

#[test]
fn without_room_elsewhere_nothing_is_stopped_and_nothing_fails() {
    let mut job = with_slots(&one_region(), &["tm0", "tm1"]);
    leaves(&mut job, &[("tm1", Leave::Moved)]);
    for has_room in [false, true, false] {
        job.hear(Event::HasRoom(has_room));
        job.pass(1_000_000);
        assert_eq!((job.generations(), job.cancelled()), (vec![1], vec![]));
        assert_eq!(job.core.status(), JobStatus::Running);
        assert_eq!(asked(&job), (3, 3), "it still waits");
    }
    job.register("tm2", "1", vec![]);
    assert_eq!(job.generations(), [2], "and moves when there is a slot");
    assert_no_failure(&job);
}

/// The next term recovers from the record, with these TaskManagers and their executions.
fn next_leader(stored: &pb::JobState, there: Vec<(&str, Vec<pb::ExecutionReport>)>) -> Recovered {
    let mut next = Recovered::in_term(&one_region(), stored.clone(), 3);
    for (name, executions) in there {
        next.register(name, "1", executions);
    }
    leaves(&mut next, &[("tm1", Leave::Moved)]);
    next
}

#[test]
fn the_next_leader_takes_the_slots_that_have_come_for_a_move_and_begins_it() {
    let mut job = with_slots(&one_region(), &["tm0", "tm1"]);
    leaves(&mut job, &[("tm1", Leave::Moved)]);
    let mut next = next_leader(
        &job.stored,
        vec![
            ("tm0", both(0, 1, S::Running)),
            ("tm1", both(1, 1, S::Running)),
            ("tm2", vec![]),
        ],
    );
    assert_eq!(next.generations(), [2]);
    all_stops(&mut next);
    assert_eq!(deployed_in(&next, 2), ["tm0", "tm2"]);
    assert_eq!(freed(&next), ["tm1"]);
    assert_no_failure(&next);
}

#[test]
fn the_next_leader_stops_running_tasks_of_a_move_before_their_regions_start() {
    let job = moving();
    let mut next = next_leader(
        &job.stored,
        vec![
            ("tm0", both(0, 1, S::Canceled)),
            ("tm1", both(1, 1, S::Running)),
            ("tm2", vec![]),
        ],
    );
    let cancelled = ("tm1".to_owned(), 1, 1);
    assert!(
        next.cancelled().contains(&cancelled),
        "{:?}",
        next.cancelled()
    );
    next.reports("tm1", both(1, 1, S::Canceled));
    // The next leader gives up again a generation that was given up and not placed.
    assert_eq!(deployed_in(&next, 3), ["tm0", "tm2"]);
    assert_eq!(freed(&next), ["tm1"]);
    assert_no_failure(&next);
}

/// The executions on `tm2` after the move.
fn on_the_new_one() -> Vec<pb::ExecutionReport> {
    [1, 2]
        .map(|vertex| pb::ExecutionReport {
            allocation_id: slot(2).to_string(),
            ..report(vertex, 1, 2, S::Running)
        })
        .to_vec()
}

#[test]
fn the_next_leader_places_regions_of_a_move_again_that_were_not_deployed() {
    let mut job = moving();
    all_stops(&mut job);
    let there = vec![("tm0", vec![]), ("tm1", vec![]), ("tm2", vec![])];
    let next = next_leader(&job.stored, there);
    assert_eq!(next.generations(), [3]);
    assert_eq!(deployed_in(&next, 3), ["tm0", "tm2"]);
    assert_eq!(freed(&next), ["tm1"]);
    // The missing task is reported as with every change of the leader, and not counted.
    let restarts = next.stored.restarts.clone().unwrap_or_default();
    assert_eq!(restarts, pb::RestartCounters::default());
}

#[test]
fn the_next_leader_adopts_regions_that_a_move_has_deployed() {
    let mut job = moving();
    all_stops(&mut job);
    let there = vec![
        ("tm0", both(0, 2, S::Running)),
        ("tm1", vec![]),
        ("tm2", on_the_new_one()),
    ];
    let next = next_leader(&job.stored, there);
    assert_eq!((next.generations(), next.deployed()), (vec![2], vec![]));
    assert_eq!(next.cancelled(), []);
    assert_eq!(freed(&next), ["tm1"]);
    assert_no_failure(&next);
}
