//! Jobs that leave TaskManagers which are drained: which slots are requested, which regions stay, and that it
//! counts as no failure. The restart strategy of these jobs is none, so a counted failure would end them.

use std::sync::Arc;

use tanist_gateway::{Leave, Leaving};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;
use tanist_proto::v1::{BlockedReasonKind, ExecutionState as S};

use super::recovered::{Recovered, both, id, one_region, report, two_regions};
use super::testing::{apart, submitted_whole};
use crate::core::{Effect, Event};

/// One round of the move, or of regions that wait beside it.
pub(super) const TURN_MS: u64 = 500;

pub(super) fn with_slots(graph: &pb::JobGraph, task_managers: &[&str]) -> Recovered {
    let mut job = Recovered::new(graph, submitted_whole(graph));
    for name in task_managers {
        job.register(name, "1", vec![]);
    }
    job
}

pub(super) fn leaves(job: &mut Recovered, all: &[(&str, Leave)]) {
    let all = all.iter().map(|(name, leave)| (id(name), *leave));
    let leaving: Leaving = all.collect();
    job.hear(Event::Leaving(Arc::new(leaving)));
}

/// The last declaration: (minimum, maximum).
pub(super) fn asked(job: &Recovered) -> (u32, u32) {
    let sum = |of: &[(ResourceProfile, u32)]| of.iter().map(|(_, number)| number).sum();
    let needs = |effect: &Effect| match effect {
        Effect::Declare(needs) => Some((sum(&needs.at_once), sum(&needs.slots))),
        _ => None,
    };
    let last = job.effects.iter().rev().find_map(needs);
    last.expect("it has asked")
}

/// The TaskManagers to which slots were given back.
pub(super) fn freed(job: &Recovered) -> Vec<String> {
    let freed = |effect: &Effect| match effect {
        Effect::FreeSlots { connection, .. } => Some(connection.task_manager.to_string()),
        _ => None,
    };
    job.effects.iter().filter_map(freed).collect()
}

pub(super) fn assert_no_failure(job: &Recovered) {
    assert_eq!(job.stored.fatal_cause, "");
    assert_eq!(job.stored.failures, []);
    let restarts = job.stored.restarts.clone().unwrap_or_default();
    assert_eq!(restarts, pb::RestartCounters::default());
}

#[test]
fn regions_on_a_drained_task_manager_move_once_all_their_slots_are_there() {
    let mut job = with_slots(&one_region(), &["tm0", "tm1"]);
    assert_eq!(job.deployed().len(), 4);
    leaves(&mut job, &[("tm1", Leave::Moved)]);
    assert_eq!(asked(&job), (3, 3), "one more, for the one that is left");
    job.pass(1_000_000);
    assert_eq!((job.generations(), job.cancelled()), (vec![1], vec![]));
    let blocked_reason = job.core.blocked_reasons().remove(0);
    assert_eq!(blocked_reason.kind(), BlockedReasonKind::Eviction);
    assert!(
        blocked_reason.text.contains("tm1"),
        "{}",
        blocked_reason.text
    );

    job.register("tm2", "1", vec![]);
    assert_eq!(job.generations(), [2], "it is written");
    let mut cancelled = job.cancelled();
    cancelled.sort();
    cancelled.dedup();
    let expected = [("tm0", 0, 1), ("tm1", 1, 1)];
    assert_eq!(
        cancelled,
        expected.map(|(name, subtask, of)| (name.to_owned(), subtask, of))
    );
    assert_eq!(job.deployed().len(), 4, "all of it has to end first");
    assert_eq!(freed(&job), [] as [&str; 0]);
    for (name, subtask) in [("tm0", 0), ("tm1", 1)] {
        job.reports(name, both(subtask, 1, S::Canceled));
    }
    let mut next = job.deployed().split_off(4);
    next.sort();
    next.dedup();
    assert_eq!(next, [("tm0".to_owned(), 2), ("tm2".to_owned(), 2)]);
    assert_eq!(freed(&job), ["tm1"], "at once, and only there");
    assert_eq!(asked(&job), (2, 2));
    assert_no_failure(&job);
    let told = job.core.details().events;
    let moved = told
        .iter()
        .find(|it| it.kind() == pb::JobEventKind::Restart);
    assert!(moved.is_some_and(|it| it.text.contains("tm1")), "{told:?}");
}

