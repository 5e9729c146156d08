//! Tasks that do not end after they are cancelled.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tanist_dataflow::{
    Exchange, ExchangeOptions, OperatorContext, OperatorError, Source, SourceState, TaskRuntime,
};
use tanist_gateway::fencing::HighestEpoch;
use tanist_model::{ColumnType, CustomSpec, OperatorSpec};
use tanist_operators::custom::{self, CustomOperator};
use tanist_operators::{Operators, TaskHost};
use tanist_proto::v1 as pb;
use tokio::time::Instant;

use super::scripted_leader::Leader;
use super::testing::*;
use crate::*;

#[tokio::test(start_paused = true)]
async fn a_task_that_does_not_end_after_its_cancellation_is_fatal() {
    let (world, leader, _task) = running(true).await;
    leader.cancel(1).await;
    let fatal = tokio::time::timeout(BOUND, world.executor.fatal()).await;
    let Fatal::CancellationTimedOut(reason) = fatal.expect("it is fatal") else {
        panic!("a cancellation timed out");
    };
    assert!(reason.contains("did not end within 180s"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn the_cancellation_of_a_task_that_does_not_end_is_repeated_also_after_a_change_of_leader() {
    let (world, leader, task) = running(true).await;
    leader.cancel(1).await;
    let cancellations = || world.launcher.cancellations.load(Ordering::Relaxed);
    pass(Duration::from_secs(1)).await;
    assert_eq!(cancellations(), 1);
    pass(Duration::from_secs(30)).await;
    assert_eq!(cancellations(), 2);
    let (_, next) = world.with_leader("jm2:1", 2).await;
    next.registered_job().await;
    next.cancel(1).await;
    pass(Duration::from_secs(60)).await;
    assert_eq!(
        cancellations(),
        4,
        "that a leader says it again changes nothing"
    );
    task.status.send_replace(TaskStatus::Canceled);
    pass(Duration::from_secs(200)).await;
    assert_eq!(cancellations(), 4);
    let fatal = tokio::time::timeout(Duration::ZERO, world.executor.fatal()).await;
    assert!(fatal.is_err(), "it has ended in time");
}

#[tokio::test(start_paused = true)]
async fn a_task_has_not_had_the_time_in_which_its_process_stood_still() {
    let (world, leader, _task) = running(true).await;
    leader.cancel(1).await;
    pass(Duration::from_secs(1)).await;
    tokio::time::advance(Duration::from_secs(200)).await;
    pass(Duration::from_secs(31)).await;
    assert!(
        world.launcher.cancellations.load(Ordering::Relaxed) > 1,
        "the cancellation is repeated"
    );
    let fatal = tokio::time::timeout(Duration::ZERO, world.executor.fatal()).await;
    assert!(fatal.is_err(), "it still has time: {fatal:?}");
    let fatal = tokio::time::timeout(BOUND, world.executor.fatal()).await;
    assert!(
        matches!(fatal, Ok(Fatal::CancellationTimedOut(_))),
        "{fatal:?}"
    );
}

/// A source that is busy until the test lets it go.
struct Busy(Arc<(Mutex<bool>, Condvar)>);

impl Source for Busy {
    fn next(&mut self, _now: Instant) -> Result<SourceState, OperatorError> {
        let (let_go, changed) = &*self.0;
        let mut is_free = let_go.lock();
        while !*is_free {
            changed.wait(&mut is_free);
        }
        Ok(SourceState::End)
    }
}

/// [`graph`], reading such a source.
fn busy_graph(let_go: &Arc<(Mutex<bool>, Condvar)>) -> pb::JobGraph {
    let state = let_go.clone();
    let make = move |_: &serde_json::Value, _: &OperatorContext| {
        let source: Box<dyn Source> = Box::new(Busy(state.clone()));
        Ok::<_, OperatorError>(source)
    };
    custom::register(
        "cancellation-timeout-tests-busy",
        CustomOperator::Source(Arc::new(make)),
    );
    let mut graph = graph();
    let columns = ["seq", "key", "value"].map(|name| (name, ColumnType::Int64));
    let spec = CustomSpec::source("cancellation-timeout-tests-busy", columns);
    graph.vertices[0].operators[0].spec = OperatorSpec::Custom(spec).to_json();
    graph
}

#[test]
fn a_task_that_blocks_its_thread_is_fatal_though_the_leader_changes() {
    let let_go = Arc::new((Mutex::new(false), Condvar::new()));
    let graph = busy_graph(&let_go);
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let built = builder.worker_threads(2).enable_all().build();
        built.expect("threads can be started")
    };
    let (tasks, control) = (runtime(), runtime());
    control.block_on(async {
        let gate = Arc::new(HighestEpoch::default());
        let options = ExchangeOptions::new("tm", "1", gate);
        let exchange = Exchange::bind("127.0.0.1:0", options, tasks.handle().clone());
        let exchange = exchange.await.expect("a free port");
        let launcher = TaskRuntime::new(
            tasks.handle().clone(),
            exchange,
            Operators::new(TaskHost::without_programs()),
        );
        let options = Options {
            task_cancellation_timeout: Duration::from_millis(500),
            task_cancellation_interval: Duration::from_millis(50),
            ..Options::default()
        };
        let world = World::start_as(false, Some(Arc::new(launcher)), options);
        let (_, leader) = world.with_leader("jm1:1", 1).await;
        leader.request_slot(0, A1).await;
        leader.registered_job().await;
        leader.offered().await;
        let answer = leader.submit_graph(&graph, 1, A1).await;
        assert_eq!(answer.expect("is registered").refused, []);
        leader.updated(pb::ExecutionState::Running).await;
        leader.cancel(1).await;
        // Not `with_leader`: on real time either of its two registrations may be the first.
        let (_, next) = Leader::start(&world.connector, "jm2:1", 2);
        world.lead(&next);
        let registered = next.registered_job().await;
        assert_eq!(registered.executions.len(), 1, "it is still there");
        let fatal = tokio::time::timeout(Duration::from_secs(60), world.executor.fatal()).await;
        assert!(
            matches!(fatal, Ok(Fatal::CancellationTimedOut(_))),
            "{fatal:?}"
        );
        // The stop of the process does not wait for it, either.
        let stopping = world.executor.stop("it is over");
        let stopped = tokio::time::timeout(Duration::from_secs(60), stopping).await;
        stopped.expect("it waits for no task that hangs");
    });
    *let_go.0.lock() = true;
    let_go.1.notify_all();
}
