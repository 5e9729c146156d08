//! Consequences of a failure: which failures end the job immediately, and which regions restart after the
//! others.

use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus};

use super::recovered::{Recovered, both, end, one_region, options, placed, report, two_regions};
use crate::core::failover::FailoverStrategy;
use crate::core::restart::RestartStrategy;
use crate::core::{CoreOptions, Effect, Event};

/// Restarts without limit, the first time after a second.
fn for_ever() -> CoreOptions {
    CoreOptions {
        restart_strategy: RestartStrategy::default(),
        ..options()
    }
}

/// The job runs in generation 3, on two TaskManagers.
fn running(graph: &pb::JobGraph, options: CoreOptions) -> Recovered {
    let mut job = Recovered::with_options(graph, placed(graph, 3), 2, options);
    job.register("tm0", "1", both(0, 3, S::Running));
    job.register("tm1", "1", both(1, 3, S::Running));
    job.effects.clear();
    job
}

fn beyond_repair(vertex: u32, subtask: u32) -> pb::ExecutionReport {
    pb::ExecutionReport {
        cause: "no such program".to_owned(),
        unrecoverable: true,
        ..report(vertex, subtask, 3, S::Failed)
    }
}

#[test]
fn an_unrecoverable_failure_fails_the_job_in_the_write_that_records_it() {
    let mut job = running(&one_region(), for_ever());
    let writes = job.writes;
    job.reports("tm0", vec![beyond_repair(1, 0)]);
    assert_eq!(job.writes, writes + 1);
    let expected = "a (1/2): no such program (not restarted: that would not help)";
    assert_eq!(job.stored.fatal_cause, expected);
    assert_eq!(job.stored.failures[0].cause, "no such program");
    assert_eq!(job.generations(), [3]);
    // The running tasks are cancelled, then the job ends.
    assert_eq!(job.cancelled().len(), 3);
    job.reports("tm0", vec![report(2, 0, 3, S::Canceled)]);
    job.reports("tm1", both(1, 3, S::Canceled));
    assert_eq!(job.ended_as(), Some(JobStatus::Failed));
    assert_eq!(job.deployed(), []);
}

#[test]
fn an_unrecoverable_failure_counts_though_its_consequences_are_reported_first() {
    let mut job = running(&one_region(), for_ever());
    job.reports("tm1", vec![report(2, 1, 3, S::Failed)]);
    assert_eq!(job.stored.fatal_cause, "");
    assert_eq!(job.generations(), [4], "it is about to start again");
    job.reports("tm0", vec![beyond_repair(1, 0)]);
    assert!(job.stored.fatal_cause.contains("no such program"));
}

#[test]
fn of_several_failures_at_once_the_unrecoverable_one_is_the_cause() {
    let mut job = running(&one_region(), for_ever());
    let other = report(2, 0, 3, S::Failed);
    job.reports("tm0", vec![other, beyond_repair(1, 0)]);
    assert!(job.stored.fatal_cause.contains("no such program"));
}

#[test]
fn the_next_leader_receives_the_unrecoverable_failure_again_and_decides_the_same() {
    let graph = one_region();
    let mut job = running(&graph, for_ever());
    let before = job.stored.clone();
    let report = || vec![beyond_repair(1, 0), report(2, 0, 3, S::Running)];
    let connection = job.connection("tm0");
    let event = Event::ExecutionsReported {
        connection,
        executions: report(),
    };
    let effects = job.core.handle(job.now_ms, event).expect("taken");
    let acknowledged = |effect: &Effect| matches!(effect, Effect::Acknowledge { .. });
    assert!(!effects.iter().any(acknowledged), "{effects:?}");
    // The leader dies before the write: the end is reported again.
    let mut next = Recovered::with_options(&graph, before, 3, for_ever());
    next.register("tm1", "1", both(1, 3, S::Running));
    next.register("tm0", "1", report());
    assert!(next.stored.fatal_cause.contains("no such program"));
    assert_eq!(next.generations(), [3]);
    assert_eq!(next.deployed(), []);
}

#[test]
fn a_failure_that_may_pass_restarts_its_region_and_no_other() {
    let mut job = running(&two_regions(), for_ever());
    job.reports("tm0", vec![report(1, 0, 3, S::Failed)]);
    assert_eq!(job.generations(), [4, 3]);
    assert_eq!(job.stored.fatal_cause, "");
}

