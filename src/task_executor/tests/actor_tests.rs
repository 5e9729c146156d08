//! The TaskExecutor between scripted leaders and scripted tasks, on paused time.

use std::time::Duration;

use tanist_gateway::local::Fault;
use tanist_gateway::{GatewayError, GatewayResult, StoredGenerations};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;
use tokio::time::Instant;

use super::scripted_gateways::Heard;
use super::scripted_leader::*;
use super::testing::*;
use crate::*;

fn reason(response: GatewayResult<pb::SubmitTasksResponse>) -> String {
    response
        .expect("an answer")
        .refused
        .pop()
        .expect("a refusal")
        .reason
}

#[tokio::test(start_paused = true)]
async fn it_registers_with_its_slots_and_offers_what_it_is_asked_for() {
    let world = World::start(false);
    let (_, leader) = Leader::start(&world.connector, "jm1:1", 1);
    world.lead(&leader);
    let request = leader.registered().await;
    assert_eq!(request.slot_report.expect("a report").slots.len(), 2);
    leader.request_slot(1, A1).await;
    let registration = leader.registered_job().await;
    assert_eq!(registration.slots[0].allocation_id, A1);
    let offer = leader.offered().await;
    assert_eq!((offer.offers[0].slot, offer.offers.len()), (1, 1));
    assert_eq!(offer.job.expect("a job").job_incarnation, 1);
    // The same request is granted again; another one receives the present holder.
    use pb::request_slot_response::Answer;
    assert!(matches!(
        leader.request_slot(1, A1).await.answer,
        Some(Answer::Allocated(_))
    ));
    let occupied = leader.request_slot(1, A2).await.answer;
    assert!(matches!(&occupied, Some(Answer::Occupied(of)) if of.allocation_id == A1));
}

#[tokio::test(start_paused = true)]
async fn a_final_state_is_reported_with_every_heartbeat_until_it_is_acknowledged() {
    let (_world, leader, task) = running(false).await;
    let committables = vec![pb::Committable {
        pending_path: "p".into(),
        final_path: "f".into(),
    }];
    let checkpoint_committables = vec![
        pb::CheckpointCommittable {
            uid: "out".into(),
            ..pb::CheckpointCommittable::default()
        };
        2
    ];
    let output = SinkOutput {
        committables: committables.clone(),
        checkpoint_committables: checkpoint_committables.clone(),
    };
    task.status.send_replace(TaskStatus::Finished { output });
    let report = leader.updated(ExecutionState::Finished).await;
    assert_eq!(report.committables, committables);
    assert_eq!(report.checkpoint_committables, checkpoint_committables);
    assert_eq!(report.metrics.expect("metrics").records_in, 7);
    for _ in 0..2 {
        let answer = leader.job_heartbeat(&[A1]).await.expect("is registered");
        assert_eq!(answer.executions[0].state(), ExecutionState::Finished);
        assert_eq!(answer.allocation_ids, [A1]);
    }
    leader.acknowledge(1).await;
    let answer = leader.job_heartbeat(&[A1]).await.expect("is registered");
    assert_eq!(answer.executions, []);
    // It is forgotten, but does not start again.
    assert!(reason(leader.submit(1, A1).await).contains("not above 1"));
}

