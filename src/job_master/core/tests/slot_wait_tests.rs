//! Jobs of several regions with fewer slots than all of them need: regions run one after the other, none
//! fails for lack of slots that will become free, and no job keeps slots that it cannot use and that others lack.

use tanist_gateway::Unfulfillable;
use tanist_model::{OperatorSpec, operators};
use tanist_proto::resources::{ResourceProfile, Resources};
use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus};

use super::recovered::{Recovered, one_region, options, report};
use super::testing::{apart, submitted_whole};
use crate::core::restart::RestartStrategy;
use crate::core::{CoreOptions, Effect, Event};

/// Gives the vertex an unbounded source.
fn never_ends(graph: &mut pb::JobGraph, vertex: usize) {
    let source = OperatorSpec::Datagen(operators::Datagen {
        rate: None,
        count: None,
        seed: 0,
        keys: 1,
    });
    graph.vertices[vertex].operators = vec![pb::Operator {
        name: "source".to_owned(),
        spec: source.to_json(),
        ..pb::Operator::default()
    }];
}

/// A job that was not recovered, and these TaskManagers with one slot each.
fn with_slots(graph: &pb::JobGraph, task_managers: &[&str]) -> Recovered {
    let mut job = Recovered::new(graph, submitted_whole(graph));
    for name in task_managers {
        job.register(name, "1", vec![]);
    }
    job
}

/// The last declaration: (minimum, maximum).
fn asked(job: &Recovered) -> (u32, u32) {
    let sum = |of: &[(ResourceProfile, u32)]| of.iter().map(|(_, number)| number).sum();
    let needs = |effect: &Effect| match effect {
        Effect::Declare(needs) => Some((sum(&needs.at_once), sum(&needs.slots))),
        _ => None,
    };
    let last = job.effects.iter().rev().find_map(needs);
    last.expect("it has asked")
}

fn freed(job: &Recovered) -> usize {
    let freed = |effect: &Effect| match effect {
        Effect::FreeSlots { allocations, .. } => allocations.len(),
        _ => 0,
    };
    job.effects.iter().map(freed).sum()
}

fn finishes(job: &mut Recovered, vertex: u32) {
    job.reports("tm0", vec![report(vertex, 0, 1, S::Finished)]);
}

#[test]
fn regions_of_a_job_run_one_after_the_other_in_the_slot_that_there_is() {
    let graph = apart(&[1, 1]);
    let mut job = Recovered::new(&graph, submitted_whole(&graph));
    assert_eq!(asked(&job), (1, 2));
    job.register("tm0", "1", vec![]);
    assert_eq!(job.deployed().len(), 1);
    assert_eq!(asked(&job), (1, 2), "the slot will be free");
    // Much longer than the slot request timeout.
    job.pass(100_000);
    finishes(&mut job, 1);
    assert_eq!(job.deployed().len(), 2);
    finishes(&mut job, 2);
    job.hear(Event::SinksCommitted);
    assert_eq!(job.ended_as(), Some(JobStatus::Finished));
    assert_eq!(job.generations(), [1, 1]);
}

#[test]
fn a_region_does_not_wait_for_a_slot_whose_region_does_not_end() {
    let mut graph = apart(&[1, 1]);
    never_ends(&mut graph, 0);
    let mut job = with_slots(&graph, &["tm0"]);
    assert_eq!(asked(&job), (2, 2));
    job.pass(10_000);
    let expected = "not enough slots within 10000 ms";
    assert!(job.stored.fatal_cause.contains(expected));
}

#[test]
fn the_option_that_limits_the_slots_is_named_when_they_are_too_few() {
    let mut graph = apart(&[2]);
    never_ends(&mut graph, 0);
    for (max_slots, expected) in [
        (
            Some(1),
            "raise slotmanager.number-of-slots.max (1), or lower",
        ),
        (None, "start TaskManagers or lower the parallelism"),
    ] {
        let bounded = CoreOptions {
            max_slots,
            ..options()
        };
        let mut job = Recovered::with_options(&graph, submitted_whole(&graph), 2, bounded);
        job.register("tm0", "1", vec![]);
        job.pass(10_000);
        let cause = &job.stored.fatal_cause;
        assert!(cause.contains(expected), "{cause}");
    }
}

