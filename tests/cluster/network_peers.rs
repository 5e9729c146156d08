//! Only the links between the leader and the standbys are cut: the leader reaches its store and every
//! TaskManager. A broken link between the leader and one standby deposes no leader, in any direction,
//! silent or refused; nor do broken links to all standbys, if equally many TaskManagers hear the leader
//! (`docs/adr/0007`). A leader that only its store hears is replaced, and no task is touched then either.

use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::{Cluster, ClusterBuilder, Host, Link, Store, StoreKind};

use crate::support::{PROGRAM, RunningOn};

/// Longer than the detector's timeout.
const CUT: Duration = Duration::from_millis(2500);

on_networks! {
    embedded(Embedded) { a_leader_that_a_standby_alone_does_not_hear_goes_on }
    etcd(Etcd) {
        a_leader_that_a_standby_alone_does_not_hear_goes_on,
        a_leader_that_is_refused_to_a_standby_alone_goes_on,
        a_leader_that_no_standby_hears_goes_on_for_its_taskmanager,
        a_leader_that_nobody_hears_but_its_store_is_replaced,
    }
    zookeeper(ZooKeeper) { a_leader_that_a_standby_alone_does_not_hear_goes_on }
}

const LEADER: Host = Host::JobManager(0);
const STANDBYS: [Host; 2] = [Host::JobManager(1), Host::JobManager(2)];
const TASKMANAGERS: [Host; 2] = [Host::TaskManager(0), Host::TaskManager(1)];

async fn a_leader_that_a_standby_alone_does_not_hear_goes_on(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let [standby, _] = STANDBYS;
    let cuts = [vec![(LEADER, standby)], vec![(standby, LEADER)]];
    check_no_leader_is_deposed(kind, Link::Silent, &cuts).await
}

async fn a_leader_that_is_refused_to_a_standby_alone_goes_on(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let [standby, _] = STANDBYS;
    let cuts = [
        vec![(standby, LEADER)],
        vec![(standby, LEADER), (LEADER, standby)],
    ];
    check_no_leader_is_deposed(kind, Link::Rejecting, &cuts).await
}

async fn a_leader_that_no_standby_hears_goes_on_for_its_taskmanager(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let to_both = STANDBYS.map(|standby| (LEADER, standby)).to_vec();
    let from_both = STANDBYS.map(|standby| (standby, LEADER)).to_vec();
    check_no_leader_is_deposed(kind, Link::Silent, &[to_both, from_both]).await
}

async fn a_leader_that_nobody_hears_but_its_store_is_replaced(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = cluster_of_three(kind).await?;
    let running = RunningOn::start(&mut cluster).await?;
    for other in STANDBYS.into_iter().chain(TASKMANAGERS) {
        cluster.network()?.set_both(LEADER, other, Link::Silent)?;
    }
    let second = cluster.successor_of(&running.first).await?;
    running.check_untouched(&mut cluster).await?;
    cluster.network()?.heal()?;
    running
        .check_finished_under(&mut cluster, &[(second, &["silent-confirmed"])])
        .await
}

/// Sets each group of links to this state for a while, one group after another.
async fn check_no_leader_is_deposed(
    kind: StoreKind,
    link: Link,
    cuts: &[Vec<(Host, Host)>],
) -> anyhow::Result<()> {
    let mut cluster = cluster_of_three(kind).await?;
    let running = RunningOn::start(&mut cluster).await?;
    for cut in cuts {
        for (from, to) in cut {
            cluster.network()?.set(*from, *to, link)?;
        }
        tokio::time::sleep(CUT).await;
        running.check_untouched(&mut cluster).await?;
        cluster.network()?.heal()?;
    }
    running.check_finished_under_the_first(&mut cluster).await
}

/// A cluster whose first JobManager leads.
async fn cluster_of_three(kind: StoreKind) -> anyhow::Result<Cluster> {
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
        .jobmanagers(1 + STANDBYS.len())
        .taskmanagers(TASKMANAGERS.len())
        .on_hosts_of_their_own()
        .start()
        .await?;
    let leader = cluster.leader().await?;
    ensure!(leader.index == 0, "{leader:?} leads first");
    Ok(cluster)
}
