//! The leader's host is gone with its disk, and a TaskManager was on it: the next leader has the graph of every acknowledged job,
//! small or large, and deploys from it what has to run elsewhere.
//!
//! On the embedded store the cluster has one host only: there the directories of the processes are lost, not the store's.

use anyhow::ensure;
use tanist_chaos::{ClusterBuilder, StoreKind};
use tanist_ha::keys::Kind;

use crate::large_graphs::make_large;
use crate::support::{WordsAndTicks, cluster_on};

/// One TaskManager has to do for both jobs.
const SLOTS: usize = 4;

on_stores! {
    embedded(Embedded) {
        graphs_survive_the_directories_of_the_leader,
    }
    etcd(Etcd) {
        graphs_in_the_store_survive_the_host_of_the_leader,
        a_graph_in_a_shared_directory_survives_the_host_of_the_leader,
    }
    zookeeper(ZooKeeper) {
        graphs_in_the_store_survive_the_host_of_the_leader,
        a_graph_in_a_shared_directory_survives_the_host_of_the_leader,
    }
}

async fn graphs_survive_the_directories_of_the_leader(kind: StoreKind) -> anyhow::Result<()> {
    check_survives(cluster_on(kind).await?, |parts| parts == 0).await
}

async fn graphs_in_the_store_survive_the_host_of_the_leader(kind: StoreKind) -> anyhow::Result<()> {
    // There are directories for blobs, but each process has another one.
    let builder = cluster_on(kind).await?;
    check_survives(builder, |parts| parts > 1).await
}

async fn a_graph_in_a_shared_directory_survives_the_host_of_the_leader(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let blobs = tempfile::tempdir()?;
    let builder = cluster_on(kind)
        .await?
        .set(
            "high-availability.storageDir",
            &blobs.path().to_string_lossy(),
        )
        .set("high-availability.storage-shared", "true");
    check_survives(builder, |parts| parts == 0).await
}

async fn check_survives(
    builder: ClusterBuilder,
    split_as_meant: impl FnOnce(usize) -> bool,
) -> anyhow::Result<()> {
    let mut cluster = builder.slots(SLOTS).on_disks_of_their_own().start().await?;
    let small = WordsAndTicks::prepare_in(&cluster, "small", 4)?;
    let mut large = WordsAndTicks::prepare_in(&cluster, "large", 4)?;
    make_large(&cluster, &mut large)?;
    let leader = cluster.leader().await?;
    for workload in [&small, &large] {
        cluster.submit(&workload.submission).await?;
    }
    let dump = cluster.store_dump().await?;
    let parts = dump.items.get(&Kind::Parts).map_or(0, Vec::len);
    ensure!(split_as_meant(parts), "{parts} parts: {dump:?}");
    for workload in [&small, &large] {
        workload.wait_until_ticking(&mut cluster).await?;
    }
    cluster.jobmanager(leader.index).lose_host()?;
    cluster.taskmanager(0).lose_host()?;
    cluster.successor_of(&leader).await?;
    for workload in [&small, &large] {
        cluster.wait_for_state(workload.job(), "FINISHED").await?;
        workload.check_result()?;
    }
    let outputs = [small.outputs(), large.outputs()].concat();
    cluster.check_nothing_left(&outputs).await
}
