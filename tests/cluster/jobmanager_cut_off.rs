//! The leader loses only its store: it lives, and every TaskManager still receives its messages.

use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::{Cluster, ClusterBuilder, Store, StoreKind, test_all};
use tanist_ha::testing::proxy::TcpProxy;
use tokio::time::Instant;

use crate::support::{PROGRAM, RunningOn, until_standby};

on_stores! {
    etcd(Etcd) {
        a_leader_that_no_longer_hears_its_store_is_replaced_and_changes_nothing,
        a_leader_whose_connections_to_the_store_break_for_a_moment_goes_on,
    }
    zookeeper(ZooKeeper) {
        a_leader_that_no_longer_hears_its_store_is_replaced_and_changes_nothing,
        a_leader_whose_connections_to_the_store_break_for_a_moment_goes_on,
    }
}

async fn a_leader_that_no_longer_hears_its_store_is_replaced_and_changes_nothing(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let (mut cluster, proxy) = cluster_with_a_proxy(kind, None).await?;
    let running = RunningOn::start(&mut cluster).await?;
    ensure!(running.first.index == 0, "the first one leads first");
    let cut_off = Instant::now();
    proxy.hold();
    let second = cluster.successor_of(&running.first).await?;
    ensure!(second.index == 1, "it was cut off: {second:?}");
    // It is suspended but sends heartbeats all the time: only the standby's own store shows that the store works.
    let took = cut_off.elapsed();
    ensure!(took < lease(kind) + beyond_the_lease(), "{took:?}");
    running.check_untouched(&mut cluster).await?;
    proxy.forward();
    until_standby(&mut cluster, 0, &second).await?;
    running
        .check_finished_under(&mut cluster, &[(second, &["lease-expired"])])
        .await
}

async fn a_leader_whose_connections_to_the_store_break_for_a_moment_goes_on(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let (mut cluster, proxy) = cluster_with_a_proxy(kind, Some("10 s")).await?;
    let running = RunningOn::start(&mut cluster).await?;
    proxy.cut();
    proxy.forward();
    running.check_finished_under_the_first(&mut cluster).await
}

/// The lifetime of a lease or session that is not renewed, as the store counts it.
fn lease(kind: StoreKind) -> Duration {
    match (kind, test_all()) {
        (StoreKind::Embedded, _) => Duration::ZERO,
        (StoreKind::Etcd, true) => Duration::from_secs(5),
        (StoreKind::Etcd, false) => Duration::from_secs(2),
        (StoreKind::ZooKeeper, true) => Duration::from_secs(11),
        (StoreKind::ZooKeeper, false) => Duration::from_secs(2),
    }
}

/// The target; on a busy machine a larger value, still below the time that a store in trouble is given.
fn beyond_the_lease() -> Duration {
    Duration::from_secs(if test_all() { 3 } else { 7 })
}

/// Two JobManagers; the first one reaches the store through the proxy and leads.
async fn cluster_with_a_proxy(
    kind: StoreKind,
    lease: Option<&str>,
) -> anyhow::Result<(Cluster, TcpProxy)> {
    let store = Store::shared(kind).await?;
    let proxy = TcpProxy::start(store.endpoint().parse()?).await?;
    let mut builder = ClusterBuilder::new(PROGRAM, store).store_at(0, proxy.address().to_string());
    if let Some(lease) = lease {
        builder = match kind {
            StoreKind::Embedded => builder,
            StoreKind::Etcd => builder.set("high-availability.etcd.lease-ttl", lease),
            StoreKind::ZooKeeper => {
                builder.set("high-availability.zookeeper.client.session-timeout", lease)
            }
        };
    }
    Ok((builder.start().await?, proxy))
}
