//! The link between a JobManager and a TaskManager is cut. Three cases: the network forgets their
//! connections, which they replace; a short cut, in one direction and then in the other, loses neither
//! the leader nor a task; a cut longer than the heartbeat timeout, with the store reachable: the region
//! runs elsewhere, the superseded tasks stop, and the other region is not touched. Also a cut between the
//! next leader and a TaskManager when the leader is killed: its tasks are waited for, and adopted.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::{ClusterBuilder, Host, Link, Store, StoreKind};

use crate::regions::TwoRegions;
use crate::support::{
    BOUND, PROGRAM, RunningOn, on_a_quiet_machine, process_gone_or, until_standby,
};

/// Many heartbeats, and less than their timeout.
const CUT: Duration = Duration::from_millis(1500);
/// Heartbeat timeout where the test has to reach it.
const TIMEOUT: &str = "3 s";
/// Superseded tasks stop within two seconds; the rest is for the checks.
const STOPS_WITHIN: Duration = Duration::from_secs(3);

on_networks! {
    embedded(Embedded) {
        a_taskmanager_whose_connections_a_firewall_forgets_is_heard_on_others,
        a_taskmanager_that_is_cut_off_from_its_leader_for_a_moment_runs_on,
        a_taskmanager_that_is_cut_off_for_longer_stops_what_runs_elsewhere,
    }
    etcd(Etcd) {
        a_taskmanager_that_is_cut_off_from_its_leader_for_a_moment_runs_on,
        a_taskmanager_that_is_cut_off_for_longer_stops_what_runs_elsewhere,
        a_taskmanager_that_the_next_leader_does_not_hear_at_first_is_adopted,
    }
}

async fn a_taskmanager_that_is_cut_off_from_its_leader_for_a_moment_runs_on(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
        .on_hosts_of_their_own()
        .start()
        .await?;
    let running = RunningOn::start(&mut cluster).await?;
    ensure!(running.first.index == 0, "the first one leads first");
    let (leader, taskmanager) = (Host::JobManager(0), Host::TaskManager(0));
    for (from, to) in [(leader, taskmanager), (taskmanager, leader)] {
        cluster.network()?.set(from, to, Link::Silent)?;
        tokio::time::sleep(CUT).await;
        cluster.network()?.heal()?;
        running.check_untouched(&mut cluster).await?;
    }
    running.check_finished_under_the_first(&mut cluster).await
}

async fn a_taskmanager_whose_connections_a_firewall_forgets_is_heard_on_others(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
        .on_hosts_of_their_own()
        .set("heartbeat.timeout", "8 s")
        .start()
        .await?;
    let running = RunningOn::start(&mut cluster).await?;
    ensure!(running.first.index == 0, "the first one leads first");
    let (leader, taskmanager) = (Host::JobManager(0), Host::TaskManager(0));
    let network = cluster.network()?;
    ensure!(
        network.is_connected(leader, taskmanager)?,
        "there is nothing to forget"
    );
    network.drop_connections(leader, taskmanager)?;
    // A process without heartbeats until then would be lost.
    tokio::time::sleep(Duration::from_secs(10)).await;
    running.check_untouched(&mut cluster).await?;
    running.check_finished_under_the_first(&mut cluster).await
}

async fn a_taskmanager_that_is_cut_off_for_longer_stops_what_runs_elsewhere(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
        .taskmanagers(3)
        .slots(1)
        .on_hosts_of_their_own()
        .set("heartbeat.timeout", TIMEOUT)
        .start()
        .await?;
    let regions = TwoRegions::start(&mut cluster).await?;
    let first = cluster.leader().await?;
    ensure!(first.index == 0, "the first one leads first");
    let [left, _] = regions.taskmanagers;
    let (leader, taskmanager) = (Host::JobManager(0), Host::TaskManager(left));
    cluster
        .network()?
        .set_both(leader, taskmanager, Link::Silent)?;
    regions.until_left_is_superseded(&mut cluster).await?;
    let told = "the store has a younger generation, stopping tasks";
    cluster
        .taskmanager(left)
        .logs(told, on_a_quiet_machine(STOPS_WITHIN))
        .await?;
    regions.until_left_runs_elsewhere(&mut cluster).await?;
    regions.check_right_untouched(&mut cluster).await?;

    cluster.network()?.heal()?;
    cluster.wait_until_complete().await?;
    let leads = cluster.leader().await?;
    ensure!(leads == first, "{leads:?} leads, not {first:?}");
    regions.stop_and_check(&mut cluster).await
}

async fn a_taskmanager_that_the_next_leader_does_not_hear_at_first_is_adopted(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
        .on_hosts_of_their_own()
        // Tasks are waited for as long as that.
        .set("heartbeat.timeout", "30 s")
        .start()
        .await?;
    let running = RunningOn::start(&mut cluster).await?;
    ensure!(running.first.index == 0, "the first one leads first");
    until_standby(&mut cluster, 1, &running.first).await?;
    let (next, taskmanager) = (Host::JobManager(1), Host::TaskManager(0));
    cluster
        .network()?
        .set_both(next, taskmanager, Link::Silent)?;
    cluster.kill_leader().await?;
    let second = cluster.successor_of(&running.first).await?;
    // Its tasks are waited for, and not touched.
    let path = format!("/v1/jobs/{}", running.workload.job());
    let awaits = |job: &Value| job["state"] == "RECONCILING";
    let job = cluster
        .wait_for_rest("a job that awaits tasks", BOUND, &path, awaits)
        .await?;
    let awaited = job["blocked-by"].as_array().context("blocked reasons")?;
    ensure!(!awaited.is_empty(), "no TaskManager is awaited: {job}");
    tokio::time::sleep(CUT).await;
    let job = cluster.get(&path).await?;
    ensure!(job["state"] == "RECONCILING", "it goes on: {job}");
    cluster.network()?.heal()?;
    // Either is possible: others have lost it too, or its lease has ended.
    let seen = process_gone_or(&["lease-expired"]);
    running
        .check_finished_under(&mut cluster, &[(second, &seen)])
        .await
}
