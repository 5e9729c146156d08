//! Tasks that outlive their leader: the next leader finds them, even if their TaskManagers come back late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tanist_gateway::{Connector as _, GatewayError};
use tanist_proto::id::JobId;
use tanist_proto::resources::{CpuCores, Resources};
use tanist_proto::v1::{self as pb, ExecutionState, JobStatus};
use tanist_telemetry::ExitCode;
use tokio::time::Instant;

use crate::testing::cluster::{TestCluster, graph, graph_of_regions};
use crate::testing::graphs::{graph_on_two_task_managers, graph_with_resources};
use crate::testing::running::{self, JOB, used_task_manager};
use crate::testing::world::process_of;

/// Starts a job of four tasks in two slots and three TaskManagers with a slot each, of which two run it;
/// returns one of these two.
async fn running(job_managers: u32) -> (TestCluster, String) {
    let cluster = running::running(job_managers, 3, 1).await;
    let used = used_task_manager(&cluster);
    (cluster, used)
}

async fn kill_leader(cluster: &mut TestCluster) {
    let epoch = cluster.epoch();
    let leader = cluster.leader().await;
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(epoch).await;
}

async fn finishes(cluster: &TestCluster, generation: u64) {
    assert_eq!(cluster.until_running(JOB, 4).await, generation);
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    cluster.check();
}

/// The cores that are in no slot of any TaskManager.
async fn free_cores(cluster: &TestCluster) -> CpuCores {
    let known = cluster.list_task_managers().await;
    let free = known.iter().filter_map(|it| it.free_profile.as_ref());
    let free = free.map(Resources::from);
    free.fold(Resources::ZERO, |sum, it| sum.plus(&it)).cpu
}

