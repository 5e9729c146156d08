//! TaskManagers that are lost, come back, or leave.

use std::time::Duration;

use tanist_config::LoadOptions;
use tanist_proto::id::JobId;
use tanist_proto::v1::JobStatus;
use tanist_task_executor::TaskStatus;
use tokio::time::Instant;

use crate::testing::cluster::{TestCluster, graph, graph_of_regions};
use crate::testing::running::{self, JOB, tasks_on, used_task_manager};

/// Starts a job of four tasks in two slots and three TaskManagers with a slot each, of which two run it;
/// returns one of these two.
async fn running() -> (TestCluster, String) {
    let cluster = running::running(1, 3, 1).await;
    let used = used_task_manager(&cluster);
    (cluster, used)
}

async fn finishes(cluster: &TestCluster, generation: u64) {
    cluster
        .until_stored("the next generation", |stored| {
            let state = stored.states.get(&JOB);
            state.is_some_and(|state| state.regions[0].generation == generation)
        })
        .await;
    assert_eq!(cluster.until_running(JOB, 4).await, generation);
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_dies_is_lost_by_refused_calls_and_its_tasks_run_elsewhere() {
    let (mut cluster, used) = running().await;
    let start = Instant::now();
    cluster.kill_task_manager(&used).await;
    finishes(&cluster, 2).await;
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "took {:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_falls_silent_is_lost_and_comes_back_without_effect() {
    let (cluster, used) = running().await;
    cluster.world.cut(&used);
    cluster
        .until_stored("the next generation", |stored| {
            stored.states[&JOB].regions[0].generation == 2
        })
        .await;
    cluster
        .until("the second generation runs", || {
            let running = cluster.world.tasks.of(JOB);
            running
                .iter()
                .filter(|(attempt, _)| attempt.generation == 2)
                .count()
                == 4
        })
        .await;
    // Cut off only from the leader, it learns from the store that its tasks are superseded.
    cluster
        .until("the first generation stops", || {
            cluster.world.tasks.of(JOB).len() == 4
        })
        .await;
    cluster.world.heal(&used);
    finishes(&cluster, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_is_started_again_with_the_same_id_gets_its_tasks_again() {
    let (mut cluster, used) = running().await;
    let start = Instant::now();
    cluster.kill_task_manager(&used).await;
    cluster.start_task_manager(&used);
    finishes(&cluster, 2).await;
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "took {:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_says_goodbye_is_replaced_at_once() {
    let (mut cluster, used) = running().await;
    let start = Instant::now();
    cluster.stop_task_manager(&used).await;
    finishes(&cluster, 2).await;
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "took {:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_task_that_fails_restarts_its_region_alone() {
    let cluster = TestCluster::start(1, 2, 2).await;
    cluster
        .client
        .submit(&graph_of_regions(JOB, 2), "t")
        .await
        .expect("accepted");
    cluster.until_running(JOB, 4).await;
    let (attempt, _) = cluster.world.tasks.of(JOB).remove(1);
    let cause = "a test says so".to_owned();
    cluster.world.end_task(&attempt, TaskStatus::failed(cause));
    cluster
        .until_stored("the next generation of a region", |stored| {
            stored.states[&JOB]
                .regions
                .iter()
                .any(|region| region.generation == 2)
        })
        .await;
    cluster.until_running(JOB, 4).await;
    let running = cluster.world.tasks.of(JOB);
    let restarted = running
        .iter()
        .filter(|(attempt, _)| attempt.generation == 2);
    assert_eq!(
        restarted.count(),
        1,
        "nothing connects it with its neighbour"
    );
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_job_waits_for_slots_and_runs_as_soon_as_a_task_manager_comes() {
    let mut cluster = TestCluster::start(1, 1, 1).await;
    cluster
        .client
        .submit(&graph(JOB, 2), "t")
        .await
        .expect("accepted");
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(cluster.world.tasks.of(JOB).is_empty());
    let start = Instant::now();
    cluster.start_task_manager("tm2");
    cluster.until_running(JOB, 4).await;
    assert!(
        start.elapsed() < Duration::from_millis(100),
        "took {:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn leader_and_task_manager_die_together() {
    let mut cluster = running::running(2, 3, 1).await;
    let used = used_task_manager(&cluster);
    let leader = cluster.leader().await;
    cluster.kill_task_manager(&used).await;
    cluster.kill_job_manager(&leader).await;
    let start = Instant::now();
    // The next leader dials it and reaches no process, so it does not wait for it.
    finishes(&cluster, 2).await;
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "took {:?}",
        start.elapsed()
    );
}

/// Two jobs of three slots on three TaskManagers with two: each has all of one TaskManager, and they share the
/// third.
#[tokio::test(start_paused = true)]
async fn jobs_that_each_lost_a_slot_for_good_run_one_after_the_other() {
    const OTHER: JobId = JobId::from_bits(0xB);
    let load = LoadOptions::default()
        .with("slot.request.timeout", "10 s")
        .with("slot.idle.timeout", "2 s");
    let mut cluster = TestCluster::start_with(load, 1, 3, 2).await;
    for job in [JOB, OTHER] {
        let submitted = cluster.client.submit(&graph(job, 3), "t").await;
        submitted.expect("accepted");
        cluster.until_running(job, 6).await;
    }
    let on = |name: &str| [JOB, OTHER].map(|job| tasks_on(&cluster, job, name));
    let shared = ["tm1", "tm2", "tm3"]
        .into_iter()
        .find(|name| on(name) == [2, 2]);
    let shared = shared.expect("one of them runs some of both");
    cluster.kill_task_manager(shared).await;
    let start = Instant::now();
    let runs = |job| cluster.world.tasks.of(job).len() == 6;
    cluster
        .until("one of both fails", || !runs(JOB) || !runs(OTHER))
        .await;
    cluster
        .until("one of both runs again", || runs(JOB) || runs(OTHER))
        .await;
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "took {:?}",
        start.elapsed()
    );
    let (first, second) = if runs(JOB) {
        (JOB, OTHER)
    } else {
        (OTHER, JOB)
    };
    cluster.until_running(first, 6).await;
    cluster.world.finish_tasks(first);
    assert_eq!(cluster.until_clean(first).await, JobStatus::Finished);
    cluster.until_running(second, 6).await;
    cluster.world.finish_tasks(second);
    assert_eq!(cluster.until_clean(second).await, JobStatus::Finished);
    cluster.check();
}
