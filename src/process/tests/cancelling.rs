//! Tasks that don't end when they are cancelled: their TaskManagers end themselves, under any leader, and the
//! job goes on without them.

use std::time::Duration;

use tanist_config::LoadOptions;
use tanist_proto::v1::JobStatus;
use tanist_task_executor::TaskStatus;
use tanist_telemetry::ExitCode;
use tokio::time::Instant;

use crate::testing::cluster::{TestCluster, graph};
use crate::testing::running::JOB;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Three JobManagers, TaskManagers with a slot each, and a job on two of them whose four tasks ignore
/// cancellation.
async fn stubborn(task_managers: u32) -> TestCluster {
    let load = LoadOptions::default()
        .with("task.cancellation.timeout", "20 s")
        .with("restart-strategy.type", "fixed-delay")
        .with("restart-strategy.fixed-delay.attempts", "1000")
        .with("restart-strategy.fixed-delay.delay", "100 ms");
    let cluster = TestCluster::start_with(load, 3, task_managers, 1).await;
    let submitted = cluster.client.submit(&graph(JOB, 2), "t").await;
    submitted.expect("accepted");
    cluster.until_running(JOB, 4).await;
    cluster.world.tasks.ignore_cancellations(JOB);
    cluster
}

async fn kill_leader(cluster: &mut TestCluster) {
    let epoch = cluster.epoch();
    let leader = cluster.leader().await;
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(epoch).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_leader_gives_tasks_that_heed_no_cancellation_no_more_time() {
    let mut cluster = stubborn(2).await;
    let began = Instant::now();
    cluster.client.cancel(JOB).await.expect("acknowledged");
    let is_told = || cluster.world.calls("cancel_tasks") >= 2;
    cluster.until("both TaskManagers were told", is_told).await;
    tokio::time::sleep(TIMEOUT / 2).await;
    kill_leader(&mut cluster).await;
    for name in ["tm1", "tm2"] {
        assert_eq!(cluster.end_of_task_manager(name).await, ExitCode::Fatal);
    }
    let took = began.elapsed();
    assert!(took >= TIMEOUT && took < TIMEOUT + TIMEOUT / 2, "{took:?}");
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Canceled);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_that_was_not_acknowledged_before_the_leader_died_ends_stubborn_tasks_too() {
    let mut cluster = stubborn(2).await;
    cluster.strike_at(|step| step.calls("cancel_tasks"));
    let client = cluster.client.clone();
    let cancelling = tokio::spawn(async move { client.cancel(JOB).await });
    cluster.after_strike().await;
    cancelling.await.expect("no panic").expect("acknowledged");
    for name in ["tm1", "tm2"] {
        assert_eq!(cluster.end_of_task_manager(name).await, ExitCode::Fatal);
    }
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Canceled);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_elsewhere_when_tasks_heed_no_cancellation_and_their_leader_dies() {
    let mut cluster = stubborn(2).await;
    let (failing, _) = cluster.world.tasks.of(JOB).remove(0);
    cluster
        .world
        .end_task(&failing, TaskStatus::failed("it broke"));
    let is_told = || cluster.world.calls("cancel_tasks") >= 1;
    cluster.until("the others were told", is_told).await;
    kill_leader(&mut cluster).await;
    for name in ["tm1", "tm2"] {
        assert_eq!(cluster.end_of_task_manager(name).await, ExitCode::Fatal);
    }
    for name in ["tm3", "tm4"] {
        cluster.start_task_manager(name);
    }
    assert!(cluster.until_running(JOB, 4).await >= 2);
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    cluster.check();
}
