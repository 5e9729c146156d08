//! The leader freezes and is replaced, long before its lease ends. It wakes up and believes that it leads: that
//! changes nothing, the same process becomes a standby, and it can lead again. All settings are the defaults.

use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::{Cluster, Leader, StoreKind, test_all, wait_for};

use crate::support::{
    RunningOn, default_cluster, transfer_to, until_standby, until_witnesses_are_known,
};

/// A leader checks every few seconds whether the leader that it deposed was healthy.
const ALARM_BOUND: Duration = Duration::from_secs(30);

on_stores! {
    each { a_leader_that_wakes_up_after_its_term_changes_nothing_and_leads_again }
}

/// There is one standby, so TaskManagers are asked.
async fn a_leader_that_wakes_up_after_its_term_changes_nothing_and_leads_again(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = default_cluster(kind).await?;
    let mut cluster = builder.jobmanagers(2).start().await?;
    // The new leader needs some time to check the one that it deposed.
    let awaits_alarm = kind == StoreKind::Embedded || test_all();
    let running = RunningOn::start(&mut cluster).await?;
    until_witnesses_are_known(&mut cluster).await?;
    let first = &running.first;
    let pid = cluster.jobmanager(first.index).pid();
    // One that stands still in the middle of a commit of the embedded store is ended by its successor.
    cluster.until_recovered().await?;
    cluster.jobmanager(first.index).stop()?;
    let second = cluster.successor_of(first).await?;
    ensure!(second.index != first.index, "it stands still and leads");
    running.check_untouched(&mut cluster).await?;

    cluster.jobmanager(first.index).cont()?;
    until_standby(&mut cluster, first.index, &second).await?;
    running.check_untouched(&mut cluster).await?;
    if awaits_alarm {
        until_a_false_alarm(&mut cluster, &second).await?;
    }

    let third = transfer_to(&mut cluster, &second, first.index).await?;
    ensure!(
        pid.is_some() && cluster.jobmanager(first.index).pid() == pid,
        "another process leads under its name"
    );
    let successors: [(Leader, &[&str]); 2] =
        [(second, &["silent-confirmed"]), (third, &["invited"])];
    running
        .check_finished_under(&mut cluster, &successors)
        .await
}

/// Waits until the leader has found its predecessor healthy: this is in its term's record, and counted as
/// a false alarm.
async fn until_a_false_alarm(cluster: &mut Cluster, leader: &Leader) -> anyhow::Result<()> {
    wait_for("the false alarm to be told", ALARM_BOUND, async || {
        let record = cluster.term_record(leader.epoch).await?;
        ensure!(record["takeover"]["false_alarm"] == true, "{record}");
        let history = cluster.rest().get(&leader.rest, "/v1/ha/history").await?;
        let newest = &history["terms"][0];
        ensure!(newest["epoch"] == leader.epoch, "{history}");
        ensure!(newest["false-alarm"] == true, "{history}");
        let metrics = cluster.rest().get(&leader.rest, "/metrics").await?;
        let metrics = metrics.as_str().unwrap_or_default();
        let counts = |line: &str| line == "tanist_remembered_false_alarms 1";
        ensure!(metrics.lines().any(counts), "{metrics}");
        anyhow::Ok(())
    })
    .await
}
