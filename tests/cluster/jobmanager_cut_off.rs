//! The leader loses its store and nothing else: it lives, and every TaskManager still hears it.

use anyhow::ensure;
use tanist_chaos::{Cluster, ClusterBuilder, Store, StoreKind};
use tanist_ha::testing::proxy::TcpProxy;

use crate::support::{PROGRAM, WordsAndTicks};

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
    let workload = WordsAndTicks::prepare(&cluster, 15)?;
    cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    let former = cluster.leader().await?;
    ensure!(former.index == 0, "the first one leads first: {former:?}");
    let attempts = cluster.attempts(workload.job()).await?;
    proxy.hold();
    let leader = cluster.successor_of(&former).await?;
    ensure!(leader.index == 1, "it was cut off: {leader:?}");
    workload.check_adopted(&mut cluster, &attempts).await?;
    proxy.forward();
    workload.check_finished(&mut cluster).await
}

async fn a_leader_whose_connections_to_the_store_break_for_a_moment_goes_on(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let (mut cluster, proxy) = cluster_with_a_proxy(kind, Some("10 s")).await?;
    let workload = WordsAndTicks::prepare(&cluster, 4)?;
    cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    proxy.cut();
    proxy.forward();
    cluster.wait_for_state(workload.job(), "FINISHED").await?;
    // Before the cluster ends and hands over.
    ensure!(
        !cluster.jobmanager(1).log().contains("leadership granted"),
        "another one led although the leader was hardly gone"
    );
    workload.check_finished(&mut cluster).await
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