#[test]
fn only_the_regions_that_run_there_move() {
    let mut job = with_slots(&apart(&[1, 1]), &["tm0", "tm1"]);
    leaves(&mut job, &[("tm1", Leave::Moved)]);
    job.register("tm2", "1", vec![]);
    assert_eq!(job.generations(), [1, 2]);
    job.reports("tm1", vec![report(2, 0, 1, S::Canceled)]);
    let next = job.deployed().split_off(2);
    assert_eq!(next, [("tm2".to_owned(), 2)]);
    assert_eq!(freed(&job), ["tm1"]);
    assert_no_failure(&job);
    // The other one leaves later.
    leaves(&mut job, &[("tm0", Leave::Moved)]);
    job.register("tm3", "1", vec![]);
    assert_eq!(job.generations(), [2, 2]);
}

#[test]
fn regions_move_one_after_the_other() {
    let mut job = with_slots(&apart(&[1, 1]), &["tm0", "tm1"]);
    leaves(&mut job, &[("tm0", Leave::Moved), ("tm1", Leave::Moved)]);
    assert_eq!(asked(&job), (3, 3), "not all at once");
    job.register("tm2", "1", vec![]);
    assert_eq!(job.generations(), [2, 1]);
    job.register("tm3", "1", vec![]);
    assert_eq!(job.generations(), [2, 1], "the first is still on its way");
    job.reports("tm0", vec![report(1, 0, 1, S::Canceled)]);
    assert_eq!(job.generations(), [2, 2]);
    job.reports("tm1", vec![report(2, 0, 1, S::Canceled)]);
    let next = job.deployed().split_off(2);
    assert_eq!(next.len(), 2, "{next:?}");
    assert_eq!(freed(&job), ["tm0", "tm1"]);
    assert_no_failure(&job);
}

#[test]
fn without_eviction_nothing_starts_on_a_drained_task_manager_and_tasks_end_by_themselves() {
    let mut job = with_slots(&apart(&[1, 1]), &["tm0"]);
    leaves(&mut job, &[("tm0", Leave::ByItself)]);
    job.pass(1_000_000);
    assert_eq!(job.generations(), [1, 0]);
    job.reports("tm0", vec![report(1, 0, 1, S::Finished)]);
    assert_eq!(
        job.deployed().len(),
        1,
        "the other one waits for slots elsewhere"
    );
    assert_eq!(freed(&job), ["tm0"]);
    job.register("tm1", "1", vec![]);
    assert_eq!(job.deployed().split_off(1), [("tm1".to_owned(), 1)]);
}

#[test]
fn regions_stay_on_a_task_manager_whose_drain_has_ended() {
    let mut job = with_slots(&one_region(), &["tm0", "tm1"]);
    leaves(&mut job, &[("tm1", Leave::Moved)]);
    assert_eq!(asked(&job), (3, 3));
    leaves(&mut job, &[]);
    assert_eq!(asked(&job), (2, 2));
    job.register("tm2", "1", vec![]);
    assert_eq!(job.generations(), [1]);
    job.pass(5_000);
    assert_eq!(freed(&job).len(), 1, "the surplus idles");
}

#[test]
fn at_the_deadline_regions_leave_even_without_slots_if_that_was_requested() {
    let mut job = with_slots(&one_region(), &["tm0", "tm1"]);
    leaves(&mut job, &[("tm1", Leave::AtOnce)]);
    assert_eq!(job.generations(), [2]);
    for (name, subtask) in [("tm0", 0), ("tm1", 1)] {
        job.reports(name, both(subtask, 1, S::Canceled));
    }
    assert_eq!(job.deployed().len(), 4, "there is nowhere to go");
    assert_eq!(freed(&job), ["tm1"]);
    assert_eq!(asked(&job), (2, 2));
    job.register("tm2", "1", vec![]);
    assert_eq!(job.deployed().len(), 8);
    assert_no_failure(&job);
}

