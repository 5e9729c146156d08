//! A change of the leader at each stage of a job: what the next core does with the state that it finds. The
//! simulation covers other orders of events.

use std::sync::Arc;

use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus};

use super::recovered::{
    RECONCILE_MS, Recovered, both, end, id, location, one_region, placed, report, slot, two_regions,
};
use super::testing::submitted;
use crate::core::{Connection, Effect, Event, Refusal, Registration, SubmitOutcome};

#[test]
fn a_region_that_runs_whole_goes_on_and_nothing_is_sent_to_it() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 3));
    assert_eq!(job.core.status(), JobStatus::Reconciling);
    job.register("tm0", "1", both(0, 3, S::Running));
    assert_eq!(job.core.status(), JobStatus::Reconciling);
    assert_eq!((job.core.adoption(), job.declared()), (None, vec![]));
    job.now_ms += 30;
    job.register("tm1", "1", both(1, 3, S::Running));
    job.assert_adopted(4);
    let details = job.core.details();
    let subtask = &details.vertices[1].subtasks[1];
    assert_eq!((subtask.state(), subtask.attempt), (S::Running, 3));
    assert_eq!(subtask.started_at_ms, 5);
    let adoption = job.core.adoption().expect("nothing is awaited");
    assert_eq!(adoption.first_adopted_at_ms, Some(job.now_ms));
}

#[test]
fn a_leader_that_stood_still_while_it_waited_waits_as_much_longer() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 3));
    job.core.put_off_deadlines(2 * RECONCILE_MS);
    job.pass(2 * RECONCILE_MS);
    assert_eq!(job.core.status(), JobStatus::Reconciling);
    job.register("tm0", "1", both(0, 3, S::Running));
    job.register("tm1", "1", both(1, 3, S::Running));
    job.assert_adopted(4);
}

#[test]
fn a_region_of_which_one_half_was_deployed_is_restarted_without_counting_a_failure() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", vec![]);
    job.assert_restarts(1, &[("tm0", 0)]);
    let details = job.core.details();
    assert_eq!(details.restarts, 0);
    let cause = &details.failures.last().expect("it is told").cause;
    assert!(cause.contains("change of the leader"), "{cause}");
}

#[test]
fn a_deployment_with_unknown_outcome_is_judged_by_what_is_there() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", both(1, 1, S::Deploying));
    job.assert_adopted(4);
    job.reports("tm1", both(1, 1, S::Running));
    job.assert_adopted(4);

    // If the answer to a deployment by this leader is lost, its outcome is unknown, even if the tasks run.
    let mut job = Recovered::new(&graph, submitted(&graph));
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    assert_eq!(job.deployed().len(), 4);
    let connection = job.connection("tm0");
    job.hear(Event::TasksSubmitted {
        connection,
        tasks: vec![pb::ExecutionId {
            vertex_id: graph.vertices[0].id.clone(),
            subtask: 0,
            generation: 1,
        }],
        outcome: SubmitOutcome::Unknown("no answer".to_owned()),
    });
    assert_eq!(
        job.core.status(),
        JobStatus::Failing,
        "no restarts are allowed"
    );
}

#[test]
fn a_restart_that_was_under_way_goes_on_with_the_generation_after_it() {
    let graph = one_region();
    let mut state = placed(&graph, 1);
    state.regions[0] = pb::RegionState {
        generation: 2,
        epoch: 1,
        ..pb::RegionState::default()
    };
    let mut job = Recovered::new(&graph, state);
    assert_eq!(job.generations(), [3]);
    assert_eq!(job.declared(), [2], "nothing is awaited");
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", vec![]);
    assert_eq!(job.cancelled()[0], ("tm0".to_owned(), 0, 1));
    assert!(job.deployed().is_empty(), "its slot is not free");
    job.reports("tm0", both(0, 1, S::Canceled));
    assert_eq!(job.deployed().len(), 4);
    assert!(
        job.deployed()
            .iter()
            .all(|(_, generation)| *generation == 3)
    );
}

