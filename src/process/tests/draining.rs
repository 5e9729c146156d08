//! A TaskManager is drained: it gets no new slots, and leaves when its last slot is free.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tanist_gateway::{Connector as _, GatewayError, GatewayResult};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_telemetry::ExitCode;

use crate::testing::cluster::{TestCluster, graph};
use crate::testing::running::{JOB, tasks_on};

const NEXT: JobId = JobId::from_bits(0xB);

async fn ask(
    cluster: &TestCluster,
    request: pb::DrainTaskManagerRequest,
) -> GatewayResult<pb::Ack> {
    let leader = cluster.leader().await;
    let dispatcher = cluster.connector().dispatcher(&format!("{leader}:1"));
    dispatcher.drain_task_manager(request).await
}

fn of(name: &str) -> pb::DrainTaskManagerRequest {
    pb::DrainTaskManagerRequest {
        resource_id: name.to_owned(),
        ..pb::DrainTaskManagerRequest::default()
    }
}

async fn drain(cluster: &TestCluster, name: &str) -> GatewayResult<pb::Ack> {
    ask(cluster, of(name)).await
}

async fn evict(cluster: &TestCluster, name: &str) {
    let request = pb::DrainTaskManagerRequest {
        evict: true,
        ..of(name)
    };
    ask(cluster, request).await.expect("it is registered");
}