#[test]
fn the_next_leader_ends_a_move_that_was_written() {
    let graph = one_region();
    let mut job = with_slots(&graph, &["tm0", "tm1"]);
    leaves(&mut job, &[("tm1", Leave::Moved)]);
    job.register("tm2", "1", vec![]);
    assert_eq!(job.generations(), [2]);
    // It was written, and no TaskManager received a cancellation: all executions still run.
    let mut next = Recovered::in_term(&graph, job.stored.clone(), 3);
    leaves(&mut next, &[("tm1", Leave::Moved)]);
    for (name, subtask) in [("tm0", 0), ("tm1", 1)] {
        next.register(name, "1", both(subtask, 1, S::Running));
        next.reports(name, both(subtask, 1, S::Canceled));
    }
    next.register("tm2", "1", vec![]);
    let mut deployed = next.deployed();
    deployed.dedup();
    let on: Vec<&str> = deployed.iter().map(|(name, _)| name.as_str()).collect();
    assert!(!on.contains(&"tm1") && on.contains(&"tm2"), "{on:?}");
    assert_no_failure(&next);
}

/// The regions of two vertices share their slots on `tm0` and `tm1`. All tasks of the first one stop before
/// those of the other one.
fn assert_no_region_goes_back(how: Leave) {
    let mut job = with_slots(&two_regions(), &["tm0", "tm1"]);
    assert_eq!(job.deployed().len(), 4);
    leaves(&mut job, &[("tm1", how)]);
    if how == Leave::Moved {
        job.register("tm2", "1", vec![]);
    }
    assert_eq!(job.generations(), [2, 2]);
    let told = job.core.blocked_reasons();
    let kinds: Vec<BlockedReasonKind> = told.iter().map(|it| it.kind()).collect();
    assert_eq!(kinds, [BlockedReasonKind::Eviction], "{told:?}");
    assert!(told[0].text.contains("being moved"), "{told:?}");
    for (name, subtask) in [("tm0", 0), ("tm1", 1)] {
        job.reports(name, vec![report(1, subtask, 1, S::Canceled)]);
    }
    assert_eq!(job.deployed().len(), 4, "the other one has not stopped");
    for (name, subtask) in [("tm0", 0), ("tm1", 1)] {
        job.reports(name, vec![report(2, subtask, 1, S::Canceled)]);
    }
    if how == Leave::AtOnce {
        assert_eq!(job.deployed().len(), 4, "there is nowhere to go");
        job.register("tm2", "1", vec![]);
    }
    let mut next = job.deployed().split_off(4);
    assert_eq!(next.len(), 4, "{next:?}");
    next.sort();
    next.dedup();
    assert_eq!(next, [("tm0".to_owned(), 2), ("tm2".to_owned(), 2)]);
    assert_eq!(freed(&job), ["tm1"]);
    assert_no_failure(&job);
}

#[test]
fn a_region_that_stops_first_does_not_return_to_a_slot_in_which_another_one_still_stops() {
    assert_no_region_goes_back(Leave::Moved);
    assert_no_region_goes_back(Leave::AtOnce);
}

#[test]
fn a_region_that_finishes_while_its_move_waits_for_slots_does_not_run_again() {
    let mut job = with_slots(&two_regions(), &["tm0", "tm1"]);
    leaves(&mut job, &[("tm1", Leave::Moved)]);
    for (name, subtask) in [("tm0", 0), ("tm1", 1)] {
        job.reports(name, vec![report(1, subtask, 1, S::Finished)]);
    }
    job.register("tm2", "1", vec![]);
    assert_eq!(job.generations(), [1, 2]);
    assert_no_failure(&job);
}

#[test]
fn slots_that_arrived_for_a_move_are_used_by_the_move() {
    let mut job = with_slots(&apart(&[1, 1]), &["tm0", "tm1"]);
    // The first region waits without a slot.
    leaves(&mut job, &[("tm0", Leave::AtOnce)]);
    job.reports("tm0", vec![report(1, 0, 1, S::Canceled)]);
    assert_eq!(freed(&job), ["tm0"]);
    leaves(&mut job, &[]);
    leaves(&mut job, &[("tm1", Leave::Moved)]);
    // In the round of the move.
    job.pass(TURN_MS);
    job.register("tm2", "1", vec![]);
    assert_eq!(job.generations(), [2, 2]);
    job.reports("tm1", vec![report(2, 0, 1, S::Canceled)]);
    assert_eq!(job.deployed().split_off(2), [("tm2".to_owned(), 2)]);
    assert!(job.stored.regions[0].placements.is_empty(), "it waits on");
    job.register("tm3", "1", vec![]);
    assert_eq!(job.deployed().len(), 4);
    assert_no_failure(&job);
}
