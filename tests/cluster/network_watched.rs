//! Each process has its own host, so that a refused connection proves nothing by itself: a killed leader
//! is succeeded because several processes lost it at the same time.

use anyhow::ensure;
use tanist_chaos::{ClusterBuilder, Store, StoreKind};

use crate::support::{PROGRAM, RunningOn, until_standby};

on_networks! {
    etcd(Etcd) { a_leader_killed_on_another_host_is_followed_because_several_lost_it }
}

async fn a_leader_killed_on_another_host_is_followed_because_several_lost_it(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
        .jobmanagers(3)
        .with_default_settings()
        .on_hosts_of_their_own()
        .start()
        .await?;
    let running = RunningOn::start(&mut cluster).await?;
    ensure!(running.first.index == 0, "the first one leads first");
    for standby in [1, 2] {
        until_standby(&mut cluster, standby, &running.first).await?;
    }
    cluster.kill_leader().await?;
    let second = cluster.successor_of(&running.first).await?;
    running
        .check_finished_under(&mut cluster, &[(second, &["lost-by-several"])])
        .await
}
