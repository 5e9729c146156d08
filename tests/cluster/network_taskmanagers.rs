//! The way between the leader and a TaskManager is cut for a moment, in one direction and then in the other. It is shorter than what
//! counts as loss, so that nothing is lost: neither the leader nor a task.

use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::{ClusterBuilder, Host, Link, Store, StoreKind};

use crate::support::{PROGRAM, RunningOn};

/// Many heartbeats, and less than their timeout.
const CUT: Duration = Duration::from_millis(1500);

on_networks! {
    embedded(Embedded) { a_taskmanager_that_is_cut_off_from_its_leader_for_a_moment_runs_on }
    etcd(Etcd) { a_taskmanager_that_is_cut_off_from_its_leader_for_a_moment_runs_on }
}

async fn a_taskmanager_that_is_cut_off_from_its_leader_for_a_moment_runs_on(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
        .on_hosts_of_their_own()
        .start()
        .await?;
    let running = RunningOn::start(&mut cluster, 6).await?;
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
