//! A TaskManager is drained: it gets no new slots, and leaves when its last one is free.

use std::time::Duration;

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use crate::gateway::{Connector as _, GatewayError, GatewayResult};
use crate::process::testing::cluster::{TestCluster, graph};
use crate::process::testing::running::{JOB, tasks_on};
use crate::telemetry::ExitCode;

const NEXT: JobId = JobId::from_bits(0xB);

async fn drain(cluster: &TestCluster, name: &str) -> GatewayResult<pb::Ack> {
    let leader = cluster.leader().await;
    let dispatcher = cluster.connector().dispatcher(&format!("{leader}:1"));
    let resource_id = name.to_owned();
    let request = pb::DrainTaskManagerRequest { resource_id };
    dispatcher.drain_task_manager(request).await
}

#[tokio::test(start_paused = true)]
async fn a_drained_task_manager_ends_its_jobs_takes_no_others_and_leaves_also_after_a_failover() {
    let mut cluster = TestCluster::start(2, 1, 2).await;
    let submitted = cluster.client.submit(&graph(JOB, 1), "t").await;
    submitted.expect("accepted");
    cluster.until_running(JOB, 2).await;
    drain(&cluster, "tm1").await.expect("it heard");
    drain(&cluster, "tm1").await.expect("repeated");
    let leader = cluster.leader().await;
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(1).await;
    assert_eq!(cluster.until_running(JOB, 2).await, 1, "adopted");

    // Its free slot is given to nobody, under the next leader either.
    let submitted = cluster.client.submit(&graph(NEXT, 1), "t").await;
    submitted.expect("accepted");
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(tasks_on(&cluster, NEXT, "tm1"), 0);
    cluster.start_task_manager("tm2");
    cluster.until_running(NEXT, 2).await;
    assert_eq!(tasks_on(&cluster, NEXT, "tm2"), 2);

    cluster.world.finish_tasks(JOB);
    cluster.until_clean(JOB).await;
    assert_eq!(cluster.end_of_task_manager("tm1").await, ExitCode::Ended);
    cluster.world.finish_tasks(NEXT);
    cluster.until_clean(NEXT).await;
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn an_unused_task_manager_leaves_at_once_and_an_unknown_one_is_not_found() {
    let mut cluster = TestCluster::start(1, 1, 1).await;
    cluster.start_task_manager("tm2");
    let missing = drain(&cluster, "tm9").await;
    assert!(
        matches!(missing, Err(GatewayError::NotFound(_))),
        "{missing:?}"
    );
    loop {
        match drain(&cluster, "tm2").await {
            Ok(_) => break,
            // It has not registered yet.
            Err(GatewayError::NotFound(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(cluster.end_of_task_manager("tm2").await, ExitCode::Ended);
}
