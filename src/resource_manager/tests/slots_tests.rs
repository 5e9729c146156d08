//! The ResourceManager against scripted TaskExecutors, on paused time: slots that it gives and reclaims,
//! TaskExecutors that it loses, and terms that it does not lead.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tanist_compact::WatchCell;
use tanist_gateway::local::Fault;
use tanist_gateway::refusals::Refusals;
use tanist_gateway::registration::Answer;
use tanist_gateway::{
    GatewayError, GatewayResult, ResourceManagerGateway as _, ResourceRequirementsGateway as _,
    Verdict,
};
use tanist_ha::election::Epoch;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::scripted::{
    BOUND, Cluster, ScriptedTaskExecutor, job_master, needs, next, registration, start, start_with,
    task_managers,
};
use crate::*;

#[tokio::test(start_paused = true)]
async fn slots_are_allocated_to_declared_requirements_once_a_task_executor_registers() {
    let cluster = start();
    let (executor, mut asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 2);
    let handle = cluster.manager.handle();
    let job = JobId::random();
    job_master(&handle, job, 1).await.expect("registers");
    handle
        .declare_required_resources(needs(job, 2))
        .await
        .expect("the manager runs");
    let mut shortages = handle.shortages();
    let lacking = shortages
        .wait_for(|shortages| !shortages.is_empty())
        .await
        .expect("it runs")
        .clone();
    assert_eq!(
        lacking[&job],
        Shortage {
            acquired: 0,
            missing: 2
        }
    );

    handle
        .register_task_executor(registration(5, 1, executor.report()))
        .await
        .expect("registers");
    for _ in 0..2 {
        let request = next(&mut asked.requests).await;
        assert_eq!(request.job_id, job.to_string());
        assert_eq!(request.job_master_address, "jm:1");
        assert_eq!(request.sender.expect("a sender").registration, 1);
    }
    shortages
        .wait_for(|shortages| shortages.is_empty())
        .await
        .expect("it runs");
    let infos = task_managers(&handle).await;
    assert_eq!((infos[0].slots_number, infos[0].free_slots), (2, 0));
    cluster.manager.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_panics_ends_it_so_that_its_term_gives_up() {
    let cluster = start();
    let (executor, asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 1);
    let handle = cluster.manager.handle();
    handle
        .register_task_executor(registration(5, 1, executor.report()))
        .await
        .expect("registers");
    // Requests for slots panic from here on.
    drop(asked);
    let job = JobId::random();
    job_master(&handle, job, 1).await.expect("registers");
    handle
        .declare_required_resources(needs(job, 1))
        .await
        .expect("the manager runs");
    let ended = tokio::time::timeout(BOUND, handle.ended()).await;
    ended.expect("it ends");
    cluster.manager.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_answer_was_lost_is_repeated_with_the_same_allocation() {
    let cluster = start();
    let (executor, mut asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 2);
    let handle = cluster.manager.handle();
    handle
        .register_task_executor(registration(5, 1, executor.report()))
        .await
        .expect("registers");
    // The report of the first heartbeat would name the slot.
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.connector.set_fault("tm:1", Fault::LoseReplies);
    let job = JobId::random();
    job_master(&handle, job, 1).await.expect("registers");
    handle
        .declare_required_resources(needs(job, 1))
        .await
        .expect("the manager runs");
    let first = next(&mut asked.requests).await;
    let second = next(&mut asked.requests).await;
    assert_eq!(
        (first.slot, &first.allocation_id),
        (second.slot, &second.allocation_id)
    );
    cluster.connector.set_fault("tm:1", Fault::None);
    let third = next(&mut asked.requests).await;
    assert_eq!(third.allocation_id, first.allocation_id);
    while asked.requests.try_recv().is_ok() {}
    let later = tokio::time::timeout(Duration::from_secs(60), asked.requests.recv()).await;
    assert!(later.is_err(), "an answered request is repeated: {later:?}");
    assert_eq!(task_managers(&handle).await[0].free_slots, 1);
}

#[tokio::test(start_paused = true)]
async fn a_task_executor_that_does_not_answer_is_lost_and_told_so() {
    let cluster = start();
    let (executor, mut asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 1);
    let handle = cluster.manager.handle();
    handle
        .register_task_executor(registration(5, 1, executor.report()))
        .await
        .expect("registers");
    let start = tokio::time::Instant::now();
    cluster.connector.set_fault("tm:1", Fault::LoseReplies);
    next(&mut asked.disconnects).await;
    assert_eq!(start.elapsed(), Options::default().heartbeat_timeout);
    assert_eq!(task_managers(&handle).await, []);
    // It comes back with a younger registration.
    cluster.connector.set_fault("tm:1", Fault::None);
    handle
        .register_task_executor(registration(5, 2, executor.report()))
        .await
        .expect("registers");
    assert_eq!(task_managers(&handle).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_task_executor_that_refuses_calls_is_lost_after_the_threshold() {
    let cluster = start();
    let (executor, _asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 1);
    let handle = cluster.manager.handle();
    handle
        .register_task_executor(registration(5, 1, executor.report()))
        .await
        .expect("registers");
    cluster.connector.set_fault("tm:1", Fault::Unreachable);
    let start = tokio::time::Instant::now();
    while !task_managers(&handle).await.is_empty() {
        assert!(start.elapsed() < BOUND, "still registered");
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    let heartbeats = Options::default().heartbeat_interval * 2;
    assert!(
        start.elapsed() < heartbeats + Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn refused_calls_count_only_if_they_are_said_to_and_proof_at_once() {
    #[derive(Debug)]
    struct CutOff;
    #[async_trait]
    impl Refusals for CutOff {
        async fn count(&self, _: &str) -> bool {
            false
        }
    }
    let cluster = start_with(Arc::new(CutOff));
    let handle = cluster.manager.handle();
    let options = Options::default();
    for (number, is_gone) in [(1, false), (2, true)] {
        let (executor, _asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 1);
        handle
            .register_task_executor(registration(5, number, executor.report()))
            .await
            .expect("registers");
        match is_gone {
            true => cluster.connector.remove("tm:1"),
            false => cluster.connector.set_fault("tm:1", Fault::Unreachable),
        }
        let start = tokio::time::Instant::now();
        while !task_managers(&handle).await.is_empty() {
            assert!(start.elapsed() < BOUND, "still registered");
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        let expected = match is_gone {
            // Its connection ends, and the next call is refused by the kernel.
            true => Duration::ZERO,
            false => options.heartbeat_timeout,
        };
        let took = start.elapsed();
        assert!(
            took >= expected && took < expected + Duration::from_secs(1),
            "{took:?}"
        );
        cluster.connector.set_fault("tm:1", Fault::None);
    }
}

/// Has a job hold a slot of a TaskExecutor with two. Returns the cell of its JobMaster.
async fn with_a_holder(cluster: &Cluster) -> (ResourceManagerHandle, WatchCell<Verdict>) {
    let (executor, mut asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 2);
    let handle = cluster.manager.handle();
    let job = JobId::from_bits(1);
    let told = job_master(&handle, job, 1).await.expect("registers");
    handle
        .register_task_executor(registration(5, 1, executor.report()))
        .await
        .expect("registers");
    handle
        .declare_required_resources(needs(job, 1))
        .await
        .expect("the manager runs");
    next(&mut asked.requests).await;
    (handle, told)
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_connection_is_looked_into_at_once_and_jobs_hear_who_is_gone() {
    let cluster = start();
    let (handle, told) = with_a_holder(&cluster).await;
    let other = JobId::from_bits(2);
    let not_told = job_master(&handle, other, 1).await.expect("registers");
    let start = tokio::time::Instant::now();
    cluster.connector.remove("tm:1");
    let gone = told.find(|verdict| verdict.gone.first().cloned());
    let gone = tokio::time::timeout(BOUND, gone).await.expect("it is told");
    assert_eq!((gone.id.as_str(), gone.incarnation.as_str()), ("tm", "1"));
    let soon = Duration::from_millis(200);
    assert!(start.elapsed() < soon, "{:?}", start.elapsed());
    assert_eq!(task_managers(&handle).await, []);
    assert!(not_told.look(|verdict| verdict.gone.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn a_task_executor_whose_connection_ended_and_that_answers_is_kept() {
    let cluster = start();
    let (executor, _asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 1);
    let handle = cluster.manager.handle();
    handle
        .register_task_executor(registration(5, 1, executor.report()))
        .await
        .expect("registers");
    cluster.connector.remove("tm:1");
    cluster
        .connector
        .put_task_executor("tm:1", executor.clone());
    tokio::time::sleep(Options::default().heartbeat_interval).await;
    assert_eq!(task_managers(&handle).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn jobs_hear_that_the_process_of_a_task_manager_was_replaced() {
    let cluster = start();
    let (handle, told) = with_a_holder(&cluster).await;
    let mut again = registration(5, 2, pb::SlotReport::default());
    let location = again.location.as_mut().expect("it has one");
    location.incarnation = "2".to_owned();
    handle
        .register_task_executor(again)
        .await
        .expect("registers");
    let gone = told.look(|verdict| verdict.gone.clone());
    let incarnations: Vec<&str> = gone.iter().map(|it| it.incarnation.as_str()).collect();
    assert_eq!(incarnations, ["1"]);
}

#[tokio::test(start_paused = true)]
async fn a_registration_at_or_below_the_highest_seen_is_refused_even_after_a_goodbye() {
    let cluster = start();
    let handle = cluster.manager.handle();
    let register = |number| {
        let report = pb::SlotReport::default();
        handle.register_task_executor(registration(5, number, report))
    };
    register(3).await.expect("the first");
    let is_too_low = |response: GatewayResult<pb::RegistrationResponse>| {
        let answer = Answer::from_message(response.expect("an answer")).expect("not empty");
        answer == Answer::TooLow { highest: 3 }
    };
    for number in [2, 3] {
        assert!(is_too_low(register(number).await), "{number}");
    }
    let goodbye = pb::DisconnectTaskExecutorRequest {
        sender: registration(5, 3, pb::SlotReport::default()).sender,
        resource_id: "tm".to_owned(),
        incarnation: "1".to_owned(),
        cause: "SIGTERM".to_owned(),
    };
    handle
        .disconnect_task_executor(goodbye)
        .await
        .expect("is registered");
    assert_eq!(task_managers(&handle).await, []);
    assert!(is_too_low(register(3).await));
    register(4).await.expect("a higher one");
}

#[tokio::test(start_paused = true)]
async fn another_cluster_is_rejected_an_older_term_refused_and_a_younger_one_ends_this() {
    use pb::registration_response::Answer;
    let mut cluster = start();
    let handle = cluster.manager.handle();
    let mut stranger = registration(5, 1, pb::SlotReport::default());
    stranger
        .sender
        .as_mut()
        .expect("a sender")
        .cluster_incarnation = "c2".to_owned();
    let answer = handle
        .register_task_executor(stranger)
        .await
        .expect("an answer")
        .answer;
    let is_told = |reason: &str| reason.contains("start the TaskManager again");
    assert!(
        matches!(&answer, Some(Answer::Rejection(rejection)) if is_told(&rejection.reason)),
        "{answer:?}"
    );

    let older = handle
        .register_task_executor(registration(4, 1, pb::SlotReport::default()))
        .await;
    assert!(
        matches!(older, Err(GatewayError::Outdated { epoch: 5, .. })),
        "{older:?}"
    );
    let younger = handle
        .register_task_executor(registration(6, 1, pb::SlotReport::default()))
        .await;
    assert!(
        matches!(younger, Err(GatewayError::Outdated { .. })),
        "{younger:?}"
    );
    assert_eq!(next(&mut cluster.higher_epochs).await, Epoch::new(6));
}

#[tokio::test(start_paused = true)]
async fn slots_of_a_job_that_nobody_speaks_for_are_asked_back_after_the_job_timeout() {
    let cluster = start();
    let (executor, mut asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 1);
    let allocation = pb::SlotAllocation {
        allocation_id: "0000000000000000000000000000000a".to_owned(),
        job_id: JobId::random().to_string(),
    };
    executor.slots.lock()[0] = Some(allocation.clone());
    let handle = cluster.manager.handle();
    let start = tokio::time::Instant::now();
    handle
        .register_task_executor(registration(5, 1, executor.report()))
        .await
        .expect("registers");
    let freed = next(&mut asked.freed).await;
    assert_eq!(freed.allocation_ids, [allocation.allocation_id]);
    assert!(
        start.elapsed() >= Options::default().job_timeout,
        "{:?}",
        start.elapsed()
    );
}