/// Waits until the leader reports that this many tasks are awaited.
async fn until_awaited(cluster: &TestCluster, tasks: usize) {
    loop {
        let details = cluster.client.describe(JOB).await.expect("it is there");
        let subtasks = details.vertices.iter().flat_map(|vertex| &vertex.subtasks);
        let awaited = subtasks.filter(|subtask| subtask.state() == ExecutionState::Reconciling);
        if details.status() == JobStatus::Reconciling && awaited.count() == tasks {
            return;
        }
        assert_ne!(
            details.status(),
            JobStatus::Running,
            "it does not wait for any task"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_registers_at_all_job_masters_in_one_message() {
    let mut cluster = TestCluster::start(2, 1, 6).await;
    let jobs: Vec<JobId> = (1..=6).map(JobId::from_bits).collect();
    for job in &jobs {
        let submitted = cluster.client.submit(&graph(*job, 1), "t").await;
        submitted.expect("accepted");
    }
    for job in &jobs {
        cluster.until_running(*job, 2).await;
    }
    let methods = [
        "register_task_managers",
        "register_task_manager",
        "offer_slots",
    ];
    let before = methods.map(|method| cluster.world.calls(method));
    kill_leader(&mut cluster).await;
    for job in &jobs {
        assert_eq!(cluster.until_running(*job, 2).await, 1);
    }
    let after = methods.map(|method| cluster.world.calls(method));
    let [together, alone, offers] = [0, 1, 2].map(|method| after[method] - before[method]);
    assert_eq!((together, alone, offers), (1, 0, 0));
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_leader_sends_nothing_that_changes_anything() {
    let mut cluster = TestCluster::start(2, 3, 4).await;
    let jobs: Vec<JobId> = (1..=4).map(JobId::from_bits).collect();
    for (number, job) in jobs.iter().enumerate() {
        let graph = match number % 2 {
            0 => graph(*job, 3),
            _ => graph_of_regions(*job, 2),
        };
        cluster.client.submit(&graph, "t").await.expect("accepted");
    }
    let tasks = |number: usize| if number.is_multiple_of(2) { 6 } else { 4 };
    for (number, job) in jobs.iter().enumerate() {
        cluster.until_running(*job, tasks(number)).await;
    }
    // A second job, in slots that are cut out of the remaining resources.
    let cut = JobId::from_bits(5);
    let graph = graph_with_resources(cut, 1);
    cluster.client.submit(&graph, "t").await.expect("accepted");
    cluster.until_running(cut, 2).await;
    let free = free_cores(&cluster).await;
    assert_eq!(
        free,
        CpuCores::from_millionths(2_500_000),
        "24, 10 slots of 2, 1 and 0.5"
    );
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let changing = ["request_slot", "free_slots", "submit_tasks", "cancel_tasks"];
    cluster.strike_at(move |step| {
        let changes = changing.iter().any(|method| step.calls(method));
        counted.fetch_add(u32::from(changes), Ordering::Relaxed);
        false
    });
    kill_leader(&mut cluster).await;
    for (number, job) in jobs.iter().enumerate() {
        assert_eq!(cluster.until_running(*job, tasks(number)).await, 1);
    }
    assert_eq!(cluster.until_running(cut, 2).await, 1);
    // Longer than any timeout of slots and heartbeats.
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    assert_eq!(
        free_cores(&cluster).await,
        free,
        "exactly what was taken is taken"
    );
    cluster.world.finish_tasks(cut);
    assert_eq!(cluster.until_clean(cut).await, JobStatus::Finished);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_comes_back_late_is_adopted() {
    let (mut cluster, used) = running(2).await;
    cluster.world.cut(&used);
    kill_leader(&mut cluster).await;
    until_awaited(&cluster, 2).await;
    // Longer than any slot timeout, and shorter than the wait for a TaskManager.
    tokio::time::sleep(Duration::from_secs(30)).await;
    until_awaited(&cluster, 2).await;
    cluster.world.heal(&used);
    finishes(&cluster, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_comes_back_after_its_region_was_restarted_elsewhere_stops_its_tasks() {
    let (mut cluster, used) = running(2).await;
    cluster.world.cut(&used);
    kill_leader(&mut cluster).await;
    cluster
        .until("the next generation runs elsewhere", || {
            let running = cluster.world.tasks.of(JOB);
            let next = running
                .iter()
                .filter(|(attempt, _)| attempt.generation == 2);
            next.count() == 4
        })
        .await;
    cluster.world.heal(&used);
    finishes(&cluster, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_second_leader_that_dies_while_it_reconciles_changes_nothing() {
    let (mut cluster, used) = running(3).await;
    cluster.world.cut(&used);
    kill_leader(&mut cluster).await;
    until_awaited(&cluster, 2).await;
    kill_leader(&mut cluster).await;
    until_awaited(&cluster, 2).await;
    cluster.world.heal(&used);
    finishes(&cluster, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_that_comes_while_it_reconciles_ends_the_job_when_all_have_stopped() {
    let (mut cluster, used) = running(2).await;
    cluster.world.cut(&used);
    kill_leader(&mut cluster).await;
    until_awaited(&cluster, 2).await;
    cluster.client.cancel(JOB).await.expect("canceled");
    cluster.world.heal(&used);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Canceled);
    assert!(cluster.world.tasks.of(JOB).is_empty());
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn after_a_job_master_broke_its_task_managers_know_the_next_one_at_once() {
    let (cluster, _) = running(1).await;
    let epoch = cluster.epoch();
    let mut is_broken = false;
    cluster.strike_at(move |step| {
        if !is_broken && step.calls("heartbeat_from_job_master") {
            is_broken = true;
            panic!("a JobMaster breaks, as this test wants");
        }
        false
    });
    let is_rebuilt = async {
        loop {
            let details = cluster.client.describe(JOB).await.expect("it is there");
            if details.status() == JobStatus::Reconciling {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let bound = Duration::from_secs(60);
    tokio::time::timeout(bound, is_rebuilt)
        .await
        .expect("it broke");
    let broke = Instant::now();
    assert_eq!(cluster.until_running(JOB, 4).await, 1, "adopted");
    let took = broke.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(cluster.epoch(), epoch, "the same term");
    finishes(&cluster, 1).await;
}

#[tokio::test(start_paused = true)]
async fn the_only_job_manager_that_is_back_at_its_address_says_not_yet_until_all_jobs_are_listed() {
    let (mut cluster, _) = running(1).await;
    cluster.kill_job_manager("jm1").await;
    cluster.world.slow_store(Duration::from_secs(5));
    cluster.start_job_manager("jm1");
    // TaskManagers with reports, and clients, that know the address ask before anything is listed.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let early = cluster.connector();
    let resource_manager = early.resource_manager("jm1:1");
    let request = pb::RegisterTaskExecutorRequest::default();
    let registered = resource_manager.register_task_executor(request).await;
    let job_master = early.job_master("jm1:1", JOB);
    let request = pb::RegisterTaskManagerRequest {
        job_id: JOB.to_string(),
        ..pb::RegisterTaskManagerRequest::default()
    };
    let reported = job_master.register_task_manager(request).await;
    let dispatcher = early.dispatcher("jm1:1");
    let request = pb::DescribeJobRequest {
        job_id: JOB.to_string(),
        ..pb::DescribeJobRequest::default()
    };
    let described = dispatcher.describe_job(request).await;
    let reported = [registered.err(), reported.err(), described.err()];
    for error in reported {
        assert!(matches!(error, Some(GatewayError::NotYet(_))), "{error:?}");
    }
    assert!(cluster.leader_view().leader.is_none(), "it leads already");
    cluster.leader_above(1).await;
    assert_eq!(cluster.world.tasks.of(JOB).len(), 4, "nothing was lost");
    finishes(&cluster, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_source_that_finished_on_a_task_manager_that_has_left_is_not_awaited() {
    let mut cluster = TestCluster::start(2, 2, 1).await;
    let graph = graph_on_two_task_managers(JOB);
    cluster.client.submit(&graph, "t").await.expect("accepted");
    assert_eq!(cluster.until_running(JOB, 2).await, 1);
    let is_source = |vertex: &str| !graph.edges.iter().any(|edge| edge.target == vertex);
    let running = cluster.world.tasks.of(JOB);
    let source = running.iter().find(|(task, _)| is_source(&task.vertex));
    let (source, life) = source.expect("it runs");
    let left = process_of(life);
    let apart = running.iter().filter(|(_, it)| process_of(it) == left);
    assert_eq!(apart.count(), 1, "each is on a TaskManager of its own");
    cluster.world.finish_task(source);
    cluster
        .until_stored("the end of the source", |stored| {
            !stored.states[&JOB].terminal.is_empty()
        })
        .await;
    let leader = cluster.leader().await;
    let dispatcher = cluster.connector().dispatcher(&format!("{leader}:1"));
    let drain = pb::DrainTaskManagerRequest {
        resource_id: left.to_owned(),
        ..pb::DrainTaskManagerRequest::default()
    };
    dispatcher
        .drain_task_manager(drain)
        .await
        .expect("it hears");
    assert_eq!(cluster.end_of_task_manager(left).await, ExitCode::Ended);
    tokio::time::sleep(Duration::from_secs(600)).await;

    let start = Instant::now();
    kill_leader(&mut cluster).await;
    assert_eq!(cluster.until_running(JOB, 1).await, 1, "adopted");
    let took = start.elapsed();
    assert!(
        took < Duration::from_secs(1),
        "a TaskManager was awaited: {took:?}"
    );
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    cluster.check();
}
