//! Which failures are recorded, and which of them the next leader knows.

use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus};

use super::recovered::{Recovered, both, one_region, options, placed, report, two_regions};
use crate::core::restart::RestartStrategy;
use crate::core::{CoreOptions, Event};

fn restarting(history: usize) -> CoreOptions {
    CoreOptions {
        restart_strategy: RestartStrategy::FixedDelay {
            attempts: 99,
            delay_ms: 1_000,
        },
        exception_history_size: history,
        ..options()
    }
}

fn running(graph: &pb::JobGraph, options: CoreOptions) -> Recovered {
    let mut job = Recovered::with_options(graph, placed(graph, 1), 2, options);
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", both(1, 1, S::Running));
    job
}

fn failed(vertex: u32, subtask: u32, generation: u64, cause: &str) -> pb::ExecutionReport {
    pb::ExecutionReport {
        cause: cause.to_owned(),
        ..report(vertex, subtask, generation, S::Failed)
    }
}

/// Each failure with the causes of its concurrent ones.
fn told(failures: &[pb::FailureRecord]) -> Vec<(&str, Vec<&str>)> {
    failures
        .iter()
        .map(|it| {
            let others = it.concurrent.iter().map(|it| it.cause.as_str());
            (it.cause.as_str(), others.collect())
        })
        .collect()
}

#[test]
fn failures_before_the_restart_are_concurrent_and_the_next_leader_knows_all() {
    let graph = one_region();
    let mut job = running(&graph, restarting(16));
    job.reports("tm0", vec![failed(1, 0, 1, "root")]);
    job.now_ms += 5;
    job.reports("tm1", vec![failed(2, 1, 1, "its input ended")]);
    job.reports("tm1", vec![report(1, 1, 1, S::Canceled)]);
    job.reports("tm0", vec![report(2, 0, 1, S::Canceled)]);
    let expected = [("root", vec!["its input ended"])];
    assert_eq!(told(&job.core.details().failures), expected);
    let root = &job.core.details().failures[0];
    assert_eq!(
        (root.task.as_str(), root.host.as_str()),
        ("a (1/2)", "tm0:1")
    );
    let other = &root.concurrent[0];
    assert_eq!(
        (other.task.as_str(), other.at_ms),
        ("b (2/2)", root.at_ms + 5)
    );
    job.pass(1_000);
    assert_eq!(job.generations(), [2]);
    let next = Recovered::with_options(&graph, job.stored.clone(), 3, restarting(16));
    assert_eq!(told(&next.core.details().failures), expected);
}

fn lost_peer(vertex: u32, subtask: u32, generation: u64, cause: &str) -> pb::ExecutionReport {
    pb::ExecutionReport {
        lost_peer: true,
        ..failed(vertex, subtask, generation, cause)
    }
}

#[test]
fn the_cause_takes_the_place_of_a_consequence_that_was_reported_before_it() {
    let graph = one_region();
    let mut job = running(&graph, restarting(16));
    job.reports("tm1", vec![lost_peer(2, 1, 1, "its input ended")]);
    assert_eq!(told(&job.stored.failures), [("its input ended", vec![])]);
    job.now_ms += 5;
    job.reports("tm0", vec![failed(1, 0, 1, "root")]);
    job.reports("tm0", vec![lost_peer(2, 0, 1, "its output was closed")]);
    job.reports("tm1", vec![report(1, 1, 1, S::Canceled)]);
    let with_it = vec!["its input ended", "its output was closed"];
    assert_eq!(told(&job.core.details().failures), [("root", with_it)]);
    job.pass(1_000);
    let next = Recovered::with_options(&graph, job.stored.clone(), 3, restarting(16));
    assert_eq!(next.core.details().failures[0].cause, "root");
}

#[test]
fn the_loss_of_a_task_manager_takes_the_place_of_the_connections_to_it() {
    let graph = one_region();
    let mut job = running(&graph, restarting(16));
    job.reports("tm1", vec![lost_peer(2, 1, 1, "its input ended")]);
    let connection = job.connection("tm0");
    let cause = "its process has ended".to_owned();
    job.hear(Event::TaskManagerLost { connection, cause });
    job.reports("tm1", vec![report(1, 1, 1, S::Canceled)]);
    let failures = job.core.details().failures;
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(
        failures[0].cause.contains("its process has ended"),
        "{failures:?}"
    );
    assert_eq!(failures[0].host, "tm0:1");
    assert_eq!(failures[0].concurrent[0].cause, "its input ended");
}

#[test]
fn of_reports_in_one_message_the_cause_comes_first() {
    let mut job = running(&one_region(), restarting(16));
    let together = vec![
        lost_peer(2, 0, 1, "its input ended"),
        failed(1, 0, 1, "root"),
    ];
    job.reports("tm0", together);
    let expected = [("root", vec!["its input ended"])];
    assert_eq!(told(&job.stored.failures), expected);
}

#[test]
fn failures_at_the_same_moment_are_one_entry() {
    let graph = two_regions();
    let mut job = running(&graph, restarting(16));
    let both = vec![failed(1, 0, 1, "one"), failed(2, 0, 1, "other")];
    job.reports("tm0", both);
    assert_eq!(
        told(&job.stored.failures),
        [("one", vec!["other"])],
        "written with the restart"
    );
    assert_eq!(job.core.status(), JobStatus::Restarting);
}

#[test]
fn the_configured_number_of_failures_is_kept() {
    let graph = two_regions();
    let mut job = running(&graph, restarting(2));
    for generation in 1..=4 {
        let cause = format!("failure {generation}");
        job.reports("tm0", vec![failed(1, 0, generation, &cause)]);
        job.reports("tm1", vec![report(1, 1, generation, S::Canceled)]);
        job.pass(1_000);
        job.reports("tm0", vec![report(1, 0, generation + 1, S::Running)]);
    }
    let expected = [("failure 3", vec![]), ("failure 4", vec![])];
    assert_eq!(told(&job.core.details().failures), expected);
}

#[test]
fn tasks_that_fail_while_a_job_is_cancelled_are_not_recorded() {
    let graph = one_region();
    let mut job = running(&graph, restarting(16));
    job.hear(Event::CancelRequested);
    job.reports("tm0", vec![failed(1, 0, 1, "cut off")]);
    assert_eq!(job.core.details().failures, []);
}

#[test]
fn a_job_that_fails_records_concurrent_failures() {
    let graph = one_region();
    let mut job = running(&graph, options());
    job.reports("tm0", vec![failed(1, 0, 1, "root")]);
    assert_eq!(job.core.status(), JobStatus::Failing);
    job.reports("tm1", vec![failed(2, 1, 1, "its input ended")]);
    job.reports("tm1", vec![report(1, 1, 1, S::Canceled)]);
    job.reports("tm0", vec![report(2, 0, 1, S::Canceled)]);
    assert_eq!(job.ended_as(), Some(JobStatus::Failed));
    let expected = [("root", vec!["its input ended"])];
    assert_eq!(told(&job.core.details().failures), expected);
}
