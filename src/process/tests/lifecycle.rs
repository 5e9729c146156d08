//! The life of a job without any faults.

use std::time::Duration;

use tanist_proto::id::JobId;
use tanist_proto::v1::JobStatus;
use tokio::time::Instant;

use crate::testing::cluster::{TestCluster, graph};

const JOB: JobId = JobId::from_bits(0xA);

#[tokio::test(start_paused = true)]
async fn a_job_is_submitted_runs_finishes_and_leaves_only_its_result() {
    let cluster = TestCluster::start(2, 2, 1).await;
    let answer = cluster
        .client
        .submit(&graph(JOB, 2), "t")
        .await
        .expect("accepted");
    assert!(!answer.repeated);
    assert_eq!(cluster.until_running(JOB, 4).await, 1);
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    let listed = cluster.client.list().await.expect("listed");
    assert_eq!(listed.jobs.len(), 1);
    assert_eq!(listed.jobs[0].status(), JobStatus::Finished);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_job_is_canceled_and_nothing_of_it_is_committed() {
    let cluster = TestCluster::start(1, 1, 2).await;
    cluster
        .client
        .submit(&graph(JOB, 2), "t")
        .await
        .expect("accepted");
    cluster.until_running(JOB, 4).await;
    cluster.client.cancel(JOB).await.expect("canceled");
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Canceled);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn slots_that_are_there_are_used_at_once() {
    let cluster = TestCluster::start(1, 2, 1).await;
    cluster.leader().await;
    let overview = async || {
        let list = cluster.client.list().await;
        list.expect("listed")
    };
    overview().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    cluster
        .client
        .submit(&graph(JOB, 2), "t")
        .await
        .expect("accepted");
    cluster.until_running(JOB, 4).await;
    assert!(
        start.elapsed() <= Duration::from_millis(20),
        "{:?}",
        start.elapsed()
    );
}