#[test]
fn an_execution_that_ended_before_its_region_restarts_is_released_where_it_ran() {
    let mut job = running(&one_region(), for_ever());
    job.reports("tm0", vec![report(1, 0, 3, S::Finished)]);
    job.reports("tm1", vec![report(2, 1, 3, S::Failed)]);
    let told = job.cancelled();
    assert_eq!(told.len(), 2, "what still runs: {told:?}");
    job.reports("tm0", vec![report(2, 0, 3, S::Canceled)]);
    job.reports("tm1", vec![report(1, 1, 3, S::Canceled)]);
    assert_eq!(job.generations(), [4]);
    job.effects.clear();
    job.pass(60_000);
    let released = [("tm0".to_owned(), 0, 3), ("tm1".to_owned(), 1, 3)];
    assert_eq!(job.cancelled(), released, "none that was told to end");
}

#[test]
fn failures_that_a_leader_noted_whose_clock_was_ahead_are_forgotten_in_their_time() {
    let graph = one_region();
    let mut state = placed(&graph, 3);
    state.restarts = Some(pb::RestartCounters {
        restarts: 1,
        failures_ms: vec![1_000_000 + 3_600_000],
        ..pb::RestartCounters::default()
    });
    let strategy = RestartStrategy::FailureRate {
        max_failures: 1,
        interval_ms: 60_000,
        delay_ms: 1,
    };
    let options = CoreOptions {
        restart_strategy: strategy,
        ..options()
    };
    let mut job = Recovered::with_options(&graph, state, 2, options);
    job.register("tm0", "1", both(0, 3, S::Running));
    job.register("tm1", "1", both(1, 3, S::Running));
    job.pass(60_000);
    job.reports("tm0", vec![report(1, 0, 3, S::Failed)]);
    assert_eq!(
        (job.stored.fatal_cause.as_str(), job.generations()),
        ("", vec![4])
    );
}

fn all_together() -> CoreOptions {
    CoreOptions {
        failover_strategy: FailoverStrategy::Full,
        ..for_ever()
    }
}

#[test]
fn under_the_full_strategy_a_failure_restarts_all_regions_in_one_write() {
    let mut job = running(&two_regions(), all_together());
    let writes = job.writes;
    job.reports("tm0", vec![report(1, 0, 3, S::Failed)]);
    assert_eq!(job.generations(), [4, 4]);
    assert_eq!(job.writes, writes + 1);
    let restarts = job.stored.restarts.as_ref();
    assert_eq!(restarts.map(|it| it.restarts), Some(1));
    job.reports("tm0", vec![report(2, 0, 3, S::Canceled)]);
    job.reports("tm1", both(1, 3, S::Canceled));
    job.pass(2_000);
    assert_eq!(job.deployed().len(), 4);
    assert!(
        job.deployed()
            .iter()
            .all(|(_, generation)| *generation == 4)
    );
}

#[test]
fn under_the_full_strategy_all_regions_begin_together() {
    let mut job = running(&two_regions(), all_together());
    job.reports("tm0", vec![report(1, 0, 3, S::Failed)]);
    job.reports("tm1", vec![report(1, 1, 3, S::Canceled)]);
    job.pass(2_000);
    job.reports("tm0", vec![report(2, 0, 3, S::Canceled)]);
    assert_eq!(job.deployed(), [], "a task of the other region still stops");
    job.reports("tm1", vec![report(2, 1, 3, S::Canceled)]);
    assert_eq!(job.deployed().len(), 4);
}

#[test]
fn under_the_full_strategy_regions_that_never_started_restart_with_the_failed_ones() {
    let mut job = running(&two_regions(), all_together());
    // One region runs. The other one is placed, and it is unknown whether its tasks have started.
    job.reports("tm0", vec![report(2, 0, 3, S::Failed)]);
    for (name, subtask) in [("tm0", 0), ("tm1", 1)] {
        let ended = report(1, subtask, 3, S::Canceled);
        job.reports(name, vec![ended]);
    }
    job.reports("tm1", vec![report(2, 1, 3, S::Canceled)]);
    job.pass(2_000);
    assert_eq!((job.deployed().len(), job.generations()), (4, vec![4, 4]));
    let running = report(1, 1, 4, S::Running);
    job.reports("tm1", vec![running, report(2, 1, 4, S::Running)]);
    job.effects.clear();
    // It connects again. It reports a failed task of one region and nothing of the other one.
    job.register("tm0", "1", vec![report(1, 0, 4, S::Failed)]);
    assert_eq!(job.generations(), [5, 5]);
    job.reports("tm1", both(1, 4, S::Canceled));
    assert_eq!(
        job.deployed(),
        [],
        "the delay of the failure holds for both"
    );
    job.pass(5_000);
    assert_eq!(job.deployed().len(), 4);
}

#[test]
fn under_the_full_strategy_durably_finished_regions_stay_finished() {
    let mut job = running(&two_regions(), all_together());
    job.reports("tm0", vec![report(2, 0, 3, S::Finished)]);
    job.reports("tm1", vec![report(2, 1, 3, S::Finished)]);
    job.reports("tm0", vec![report(1, 0, 3, S::Failed)]);
    assert_eq!(job.generations(), [4, 3]);
}

