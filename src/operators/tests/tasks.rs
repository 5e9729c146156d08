//! Tasks in one process over memory and TCP: distribution of records, backpressure, cancellation, and failures.
//! [`super::word_count`] checks the output of a whole job.

use std::sync::Arc;
use std::time::Duration;

use tanist_dataflow::{RunningTask, TaskSpec, TaskStatus};
use tanist_model::{Emit, OperatorSpec, operators};
use tanist_proto::id::Generation;
use tanist_proto::v1::{JobGraph, Partitioning};

use super::{
    GraphBuilder, Placement, TaskManager, count_by, deploy, file_sink, finish, spec, wait_until,
};
use crate::sink;

fn datagen(rate: Option<u64>, count: Option<u64>) -> OperatorSpec {
    OperatorSpec::Datagen(operators::Datagen {
        rate,
        count,
        seed: 7,
        keys: 100,
    })
}

/// Builds an unbounded job: datagen, then a running count into a sink that discards it.
fn stream(source: OperatorSpec, partitioning: Partitioning) -> Arc<JobGraph> {
    GraphBuilder::new()
        .vertex(2, &[source], None)
        .vertex(
            2,
            &[
                count_by("key", Emit::Updates),
                OperatorSpec::Discard(operators::Discard {}),
            ],
            Some((0, partitioning, &["key"])),
        )
        .build()
}

#[tokio::test(start_paused = true)]
async fn slow_records_are_not_held_back() {
    let managers = [TaskManager::start("tm").await];
    let tasks = deploy(
        &stream(datagen(Some(10), None), Partitioning::Hash),
        &managers,
        |_, _| 0,
    );
    let started = tokio::time::Instant::now();
    let received = || {
        (0..2)
            .map(|i| tasks[&(1, i)].metrics().records_in)
            .sum::<u64>()
    };
    wait_until("ten records arrive", || received() >= 10).await;
    assert!(
        started.elapsed() < Duration::from_millis(1500),
        "{:?}",
        started.elapsed()
    );
    assert!(
        tasks
            .values()
            .all(|task| *task.status().borrow() == TaskStatus::Running)
    );
}

#[tokio::test(start_paused = true)]
async fn every_partitioning_brings_the_records_where_they_belong() {
    for (partitioning, expected) in [
        (Partitioning::Forward, [500, 500]),
        (Partitioning::Rebalance, [500, 500]),
        (Partitioning::Broadcast, [1000, 1000]),
        (Partitioning::Global, [1000, 0]),
    ] {
        let managers = [TaskManager::start("tm").await];
        let tasks = deploy(
            &stream(datagen(None, Some(1000)), partitioning),
            &managers,
            |_, _| 0,
        );
        finish(&tasks).await;
        let received = [0, 1].map(|subtask| tasks[&(1, subtask)].metrics().records_in);
        assert_eq!(received, expected, "{partitioning:?}");
    }
}

/// Waits until a source under backpressure stops, and returns the number of records that it has made.
async fn made_until_standstill(task: &RunningTask) -> u64 {
    let mut made = 0;
    loop {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        match task.metrics().records_out {
            same if same == made && made > 0 => return made,
            more => made = more,
        }
    }
}

#[tokio::test]
async fn a_consumer_that_does_not_read_bounds_what_its_source_makes() {
    let managers = [TaskManager::start("tm").await];
    let graph = stream(datagen(None, None), Partitioning::Hash);
    let source = managers[0]
        .runtime
        .start(spec(&graph, &managers, |_, _| 0, (0, 0), 1));
    let made = made_until_standstill(&source).await;
    assert!(made <= 2 * 9 * 4096, "{made} records");
    assert_eq!(*source.status().borrow(), TaskStatus::Running);
}