#[test]
fn the_wait_begins_when_the_last_region_that_ends_by_itself_has_ended() {
    let graph = apart(&[1, 2]);
    let mut job = with_slots(&graph, &["tm0"]);
    assert_eq!(
        asked(&job),
        (3, 3),
        "one slot is too few for the second region"
    );
    job.pass(100_000);
    finishes(&mut job, 1);
    assert_eq!(asked(&job), (2, 2));
    job.pass(9_999);
    assert_eq!(job.stored.fatal_cause, "");
    job.pass(1);
    assert!(job.stored.fatal_cause.contains("2 of 2 slots are missing"));
}

#[test]
fn slots_that_are_too_few_for_any_region_go_back_when_they_have_idled() {
    let graph = apart(&[1, 2]);
    let mut job = with_slots(&graph, &["tm0"]);
    finishes(&mut job, 1);
    assert_eq!((freed(&job), asked(&job)), (0, (2, 2)));
    job.pass(5_000);
    assert_eq!((freed(&job), asked(&job)), (1, (2, 2)));
}

/// By default a round is shorter than the idle timeout, and others are served in every other round.
#[test]
fn slots_that_are_too_few_go_back_although_a_running_region_will_free_more() {
    let options = CoreOptions {
        slot_request_timeout_ms: 300_000,
        slot_idle_timeout_ms: 50_000,
        ..options()
    };
    let graph = apart(&[1, 2]);
    let mut job = Recovered::with_options(&graph, submitted_whole(&graph), 2, options);
    for name in ["tm0", "tm1"] {
        job.register(name, "1", vec![]);
    }
    assert_eq!(placed(&job), [true, false]);
    for _ in 0..4 {
        job.pass(10_000);
    }
    assert_eq!(freed(&job), 0);
    for _ in 0..2 {
        job.pass(10_000);
    }
    assert_eq!((freed(&job), asked(&job)), (1, (3, 3)));
}

#[test]
fn slots_of_a_region_that_yields_them_in_one_round_do_not_idle() {
    let options = CoreOptions {
        slot_idle_timeout_ms: TURN_MS - 100,
        ..options()
    };
    let graph = apart(&[1, 1, 2, 1]);
    let mut job = Recovered::with_options(&graph, submitted_whole(&graph), 2, options);
    for name in ["tm0", "tm1"] {
        job.register(name, "1", vec![]);
    }
    job.pass(TURN_MS);
    ends(&mut job, 1);
    assert_eq!(placed(&job), [true, true, false, false]);
    job.pass(TURN_MS - 1);
    assert_eq!(freed(&job), 0);
    job.pass(1);
    assert_eq!(placed(&job), [true, true, false, true]);
}

#[test]
fn a_job_of_one_region_asks_for_all_and_keeps_what_it_has() {
    let mut job = with_slots(&one_region(), &["tm0"]);
    assert_eq!(asked(&job), (2, 2));
    job.pass(6_000);
    assert_eq!(freed(&job), 0);
    job.register("tm1", "1", vec![]);
    assert_eq!(job.deployed().len(), 4);
    assert_eq!(asked(&job), (2, 2));
}

/// A job with one region of two slots that has only one slot. It restarts after `delay_ms`.
fn restarting(delay_ms: u64) -> Recovered {
    let options = CoreOptions {
        restart_strategy: RestartStrategy::FixedDelay {
            attempts: 100,
            delay_ms,
        },
        ..options()
    };
    let graph = one_region();
    let mut job = Recovered::with_options(&graph, submitted_whole(&graph), 2, options);
    job.register("tm0", "1", vec![]);
    job
}