#[test]
fn under_the_full_strategy_an_incomplete_adoption_restarts_all() {
    let graph = two_regions();
    let mut state = placed(&graph, 3);
    // Half of the second region has finished.
    state.terminal = vec![end(2, 0, 3, S::Finished)];
    let mut job = Recovered::with_options(&graph, state, 2, all_together());
    job.register("tm1", "1", both(1, 3, S::Running));
    job.register("tm0", "1", vec![]);
    assert_eq!(job.generations(), [4, 4]);
    assert_eq!(
        job.stored.restarts, None,
        "the restart strategy does not count it"
    );
}

/// All regions are given up after a generation that was placed. An earlier leader knew where executions of it
/// still run.
fn given_up(graph: &pb::JobGraph) -> pb::JobState {
    let mut state = placed(graph, 1);
    for region in &mut state.regions {
        region.placements.clear();
        (region.generation, region.placed_before) = (2, true);
    }
    state
}

#[test]
fn under_the_full_strategy_no_region_starts_beside_attempts_that_the_former_leader_gave_up() {
    let graph = two_regions();
    let mut job = Recovered::with_options(&graph, given_up(&graph), 2, all_together());
    job.register("tm1", "1", both(1, 1, S::Running));
    job.register("tm0", "1", vec![]);
    job.register("tm2", "1", vec![]);
    assert_eq!(job.deployed(), [], "one of the attempt before still runs");
    job.reports("tm1", vec![report(1, 1, 1, S::Canceled)]);
    assert_eq!(job.deployed(), [], "and so does another one");
    job.reports("tm1", vec![report(2, 1, 1, S::Canceled)]);
    assert_eq!(job.deployed().len(), 4);
}

#[test]
fn under_the_full_strategy_a_takeover_does_not_separate_regions_that_start_together() {
    let graph = two_regions();
    let mut state = given_up(&graph);
    (
        state.regions[1].restart_at_ms,
        state.regions[1].restart_delay_ms,
    ) = (1_020_000, 60_000);
    let mut job = Recovered::with_options(&graph, state, 2, all_together());
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    job.pass(19_999);
    assert_eq!(job.deployed(), [], "the longest delay holds for both");
    job.pass(1);
    assert_eq!(job.deployed().len(), 4);
}

/// An earlier leader decided that it restarts after a minute.
fn waiting_a_minute(graph: &pb::JobGraph) -> (pb::JobState, CoreOptions) {
    let restart_strategy = RestartStrategy::FixedDelay {
        attempts: 2,
        delay_ms: 60_000,
    };
    let options = CoreOptions {
        restart_strategy,
        ..options()
    };
    let mut former = Recovered::with_options(graph, placed(graph, 1), 2, options.clone());
    former.register("tm0", "1", both(0, 1, S::Running));
    former.register("tm1", "1", both(1, 1, S::Running));
    former.reports("tm0", vec![report(1, 0, 1, S::Failed)]);
    assert_eq!(former.core.status(), JobStatus::Restarting);
    (former.stored, options)
}

fn begins(job: &mut Recovered) -> bool {
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    !job.deployed().is_empty()
}

#[test]
fn a_takeover_does_not_cut_a_backoff_short() {
    let graph = one_region();
    let (stored, options) = waiting_a_minute(&graph);
    let mut job = Recovered::at(&graph, stored, 3, options.clone(), 1_020_000);
    assert_eq!(job.core.status(), JobStatus::Restarting);
    assert!(!begins(&mut job));
    // Two changes of the leader don't either.
    let mut job = Recovered::at(&graph, job.stored, 4, options, 1_040_000);
    assert!(!begins(&mut job));
    job.pass(19_999);
    assert_eq!(job.deployed(), []);
    job.pass(1);
    assert!(!job.deployed().is_empty(), "{:?}", job.core.status());
    let restarts = job.stored.restarts.as_ref().map(|it| it.restarts);
    assert_eq!(restarts, Some(1), "of one failure");
}

#[test]
fn a_leader_whose_clock_is_behind_waits_no_longer_than_the_backoff() {
    let graph = one_region();
    let (stored, options) = waiting_a_minute(&graph);
    let mut job = Recovered::at(&graph, stored, 3, options, 10_000);
    assert!(!begins(&mut job));
    job.pass(60_000);
    assert!(!job.deployed().is_empty(), "{:?}", job.core.status());
}

#[test]
fn a_backoff_that_is_over_when_the_next_leader_comes_is_not_waited_for() {
    let graph = one_region();
    let (stored, options) = waiting_a_minute(&graph);
    let mut job = Recovered::at(&graph, stored, 3, options, 1_060_000);
    assert!(begins(&mut job));
}