#[tokio::test(start_paused = true)]
async fn a_report_that_did_not_arrive_is_repeated() {
    let (world, leader, task) = running(false).await;
    world.connector.set_fault("jm1:1", Fault::Unreachable);
    task.status.send_replace(TaskStatus::failed("boom"));
    pass(Duration::from_secs(5)).await;
    world.connector.set_fault("jm1:1", Fault::None);
    assert_eq!(leader.updated(ExecutionState::Failed).await.cause, "boom");
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_gets_slots_and_executions_while_the_tasks_go_on() {
    let (world, old, task) = running(false).await;
    world.no_leader();
    let (_, new) = Leader::start(&world.connector, "jm2:1", 2);
    world.lead(&new);
    let report = new.registered().await.slot_report.expect("a report");
    assert_eq!(
        report.slots[0]
            .allocation
            .as_ref()
            .expect("held")
            .allocation_id,
        A1
    );
    let registration = new.registered_job().await;
    assert_eq!(registration.slots[0].allocation_id, A1);
    assert_eq!(registration.executions[0].state(), ExecutionState::Running);
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    // The old leader is refused, also with a generation that was never used.
    let refused = old.submit(2, A1).await.expect_err("is over");
    assert!(
        matches!(refused, GatewayError::Outdated { epoch: 2, .. }),
        "{refused}"
    );
    assert_eq!(new.submit(2, A1).await.expect("leads").refused, []);
}

#[tokio::test(start_paused = true)]
async fn an_old_terms_deployment_is_refused_once_a_registration_with_a_younger_was_sent() {
    let (world, old, _task) = running(false).await;
    let (_, new) = Leader::start(&world.connector, "jm2:1", 2);
    // The new leader never answers: that the registration was sent is enough.
    world.connector.set_fault("jm2:1", Fault::Silent);
    world.lead(&new);
    let start = Instant::now();
    while world.highest.accepted().epoch.get() < 2 {
        assert!(start.elapsed() < BOUND, "the epoch was not raised");
        tokio::task::yield_now().await;
    }
    let refused = old.submit(2, A1).await.expect_err("is over");
    assert!(
        matches!(refused, GatewayError::Outdated { epoch: 2, .. }),
        "{refused}"
    );
}

#[tokio::test(start_paused = true)]
async fn messages_of_an_earlier_registration_are_refused() {
    let (_world, leader, _task) = running(false).await;
    let disconnect = pb::DisconnectJobMasterRequest {
        sender: leader.job_master_sender(),
        job: scope(),
        cause: "lost".to_owned(),
        job_ended: false,
    };
    leader
        .task_executor()
        .disconnect_job_master(disconnect)
        .await
        .expect("is registered");
    let earlier = leader.job_master_sender();
    leader.registered_job().await;
    let current = leader.job_master_sender();
    leader.registrations.lock().1 = earlier.expect("a sender").registration;
    assert!(matches!(
        leader.submit(2, A1).await,
        Err(GatewayError::Outdated { .. })
    ));
    leader.registrations.lock().1 = current.expect("a sender").registration;
    assert_eq!(
        leader.submit(2, A1).await.expect("is registered").refused,
        []
    );
}

#[tokio::test(start_paused = true)]
async fn silence_of_the_leader_leads_to_registrations_with_higher_numbers_and_stops_nothing() {
    let (_world, leader, task) = running(false).await;
    let before = (leader.resource_manager_sender(), leader.job_master_sender());
    let start = Instant::now();
    leader.registered().await;
    leader.registered_job().await;
    assert!(
        start.elapsed() >= Duration::from_secs(49),
        "{:?}",
        start.elapsed()
    );
    let after = (leader.resource_manager_sender(), leader.job_master_sender());
    let number = |sender: &Option<pb::Sender>| sender.as_ref().map(|sender| sender.registration);
    assert!(number(&after.0) > number(&before.0) && number(&after.1) > number(&before.1));
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_keep_the_connections() {
    let (_world, leader, _task) = running(false).await;
    for _ in 0..20 {
        pass(Duration::from_secs(10)).await;
        leader
            .slot_report()
            .await
            .expect("the registration still counts");
        leader
            .job_heartbeat(&[A1])
            .await
            .expect("the registration still counts");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_generation_never_starts_even_if_it_comes_later() {
    let (_world, leader, _task) = running(false).await;
    leader.cancel(3).await;
    leader.updated(ExecutionState::Canceled).await;
    assert!(reason(leader.submit(3, A1).await).contains("not above 3"));
    assert_eq!(
        leader.submit(4, A1).await.expect("is registered").refused,
        []
    );
}

#[tokio::test(start_paused = true)]
async fn the_output_of_a_cancelled_generation_is_released_when_it_has_ended() {
    let (world, leader, task) = running(true).await;
    let released = || world.launcher.released_tasks.lock().clone();
    leader.cancel(1).await;
    assert_eq!(released(), []);
    // It finished before the cancellation took effect: no consumer takes its output.
    task.status.send_replace(TaskStatus::finished(Vec::new()));
    leader.updated(ExecutionState::Finished).await;
    assert_eq!(released(), [(0, 1)]);
    leader.cancel(2).await;
    assert_eq!(released(), [(0, 1), (0, 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_task_in_a_slot_that_the_job_does_not_hold_is_refused() {
    let (_world, leader, _task) = running(false).await;
    assert!(reason(leader.submit(2, A2).await).contains("does not hold"));
}

#[tokio::test(start_paused = true)]
async fn a_freed_slot_is_free_only_after_its_task_ended() {
    let (_world, leader, task) = running(true).await;
    leader.cancel(1).await;
    leader.free(A1).await;
    assert_eq!(*task.status.borrow(), TaskStatus::Canceling);
    assert!(
        leader.slot_report().await.expect("is registered")[0]
            .allocation
            .is_some()
    );
    task.status.send_replace(TaskStatus::Canceled);
    leader.freed(0).await;
    assert!(
        leader.slot_report().await.expect("is registered")[0]
            .allocation
            .is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_fetched_for_a_job_stays_over_attempts_and_goes_with_its_last_slot() {
    let (mut world, leader, task) = running(true).await;
    let launcher = world.launcher.clone();
    let released = || launcher.released_files.lock().clone();
    leader.cancel(1).await;
    task.status.send_replace(TaskStatus::Canceled);
    leader.updated(ExecutionState::Canceled).await;
    let again = leader.submit(2, A1).await.expect("is registered");
    assert_eq!(again.refused, []);
    let task = world.next_started().await;
    assert_eq!(released(), [], "another attempt has it");
    leader.cancel(2).await;
    leader.free(A1).await;
    assert_eq!(released(), [], "it still runs");
    task.status.send_replace(TaskStatus::Canceled);
    leader.freed(0).await;
    // The job continues elsewhere.
    assert_eq!(released(), [JOB]);
}

/// No decision of the store is behind the request: its sender may have been stopped since, and have deployed into
/// the slot before.
#[tokio::test(start_paused = true)]
async fn a_late_request_for_an_idle_slot_does_not_end_the_task_that_was_deployed_into_it() {
    let (_world, leader, task) = running(false).await;
    leader.free(A1).await;
    pass(Duration::from_secs(5)).await;
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    let held = leader.slot_report().await.expect("is registered");
    assert!(held[0].allocation.is_some(), "{held:?}");
    // Its end is decided by a generation.
    leader.cancel(1).await;
    leader.free(A1).await;
    task.status.send_replace(TaskStatus::Canceled);
    leader.freed(0).await;
}

#[tokio::test(start_paused = true)]
async fn the_resource_manager_frees_nothing_that_a_job_master_speaks_for() {
    let (_world, leader, task) = running(false).await;
    let request = pb::FreeSlotsRequest {
        sender: leader.resource_manager_sender(),
        allocation_ids: vec![A1.to_owned()],
        cause: "no requirements".to_owned(),
    };
    leader
        .task_executor()
        .free_slots(request)
        .await
        .expect("is registered");
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    assert!(
        leader.slot_report().await.expect("is registered")[0]
            .allocation
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn a_rejected_slot_is_freed_and_reported() {
    let world = World::start(false);
    let (script, leader) = world.with_leader("jm1:1", 1).await;
    *script.is_rejecting_offers.lock() = true;
    leader.request_slot(0, A1).await;
    leader.freed(0).await;
}

#[tokio::test(start_paused = true)]
async fn an_allocated_slot_that_a_job_master_does_not_take_is_freed_after_the_slot_timeout() {
    let world = World::start(false);
    let (script, leader) = world.with_leader("jm1:1", 1).await;
    *script.is_ignoring_offers.lock() = true;
    leader.request_slot(0, A1).await;
    leader.offered().await;
    let start = Instant::now();
    leader.freed(0).await;
    assert_eq!(start.elapsed(), Options::default().slot_timeout);
}

#[tokio::test(start_paused = true)]
async fn an_allocated_slot_is_kept_while_its_job_master_is_not_reached() {
    let world = World::start(false);
    let (_, leader) = world.with_leader("jm1:1", 1).await;
    // The JobMaster can't be reached while its address is cut off; the ResourceManager's messages arrive.
    world.connector.set_fault("jm1:1", Fault::Unreachable);
    leader.request_slot(0, A1).await;
    for _ in 0..6 {
        pass(Duration::from_secs(10)).await;
        let report = leader.slot_report().await.expect("is registered");
        assert!(
            report[0].allocation.is_some(),
            "freed while no JobMaster leads"
        );
    }
    world.connector.set_fault("jm1:1", Fault::None);
    leader.registered_job().await;
    leader.offered().await;
    // It was accepted: it stays.
    pass(Duration::from_secs(20)).await;
    assert!(
        leader.slot_report().await.expect("is registered")[0]
            .allocation
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_the_job_master_does_not_know_is_offered_again() {
    let (_world, leader, _task) = running(false).await;
    leader.job_heartbeat(&[]).await.expect("is registered");
    assert_eq!(leader.offered().await.offers[0].allocation_id, A1);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_job_stops_its_tasks_frees_its_slots_and_forgets_it() {
    let (world, leader, task) = running(true).await;
    let end = pb::DisconnectJobMasterRequest {
        sender: leader.job_master_sender(),
        job: scope(),
        cause: "FINISHED".to_owned(),
        job_ended: true,
    };
    let executor = leader.task_executor();
    executor
        .disconnect_job_master(end.clone())
        .await
        .expect("is registered");
    assert_eq!(*task.status.borrow(), TaskStatus::Canceling);
    task.status.send_replace(TaskStatus::Canceled);
    leader.freed(0).await;
    assert_eq!(*world.launcher.released.lock(), [JOB]);
    executor
        .disconnect_job_master(end)
        .await
        .expect("repeated, it is still true");
    assert!(leader.job_heartbeat(&[A1]).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_the_leader_does_not_know_goes_on_until_the_store_says_that_it_is_gone() {
    let (world, _old, task) = running(false).await;
    let (_, new) = Leader::start(&world.connector, "jm2:1", 2);
    world.connector.remove_job_master("jm2:1", JOB);
    world.lead(&new);
    new.registered().await;
    pass(Duration::from_secs(60)).await;
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    let start = Instant::now();
    world.records.say(Some((2, StoredGenerations::Absent)));
    new.freed(0).await;
    assert!(
        start.elapsed() <= Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(*task.status.borrow(), TaskStatus::Canceled);
}

#[tokio::test(start_paused = true)]
async fn without_any_leader_jobs_are_let_go_only_after_the_failover_timeout() {
    let (world, leader, task) = running(false).await;
    let start = Instant::now();
    world.connector.remove("jm1:1");
    world.no_leader();
    let mut status = task.status.subscribe();
    status
        .wait_for(|status| *status == TaskStatus::Canceled)
        .await
        .expect("it is canceled");
    let timeout = Options::default().job_manager_failover_timeout;
    assert!(
        start.elapsed() >= timeout - Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
    // After the pause, with its own random delay and that of the one before.
    let a_read = Duration::from_millis(1250);
    assert!(start.elapsed() <= timeout + a_read, "{:?}", start.elapsed());
    drop(leader);
}

#[tokio::test(start_paused = true)]
async fn stopping_ends_the_tasks_and_disconnects_with_the_cause() {
    let (world, leader, task) = running(false).await;
    world.executor.stop("SIGTERM").await;
    assert_eq!(*task.status.borrow(), TaskStatus::Canceled);
    let mut causes = Vec::new();
    while causes.len() < 2 {
        let cause = leader.wait_for("disconnect", |heard| match heard {
            Heard::DisconnectedResourceManager(request) => Some(request.cause),
            Heard::DisconnectedJobMaster(request) => Some(request.cause),
            _ => None,
        });
        causes.push(cause.await);
    }
    assert_eq!(causes, ["SIGTERM", "SIGTERM"]);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_registration_is_fatal_and_says_why() {
    let world = World::start(false);
    let (script, leader) = Leader::start(&world.connector, "jm1:1", 1);
    *script.rejection.lock() = Some("wrong cluster".to_owned());
    world.lead(&leader);
    let fatal = tokio::time::timeout(BOUND, world.executor.fatal()).await;
    let Fatal::Refused(reason) = fatal.expect("it is fatal") else {
        panic!("it is refused");
    };
    assert!(
        reason.contains("jm1:1") && reason.contains("wrong cluster"),
        "{reason}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_sources_of_a_stopped_job_end_also_those_that_come_later() {
    let (_world, leader, _task) = running(false).await;
    for _ in 0..2 {
        let heard = leader.job_heartbeat_of(&[A1], true).await;
        heard.expect("is registered");
    }
    leader.updated(ExecutionState::Finished).await;
    // Another leader, or a restart: the job stays stopped without another message.
    let answer = leader.submit(2, A1).await.expect("is registered");
    assert_eq!(answer.refused, []);
    let report = leader.updated(ExecutionState::Finished).await;
    assert_eq!(report.generation, 2);
}
