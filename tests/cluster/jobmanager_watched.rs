//! A failed leader is detected by evidence, long before its lease or session ends. Each kind of evidence is checked
//! by its name in the record of the next term. All settings are the defaults, except timeouts for other processes.
//!
//! Not here: evidence that needs several hosts (`network_watched`), and a leader that wakes up again
//! (`jobmanager_stopped`).

use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::{Leader, StoreKind};

use crate::support::{
    PROCESS_GONE, RunningOn, cluster_on, default_cluster, need_failpoints, until_standby,
    until_witnesses_are_known,
};

/// Timeout until a process has ended or reached a state.
const BOUND: Duration = Duration::from_secs(30);

on_stores! {
    each {
        a_killed_leader_is_followed_because_its_process_is_gone,
        a_leader_that_stands_still_is_followed_when_others_do_not_hear_it_either,
        a_leader_that_is_asked_to_end_hands_over,
    }
}
on_stores! {
    embedded_gives_up(Embedded) {
        a_leader_that_can_invite_nobody_resigns,
        a_leader_whose_recovery_stands_still_gives_up,
    }
    etcd_gives_up(Etcd) {
        a_leader_that_can_invite_nobody_resigns,
        a_leader_whose_recovery_stands_still_gives_up,
    }
    etcd_alone(Etcd) { the_only_jobmanager_follows_its_own_earlier_start }
    zookeeper_alone(ZooKeeper) { the_only_jobmanager_follows_its_own_earlier_start }
}

async fn a_killed_leader_is_followed_because_its_process_is_gone(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = default_cluster(kind).await?.start().await?;
    let running = RunningOn::start(&mut cluster).await?;
    cluster.kill_leader().await?;
    let second = cluster.successor_of(&running.first).await?;
    running
        .check_finished_under(&mut cluster, &[(second, &PROCESS_GONE)])
        .await
}

async fn a_leader_that_stands_still_is_followed_when_others_do_not_hear_it_either(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = default_cluster(kind).await?.jobmanagers(3);
    let mut cluster = builder.start().await?;
    let running = RunningOn::start(&mut cluster).await?;
    until_witnesses_are_known(&mut cluster).await?;
    cluster.jobmanager(running.first.index).stop()?;
    let second = cluster.successor_of(&running.first).await?;
    running.check_untouched(&mut cluster).await?;
    cluster.jobmanager(running.first.index).cont()?;
    running
        .check_finished_under(&mut cluster, &[(second, &["silent-confirmed"])])
        .await
}

async fn a_leader_that_is_asked_to_end_hands_over(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = default_cluster(kind).await?.start().await?;
    let running = RunningOn::start(&mut cluster).await?;
    let first = running.first.index;
    cluster.jobmanager(first).request_shutdown()?;
    let second = cluster.successor_of(&running.first).await?;
    let status = cluster.jobmanager(first).ended(BOUND).await?;
    ensure!(status.success(), "it did not end in order: {status}");
    running
        .check_finished_under(&mut cluster, &[(second, &["invited"])])
        .await
}

/// The standby is frozen until the leader has ended.
async fn a_leader_that_can_invite_nobody_resigns(kind: StoreKind) -> anyhow::Result<()> {
    let builder = default_cluster(kind).await?;
    let builder = builder.set("high-availability.transfer-timeout", "1 s");
    let mut cluster = builder.start().await?;
    let running = RunningOn::start(&mut cluster).await?;
    let first = running.first.index;
    until_standby(&mut cluster, 1 - first, &running.first).await?;
    cluster.jobmanager(1 - first).stop()?;
    cluster.jobmanager(first).request_shutdown()?;
    let status = cluster.jobmanager(first).ended(BOUND).await?;
    ensure!(status.success(), "it did not end in order: {status}");
    cluster.jobmanager(1 - first).cont()?;
    let second = cluster.successor_of(&running.first).await?;
    running
        .check_finished_under(&mut cluster, &[(second, &["resigned"])])
        .await
}

async fn a_leader_whose_recovery_stands_still_gives_up(kind: StoreKind) -> anyhow::Result<()> {
    need_failpoints()?;
    let mut cluster = cluster_on(kind)
        .await?
        // The shortest timeouts that are valid together.
        .set("rpc.ask.timeout", "2 s")
        .set("recovery.stall-timeout", "4 s")
        .failpoints(1, "term.recovered=hold")
        .start()
        .await?;
    let running = RunningOn::start(&mut cluster).await?;
    let first = &running.first;
    ensure!(first.index == 0, "the first one leads first");
    cluster.kill_leader().await?;
    cluster
        .jobmanager(1)
        .reached("term.recovered", BOUND)
        .await?;
    // It is never confirmed: only its record shows this term.
    let stalled = Leader {
        epoch: first.epoch + 1,
        index: 1,
        rest: cluster.rest_address(1).to_owned(),
    };
    cluster.jobmanager(0).start()?;
    let third = cluster.successor_of(&stalled).await?;
    ensure!(third.index == 0, "it stands still and leads: {third:?}");
    // It hangs permanently.
    cluster.jobmanager(1).kill();
    let successors: [(Leader, &[&str]); 2] = [(stalled, &PROCESS_GONE), (third, &["stalled"])];
    running
        .check_finished_under(&mut cluster, &successors)
        .await
}

async fn the_only_jobmanager_follows_its_own_earlier_start(kind: StoreKind) -> anyhow::Result<()> {
    let builder = default_cluster(kind).await?.jobmanagers(1);
    let mut cluster = builder.start().await?;
    let running = RunningOn::start(&mut cluster).await?;
    cluster.kill_leader().await?;
    cluster.jobmanager(running.first.index).start()?;
    let second = cluster.successor_of(&running.first).await?;
    running
        .check_finished_under(&mut cluster, &[(second, &["own-earlier-incarnation"])])
        .await
}
