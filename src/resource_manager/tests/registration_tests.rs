//! Registration at a ResourceManager, on paused time: compatible TaskExecutors, and the youngest JobMaster of each
//! job.

use std::time::Duration;

use tanist_gateway::registration::Answer;
use tanist_gateway::{
    Departure, GatewayError, JobMasterId, ResourceManagerGateway as _, ResourceRequirements,
    ResourceRequirementsGateway as _,
};
use tanist_ha::election::Epoch;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::{OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION};
use tokio::time::Instant;

use super::scripted::{
    ScriptedTaskExecutor, id, job_master, needs, next, registration, start, task_managers,
};
use crate::*;

const JOB: JobId = JobId::from_bits(0xA);

async fn rejection(change: impl FnOnce(&mut pb::RegisterTaskExecutorRequest)) -> String {
    let cluster = start();
    let mut request = registration(5, 1, pb::SlotReport::default());
    change(&mut request);
    let handle = cluster.manager.handle();
    let response = handle.register_task_executor(request).await;
    let answer = Answer::from_message(response.expect("an answer")).expect("not empty");
    let Answer::Rejection(reason) = answer else {
        panic!("it is rejected: {answer:?}");
    };
    assert_eq!(task_managers(&handle).await, []);
    reason
}

#[tokio::test(start_paused = true)]
async fn a_version_that_does_not_fit_is_rejected_with_both_versions_in_the_reason() {
    for protocol in [0, OLDEST_PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1] {
        let reason = rejection(|request| {
            request.protocol_version = protocol;
            request.version = "9.8.7 (abc)".to_owned();
        })
        .await;
        let theirs = format!("9.8.7 (abc) speaks protocol {protocol},");
        let ours = format!("speaks {OLDEST_PROTOCOL_VERSION} to {PROTOCOL_VERSION}");
        for part in [
            theirs,
            ours,
            tanist_telemetry::VERSION_AND_REVISION.to_owned(),
        ] {
            assert!(reason.contains(&part), "{part}: {reason}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_of_another_cluster_is_rejected() {
    let reason = rejection(|request| request.cluster_id = "other".to_owned()).await;
    assert!(
        reason.contains("\"other\"") && reason.contains("\"test\""),
        "{reason}"
    );
}

#[tokio::test(start_paused = true)]
async fn who_does_not_lead_any_more_rejects_nobody() {
    let cluster = start();
    let mut request = registration(6, 1, pb::SlotReport::default());
    request.protocol_version = PROTOCOL_VERSION + 1;
    let answer = cluster
        .manager
        .handle()
        .register_task_executor(request)
        .await;
    assert!(
        matches!(answer, Err(GatewayError::Outdated { .. })),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_memory_of_a_task_manager_is_shown() {
    let cluster = start();
    let handle = cluster.manager.handle();
    let mut request = registration(5, 1, pb::SlotReport::default());
    let memory = Some(pb::MemoryConfiguration {
        process_limit_bytes: 7,
        ..pb::MemoryConfiguration::default()
    });
    request.memory_configuration = memory;
    handle
        .register_task_executor(request)
        .await
        .expect("registers");
    assert_eq!(task_managers(&handle).await[0].memory_configuration, memory);
}

#[tokio::test(start_paused = true)]
async fn a_younger_job_master_takes_the_place_of_an_older_one_which_is_told() {
    let cluster = start();
    let (executor, mut asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 1);
    let handle = cluster.manager.handle();
    let needs_of = |incarnation| ResourceRequirements {
        job_master: id(incarnation),
        ..needs(JOB, 1)
    };
    let unknown = handle.declare_required_resources(needs_of(1)).await;
    assert!(
        matches!(unknown, Err(GatewayError::NotFound(_))),
        "{unknown:?}"
    );

    let first = job_master(&handle, JOB, 1).await.expect("registers");
    let again = job_master(&handle, JOB, 1).await.expect("the same again");
    handle
        .declare_required_resources(needs_of(1))
        .await
        .expect("is registered");
    let second = job_master(&handle, JOB, 2).await.expect("a younger one");
    tokio::time::timeout(
        Duration::from_secs(1),
        again.find(|it| it.is_superseded.then_some(())),
    )
    .await
    .expect("the older one is notified");
    assert!(
        !first.look(|it| it.is_superseded),
        "it has registered again since"
    );

    for refused in [
        job_master(&handle, JOB, 1).await.map(|_| ()),
        handle.declare_required_resources(needs_of(1)).await,
    ] {
        assert!(
            matches!(refused, Err(GatewayError::Outdated { .. })),
            "{refused:?}"
        );
    }
    // The requirements of the older one are gone: a slot is requested only when the younger one needs it.
    handle
        .register_task_executor(registration(5, 1, executor.report()))
        .await
        .expect("registers");
    let early = tokio::time::timeout(Duration::from_secs(5), asked.requests.recv()).await;
    assert!(early.is_err(), "{early:?}");
    handle
        .declare_required_resources(needs_of(2))
        .await
        .expect("is registered");
    assert_eq!(next(&mut asked.requests).await.job_id, JOB.to_string());
    assert!(!second.look(|it| it.is_superseded));
}

#[tokio::test(start_paused = true)]
async fn a_job_master_of_another_term_is_refused() {
    let mut cluster = start();
    let handle = cluster.manager.handle();
    let of_epoch = |epoch| ResourceRequirements {
        job_master: JobMasterId {
            epoch: Epoch::new(epoch),
            incarnation: 1,
        },
        ..needs(JOB, 1)
    };
    for epoch in [4, 6] {
        let refused = handle.declare_required_resources(of_epoch(epoch)).await;
        assert!(
            matches!(refused, Err(GatewayError::Outdated { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(next(&mut cluster.higher_epochs).await, Epoch::new(6));
}

#[tokio::test(start_paused = true)]
async fn a_job_without_job_master_loses_requirements_and_slots_after_the_job_timeout() {
    let cluster = start();
    let (executor, mut asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 1);
    let handle = cluster.manager.handle();
    job_master(&handle, JOB, 1).await.expect("registers");
    handle
        .declare_required_resources(needs(JOB, 1))
        .await
        .expect("is registered");
    // Another job needs more than exists.
    let large = JobId::from_bits(0xB);
    job_master(&handle, large, 1).await.expect("registers");
    handle
        .declare_required_resources(needs(large, 2))
        .await
        .expect("is registered");
    let start = Instant::now();
    handle
        .register_task_executor(registration(5, 1, executor.report()))
        .await
        .expect("registers");
    let requested = next(&mut asked.requests).await;
    let mut shortages = handle.shortages();
    shortages
        .wait_for(|all| all.contains_key(&large))
        .await
        .expect("it runs");
    // Then both are silent.
    let freed = next(&mut asked.freed).await;
    assert_eq!(freed.allocation_ids, [requested.allocation_id]);
    let Options {
        heartbeat_timeout,
        job_timeout,
        ..
    } = Options::default();
    assert_eq!(
        start.elapsed().as_secs(),
        (heartbeat_timeout + job_timeout).as_secs()
    );
    shortages
        .wait_for(|all| all.is_empty())
        .await
        .expect("it runs");
}

#[tokio::test(start_paused = true)]
async fn a_job_master_that_speaks_up_keeps_the_slots_of_its_job() {
    let cluster = start();
    let (executor, mut asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 1);
    let handle = cluster.manager.handle();
    job_master(&handle, JOB, 1).await.expect("registers");
    handle
        .declare_required_resources(needs(JOB, 1))
        .await
        .expect("is registered");
    handle
        .register_task_executor(registration(5, 1, executor.report()))
        .await
        .expect("registers");
    next(&mut asked.requests).await;
    let nothing = ResourceRequirements {
        resources: Vec::new(),
        ..needs(JOB, 0)
    };
    for _ in 0..60 {
        handle
            .declare_required_resources(nothing.clone())
            .await
            .expect("is registered");
        let freed = tokio::time::timeout(Duration::from_secs(10), asked.freed.recv()).await;
        assert!(freed.is_err(), "{freed:?}");
    }
    // Once it has left, the job's timeout runs.
    handle
        .disconnect_job_master(JOB, Departure::JobEnded(id(1)))
        .await
        .expect("it runs");
    let start = Instant::now();
    next(&mut asked.freed).await;
    assert_eq!(
        start.elapsed().as_secs(),
        Options::default().job_timeout.as_secs()
    );
}

#[tokio::test(start_paused = true)]
async fn two_processes_under_one_resource_id_do_not_take_its_place_from_each_other_for_ever() {
    let cluster = start();
    let handle = cluster.manager.handle();
    let register = async |incarnation: &str, number| {
        let mut request = registration(5, number, pb::SlotReport::default());
        if let Some(location) = &mut request.location {
            location.incarnation = incarnation.to_owned();
            location.rpc_address = format!("tm{incarnation}:1");
        }
        let response = handle.register_task_executor(request).await;
        Answer::from_message(response.expect("an answer")).expect("not empty")
    };
    let is_taken = |answer| matches!(answer, Answer::Success(_));
    assert!(is_taken(register("1", 1).await));
    assert!(
        is_taken(register("2", 2).await),
        "the first one may have ended"
    );
    assert!(is_taken(register("2", 3).await), "it registers again");
    // It has not: it is rejected, and the other one stays.
    let Answer::Rejection(reason) = register("1", 4).await else {
        panic!("both go on");
    };
    assert!(
        reason.contains("tm2:1") && reason.contains("`taskmanager.resource-id`"),
        "{reason}"
    );
    assert!(is_taken(register("2", 5).await));
    assert!(is_taken(register("3", 6).await), "the second one may have");
}
