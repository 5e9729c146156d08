//! A TaskManager is killed by SIGKILL under a running job.

use anyhow::ensure;
use tanist_chaos::{JobView, StoreKind};

use crate::support::{WordsAndTicks, cluster_on};

on_stores! {
    embedded(Embedded) { a_killed_taskmanager_costs_a_restart_and_changes_no_result }
    etcd(Etcd) { a_killed_taskmanager_costs_a_restart_and_changes_no_result }
    zookeeper(ZooKeeper) { a_killed_taskmanager_costs_a_restart_and_changes_no_result }
}

async fn a_killed_taskmanager_costs_a_restart_and_changes_no_result(
    kind: StoreKind,
) -> anyhow::Result<()> {
    // Every slot is taken, so that the job can't go on without the TaskManager's successor.
    let builder = cluster_on(kind)
        .await?
        .jobmanagers(1)
        .taskmanagers(2)
        .slots(1);
    let mut cluster = builder.start().await?;
    let workload = WordsAndTicks::prepare(&cluster, 4)?;
    let job = cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    cluster.taskmanager(0).kill();
    let waits = |view: &JobView| !view.runs("clock");
    cluster
        .wait_for_job(job, "to notice that a TaskManager is gone", waits)
        .await?;
    workload.check_nothing_visible()?;
    cluster.taskmanager(0).start()?;
    workload.wait_until_ticking(&mut cluster).await?;
    let exceptions = cluster.get(&format!("/v1/jobs/{job}/exceptions")).await?;
    let entries = exceptions["exceptionHistory"]["entries"].as_array();
    ensure!(
        entries.is_some_and(|entries| !entries.is_empty()),
        "the loss is not among the job's exceptions: {exceptions}"
    );
    workload.check_finished(&mut cluster).await
}
