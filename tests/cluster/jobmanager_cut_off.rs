//! The leader loses its store and nothing else: it lives, and every TaskManager still hears it.

use anyhow::ensure;
use tanist_chaos::{Cluster, ClusterBuilder, Store, StoreKind};
use tanist_ha::testing::proxy::TcpProxy;

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
    let running = RunningOn::start(&mut cluster, 12).await?;
    ensure!(running.first.index == 0, "the first one leads first");
    proxy.hold();
    let second = cluster.successor_of(&running.first).await?;
    ensure!(second.index == 1, "it was cut off: {second:?}");
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
    let running = RunningOn::start(&mut cluster, 4).await?;
    proxy.cut();
    proxy.forward();
    running.check_finished_under_the_first(&mut cluster).await
}

/// Two JobManagers, of which the first reaches the store through the proxy and leads.
async fn cluster_with_a_proxy(
    kind: StoreKind,
    lease: Option<&str>,
) -> anyhow::Result<(Cluster, TcpProxy)> {
    let store = Store::shared(kind).await?;
    let proxy = TcpProxy::start(store.endpoint().parse()?).await?;
    let mut builder = ClusterBuilder::new(PROGRAM, store)
        .store_at(0, proxy.address().to_string())
        // The suspended leader is heard: it is followed only because it stays cut off.
        .set("high-availability.detector.hold-off-timeout", "1 s");
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