#[test]
fn a_job_of_one_region_that_failed_for_lack_of_slots_gives_back_those_it_has() {
    let mut job = restarting(1_000);
    job.pass(10_000);
    assert_eq!(job.generations(), [2], "it failed");
    assert_eq!(freed(&job), 0);
    job.pass(1_000);
    assert_eq!(
        job.core.blocked_reasons()[0].kind(),
        pb::BlockedReasonKind::NoSlots
    );
    job.pass(3_999);
    assert_eq!(freed(&job), 0);
    job.pass(1);
    assert_eq!(
        (freed(&job), asked(&job)),
        (1, (2, 2)),
        "it is given all or none"
    );
    for name in ["tm1", "tm2"] {
        job.register(name, "1", vec![]);
    }
    assert_eq!(job.deployed().len(), 4);
    job.pass(6_000);
    assert_eq!(freed(&job), 1);
}

#[test]
fn a_region_that_the_cluster_has_room_for_waits_without_limit_and_keeps_no_slots() {
    let mut job = with_slots(&one_region(), &["tm0"]);
    job.hear(Event::HasRoom(true));
    job.pass(9_999);
    let blocked_reason = job.core.blocked_reasons().remove(0);
    assert_eq!(blocked_reason.kind(), pb::BlockedReasonKind::NoSlots);
    assert_eq!(
        blocked_reason.until_ms, 0,
        "nothing ends the wait: {blocked_reason:?}"
    );
    job.pass(1);
    job.pass(5_000);
    assert_eq!(freed(&job), 1, "one is too few, and others may need it");
    job.pass(1_000_000);
    assert_eq!(job.stored.fatal_cause, "");
    // Its timeout starts when there is no room any more.
    job.hear(Event::HasRoom(false));
    job.pass(9_999);
    assert_eq!(job.stored.fatal_cause, "");
    job.pass(1);
    let expected = "not enough slots within 10000 ms";
    assert!(job.stored.fatal_cause.contains(expected));
}

#[test]
fn a_need_that_no_task_manager_can_ever_fulfil_fails_at_once() {
    let mut graph = one_region();
    graph.vertices[0].resources = Some(
        (&Resources {
            task_memory: 1 << 30,
            ..Resources::ZERO
        })
            .into(),
    );
    let mut job = Recovered::new(&graph, submitted_whole(&graph));
    job.hear(Event::HasRoom(true));
    let profile = job.core.slots.needed()[0].0.clone();
    let verdict = Unfulfillable {
        profile,
        largest: Resources::ZERO,
    };
    job.hear(Event::Unfulfillable(Some(Box::new(verdict))));
    job.pass(1_000);
    let expected = "no TaskManager can ever give";
    assert!(
        job.stored.fatal_cause.contains(expected),
        "{}",
        job.stored.fatal_cause
    );
}

#[test]
fn slots_that_arrive_during_a_backoff_are_kept_if_they_are_enough() {
    let mut job = restarting(60_000);
    job.pass(10_000);
    assert_eq!(job.generations(), [2], "it failed");
    job.register("tm1", "1", vec![]);
    job.pass(30_000);
    assert_eq!((freed(&job), job.deployed().len()), (0, 0));
    job.pass(30_000);
    assert_eq!((freed(&job), job.deployed().len()), (0, 4));
}

#[test]
fn as_many_regions_run_as_there_are_slots_and_the_next_takes_the_first_that_is_left() {
    let graph = apart(&[1, 1, 1]);
    let mut job = with_slots(&graph, &["tm0", "tm1"]);
    assert_eq!(job.deployed().len(), 2);
    assert_eq!(asked(&job), (2, 3));
    finishes(&mut job, 1);
    assert_eq!(job.deployed().len(), 3);
    assert_eq!(asked(&job), (2, 2));
}