#[tokio::test]
async fn a_task_that_waits_for_credit_is_cancelled_at_once() {
    let managers = [TaskManager::start("tm").await];
    let graph = stream(datagen(None, None), Partitioning::Hash);
    let source = managers[0]
        .runtime
        .start(spec(&graph, &managers, |_, _| 0, (0, 0), 1));
    made_until_standstill(&source).await;
    source.cancel();
    assert_eq!(source.ended().await, TaskStatus::Canceled);
    assert_eq!(managers[0].runtime.exchange().partition_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_its_producer_or_for_time_is_cancelled_at_once() {
    let managers = [TaskManager::start("tm").await];
    let graph = stream(datagen(Some(1), None), Partitioning::Hash);
    let runtime = &managers[0].runtime;
    let consumer = runtime.start(spec(&graph, &managers, |_, _| 0, (1, 0), 1));
    let source = runtime.start(spec(&graph, &managers, |_, _| 0, (0, 1), 1));
    for task in [&consumer, &source] {
        let mut status = task.status();
        status
            .wait_for(|status| *status == TaskStatus::Running)
            .await
            .expect("runs");
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let asked = tokio::time::Instant::now();
    for task in [&consumer, &source] {
        task.cancel();
        assert_eq!(task.ended().await, TaskStatus::Canceled);
    }
    assert_eq!(asked.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn a_task_that_waits_for_a_remote_producer_is_cancelled_at_once() {
    let managers = TaskManager::start_many::<2>().await;
    let graph = stream(datagen(None, None), Partitioning::Hash);
    let placement: Placement = |vertex, _| vertex;
    let consumer = managers[1]
        .runtime
        .start(spec(&graph, &managers, placement, (1, 0), 1));
    let mut status = consumer.status();
    status
        .wait_for(|status| *status == TaskStatus::Running)
        .await
        .expect("runs");
    consumer.cancel();
    assert_eq!(consumer.ended().await, TaskStatus::Canceled);
}

#[tokio::test]
async fn a_busy_task_is_cancelled_by_dropping_it() {
    let managers = [TaskManager::start("tm").await];
    let graph = stream(datagen(None, None), Partitioning::Hash);
    let mut tasks = deploy(&graph, &managers, |_, _| 0);
    wait_until("records flow", || {
        tasks[&(1, 0)].metrics().records_in > 10_000
    })
    .await;
    let dropped = tasks.remove(&(0, 0)).expect("there");
    let mut status = dropped.status();
    drop(dropped);
    status
        .wait_for(|status| *status == TaskStatus::Canceled)
        .await
        .expect("ended");
    let TaskStatus::Failed { cause, .. } = tasks[&(1, 0)].ended().await else {
        panic!("its consumer lacks input")
    };
    assert!(
        cause.contains("\"vertex 0\" (1/2, attempt 1) on tm"),
        "{cause}"
    );
}

#[tokio::test]
async fn an_operators_error_names_operator_subtask_and_record_and_reaches_consumers() {
    let managers = TaskManager::start_many::<2>().await;
    let sum = |column: &str| {
        OperatorSpec::Sum(operators::Sum {
            keys: vec!["key".to_owned()],
            column: column.to_owned(),
            emit: Some(Emit::Updates),
        })
    };
    // Running sums of running sums soon overflow.
    let mut chain = vec![OperatorSpec::Datagen(operators::Datagen {
        rate: None,
        count: None,
        seed: 1,
        keys: 1,
    })];
    chain.push(sum("seq"));
    chain.extend((0..6).map(|_| sum("sum")));
    let graph = GraphBuilder::new()
        .vertex(1, &chain, None)
        .vertex(
            1,
            &[OperatorSpec::Discard(operators::Discard {})],
            Some((0, Partitioning::Forward, &[])),
        )
        .build();
    let tasks = deploy(&graph, &managers, |vertex, _| vertex);
    let TaskStatus::Failed { cause, .. } = tasks[&(0, 0)].ended().await else {
        panic!("it overflows")
    };
    assert!(cause.contains("operator \"operator 0."), "{cause}");
    assert!(
        cause.contains("(1/1): the result overflows int64, at record [0 "),
        "{cause}"
    );
    let TaskStatus::Failed {
        cause: of_consumer, ..
    } = tasks[&(1, 0)].ended().await
    else {
        panic!("its input ended early")
    };
    assert!(of_consumer.contains(&cause), "{of_consumer}");
    managers[0]
        .runtime
        .exchange()
        .release(graph.job_id.parse().expect("id"), Generation::new(1));
}

#[tokio::test]
async fn what_does_not_fit_the_graph_fails_with_a_reason() {
    let managers = [TaskManager::start("tm").await];
    let graph = stream(datagen(None, Some(1)), Partitioning::Hash);
    let good = spec(&graph, &managers, |_, _| 0, (1, 0), 1);
    let cause_of = async |spec: TaskSpec| match managers[0].runtime.start(spec).ended().await {
        TaskStatus::Failed { cause, .. } => cause,
        other => panic!("ended as {other:?}"),
    };

    let mut spec = good.clone();
    spec.deployment.subtask = 2;
    assert_eq!(cause_of(spec).await, "there is no subtask 2 of 2");

    let mut spec = good.clone();
    spec.deployment.inputs[0].channels.pop();
    assert!(
        cause_of(spec)
            .await
            .contains("channels from subtasks [0], [0, 1] are needed")
    );

    let mut spec = good.clone();
    let mut graph = JobGraph::clone(&spec.graph);
    graph.vertices[1].operators[0].spec = "{\"type\":\"teleport\"}".to_owned();
    spec.graph = Arc::new(graph);
    assert!(cause_of(spec).await.contains("teleport"));

    let mut spec = good;
    let mut graph = JobGraph::clone(&spec.graph);
    graph.vertices[1].operators[0].output.pop();
    spec.graph = Arc::new(graph);
    assert!(
        cause_of(spec)
            .await
            .contains("but the graph says (key: int64)")
    );
}

#[tokio::test]
async fn two_sinks_into_one_directory_write_parts_of_their_own() {
    let managers = [TaskManager::start("tm").await];
    let directory = tempfile::tempdir().expect("directory");
    let output = directory.path().join("out");
    let graph = GraphBuilder::new()
        .vertex(1, &[datagen(None, Some(10))], None)
        .vertex(
            1,
            &[file_sink(&output)],
            Some((0, Partitioning::Forward, &[])),
        )
        .vertex(
            2,
            &[file_sink(&output)],
            Some((0, Partitioning::Broadcast, &[])),
        )
        .build();
    let committables = finish(&deploy(&graph, &managers, |_, _| 0)).await;
    sink::commit(&committables).expect("committed");
    assert_eq!(
        tanist_model::sink_directories(&graph),
        std::slice::from_ref(&output)
    );
    sink::cleanup(&output, graph.job_id.parse().expect("an id"), "").expect("cleaned up");
    let entries = std::fs::read_dir(&output).expect("output");
    let contents: Vec<_> = entries
        .map(|entry| std::fs::read_to_string(entry.expect("entry").path()).expect("a part"))
        .collect();
    assert_eq!(contents.len(), 3);
    assert!(contents.iter().all(|content| content.lines().count() == 10));

    let again = deploy(&graph, &managers, |_, _| 0);
    let ended = again[&(1, 0)].ended().await;
    let TaskStatus::Failed { cause, .. } = &ended else {
        panic!("the output is there already")
    };
    assert!(matches!(&ended, TaskStatus::Failed { unrecoverable, .. } if *unrecoverable));
    assert!(
        cause.contains("the output of another run is not overwritten"),
        "{cause}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_is_counted_while_a_task_runs_and_above_its_slots_share_the_task_says_so_and_goes_on()
{
    let managers = TaskManager::start_many::<1>().await;
    let discard = OperatorSpec::Discard(operators::Discard {});
    let graph = GraphBuilder::new()
        .vertex(1, &[datagen(None, None)], None)
        .vertex(
            1,
            &[count_by("key", Emit::Updates), discard],
            Some((0, Partitioning::Hash, &["key"])),
        )
        .build();
    let start = |vertex| {
        let spec = spec(&graph, &managers, |_, _| 0, (vertex, 0), 1);
        managers[0].runtime.start(TaskSpec {
            managed_memory: 1_024,
            ..spec
        })
    };
    let (counting, source) = (start(1), start(0));
    wait_until("the state of all keys is counted", || {
        counting.metrics().state_bytes > 100 * 40
    })
    .await;
    assert_eq!(source.metrics().state_bytes, 0);
    wait_until("a notice", || !counting.notices().borrow().is_empty()).await;
    let notices = counting.notices().borrow().clone();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(
        notices[0].contains("`taskmanager.memory.managed.fraction`"),
        "{notices:?}"
    );
    let before = counting.metrics().records_in;
    wait_until("it goes on", || counting.metrics().records_in > before).await;
    assert_eq!(*counting.status().borrow(), TaskStatus::Running);
}
