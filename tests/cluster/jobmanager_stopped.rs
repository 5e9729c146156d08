//! The leader stands still for longer than its lease, is replaced, and wakes up in the belief that it leads.
//!
//! Not on the embedded store: there a process keeps leadership for as long as it lives.

use anyhow::ensure;
use tanist_chaos::StoreKind;

use crate::support::{WordsAndTicks, cluster_on};

on_stores! {
    etcd(Etcd) { a_leader_that_wakes_up_after_its_term_changes_nothing }
    zookeeper(ZooKeeper) { a_leader_that_wakes_up_after_its_term_changes_nothing }
}

async fn a_leader_that_wakes_up_after_its_term_changes_nothing(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.start().await?;
    let workload = WordsAndTicks::prepare(&cluster, 15)?;
    cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    let former = cluster.leader().await?;
    let attempts = cluster.attempts(workload.job()).await?;
    cluster.jobmanager(former.index).stop()?;
    let leader = cluster.successor_of(&former).await?;
    ensure!(
        leader.index != former.index,
        "a process that stands still leads: {leader:?}"
    );
    workload.check_adopted(&mut cluster, &attempts).await?;
    cluster.jobmanager(former.index).cont()?;
    workload.check_adopted(&mut cluster, &attempts).await?;
    workload.check_finished(&mut cluster).await
}