/// The only subtask of a vertex finishes, on any TaskManager.
fn ends(job: &mut Recovered, vertex: u32) {
    let details = job.core.details();
    let number = usize::try_from(vertex - 1).expect("small");
    let at = details.vertices[number].subtasks[0].resource_id.clone();
    assert!(!at.is_empty(), "it is placed");
    job.reports(&at, vec![report(vertex, 0, 1, S::Finished)]);
}

/// Which vertices are placed.
fn placed(job: &Recovered) -> Vec<bool> {
    let details = job.core.details();
    let vertices = details.vertices.iter();
    let placed = vertices.map(|it| it.subtasks.iter().all(|it| !it.resource_id.is_empty()));
    placed.collect()
}

/// One reservation round: 1/20 of the slot request timeout of 10 s.
const TURN_MS: u64 = 500;

#[test]
fn a_region_for_which_there_are_too_few_slots_lets_those_behind_it_ask_every_other_round() {
    let graph = apart(&[3, 1]);
    let mut job = Recovered::new(&graph, submitted_whole(&graph));
    assert_eq!(asked(&job), (3, 4));
    for _ in 0..3 {
        job.pass(TURN_MS - 1);
        assert_eq!(asked(&job), (3, 4));
        job.pass(1);
        assert_eq!(asked(&job), (1, 4), "that may be had");
        job.pass(TURN_MS - 1);
        assert_eq!(asked(&job), (1, 4));
        job.pass(1);
        assert_eq!(asked(&job), (3, 4), "no region waits forever");
    }
    job.register("tm0", "1", vec![]);
    assert_eq!(placed(&job), [false, true]);
    assert_eq!(
        job.core.next_deadline_ms().map(|at| at > job.now_ms),
        None,
        "it has its round"
    );
}

#[test]
fn of_those_behind_it_each_that_needs_something_else_has_its_round() {
    let mut graph = apart(&[4, 1, 1, 2]);
    for (vertex, memory) in graph.vertices.iter_mut().zip([1, 2, 2, 1]) {
        let resources = Resources {
            task_memory: memory << 20,
            ..Resources::ZERO
        };
        vertex.resources = Some((&resources).into());
    }
    let mut job = Recovered::new(&graph, submitted_whole(&graph));
    let mut rounds = Vec::new();
    for _ in 0..6 {
        rounds.push(asked(&job).0);
        job.pass(TURN_MS);
    }
    // The second and third have the same need: one of them is enough for both.
    assert_eq!(rounds, [4, 1, 4, 2, 4, 1]);
}

#[test]
fn small_regions_leave_free_slots_to_a_large_one_before_them_in_every_other_round() {
    let graph = apart(&[1, 1, 2, 1, 1]);
    let mut job = with_slots(&graph, &["tm0", "tm1"]);
    assert_eq!(placed(&job), [true, true, false, false, false]);
    ends(&mut job, 1);
    assert_eq!(
        placed(&job),
        [true, true, false, true, false],
        "at first no region yields slots"
    );
    job.pass(TURN_MS);
    ends(&mut job, 2);
    assert!(!placed(&job)[4], "this one is kept for the large one");
    assert_eq!(freed(&job), 0);
    ends(&mut job, 4);
    assert_eq!(placed(&job), [true, true, true, true, false]);
}

#[test]
fn slots_kept_for_a_starved_large_region_are_used_by_those_behind_it_in_their_round() {
    let graph = apart(&[1, 1, 2, 1, 1]);
    let mut job = with_slots(&graph, &["tm0", "tm1"]);
    job.pass(TURN_MS);
    ends(&mut job, 1);
    assert_eq!(placed(&job), [true, true, false, false, false]);
    // The other one hangs.
    job.pass(TURN_MS);
    assert_eq!(placed(&job), [true, true, false, true, false]);
    ends(&mut job, 4);
    job.pass(TURN_MS);
    assert!(!placed(&job)[2]);
    ends(&mut job, 2);
    ends(&mut job, 5);
    assert!(placed(&job)[2], "in its own round it gets both");
}