#[test]
fn a_cancel_goes_on_with_what_is_there() {
    let graph = one_region();
    let mut state = placed(&graph, 1);
    state.set_wanted(pb::WantedStatus::Canceled);
    let mut job = Recovered::new(&graph, state);
    assert_eq!(job.core.status(), JobStatus::Cancelling);
    job.register("tm0", "1", both(0, 1, S::Running));
    assert_eq!(job.cancelled().len(), 2);
    job.reports("tm0", both(0, 1, S::Canceled));
    assert_eq!(job.core.status(), JobStatus::Cancelling);
    job.register("tm1", "1", both(1, 1, S::Canceled));
    assert_eq!(job.ended_as(), Some(JobStatus::Canceled));
}

#[test]
fn a_job_that_is_cancelled_while_it_reconciles_adopts_nothing() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    job.hear(Event::CancelRequested);
    assert_eq!(job.cancelled().len(), 2);
    job.reports("tm0", both(0, 1, S::Canceled));
    job.pass(RECONCILE_MS);
    assert_eq!(
        job.ended_as(),
        Some(JobStatus::Canceled),
        "who stays away is not waited for longer"
    );
    assert_eq!(job.core.adoption().expect("it is over").tasks_adopted, 0);
}

#[test]
fn a_job_that_finished_while_there_was_no_leader_is_recorded_acknowledged_and_committed() {
    let graph = one_region();
    let mut state = placed(&graph, 1);
    state.terminal = vec![end(1, 0, 1, S::Finished)];
    let mut job = Recovered::new(&graph, state);
    job.register("tm0", "1", both(0, 1, S::Finished));
    let is_acknowledged = |job: &Recovered| {
        let count = |effect: &Effect| match effect {
            Effect::Acknowledge { executions, .. } => executions.len(),
            _ => 0,
        };
        job.effects.iter().map(count).sum::<usize>()
    };
    assert_eq!(
        is_acknowledged(&job),
        2,
        "one was recorded by the former leader"
    );
    job.register("tm1", "1", both(1, 1, S::Finished));
    assert_eq!(is_acknowledged(&job), 4);
    assert_eq!(job.stored.terminal.len(), 4);
    assert!(job.deployed().is_empty());
    job.hear(Event::SinksCommitted);
    // The Dispatcher, which writes the result, reports that it has finished.
    assert_eq!(job.core.status(), JobStatus::Running);
    assert!(
        job.core.next_deadline_ms().is_none(),
        "nothing is left to do"
    );
}

#[test]
fn a_recorded_end_needs_no_report() {
    let graph = one_region();
    let mut state = placed(&graph, 1);
    // The sources ended, and their TaskManager is not needed any more.
    state.terminal = vec![end(1, 0, 1, S::Finished), end(1, 1, 1, S::Finished)];
    for placement in &mut state.regions[0].placements {
        if placement.vertex_id == graph.vertices[0].id {
            placement.location = Some(location("tm2", "1"));
        }
    }
    let mut job = Recovered::new(&graph, state);
    job.register("tm0", "1", vec![report(2, 0, 1, S::Running)]);
    job.register("tm1", "1", vec![report(2, 1, 1, S::Running)]);
    job.assert_adopted(2);
}

#[test]
fn a_registration_that_is_older_than_one_that_was_seen_adopts_nothing() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    let late = job.try_hear(Event::Registered {
        connection: Connection {
            task_manager: id("tm0"),
            registration: Registration::new(1),
        },
        location: location("tm0", "1"),
        executions: vec![],
        slots: vec![],
        outputs: vec![],
    });
    assert!(matches!(late, Err(Refusal::Outdated { .. })));
    // It registers again during the reconciliation.
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", both(1, 1, S::Running));
    job.assert_adopted(4);
}

