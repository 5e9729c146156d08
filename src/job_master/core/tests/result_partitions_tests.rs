//! When kept outputs are released, and where their readers run.

use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState as S;

use super::recovered::{Recovered, options, report, slot};
use super::testing::{graph_of, submitted};
use crate::core::restart::RestartStrategy;
use crate::core::{CoreOptions, Event};

const MAKER: u32 = 1;
const BESIDE: u32 = 2;
const AFTER: u32 = 3;

/// A vertex that is read by another one in its region, and over a blocking edge by a later one.
fn read_by_two() -> pb::JobGraph {
    let vertices = [("maker", 2), ("beside", 2), ("after", 2)];
    let mut graph = graph_of(&vertices, &[(0, 1), (0, 2)]);
    graph.edges[1].set_exchange(pb::Exchange::Blocking);
    graph
}

fn finish(job: &mut Recovered, vertex: u32) {
    for (subtask, name) in (0..).zip(["tm0", "tm1"]) {
        job.reports(name, vec![report(vertex, subtask, 1, S::Finished)]);
    }
}

#[test]
fn an_output_is_kept_until_readers_that_run_beside_its_producer_have_read_it() {
    let graph = read_by_two();
    let mut job = Recovered::in_term(&graph, submitted(&graph), 1);
    for name in ["tm0", "tm1"] {
        job.register(name, "1", vec![]);
    }
    for (subtask, name) in (0..).zip(["tm0", "tm1"]) {
        let running = [MAKER, BESIDE].map(|vertex| report(vertex, subtask, 1, S::Running));
        job.reports(name, running.to_vec());
    }
    finish(&mut job, MAKER);
    assert_eq!(
        job.deployed().len(),
        6,
        "the one that comes after may begin"
    );
    finish(&mut job, AFTER);
    assert_eq!(job.cancelled(), [], "the one beside reads on");
    finish(&mut job, BESIDE);
    let released = [("tm0".to_owned(), 0, 1), ("tm1".to_owned(), 1, 1)];
    assert_eq!(job.cancelled(), released);
}

/// Returns where a subtask runs that reads an output on `tm1`, when `tm0` has a slot as well.
fn reader_runs_on(partitioning: pb::Partitioning) -> String {
    let mut graph = graph_of(&[("maker", 1), ("reader", 1)], &[(0, 1)]);
    graph.edges[0].set_exchange(pb::Exchange::Blocking);
    graph.edges[0].set_partitioning(partitioning);
    let mut job = Recovered::in_term(&graph, submitted(&graph), 1);
    job.register("tm1", "1", vec![]);
    job.register("tm0", "1", vec![]);
    for state in [S::Running, S::Finished] {
        let maker = pb::ExecutionReport {
            allocation_id: slot(1).to_string(),
            ..report(MAKER, 0, 1, state)
        };
        job.reports("tm1", vec![maker]);
    }
    let deployed: Vec<String> = job.deployed().into_iter().map(|(to, _)| to).collect();
    assert_eq!((deployed.len(), deployed[0].as_str()), (2, "tm1"));
    deployed[1].clone()
}

#[test]
fn a_reader_of_one_subtask_runs_at_its_output_and_a_reader_of_all_where_the_fewest_tasks_run() {
    assert_eq!(reader_runs_on(pb::Partitioning::Forward), "tm1");
    assert_eq!(reader_runs_on(pb::Partitioning::Rebalance), "tm0");
}

/// Three stages in sequence, of which the last one runs.
fn in_the_last_stage() -> Recovered {
    let mut graph = graph_of(&[("a", 1), ("b", 1), ("c", 1)], &[(0, 1), (1, 2)]);
    for edge in &mut graph.edges {
        edge.set_exchange(pb::Exchange::Blocking);
    }
    let restarting = CoreOptions {
        restart_strategy: RestartStrategy::FixedDelay {
            attempts: 9,
            delay_ms: 1_000,
        },
        ..options()
    };
    let mut job = Recovered::with_options(&graph, submitted(&graph), 1, restarting);
    job.register("tm0", "1", vec![]);
    for (vertex, state) in [
        (1, S::Running),
        (1, S::Finished),
        (2, S::Running),
        (2, S::Finished),
        (3, S::Running),
    ] {
        job.now_ms += 5;
        job.reports("tm0", vec![report(vertex, 0, 1, state)]);
    }
    let first_is_released = ("tm0".to_owned(), 0, 1);
    assert_eq!(job.cancelled(), [first_is_released]);
    job
}

#[test]
fn outputs_that_are_made_again_after_a_failure_came_with_it() {
    let mut job = in_the_last_stage();
    job.now_ms += 5;
    let connection = job.connection("tm0");
    let cause = "no answer".to_owned();
    job.hear(Event::TaskManagerLost { connection, cause });
    assert_eq!(job.generations(), [2, 2, 2]);
    let failures = &job.core.details().failures;
    let [root] = failures.as_slice() else {
        panic!("one thing failed: {failures:?}")
    };
    let lost = "TaskManager tm0 (tm0:1) was lost: no answer";
    assert_eq!((root.task.as_str(), root.cause.as_str()), ("c (1/1)", lost));
    let followed = root.concurrent.iter();
    let followed: Vec<(&str, &str)> = followed
        .map(|it| (it.task.as_str(), it.cause.as_str()))
        .collect();
    let of_b = format!("its output was lost and is needed: {lost}");
    let of_a = "its output is needed again: it was released when no task needed it any more";
    assert_eq!(followed, [("b (1/1)", of_b.as_str()), ("a (1/1)", of_a)]);
}

#[test]
fn an_output_that_is_lost_while_nothing_fails_is_a_failure_of_its_own() {
    let mut job = in_the_last_stage();
    job.register("tm1", "1", vec![]);
    job.now_ms += 5;
    let broke = pb::ExecutionReport {
        cause: "it broke".to_owned(),
        ..report(3, 0, 1, S::Failed)
    };
    job.reports("tm0", vec![broke]);
    job.now_ms += 5;
    let connection = job.connection("tm0");
    let cause = "no answer".to_owned();
    job.hear(Event::TaskManagerLost { connection, cause });
    let failures = &job.core.details().failures;
    let tasks: Vec<(&str, usize)> = failures
        .iter()
        .map(|it| (it.task.as_str(), it.concurrent.len()))
        .collect();
    assert_eq!(tasks, [("c (1/1)", 0), ("b (1/1)", 1)]);
}
