//! `isolation: stop-first`: with any network partition, no two attempts of a subtask run at the same time.

use std::collections::BTreeMap;
use std::time::Duration;

use tanist_ha::election::ProcessId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::JobStatus;
use tokio::time::Instant;

use crate::testing::cluster::{TestCluster, graph};
use crate::testing::history::Event;
use crate::testing::running::{JOB, tasks_on, used_task_manager};

/// `heartbeat.timeout`: the wait before the next generation if the end of the previous one was not reported.
const WAIT: Duration = Duration::from_secs(50);

/// An isolated job of four tasks in two slots; this many JobManagers, and three TaskManagers with a slot each,
/// of which two run it. Returns one of these two.
async fn running(job_managers: u32) -> (TestCluster, String) {
    let cluster = TestCluster::start(job_managers, 3, 1).await;
    let mut graph = graph(JOB, 2);
    let options = graph.options.get_or_insert_default();
    options.set_isolation(pb::Isolation::StopFirst);
    let submitted = cluster.client.submit(&graph, "t").await;
    submitted.expect("accepted");
    assert_eq!(cluster.until_running(JOB, 4).await, 1);
    let used = used_task_manager(&cluster);
    (cluster, used)
}

/// Checks that no two attempts of a subtask ran at the same time, and all other invariants.
fn check(cluster: &TestCluster) {
    let mut alive: BTreeMap<(String, u32), u64> = BTreeMap::new();
    for event in cluster.world.events() {
        match event {
            Event::Started { attempt, .. } => {
                let subtask = (attempt.vertex.clone(), attempt.subtask);
                let before = alive.insert(subtask, attempt.generation);
                assert_eq!(before, None, "runs beside {attempt:?}:\n{cluster}");
            }
            Event::Ended(attempt) => {
                alive.remove(&(attempt.vertex.clone(), attempt.subtask));
            }
            _ => {}
        }
    }
    cluster.check();
}

async fn finishes(cluster: &TestCluster) {
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    check(cluster);
}

async fn until_generation(cluster: &TestCluster, generation: u64) {
    cluster
        .until_stored("the next generation", |stored| {
            stored.states[&JOB].regions[0].generation == generation
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn isolated_tasks_that_are_cut_off_from_all_stop_before_another_attempt_starts() {
    let (cluster, used) = running(1).await;
    cluster.world.cut(&used);
    cluster.memory.partition(&ProcessId::new(used.as_str()));
    let start = Instant::now();
    cluster
        .until("it stops by itself", || tasks_on(&cluster, JOB, &used) == 0)
        .await;
    let took = start.elapsed();
    assert!(took <= Duration::from_secs(31), "{took:?}");
    assert_eq!(cluster.until_running(JOB, 4).await, 2);
    cluster.world.heal(&used);
    cluster.memory.heal(&ProcessId::new(used.as_str()));
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_reaches_only_the_store_continues_until_it_has_another_generation() {
    let (cluster, used) = running(1).await;
    cluster.world.cut(&used);
    cluster
        .until_stored("the next generation", |stored| {
            let is_decided = stored.states[&JOB].regions[0].generation == 2;
            let goes_on = tasks_on(&cluster, JOB, &used) > 0;
            assert!(is_decided || goes_on, "no leader has decided yet");
            is_decided
        })
        .await;
    let start = Instant::now();
    cluster
        .until("superseded tasks stop", || {
            tasks_on(&cluster, JOB, &used) == 0
        })
        .await;
    // The store is asked at intervals while the JobMaster is reached, and once a second while it is not.
    let took = start.elapsed();
    assert!(took <= Duration::from_secs(2), "{took:?}");
    assert_eq!(cluster.until_running(JOB, 4).await, 2);
    let took = start.elapsed();
    let at_least = WAIT - Duration::from_millis(100);
    assert!(took >= at_least, "their end was not reported: {took:?}");
    cluster.world.heal(&used);
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn the_death_of_the_leader_alone_stops_no_isolated_task() {
    let (mut cluster, _) = running(1).await;
    cluster.kill_job_manager("jm1").await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(cluster.world.tasks.of(JOB).len(), 4);
    cluster.start_job_manager("jm1");
    assert_eq!(cluster.until_running(JOB, 4).await, 1, "adopted");
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_waits_for_what_the_former_one_had_given_up() {
    let (mut cluster, used) = running(2).await;
    cluster.world.cut(&used);
    until_generation(&cluster, 2).await;
    // The generation is given up but may still run; the leader that knew it dies.
    let leader = cluster.leader().await;
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(1).await;
    let start = Instant::now();
    assert_eq!(cluster.until_running(JOB, 4).await, 3);
    let took = start.elapsed();
    let at_least = WAIT - Duration::from_millis(100);
    assert!(took >= at_least, "{took:?}");
    cluster.world.heal(&used);
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_deposed_and_is_still_heard_keeps_no_isolated_task_running() {
    let (cluster, used) = running(2).await;
    let old = cluster.leader().await;
    // The old leader and one TaskManager reach each other, but nothing else.
    cluster.memory.partition(&ProcessId::new(old.as_str()));
    cluster.memory.partition(&ProcessId::new(used.as_str()));
    cluster.world.set_apart(&[&old, &used]);
    let new = cluster.leader_above(1).await;
    assert_ne!(new, old);
    let generation = cluster.until_running(JOB, 4).await;
    assert_eq!(generation, 2, "one TaskManager did not come back");
    cluster.world.together();
    for name in [&old, &used] {
        cluster.memory.heal(&ProcessId::new(name.as_str()));
    }
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn no_job_waits_for_a_task_manager_that_leaves_in_order() {
    let (mut cluster, used) = running(1).await;
    let start = Instant::now();
    cluster.stop_task_manager(&used).await;
    assert_eq!(cluster.until_running(JOB, 4).await, 2);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn the_place_of_a_task_manager_that_died_is_taken_when_it_would_have_stopped() {
    let (mut cluster, used) = running(1).await;
    cluster.kill_task_manager(&used).await;
    cluster.start_task_manager(&used);
    until_generation(&cluster, 2).await;
    let start = Instant::now();
    assert_eq!(cluster.until_running(JOB, 4).await, 2);
    let took = start.elapsed();
    let at_least = WAIT - Duration::from_millis(100);
    assert!(took >= at_least, "{took:?}");
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_store_isolated_tasks_stop_and_run_again_when_it_is_back() {
    let (cluster, _) = running(1).await;
    cluster.memory.unavailable(true);
    cluster
        .until("all stop", || cluster.world.tasks.of(JOB).is_empty())
        .await;
    cluster.memory.unavailable(false);
    assert!(cluster.until_running(JOB, 4).await > 1);
    finishes(&cluster).await;
}
