//! Only the link between the leader and its store is cut, in either direction or by resets: all processes still hear
//! the leader. In the end another one leads, the former leader stands by and can lead again, and no task is touched.

use anyhow::ensure;
use tanist_chaos::{ClusterBuilder, Host, Leader, Link, Store, StoreKind};

use crate::support::{PROGRAM, RunningOn, transfer_to, until_standby};

/// How long standbys do not take free leadership from a leader that they still hear.
const HOLD_OFF: &str = "2 s";

on_networks! {
    etcd(Etcd) {
        a_leader_whose_words_to_the_store_are_lost_is_replaced,
        a_leader_to_which_the_stores_words_are_lost_is_replaced,
        a_leader_whose_store_refuses_it_is_replaced,
    }
    zookeeper(ZooKeeper) {
        a_leader_whose_words_to_the_store_are_lost_is_replaced,
        a_leader_to_which_the_stores_words_are_lost_is_replaced,
        a_leader_whose_store_refuses_it_is_replaced,
    }
}

async fn a_leader_whose_words_to_the_store_are_lost_is_replaced(
    kind: StoreKind,
) -> anyhow::Result<()> {
    check_replaced(kind, Host::JobManager(0), Host::Store, Link::Silent).await
}

async fn a_leader_to_which_the_stores_words_are_lost_is_replaced(
    kind: StoreKind,
) -> anyhow::Result<()> {
    check_replaced(kind, Host::Store, Host::JobManager(0), Link::Silent).await
}

async fn a_leader_whose_store_refuses_it_is_replaced(kind: StoreKind) -> anyhow::Result<()> {
    check_replaced(kind, Host::JobManager(0), Host::Store, Link::Rejecting).await
}

async fn check_replaced(kind: StoreKind, from: Host, to: Host, link: Link) -> anyhow::Result<()> {
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
        .on_hosts_of_their_own()
        .set("high-availability.detector.hold-off-timeout", HOLD_OFF)
        .start()
        .await?;
    let running = RunningOn::start(&mut cluster).await?;
    ensure!(running.first.index == 0, "the first one leads first");
    cluster.network()?.set(from, to, link)?;
    let second = cluster.successor_of(&running.first).await?;
    running.check_untouched(&mut cluster).await?;
    // The former leader is reachable again: the same process stands by, and leads when it is asked to.
    let pid = cluster.jobmanager(0).pid();
    cluster.network()?.heal()?;
    until_standby(&mut cluster, 0, &second).await?;
    let third = transfer_to(&mut cluster, &second, 0).await?;
    ensure!(
        pid.is_some() && cluster.jobmanager(0).pid() == pid,
        "another process leads under its name"
    );
    let successors: [(Leader, &[&str]); 2] = [(second, &["lease-expired"]), (third, &["invited"])];
    running
        .check_finished_under(&mut cluster, &successors)
        .await
}
