//! Only the links between the leader and the TaskManagers are cut: the leader reaches its store and the standbys,
//! which reach the TaskManagers. It hands over before it declares any of them lost, so that no task is touched.

use anyhow::ensure;
use tanist_chaos::{ClusterBuilder, Host, Link, Store, StoreKind};

use crate::support::{PROGRAM, RunningOn};

on_networks! {
    embedded(Embedded) { a_leader_whose_words_to_the_taskmanagers_are_lost_hands_over }
    etcd(Etcd) {
        a_leader_whose_words_to_the_taskmanagers_are_lost_hands_over,
        a_leader_that_hears_no_taskmanager_hands_over,
        a_leader_whom_the_taskmanagers_refuse_hands_over,
    }
    zookeeper(ZooKeeper) { a_leader_whose_words_to_the_taskmanagers_are_lost_hands_over }
}

const LEADER: Host = Host::JobManager(0);
const TASKMANAGERS: [Host; 2] = [Host::TaskManager(0), Host::TaskManager(1)];

async fn a_leader_whose_words_to_the_taskmanagers_are_lost_hands_over(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let cut = TASKMANAGERS.map(|taskmanager| (LEADER, taskmanager));
    check_hands_over(kind, Link::Silent, cut).await
}

async fn a_leader_that_hears_no_taskmanager_hands_over(kind: StoreKind) -> anyhow::Result<()> {
    let cut = TASKMANAGERS.map(|taskmanager| (taskmanager, LEADER));
    check_hands_over(kind, Link::Silent, cut).await
}

/// Each refused call looks like that of a process that has ended.
async fn a_leader_whom_the_taskmanagers_refuse_hands_over(kind: StoreKind) -> anyhow::Result<()> {
    let cut = TASKMANAGERS.map(|taskmanager| (LEADER, taskmanager));
    check_hands_over(kind, Link::Rejecting, cut).await
}

async fn check_hands_over(
    kind: StoreKind,
    link: Link,
    cut: [(Host, Host); 2],
) -> anyhow::Result<()> {
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
        .on_hosts_of_their_own()
        .start()
        .await?;
    let running = RunningOn::start(&mut cluster).await?;
    ensure!(running.first.index == 0, "the first one leads first");
    for (from, to) in cut {
        cluster.network()?.set(from, to, link)?;
    }
    let second = cluster.successor_of(&running.first).await?;
    running.check_untouched(&mut cluster).await?;
    cluster.network()?.heal()?;
    running
        .check_finished_under(&mut cluster, &[(second, &["handed-over"])])
        .await
}
