//! Leaders change, and no task is touched: each task has the same attempt at the start and at the end.

use anyhow::ensure;
use tanist_chaos::StoreKind;

use crate::support::{PROCESS_GONE, RunningOn, cluster_on, process_gone_or, with_long_leases};

on_stores! {
    embedded(Embedded) {
        tasks_run_on_when_their_leader_is_killed,
        tasks_run_on_when_their_leader_is_asked_to_end,
        tasks_run_on_when_the_only_jobmanager_is_killed_and_started_again,
        tasks_run_on_when_all_jobmanagers_are_killed_and_started_again,
    }
    etcd(Etcd) {
        tasks_run_on_when_their_leader_is_killed,
        tasks_run_on_when_their_leader_is_asked_to_end,
        tasks_run_on_when_the_only_jobmanager_is_killed_and_started_again,
        tasks_run_on_when_all_jobmanagers_are_killed_and_started_again,
    }
    zookeeper(ZooKeeper) {
        tasks_run_on_when_their_leader_is_killed,
        tasks_run_on_when_their_leader_is_asked_to_end,
        tasks_run_on_when_the_only_jobmanager_is_killed_and_started_again,
        tasks_run_on_when_all_jobmanagers_are_killed_and_started_again,
    }
}

async fn tasks_run_on_when_their_leader_is_killed(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.jobmanagers(3).start().await?;
    let running = RunningOn::start(&mut cluster).await?;
    let first = cluster.kill_leader().await?;
    let second = cluster.successor_of(&first).await?;
    running.check_untouched(&mut cluster).await?;
    // Once more, so that adopted tasks are adopted again.
    cluster.jobmanager(first.index).start()?;
    cluster.kill_leader().await?;
    let third = cluster.successor_of(&second).await?;
    running
        .check_finished_under(
            &mut cluster,
            &[(second, &PROCESS_GONE), (third, &PROCESS_GONE)],
        )
        .await
}

async fn tasks_run_on_when_their_leader_is_asked_to_end(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.start().await?;
    let running = RunningOn::start(&mut cluster).await?;
    let status = cluster.jobmanager(running.first.index).terminate().await?;
    ensure!(status.success(), "it did not end in order: {status}");
    let second = cluster.successor_of(&running.first).await?;
    running
        .check_finished_under(&mut cluster, &[(second, &["invited"])])
        .await
}

async fn tasks_run_on_when_the_only_jobmanager_is_killed_and_started_again(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = with_long_leases(cluster_on(kind).await?);
    let mut cluster = builder.jobmanagers(1).start().await?;
    let running = RunningOn::start(&mut cluster).await?;
    cluster.kill_leader().await?;
    // As a supervisor does.
    cluster.jobmanager(0).start()?;
    let second = cluster.successor_of(&running.first).await?;
    // All of them are true, and any may be found first.
    let seen = process_gone_or(&["own-earlier-incarnation"]);
    running
        .check_finished_under(&mut cluster, &[(second, &seen)])
        .await
}

async fn tasks_run_on_when_all_jobmanagers_are_killed_and_started_again(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = with_long_leases(cluster_on(kind).await?);
    let mut cluster = builder.start().await?;
    let running = RunningOn::start(&mut cluster).await?;
    for index in [1, 0] {
        cluster.jobmanager(index).kill();
    }
    for index in [1, 0] {
        cluster.jobmanager(index).start()?;
    }
    let second = cluster.successor_of(&running.first).await?;
    // The former leader, or another process that finds it ended or changed, may be faster.
    let seen = process_gone_or(&["own-earlier-incarnation", "other-incarnation"]);
    running
        .check_finished_under(&mut cluster, &[(second, &seen)])
        .await
}
