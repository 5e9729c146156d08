//! A leader that is gone is noticed by evidence, long before its lease or session ends: each way of noticing it by its name
//! in the record of the next term. All settings are the defaults.

use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::wait::wait_for;
use tanist_chaos::{Cluster, ClusterBuilder, Leader, StoreKind};
use tanist_ha::clock::wall_clock_ms;

use crate::support::{WordsAndTicks, cluster_on};

/// How long a process may take to end.
const END_BOUND: Duration = Duration::from_secs(30);

on_stores! {
    embedded(Embedded) {
        a_killed_leader_is_followed_because_its_process_is_gone,
        a_leader_that_is_asked_to_end_hands_over,
    }
    etcd(Etcd) {
        a_killed_leader_is_followed_because_its_process_is_gone,
        a_leader_that_stands_still_is_followed_when_others_do_not_hear_it_either,
        taskmanagers_are_asked_about_a_leader_that_stands_still,
        a_leader_that_is_asked_to_end_hands_over,
        the_only_jobmanager_follows_its_own_earlier_start,
    }
    zookeeper(ZooKeeper) {
        a_killed_leader_is_followed_because_its_process_is_gone,
        a_leader_that_stands_still_is_followed_when_others_do_not_hear_it_either,
        taskmanagers_are_asked_about_a_leader_that_stands_still,
        a_leader_that_is_asked_to_end_hands_over,
        the_only_jobmanager_follows_its_own_earlier_start,
    }
}

async fn default_cluster(kind: StoreKind) -> anyhow::Result<ClusterBuilder> {
    Ok(cluster_on(kind).await?.with_default_settings())
}

/// Waits for the successor and says how it was found out that it was needed.
async fn detection(cluster: &mut Cluster, former: &Leader) -> anyhow::Result<(Leader, String)> {
    let leader = cluster.successor_of(former).await?;
    ensure!(leader.epoch == former.epoch + 1, "{former:?}, {leader:?}");
    let record = cluster.term_record(leader.epoch).await?;
    eprintln!("the takeover: {}", record["takeover"]);
    let name = record["takeover"]["detection"].as_str().unwrap_or_default();
    Ok((leader, name.to_owned()))
}

async fn a_killed_leader_is_followed_because_its_process_is_gone(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = default_cluster(kind).await?.start().await?;
    let workload = WordsAndTicks::prepare(&cluster, 4)?;
    cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    let former = cluster.kill_leader().await?;
    let (_, detection) = detection(&mut cluster, &former).await?;
    ensure!(detection == "process-gone", "{detection:?}");
    workload.check_finished(&mut cluster).await
}

async fn a_leader_that_stands_still_is_followed_when_others_do_not_hear_it_either(
    kind: StoreKind,
) -> anyhow::Result<()> {
    stopped_leader(default_cluster(kind).await?.jobmanagers(3)).await
}

async fn taskmanagers_are_asked_about_a_leader_that_stands_still(
    kind: StoreKind,
) -> anyhow::Result<()> {
    stopped_leader(default_cluster(kind).await?.jobmanagers(2)).await
}

/// Which TaskManagers are to be asked is in the leader's beats, looked up anew each second: a standby that has heard fewer
/// of them may know nobody to ask, and then the lease decides.
async fn until_others_can_be_asked(cluster: &mut Cluster) -> anyhow::Result<()> {
    wait_for("the term to be some seconds old", END_BOUND, async || {
        let status = cluster.get("/v1/ha/status").await?;
        let since_ms = status["term"]["state-since"].as_u64();
        let age_ms = since_ms.map(|since_ms| wall_clock_ms().saturating_sub(since_ms));
        ensure!(age_ms.is_some_and(|age_ms| age_ms > 2_500), "{age_ms:?} ms");
        Ok(())
    })
    .await
}

async fn stopped_leader(builder: ClusterBuilder) -> anyhow::Result<()> {
    let mut cluster = builder.start().await?;
    let workload = WordsAndTicks::prepare(&cluster, 8)?;
    cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    until_others_can_be_asked(&mut cluster).await?;
    let former = cluster.leader().await?;
    cluster.jobmanager(former.index).stop()?;
    let (_, detection) = detection(&mut cluster, &former).await?;
    ensure!(detection == "silent-confirmed", "{detection:?}");
    cluster.jobmanager(former.index).cont()?;
    workload.check_finished(&mut cluster).await
}

async fn a_leader_that_is_asked_to_end_hands_over(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = default_cluster(kind).await?.start().await?;
    let workload = WordsAndTicks::prepare(&cluster, 2)?;
    cluster.submit(&workload.submission).await?;
    let former = cluster.leader().await?;
    cluster.jobmanager(former.index).ask_to_end()?;
    let (_, detection) = detection(&mut cluster, &former).await?;
    ensure!(detection == "invited", "{detection:?}");
    let status = cluster.jobmanager(former.index).ended(END_BOUND).await?;
    ensure!(status.success(), "it did not end in order: {status}");
    workload.check_finished(&mut cluster).await
}

async fn the_only_jobmanager_follows_its_own_earlier_start(kind: StoreKind) -> anyhow::Result<()> {
    let builder = default_cluster(kind).await?.jobmanagers(1);
    let mut cluster = builder.start().await?;
    let workload = WordsAndTicks::prepare(&cluster, 2)?;
    cluster.submit(&workload.submission).await?;
    let former = cluster.kill_leader().await?;
    cluster.jobmanager(former.index).start()?;
    let (_, detection) = detection(&mut cluster, &former).await?;
    ensure!(detection == "own-earlier-incarnation", "{detection:?}");
    workload.check_finished(&mut cluster).await
}
