//! Stopping a job while leaders die: an acknowledged stop continues under the next leader, and no task is
//! started again for it.

use tanist_gateway::GatewayError;
use tanist_proto::id::JobId;
use tanist_proto::v1::{JobStatus, WantedStatus};
use tanist_task_executor::TaskStatus;

use crate::testing::cluster::{TestCluster, graph};
use crate::testing::history::Record;

const JOB: JobId = JobId::from_bits(0xC);

/// Three JobManagers, two TaskManagers with two slots each, and a running job of two sources and two other
/// tasks.
async fn running() -> TestCluster {
    let cluster = TestCluster::start(3, 2, 2).await;
    cluster.leader().await;
    let accepted = cluster.client.submit(&graph(JOB, 2), "token").await;
    accepted.expect("accepted");
    cluster.until_running(JOB, 4).await;
    cluster
}

fn is_stopped(record: &Record) -> bool {
    matches!(record, Record::State(_, state) if state.wanted() == WantedStatus::Stopped)
}

/// The sources end by themselves, the others when their input has, and the job finishes.
async fn finishes(cluster: &TestCluster) {
    let sources_ended = || cluster.world.tasks.of(JOB).len() == 2;
    cluster.until("the sources have ended", sources_ended).await;
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_stopped_job_finishes_and_may_be_stopped_again() {
    let cluster = running().await;
    cluster.client.stop(JOB).await.expect("acknowledged");
    cluster.client.stop(JOB).await.expect("acknowledged again");
    finishes(&cluster).await;
    cluster.client.stop(JOB).await.expect("it has finished");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_dies_before_or_after_it_wrote_that_is_followed_by_one_that_stops_the_job() {
    for after in [false, true] {
        let mut cluster = running().await;
        cluster.strike_at(move |step| match after {
            true => step.committed(is_stopped),
            false => step.commits(is_stopped),
        });
        let client = cluster.client.clone();
        let stopping = tokio::spawn(async move { client.stop(JOB).await });
        cluster.after_strike().await;
        stopping.await.expect("no panic").expect("acknowledged");
        finishes(&cluster).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_dies_after_it_acknowledged_that_is_followed_by_one_that_goes_on() {
    let mut cluster = running().await;
    // No TaskManager has received the stop when it dies.
    cluster.strike_at(|step| step.calls("heartbeat_from_job_master"));
    let client = cluster.client.clone();
    let stopping = tokio::spawn(async move { client.stop(JOB).await });
    cluster.after_strike().await;
    stopping.await.expect("no panic").expect("acknowledged");
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_stopped_without_a_leader_is_stopped_by_the_next_leader() {
    let mut cluster = running().await;
    let leader = cluster.leader().await;
    cluster.kill_job_manager(&leader).await;
    cluster.client.stop(JOB).await.expect("acknowledged");
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_beside_it_wins() {
    let cluster = running().await;
    cluster.client.stop(JOB).await.expect("acknowledged");
    cluster.client.cancel(JOB).await.expect("acknowledged");
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Canceled);
    let late = cluster.client.stop(JOB).await.expect_err("it is over");
    assert!(matches!(late, GatewayError::Conflict(_)), "{late:?}");
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_task_that_fails_meanwhile_fails_the_job_which_says_why() {
    let cluster = running().await;
    cluster.client.stop(JOB).await.expect("acknowledged");
    let sources_ended = || cluster.world.tasks.of(JOB).len() == 2;
    cluster.until("the sources have ended", sources_ended).await;
    let (attempt, _) = cluster.world.tasks.of(JOB).remove(0);
    let failure = TaskStatus::failed("out of luck");
    cluster.world.end_task(&attempt, failure);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Failed);
    let stored = cluster.world.stored();
    let cause = &stored.results[&JOB].cause;
    assert!(
        cause.contains("out of luck") && cause.contains("without a checkpoint"),
        "{cause}"
    );
    cluster.check();
}