#[test]
fn a_second_change_of_the_leader_while_it_reconciles_finds_what_the_first_found() {
    let graph = one_region();
    let mut first = Recovered::new(&graph, placed(&graph, 1));
    first.register("tm0", "1", both(0, 1, S::Running));
    let mut second = Recovered::in_term(&graph, first.stored, 3);
    assert_eq!(second.core.job_incarnation(), 3);
    second.register("tm1", "1", both(1, 1, S::Running));
    second.register("tm0", "1", both(0, 1, S::Running));
    second.assert_adopted(4);
}

#[test]
fn a_leader_that_died_after_giving_a_generation_up_is_followed_by_the_one_after() {
    let graph = one_region();
    let mut first = Recovered::new(&graph, placed(&graph, 1));
    first.register("tm0", "1", both(0, 1, S::Running));
    first.register("tm1", "1", vec![]);
    assert_eq!(first.generations(), [2]);
    let mut second = Recovered::in_term(&graph, first.stored, 3);
    second.register("tm0", "1", both(0, 1, S::Canceled));
    second.register("tm1", "1", vec![]);
    assert_eq!(second.generations(), [3]);
    assert_eq!(second.deployed().len(), 4);
}

#[test]
fn a_task_manager_that_is_lost_with_the_leader_is_waited_for_as_long_as_any_silent_one() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    let deadline = job.core.next_deadline_ms().expect("it waits");
    assert_eq!(deadline, job.now_ms + RECONCILE_MS);
    job.pass(RECONCILE_MS - 1);
    assert_eq!((job.generations(), job.cancelled()), (vec![1], vec![]));
    job.pass(1);
    job.assert_restarts(1, &[("tm0", 0)]);
}

#[test]
fn proof_that_a_task_manager_is_gone_ends_the_wait_and_nothing_less_does() {
    let graph = one_region();
    let gone = |name: &str, incarnation: &str| Event::TaskManagerGone {
        task_manager: id(name),
        incarnation: incarnation.to_owned(),
    };
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    job.hear(gone("tm0", "1"));
    job.hear(gone("tm1", "0"));
    assert_eq!(
        job.generations(),
        [1],
        "it is registered, or another incarnation is meant"
    );
    job.hear(gone("tm1", "1"));
    job.assert_restarts(1, &[("tm0", 0)]);
    assert_eq!(job.core.adoption().expect("decided").tasks_restarted, 4);
}

#[test]
fn another_incarnation_of_a_task_manager_has_nothing_to_adopt() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    // Even if it reports the tasks.
    job.register("tm1", "2", both(1, 1, S::Running));
    assert!(job.cancelled().contains(&("tm1".to_owned(), 1, 1)));
    job.reports("tm1", both(1, 1, S::Canceled));
    job.assert_restarts(1, &[("tm0", 0)]);
}

#[test]
fn a_slot_idles_only_from_the_end_of_the_reconciliation_on() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    let surplus = pb::SlotOffer {
        allocation_id: slot(9).to_string(),
        slot: 1,
        profile: None,
    };
    job.hear(Event::SlotsOffered {
        connection: job.connection("tm0"),
        slots: vec![surplus],
    });
    let freed = |job: &Recovered| {
        let is_freed = |effect: &&Effect| matches!(effect, Effect::FreeSlots { .. });
        job.effects.iter().filter(is_freed).count()
    };
    // Six times the idle timeout of slots.
    job.pass(30_000);
    assert_eq!(freed(&job), 0);
    job.register("tm1", "1", both(1, 1, S::Running));
    job.assert_adopted(4);
    job.pass(4_999);
    assert_eq!(freed(&job), 0);
    job.pass(1);
    assert_eq!(freed(&job), 1);
}

#[test]
fn a_task_manager_that_reports_late_but_in_time_is_adopted() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    // Longer than the idle timeout and the slot request timeout.
    job.pass(30_000);
    job.register("tm1", "1", both(1, 1, S::Running));
    job.assert_adopted(4);
}

