//! No process leads, or a TaskManager reaches no leader: its tasks go on unless the store says that they are
//! superseded.

use std::time::Duration;

use tanist_ha::election::ProcessId;
use tanist_proto::v1::JobStatus;
use tokio::time::Instant;

use crate::testing::cluster::TestCluster;
use crate::testing::history::Event;
use crate::testing::running::{self, JOB, tasks_on, used_task_manager};

const HOUR: Duration = Duration::from_secs(3600);

/// A job of four tasks in two slots; this many JobManagers, and three TaskManagers with a slot each, of which
/// two run it. Returns one of these two.
async fn running(job_managers: u32) -> (TestCluster, String) {
    let cluster = running::running(job_managers, 3, 1).await;
    let used = used_task_manager(&cluster);
    (cluster, used)
}

async fn finishes(cluster: &TestCluster) {
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn no_task_is_affected_by_an_hour_without_a_leader() {
    let (mut cluster, _) = running(1).await;
    cluster.kill_job_manager("jm1").await;
    tokio::time::sleep(HOUR).await;
    assert_eq!(cluster.world.tasks.of(JOB).len(), 4);
    cluster.start_job_manager("jm1");
    assert_eq!(cluster.until_running(JOB, 4).await, 1, "adopted");
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn tasks_that_end_without_a_leader_are_reported_to_the_next_leader() {
    let (mut cluster, _) = running(1).await;
    cluster.kill_job_manager("jm1").await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    cluster.world.finish_tasks(JOB);
    tokio::time::sleep(HOUR).await;
    cluster.start_job_manager("jm1");
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    let events = cluster.world.events();
    let started = events
        .iter()
        .filter(|event| matches!(event, Event::Started { .. }));
    assert_eq!(started.count(), 4, "nothing ran twice");
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn without_leader_and_store_tasks_are_let_go_after_the_failover_timeout() {
    let (mut cluster, _) = running(1).await;
    cluster.kill_job_manager("jm1").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    cluster.memory.unavailable(true);
    let start = Instant::now();
    tokio::time::sleep(Duration::from_secs(290)).await;
    assert_eq!(cluster.world.tasks.of(JOB).len(), 4, "it began again");
    cluster
        .until("they are let go", || cluster.world.tasks.of(JOB).is_empty())
        .await;
    // The last query of the store may take as long as any other.
    assert!(start.elapsed() <= Duration::from_secs(312));
    cluster.memory.unavailable(false);
    cluster.start_job_manager("jm1");
    assert_eq!(cluster.until_running(JOB, 4).await, 2, "restarted");
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_cut_off_from_the_leader_stops_within_two_seconds_of_being_superseded() {
    let (cluster, used) = running(1).await;
    cluster.world.cut(&used);
    let superseded =
        |stored: &crate::testing::history::Stored| stored.states[&JOB].regions[0].generation == 2;
    cluster
        .until_stored("the next generation", superseded)
        .await;
    assert!(tasks_on(&cluster, JOB, &used) > 0, "until then it goes on");
    let start = Instant::now();
    cluster
        .until("superseded tasks stop", || {
            tasks_on(&cluster, JOB, &used) == 0
        })
        .await;
    assert!(start.elapsed() <= Duration::from_secs(2), "{start:?}");
    assert_eq!(cluster.until_running(JOB, 4).await, 2);
    cluster.world.heal(&used);
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_canceled_while_a_task_manager_is_cut_off_ends_there_too() {
    let (cluster, used) = running(1).await;
    cluster.world.cut(&used);
    cluster.client.cancel(JOB).await.expect("canceled");
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Canceled);
    let start = Instant::now();
    cluster
        .until("its tasks stop", || tasks_on(&cluster, JOB, &used) == 0)
        .await;
    assert!(start.elapsed() <= Duration::from_secs(20));
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn task_managers_that_are_cut_off_from_their_store_alone_follow_the_next_leader() {
    let (mut cluster, _) = running(2).await;
    for name in ["tm1", "tm2", "tm3"] {
        cluster.memory.partition(&ProcessId::new(name));
    }
    let leader = cluster.leader().await;
    let start = Instant::now();
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(1).await;
    assert_eq!(cluster.until_running(JOB, 4).await, 1, "adopted");
    assert!(
        start.elapsed() < Duration::from_millis(400),
        "took {:?}",
        start.elapsed()
    );
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn another_incarnation_that_answers_a_dial_ends_the_wait_for_the_former() {
    let (mut cluster, used) = running(2).await;
    let leader = cluster.leader().await;
    cluster.kill_job_manager(&leader).await;
    cluster.kill_task_manager(&used).await;
    cluster.start_task_manager(&used);
    let start = Instant::now();
    cluster
        .until_stored("the next generation", |stored| {
            stored.states[&JOB].regions[0].generation == 2
        })
        .await;
    assert_eq!(cluster.until_running(JOB, 4).await, 2);
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "took {:?}",
        start.elapsed()
    );
    finishes(&cluster).await;
}
