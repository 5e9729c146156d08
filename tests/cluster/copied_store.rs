//! A JobManager is started on a copy of a running cluster's store: the production cluster continues, even
//! if its processes die.

use anyhow::{Context as _, ensure};
use tanist_chaos::{Cluster, ClusterBuilder, Copy, Store, StoreKind, wait_for};

use crate::support::{BOUND, PROGRAM, RunningOn};

/// Exit code of a process that is refused permanently.
const REFUSED: i32 = 21;

on_stores! {
    each {
        a_copy_of_the_store_of_a_leader_that_lives_is_not_led,
        a_copy_of_the_store_of_a_dead_leader_harms_nothing,
    }
}

async fn production(kind: StoreKind) -> anyhow::Result<Cluster> {
    let builder = ClusterBuilder::new(PROGRAM, Store::own(kind).await?);
    builder.taskmanagers(3).start().await
}

/// Kills production's leader and a TaskManager without tasks; checks that no attempt has changed and that
/// the leader of the next epoch belongs to production.
async fn check_production_survives(
    cluster: &mut Cluster,
    running: &RunningOn,
) -> anyhow::Result<()> {
    let spare = unused_task_manager(cluster).await?;
    cluster.taskmanager(spare).kill();
    let former = running.check_next_leader(cluster).await?;
    cluster.jobmanager(former.index).start()?;
    cluster.taskmanager(spare).start()?;
    cluster.wait_until_complete().await
}

/// A TaskManager whose slots are all free.
async fn unused_task_manager(cluster: &mut Cluster) -> anyhow::Result<usize> {
    let body = cluster.get("/v1/taskmanagers").await?;
    let listed = body["taskmanagers"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let unused = listed
        .iter()
        .find(|it| it["freeSlots"] == it["slotsNumber"]);
    let id = unused.and_then(|it| it["id"].as_str());
    let index = id.and_then(|id| id.strip_prefix("tm-")?.parse().ok());
    index.with_context(|| format!("all of them are used: {body}"))
}

async fn a_copy_of_the_store_of_a_leader_that_lives_is_not_led(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = production(kind).await?;
    let running = RunningOn::start(&mut cluster).await?;
    let mut copy = cluster.copy("jm-copy").await?;
    copy.jobmanager.start()?;
    let status = copy.jobmanager.ended(BOUND).await?;
    ensure!(status.code() == Some(REFUSED), "it ended with {status}");
    let log = copy.jobmanager.log();
    ensure!(log.contains("tanist ha accept"), "{log}");
    ensure!(!log.contains("leadership confirmed"), "it led: {log}");
    check_production_survives(&mut cluster, &running).await?;
    running.workload.stop_and_check(&mut cluster).await
}

async fn a_copy_of_the_store_of_a_dead_leader_harms_nothing(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = production(kind).await?;
    let running = RunningOn::start(&mut cluster).await?;
    let mut copy = cluster.copy("jm-copy").await?;
    check_production_survives(&mut cluster, &running).await?;
    copy.jobmanager.start()?;
    until_it_leads_or_ends(&mut copy).await?;
    // It may have called any process: production's leader and all TaskManagers continue, and so does the next leader.
    running.check_untouched(&mut cluster).await?;
    check_production_survives(&mut cluster, &running).await?;
    copy.jobmanager.kill();
    running.workload.stop_and_check(&mut cluster).await
}

/// Waits until it leads in its own store with all jobs recovered, or is refused.
async fn until_it_leads_or_ends(copy: &mut Copy) -> anyhow::Result<()> {
    wait_for("the copy's JobManager to lead or end", BOUND, async || {
        let status = copy.jobmanager.poll();
        if let Some(status) = status {
            ensure!(status.code() == Some(REFUSED), "it ended with {status}");
            return Ok(());
        }
        let log = copy.jobmanager.log();
        ensure!(log.contains("leadership confirmed"), "{log}");
        Ok(())
    })
    .await
}