/// The drain status of a TaskManager, once it has registered.
async fn drained(cluster: &TestCluster, name: &str) -> Option<pb::DrainInfo> {
    loop {
        let leader = cluster.leader().await;
        let dispatcher = cluster.connector().dispatcher(&format!("{leader}:1"));
        let request = pb::ListTaskManagersRequest::default();
        let list = dispatcher.list_task_managers(request).await;
        let list = list.map(|list| list.task_managers).unwrap_or_default();
        let mut list = list.into_iter();
        let is_it = |it: &pb::TaskManagerInfo| {
            let location = it.location.as_ref();
            location.is_some_and(|location| location.resource_id == name)
        };
        if let Some(info) = list.find(is_it) {
            return info.drain;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The drains that match no registered TaskManager, once there are some.
async fn unmatched(cluster: &TestCluster) -> Vec<pb::DrainInfo> {
    loop {
        let leader = cluster.leader().await;
        let dispatcher = cluster.connector().dispatcher(&format!("{leader}:1"));
        let request = pb::ListTaskManagersRequest::default();
        let list = dispatcher.list_task_managers(request).await;
        let drains = list.map(|list| list.unmatched_drains).unwrap_or_default();
        if !drains.is_empty() {
            return drains;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A job of two tasks that never end runs in one slot on `tm1`. TaskManagers have this many slots.
async fn endless(slots: u32) -> TestCluster {
    let cluster = TestCluster::start(2, 1, slots).await;
    let submitted = cluster.client.submit(&graph(JOB, 1), "t").await;
    submitted.expect("accepted");
    assert_eq!(cluster.until_running(JOB, 2).await, 1);
    cluster
}

/// Waits until all of the job runs on `tm2`, in its second attempt, and `tm1` has left. The restart strategy
/// has counted nothing.
async fn until_moved(cluster: &mut TestCluster) {
    cluster
        .until("all of it to run there", || {
            tasks_on(cluster, JOB, "tm2") == 2
        })
        .await;
    cluster.until_running(JOB, 2).await;
    assert_eq!(cluster.end_of_task_manager("tm1").await, ExitCode::Ended);
    let stored = cluster.world.stored();
    let state = &stored.states[&JOB];
    assert_eq!(state.restarts, None, "{:?}", state.failures);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn an_endless_job_moves_off_a_task_manager_when_there_are_slots_for_it_elsewhere() {
    let mut cluster = endless(2).await;
    evict(&cluster, "tm1").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(cluster.until_running(JOB, 2).await, 1, "nowhere to go");
    assert_eq!(tasks_on(&cluster, JOB, "tm1"), 2);
    let reported = drained(&cluster, "tm1").await.expect("it is drained");
    assert!(reported.evicting && !reported.drained, "{reported:?}");
    assert_eq!(reported.jobs, [JOB.to_string()]);
    // The next leader reads the drain before it assigns any slot.
    let leader = cluster.leader().await;
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(1).await;
    assert_eq!(cluster.until_running(JOB, 2).await, 1, "adopted");
    cluster.start_task_manager("tm2");
    until_moved(&mut cluster).await;
    let generations = cluster.world.stored().states[&JOB].regions.clone();
    assert!(generations.iter().all(|it| it.generation == 2));
    assert!(cluster.world.stored().states[&JOB].failures.is_empty());
}

/// The number of steps that the leader takes while it moves the job.
async fn steps_of_a_move() -> u32 {
    let mut cluster = endless(2).await;
    evict(&cluster, "tm1").await;
    let steps = Arc::new(AtomicU32::new(0));
    let counted = steps.clone();
    cluster.strike_at(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        false
    });
    cluster.start_task_manager("tm2");
    until_moved(&mut cluster).await;
    steps.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn a_move_goes_on_whatever_its_leader_was_at_when_it_died() {
    let steps = steps_of_a_move().await;
    assert!(steps > 10, "{steps}");
    for at in (0..steps.min(60)).step_by(3) {
        let mut cluster = endless(2).await;
        evict(&cluster, "tm1").await;
        let mut step = 0;
        cluster.strike_at(move |_| {
            step += 1;
            step > at
        });
        cluster.start_task_manager("tm2");
        cluster.after_strike().await;
        cluster.leader_above(1).await;
        until_moved(&mut cluster).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_drained_task_manager_that_starts_again_is_still_drained_until_that_is_taken_back() {
    let mut cluster = endless(1).await;
    cluster.start_task_manager("tm2");
    while drained(&cluster, "tm2").await.is_none() {
        let asked = pb::DrainTaskManagerRequest {
            by: "anna".to_owned(),
            reason: "a new disk".to_owned(),
            ..of("tm2")
        };
        ask(&cluster, asked).await.expect("it is registered");
    }
    assert_eq!(cluster.end_of_task_manager("tm2").await, ExitCode::Ended);
    let left = unmatched(&cluster).await;
    assert_eq!((left.len(), left[0].resource_id.as_str()), (1, "tm2"));
    assert_eq!(left[0].reason, "a new disk");
    cluster.start_task_manager("tm2");
    let reported = drained(&cluster, "tm2").await.expect("it is drained");
    assert_eq!(
        (reported.by.as_str(), reported.reason.as_str()),
        ("anna", "a new disk")
    );
    let leader = cluster.leader().await;
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(1).await;
    let submitted = cluster.client.submit(&graph(NEXT, 1), "t").await;
    submitted.expect("accepted");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(tasks_on(&cluster, NEXT, "tm2"), 0);
    assert!(
        cluster.runs("tm2"),
        "a supervisor that restarts it would do so forever"
    );
    let reported = drained(&cluster, "tm2").await.expect("it is drained");
    assert!(reported.drained, "{reported:?}");

    let undrain = pb::DrainTaskManagerRequest {
        undrain: true,
        ..of("tm2")
    };
    ask(&cluster, undrain.clone())
        .await
        .expect("it was drained");
    ask(&cluster, undrain).await.expect("nothing is left to do");
    cluster.until_running(NEXT, 2).await;
    assert_eq!(tasks_on(&cluster, NEXT, "tm2"), 2);
    assert_eq!(drained(&cluster, "tm2").await, None);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_host_is_drained_with_all_that_is_there_at_a_deadline_and_by_force_if_asked_for() {
    let mut cluster = endless(2).await;
    let of_host = pb::DrainTaskManagerRequest {
        host: "tm1".to_owned(),
        ..pb::DrainTaskManagerRequest::default()
    };
    let without_deadline = pb::DrainTaskManagerRequest {
        force: true,
        ..of_host.clone()
    };
    let refused = ask(&cluster, without_deadline).await;
    assert!(
        matches!(refused, Err(GatewayError::Invalid(_))),
        "{refused:?}"
    );
    let by_force = pb::DrainTaskManagerRequest {
        deadline_in_ms: 60_000,
        force: true,
        ..of_host
    };
    ask(&cluster, by_force).await.expect("it is registered");
    let reported = drained(&cluster, "tm1").await.expect("it is drained");
    assert!(!reported.evicting && reported.host == "tm1", "{reported:?}");
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(tasks_on(&cluster, JOB, "tm1"), 2);
    assert_eq!(cluster.end_of_task_manager("tm1").await, ExitCode::Ended);
    assert_eq!(cluster.world.tasks.of(JOB).len(), 0, "it waits for slots");
    cluster.start_task_manager("tm2");
    assert_eq!(cluster.until_running(JOB, 2).await, 2);
    assert_eq!(cluster.world.stored().states[&JOB].restarts, None);
    cluster.check();
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

    // Its free slot is given to no job, under the next leader either.
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
