//! Registrations of a TaskExecutor and slot requests of the ResourceManager, between scripted leaders.

use std::time::Duration;

use tanist_gateway::GatewayError;
use tanist_gateway::local::Fault;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::time::Instant;

use super::scripted_leader::*;
use super::testing::*;
use crate::*;

#[tokio::test(start_paused = true)]
async fn slots_are_asked_for_only_by_the_resource_manager_of_the_present_registration() {
    let (world, leader, _task) = running(false).await;
    let request = |sender| pb::RequestSlotRequest {
        sender,
        slot: 1,
        job_id: JOB.to_string(),
        allocation_id: A2.to_owned(),
        ..pb::RequestSlotRequest::default()
    };
    let present = leader.resource_manager_sender().expect("a sender");
    let of_registration = |registration| pb::Sender {
        registration,
        ..present.clone()
    };
    let executor = leader.task_executor();
    for sender in [
        None,
        leader.job_master_sender(),
        Some(of_registration(0)),
        Some(of_registration(present.registration - 1)),
        Some(pb::Sender {
            cluster_incarnation: "c2".to_owned(),
            ..present.clone()
        }),
    ] {
        let refused = executor.request_slot(request(sender.clone())).await;
        assert!(refused.is_err(), "{sender:?}");
    }
    let (_, next) = world.with_leader("jm2:1", 2).await;
    let refused = executor.request_slot(request(Some(present))).await;
    assert!(
        matches!(refused, Err(GatewayError::Outdated { epoch: 2, .. })),
        "{refused:?}"
    );
    let report = next.slot_report().await.expect("is registered");
    assert_eq!(report[1].allocation, None);
}

#[tokio::test(start_paused = true)]
async fn a_request_for_more_than_is_left_is_refused_until_a_slot_is_freed() {
    use pb::request_slot_response::Answer;
    let (_world, leader, _task) = running(false).await;
    let request = |allocation: &str, memory_bytes| pb::RequestSlotRequest {
        sender: leader.resource_manager_sender(),
        slot: 1,
        job_id: JOB.to_string(),
        allocation_id: allocation.to_owned(),
        profile: Some(pb::ResourceProfile {
            cpu_cores: 1.0,
            memory_bytes,
            ..pb::ResourceProfile::default()
        }),
        ..pb::RequestSlotRequest::default()
    };
    let executor = leader.task_executor();
    let ask = async |allocation, memory_bytes| {
        let answer = executor
            .request_slot(request(allocation, memory_bytes))
            .await;
        answer.expect("is registered").answer.expect("not empty")
    };
    let Answer::Refused(reason) = ask(A2, 101).await else {
        panic!("100 bytes are left");
    };
    for amount in ["101 bytes", "100 bytes", "200 bytes"] {
        assert!(reason.contains(amount), "{reason}");
    }
    let free = pb::FreeSlotsRequest {
        sender: leader.job_master_sender(),
        allocation_ids: vec![A1.to_owned()],
        cause: "given back".to_owned(),
    };
    leader.cancel(1).await;
    executor.free_slots(free).await.expect("is registered");
    leader.freed(0).await;
    let late = ask(A2, 101).await;
    assert!(
        matches!(late, Answer::Refused(_)),
        "it was refused: {late:?}"
    );
    let other = "000000000000000000000000000000a9";
    assert_eq!(ask(other, 101).await, Answer::Allocated(pb::Ack {}));
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_is_too_low_is_followed_at_once_by_one_above_the_highest_seen() {
    let world = World::start(false);
    let (script, leader) = Leader::start(&world.connector, "jm1:1", 1);
    // Earlier starts had a clock that was ahead.
    let ahead = first_registration() + (1 << 40);
    *script.highest.lock() = (ahead, ahead + 10);
    let start = Instant::now();
    world.lead(&leader);
    leader.registered().await;
    let first = leader.resource_manager_sender().expect("a sender");
    assert!(first.registration < ahead, "{first:?}");
    leader.registered().await;
    let second = leader.resource_manager_sender().expect("a sender");
    assert_eq!(second.registration, ahead + 1);
    // The JobMaster has seen still higher numbers.
    leader.request_slot(0, A1).await;
    leader.offered().await;
    let at_job_master = leader.job_master_sender().expect("a sender");
    assert_eq!(at_job_master.registration, ahead + 11);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn another_job_master_of_the_same_term_is_registered_at_once_and_only_once() {
    let (_world, leader, _task) = running(false).await;
    let before = leader.job_master_sender().expect("a sender");
    let executor = leader.task_executor();
    let announce = async |job_incarnation| {
        let request = pb::AnnounceLeaderRequest {
            sender: Some(pb::Sender {
                registration: 0,
                ..before.clone()
            }),
            leader_rpc_address: leader.information().addresses["rpc"].clone(),
            process: "jm".to_owned(),
            jobs: vec![pb::JobScope {
                job_id: JOB.to_string(),
                job_incarnation,
            }],
        };
        let answer = executor.announce_leader(request).await;
        answer.expect("of this term");
    };
    announce(2).await;
    let registered = leader.registered_job().await;
    let sender = registered.sender.expect("a sender");
    assert!(sender.registration > before.registration);
    assert_eq!(registered.executions.len(), 1, "it runs on");
    // Repeated, and late.
    for incarnation in [2, 1] {
        announce(incarnation).await;
    }
    let again = tokio::time::timeout(Duration::from_secs(5), leader.registered_job()).await;
    assert!(again.is_err(), "it registers again: {again:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_master_that_asks_before_it_has_taken_the_next_registration_is_to_wait_for_that() {
    let (world, leader, task) = running(false).await;
    let earlier = leader.job_master_sender();
    // It must register again, and its JobMaster does not answer that.
    world.connector.set_fault("jm1:1", Fault::Silent);
    let disconnect = pb::DisconnectJobMasterRequest {
        sender: earlier.clone(),
        job: scope(),
        cause: "lost".to_owned(),
        job_ended: false,
    };
    let executor = leader.task_executor();
    let answer = executor.disconnect_job_master(disconnect).await;
    answer.expect("is registered");
    pass(Duration::from_secs(1)).await;
    let asked = |job_id: String| pb::HeartbeatFromJobMasterRequest {
        sender: earlier.clone(),
        job: Some(pb::JobScope {
            job_id,
            job_incarnation: 1,
        }),
        allocation_ids: Vec::new(),
        full_report: true,
        stopping: false,
    };
    let answer = executor.heartbeat_from_job_master(asked(JOB.to_string()));
    let answer = answer.await.expect_err("is of the earlier one");
    assert!(matches!(answer, GatewayError::NotYet(_)), "{answer}");
    // A job that is not here is gone, and not being registered.
    let other = asked(JobId::from_bits(0xB).to_string());
    let answer = executor.heartbeat_from_job_master(other).await;
    let is_refused = matches!(answer, Err(GatewayError::Outdated { .. }));
    assert!(is_refused, "{answer:?}");
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
}
