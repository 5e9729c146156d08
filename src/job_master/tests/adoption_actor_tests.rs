//! A change of the leader as TaskManagers see it: what a recovered JobMaster sends, and to which
//! TaskManagers.

use std::time::Duration;

use tanist_gateway::persistence::MemoryJobStateStore;
use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus};

use super::scripted::{Fixture, options, wait_until};
use crate::JobMasterOptions;
use crate::RestartStrategy;

/// A job of three running tasks on `tm1`, as another term has left it.
async fn left_running(options: JobMasterOptions) -> Fixture {
    let (former, task_executor) = Fixture::running(options.clone()).await;
    former.job_master.stop().await;
    let mut state = former.stored();
    state.regions[0].epoch = 2;
    let store = MemoryJobStateStore::default();
    let fixture = Fixture::start_with(options, former.graph.clone(), state, store);
    *fixture.task_executor("tm1").running.lock() = task_executor.running.lock().clone();
    fixture
}

#[tokio::test(start_paused = true)]
async fn running_tasks_are_adopted_without_a_message() {
    let fixture = left_running(options(RestartStrategy::None)).await;
    let task_executor = fixture.task_executor("tm1");
    let details = fixture.details().await;
    assert_eq!(details.status(), JobStatus::Reconciling);
    let subtask = &details.vertices[0].subtasks[0];
    assert_eq!(
        (subtask.state(), subtask.resource_id.as_str()),
        (S::Reconciling, "tm1"),
        "it is told who is awaited"
    );
    fixture.register("tm1", 1).await.expect("admitted");
    let adoption = fixture.job_master.reconciled().await.expect("alive");
    assert_eq!((adoption.tasks_adopted, adoption.tasks_restarted), (3, 0));
    let details = fixture.details().await;
    assert_eq!(details.status(), JobStatus::Running);
    assert_eq!(details.vertices[1].subtasks[1].attempt, 1);
    wait_until("heartbeats go on", || task_executor.was_called("heartbeat")).await;
    let heard = task_executor.calls.lock().clone();
    assert!(heard.iter().all(|call| call == "heartbeat"), "{heard:?}");

    let finished = task_executor.all_become(S::Finished);
    fixture.report("tm1", 1, finished).await;
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Finished, "{}", result.cause);
    assert_eq!(fixture.environment.committed.lock().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn proof_that_a_task_manager_is_gone_restarts_its_region_elsewhere_at_once() {
    let fixture = left_running(options(RestartStrategy::None)).await;
    let before = tokio::time::Instant::now();
    fixture.register("tm2", 5).await.expect("admitted");
    let gone = "tm1".parse().expect("a resource id");
    fixture
        .job_master
        .report_task_manager_lost(gone, "1".to_owned());
    let adoption = fixture.job_master.reconciled().await.expect("alive");
    assert_eq!((adoption.tasks_adopted, adoption.tasks_restarted), (0, 3));
    let task_executor = fixture.task_executor("tm2");
    wait_until("three tasks run", || task_executor.reports().len() == 3).await;
    assert!(before.elapsed() < Duration::from_secs(1));
    let second = |report: &pb::ExecutionReport| report.generation == 2;
    assert!(task_executor.reports().iter().all(second));
}