#[test]
fn a_task_manager_that_comes_back_after_its_region_was_restarted_elsewhere_stops_its_tasks() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    job.pass(RECONCILE_MS);
    job.reports("tm0", both(0, 1, S::Canceled));
    job.register("tm2", "1", vec![]);
    assert_eq!(job.deployed().len(), 4);
    job.register("tm1", "1", both(1, 1, S::Running));
    assert!(job.cancelled().contains(&("tm1".to_owned(), 1, 1)));
    assert_eq!(job.generations(), [2]);
}

#[test]
fn an_execution_that_another_task_manager_reports_than_the_record_names_is_an_orphan() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm2", "1", both(1, 1, S::Running));
    assert_eq!(
        job.cancelled(),
        [("tm2".to_owned(), 1, 1), ("tm2".to_owned(), 1, 1)]
    );
    assert_eq!(job.core.status(), JobStatus::Reconciling);
    job.effects.clear();
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", both(1, 1, S::Running));
    job.assert_adopted(4);
}

#[test]
fn a_lower_generation_is_stopped_and_not_adopted() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 2));
    job.register("tm0", "1", both(0, 2, S::Running));
    job.register("tm1", "1", both(1, 1, S::Running));
    assert!(job.cancelled().contains(&("tm1".to_owned(), 1, 1)));
    assert_eq!(job.generations(), [3]);
}

#[test]
fn a_task_that_failed_while_there_was_no_leader_is_a_failure_like_any_other() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    let mut failed = both(0, 1, S::Running);
    failed[0].set_state(S::Failed);
    failed[0].cause = "division by zero".to_owned();
    job.register("tm0", "1", failed);
    assert_eq!(
        job.core.status(),
        JobStatus::Failing,
        "no restarts are allowed"
    );
    assert!(job.stored.fatal_cause.contains("division by zero"));
}

#[test]
fn a_task_that_its_task_manager_is_cancelling_is_not_adopted() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", both(1, 1, S::Canceling));
    job.assert_restarts(1, &[("tm0", 0), ("tm1", 1)]);
}

#[test]
fn one_region_is_restarted_and_the_other_is_not_touched() {
    let graph = two_regions();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", vec![report(1, 1, 1, S::Running)]);
    assert_eq!(job.generations(), [1, 2]);
    assert_eq!(job.cancelled(), [("tm0".to_owned(), 0, 1)]);
    job.reports("tm0", vec![report(2, 0, 1, S::Canceled)]);
    assert_eq!(job.deployed().len(), 2);
    let adoption = job.core.adoption().expect("decided");
    assert_eq!((adoption.tasks_adopted, adoption.tasks_restarted), (2, 2));
    let details = job.core.details();
    assert_eq!(details.vertices[0].subtasks[0].attempt, 1);
    assert_eq!(details.vertices[1].subtasks[0].attempt, 2);
}

#[test]
fn while_it_reconciles_no_timer_of_slots_runs_and_afterwards_all_is_declared() {
    let graph = two_regions();
    let mut state = placed(&graph, 1);
    state.regions[1] = pb::RegionState::default();
    let mut job = Recovered::new(&graph, state);
    job.register("tm2", "1", vec![]);
    job.pass(30_000);
    let freed = |effect: &Effect| matches!(effect, Effect::FreeSlots { .. });
    assert!(!job.effects.iter().any(freed));
    assert_eq!(job.declared(), Vec::<u32>::new());
    job.register("tm0", "1", vec![report(1, 0, 1, S::Running)]);
    job.register("tm1", "1", vec![report(1, 1, 1, S::Running)]);
    let held = |effect: &Effect| match effect {
        Effect::Declare(needs) => Some((needs.slots.clone(), needs.held.clone())),
        _ => None,
    };
    let declared: Vec<_> = job.effects.iter().filter_map(held).collect();
    let one = vec![ResourceProfile::Unknown];
    let held = Arc::new([(id("tm0"), one.clone()), (id("tm1"), one)].into());
    let slots = [(ResourceProfile::Unknown, 2)].into();
    assert_eq!(declared, [(slots, held)]);
    assert_eq!(
        job.deployed().len(),
        2,
        "what was never deployed has its slots by then"
    );
}
