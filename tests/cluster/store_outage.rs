//! The store is unavailable for longer than every lease. The leader is not affected: no other process leads, and no
//! task notices. Only if the leader is lost in the meantime does another one lead, as soon as the store is back.
//!
//! The embedded store has no server.

use std::time::Duration;

use anyhow::ensure;
use hyper::Method;
use tanist_chaos::{Cluster, ClusterBuilder, Store, StoreKind};

use crate::support::{PROCESS_GONE, PROGRAM, RunningOn, on_a_quiet_machine, outage};

/// Longer than the leases and sessions of these tests, which the stores grant for 2 s and 1 s.
const OUTAGE: Duration = Duration::from_secs(4);
/// If the leader was lost, another one leads within this time after the return of the store.
const LEADS_AGAIN: Duration = Duration::from_secs(1);

on_stores! {
    etcd(Etcd) {
        a_store_that_stands_still_for_longer_than_every_lease_changes_no_leader,
        a_store_that_is_down_for_longer_than_every_lease_changes_no_leader,
        a_leader_that_is_lost_while_the_store_is_away_is_replaced_when_it_is_back,
    }
    zookeeper(ZooKeeper) {
        a_store_that_stands_still_for_longer_than_every_lease_changes_no_leader,
        a_store_that_is_down_for_longer_than_every_lease_changes_no_leader,
        a_leader_that_is_lost_while_the_store_is_away_is_replaced_when_it_is_back,
    }
}

async fn a_store_that_stands_still_for_longer_than_every_lease_changes_no_leader(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = cluster_on_its_own(kind).await?;
    let running = RunningOn::start(&mut cluster).await?;
    cluster.store().stop_server()?;
    tokio::time::sleep(outage(OUTAGE)).await;
    running.check_untouched(&mut cluster).await?;
    cluster.store().cont_server()?;
    running.check_finished_under_the_first(&mut cluster).await
}

async fn a_store_that_is_down_for_longer_than_every_lease_changes_no_leader(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = cluster_on_its_own(kind).await?;
    let running = RunningOn::start(&mut cluster).await?;
    cluster.store().kill_server()?;
    tokio::time::sleep(outage(OUTAGE)).await;
    running.check_untouched(&mut cluster).await?;
    let asked = cluster
        .rest()
        .request_with_headers(Method::GET, &running.first.rest, "/v1/jobs");
    let (status, headers, _) = asked.await?;
    let term = headers.get("tanist-term").map(|term| term.as_bytes());
    ensure!(
        status == 200 && term == Some(b"suspended".as_slice()),
        "an unmarked read: {status} {headers:?}"
    );
    cluster.store().restart_server().await?;
    running.check_finished_under_the_first(&mut cluster).await
}

async fn a_leader_that_is_lost_while_the_store_is_away_is_replaced_when_it_is_back(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = cluster_on_its_own(kind).await?;
    let running = RunningOn::start(&mut cluster).await?;
    cluster.store().kill_server()?;
    cluster.jobmanager(running.first.index).kill();
    tokio::time::sleep(outage(OUTAGE)).await;
    cluster.store().restart_server().await?;
    let standby = 1 - running.first.index;
    cluster
        .jobmanager(standby)
        .logs("leadership confirmed", on_a_quiet_machine(LEADS_AGAIN))
        .await?;
    let second = cluster.successor_of(&running.first).await?;
    running
        .check_finished_under(&mut cluster, &[(second, &PROCESS_GONE)])
        .await
}

async fn cluster_on_its_own(kind: StoreKind) -> anyhow::Result<Cluster> {
    ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
        .start()
        .await
}
