//! A deposed leader that still lives: cut off from the store, from TaskManagers, or slow.

use std::time::Duration;

use tanist_gateway::{Connector as _, GatewayError};
use tanist_ha::election::ProcessId;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::JobStatus;

use crate::testing::cluster::{TestCluster, graph};
use crate::testing::running::{self, JOB};

async fn running() -> (TestCluster, String) {
    let cluster = running::running(2, 2, 2).await;
    let leader = cluster.leader().await;
    (cluster, leader)
}

async fn finishes(cluster: &TestCluster) {
    let generation = cluster.until_running(JOB, 4).await;
    assert_eq!(generation, 1, "no task has noticed");
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_store_is_succeeded_and_its_late_words_count_for_nothing() {
    let (cluster, old) = running().await;
    cluster.memory.partition(&ProcessId::new(old.as_str()));
    // A cancellation that reaches the old leader: it can't decide it any more.
    let old_dispatcher = cluster.connector().dispatcher(&format!("{old}:1"));
    let request = pb::CancelJobRequest {
        job_id: JOB.to_string(),
    };
    let late = tokio::spawn(async move { old_dispatcher.cancel_job(request).await });
    let new = cluster.leader_above(1).await;
    assert_ne!(new, old);
    cluster.until_running(JOB, 4).await;
    // The old leader goes on calling its TaskManagers, and learns from them that its term is over.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let answer = late.await.expect("answered");
    let is_undecided = matches!(
        answer,
        Err(GatewayError::Unknown(_) | GatewayError::NotYet(_) | GatewayError::Unreachable { .. })
    );
    assert!(is_undecided, "{answer:?}");
    cluster.memory.heal(&ProcessId::new(old.as_str()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(cluster.epoch(), 2, "the old one is a standby");
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_succeeded_leads_again_when_its_turn_comes() {
    let (mut cluster, old) = running().await;
    cluster.memory.partition(&ProcessId::new(old.as_str()));
    let new = cluster.leader_above(1).await;
    cluster.memory.heal(&ProcessId::new(old.as_str()));
    cluster.until_running(JOB, 4).await;
    cluster.kill_job_manager(&new).await;
    assert_eq!(cluster.leader_above(2).await, old);
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn the_store_is_away_for_longer_than_a_lease_and_the_same_term_goes_on() {
    let (cluster, leader) = running().await;
    cluster.memory.unavailable(true);
    let other = JobId::from_bits(0xB);
    let client = cluster.client.clone();
    let submission = tokio::spawn(async move { client.submit(&graph(other, 1), "b").await });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!submission.is_finished());
    assert_eq!(cluster.world.tasks.of(JOB).len(), 4, "tasks need no store");
    cluster.memory.unavailable(false);
    submission.await.expect("answered").expect("accepted");
    assert_eq!(cluster.leader().await, leader);
    assert_eq!(cluster.epoch(), 1);
    assert_eq!(
        cluster.until_running(JOB, 4).await,
        1,
        "nothing was restarted"
    );
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_knows_a_younger_term_obeys_only_that() {
    let (cluster, old) = running().await;
    let executor = cluster.connector().task_executor("tm1:1");
    let former = cluster.leaders_sender();
    cluster.memory.partition(&ProcessId::new(old.as_str()));
    cluster.leader_above(1).await;
    cluster.until_running(JOB, 4).await;
    for registration in 0..200 {
        let sender = Some(pb::Sender {
            registration: u64::MAX - registration,
            ..former.clone()
        });
        let request = pb::FreeSlotsRequest {
            sender,
            ..pb::FreeSlotsRequest::default()
        };
        let refusal = executor
            .free_slots(request)
            .await
            .expect_err("an older term");
        assert!(
            matches!(refusal, GatewayError::Outdated { epoch: 2, .. }),
            "{refusal}"
        );
    }
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_store_that_is_asked_to_end_ends_in_time() {
    let (mut cluster, old) = running().await;
    cluster.memory.partition(&ProcessId::new(old.as_str()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let stop = cluster.stop_job_manager(&old);
    let ended = tokio::time::timeout(Duration::from_secs(30), stop).await;
    ended.expect("it does not wait for the store");
    cluster.leader_above(1).await;
    finishes(&cluster).await;
}
