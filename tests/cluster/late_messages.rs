//! Messages of a term arrive after its successor was confirmed: a write at the store, a call at a
//! TaskExecutor. Both are refused, and so is any other process that speaks for that term.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hyper::Method;
use tanist_chaos::{Cluster, ClusterBuilder, Host, Leader, Link, Store, StoreKind, wait_for};
use tanist_gateway::{Connector as _, GatewayError};
use tanist_proto::v1 as pb;
use tanist_rpc::{RpcOptions, TonicConnector};
use tempfile::TempDir;

use crate::support::{PROGRAM, RunningOn, need_failpoints};

/// Timeout until a message is in transit, or has arrived.
const BOUND: Duration = Duration::from_secs(20);
/// The store counts as quiet after this number of checks in a row without a write.
const QUIET_CHECKS: u32 = 12;
/// Of every TaskManager: each has its own host.
const TASKMANAGER_PORT: u16 = 6122;

const STOPPED: Host = Host::JobManager(0);
const TASKMANAGER: Host = Host::TaskManager(0);

on_networks! {
    embedded(Embedded) { what_a_stopped_leader_had_sent_is_refused_after_its_successor_was_confirmed }
    etcd(Etcd) { what_a_stopped_leader_had_sent_is_refused_after_its_successor_was_confirmed }
    zookeeper(ZooKeeper) { what_a_stopped_leader_had_sent_is_refused_after_its_successor_was_confirmed }
}

async fn what_a_stopped_leader_had_sent_is_refused_after_its_successor_was_confirmed(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let directory = tempfile::tempdir()?;
    let held = DelayedWrite::on(kind, &directory);
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
        .on_hosts_of_their_own()
        .set("taskmanager.rpc.port", &TASKMANAGER_PORT.to_string())
        // The kernel drops a call that is not acknowledged within a quarter of it.
        .set("heartbeat.timeout", "2 min")
        .failpoints(0, &held.failpoints())
        .start()
        .await?;
    let running = RunningOn::start(&mut cluster).await?;
    let first = &running.first;
    ensure!(first.index == 0, "the first one leads first");

    nothing_is_written(&cluster).await?;
    held.begin(&mut cluster, &running).await?;
    delay_a_call(&cluster).await?;
    cluster.jobmanager(0).stop()?;
    let second = cluster.successor_of(first).await?;
    running.check_untouched(&mut cluster).await?;

    if held == DelayedWrite::InNetwork {
        held.arrives(&mut cluster).await?;
    }
    cluster.network()?.heal()?;
    let refused = format!("refused a message epoch={}", first.epoch);
    cluster.taskmanager(0).logs(&refused, BOUND).await?;
    a_call_for_the_old_term_is_refused(&cluster, first, &second).await?;

    cluster.jobmanager(0).cont()?;
    if held != DelayedWrite::InNetwork {
        // The frozen process can't send a write that it holds itself.
        held.arrives(&mut cluster).await?;
    }
    // The write would have cancelled the job.
    let seen = ["silent-confirmed", "lease-expired"];
    running
        .check_finished_under(&mut cluster, &[(second, &seen)])
        .await
}

/// Waits until the leader has completed all its writes: a write in transit delays the next one.
async fn nothing_is_written(cluster: &Cluster) -> anyhow::Result<()> {
    let records = cluster.records().await?;
    let (mut last, mut looks) = (None, 0);
    wait_for("the store to be quiet", BOUND, async || {
        let change = records.guard().await?.change;
        looks = if last == Some(change) { looks + 1 } else { 0 };
        last = Some(change);
        ensure!(
            looks == QUIET_CHECKS,
            "change {change:?}, seen {looks} times"
        );
        Ok::<_, anyhow::Error>(())
    })
    .await
}

/// Where a write in transit is held.
#[derive(Debug, PartialEq, Eq)]
enum DelayedWrite {
    /// Between the process and the store's server.
    InNetwork,
    /// In the process itself, just before it writes to the database, while this file exists: no event of
    /// the term can cancel the write at this point.
    AtDatabase(PathBuf),
}

/// A leader that writes to a file has no connection to the store on which a write could be held.
const AT_DATABASE: &str = "embedded.committing";

impl DelayedWrite {
    fn on(kind: StoreKind, directory: &TempDir) -> DelayedWrite {
        match kind {
            StoreKind::Embedded => DelayedWrite::AtDatabase(directory.path().join("held")),
            StoreKind::Etcd | StoreKind::ZooKeeper => DelayedWrite::InNetwork,
        }
    }

    fn failpoints(&self) -> String {
        let noted = "job.cancel-persisting=note".to_owned();
        match self {
            DelayedWrite::InNetwork => noted,
            DelayedWrite::AtDatabase(file) => {
                format!("{noted};{AT_DATABASE}=hold-while:{}", file.display())
            }
        }
    }

    /// Makes the leader decide to cancel the job, in a write that does not reach the store.
    async fn begin(&self, cluster: &mut Cluster, running: &RunningOn) -> anyhow::Result<()> {
        match self {
            DelayedWrite::InNetwork => cluster.store_proxy(STOPPED)?.hold_requests(),
            DelayedWrite::AtDatabase(file) => std::fs::write(file, "")?,
        }
        let rest = cluster.rest().clone();
        let address = running.first.rest.clone();
        let path = format!("/v1/jobs/{}?mode=cancel", running.workload.job());
        let asking =
            tokio::spawn(async move { rest.request(Method::PATCH, &address, &path).await });
        let persisting = "job.cancel-persisting";
        cluster.jobmanager(0).reached(persisting, BOUND).await?;
        match self {
            DelayedWrite::InNetwork => {
                wait_for("the write to be on its way", BOUND, async || {
                    let held = cluster.store_proxy(STOPPED)?.held_requests();
                    // More than renewals of a lease. The write may be held before the failpoint is seen in the log.
                    ensure!(held >= 200, "{held} bytes are held");
                    Ok::<_, anyhow::Error>(())
                })
                .await?;
            }
            DelayedWrite::AtDatabase(_) => {
                cluster.jobmanager(0).reached(AT_DATABASE, BOUND).await?
            }
        }
        // The client gives up: otherwise its request would be forwarded to the next leader.
        asking.abort();
        wait_for("the question to be forgotten", BOUND, async || {
            let waits = cluster.network()?.is_connected(STOPPED, Host::Test)?;
            ensure!(!waits, "a connection is open");
            Ok::<_, anyhow::Error>(())
        })
        .await
    }

    /// Releases the write, and waits until it has arrived.
    async fn arrives(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        match self {
            DelayedWrite::InNetwork => {
                let proxy = cluster.store_proxy(STOPPED)?;
                // Not before a successor is confirmed: a connection that waits to be accepted is not frozen but
                // forwarded, and the leader opens one for each copy of the write.
                proxy.freeze();
                proxy.thaw();
                wait_for("the held write to arrive", BOUND, async || {
                    let held = cluster.store_proxy(STOPPED)?.held_requests();
                    ensure!(held == 0, "{held} bytes are held");
                    Ok::<_, anyhow::Error>(())
                })
                .await
            }
            DelayedWrite::AtDatabase(file) => {
                std::fs::remove_file(file)?;
                let passed = format!("failpoint {AT_DATABASE} passed");
                cluster.jobmanager(0).logs(&passed, BOUND).await
            }
        }
    }
}

/// Waits until the leader has called a TaskExecutor that does not receive the call.
async fn delay_a_call(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.network()?.set(STOPPED, TASKMANAGER, Link::Silent)?;
    wait_for("a call to be on its way", BOUND, async || {
        ensure!(
            cluster.network()?.is_sending(STOPPED, TASKMANAGER)?,
            "everything was acknowledged"
        );
        Ok::<_, anyhow::Error>(())
    })
    .await
}

/// A call like that of a process that has replaced the old leader everywhere except in the store.
async fn a_call_for_the_old_term_is_refused(
    cluster: &Cluster,
    first: &Leader,
    second: &Leader,
) -> anyhow::Result<()> {
    let guard = cluster.records().await?.guard().await?;
    let (_, _, incarnation) = guard.epoch.context("a process leads")?;
    let connector = TonicConnector::new(RpcOptions::default());
    let address = format!("{}:{TASKMANAGER_PORT}", TASKMANAGER.address());
    let request = pb::HeartbeatFromResourceManagerRequest {
        sender: Some(pb::Sender {
            cluster_incarnation: incarnation.to_string(),
            epoch: first.epoch,
            process: "somebody".to_owned(),
            ..pb::Sender::default()
        }),
        ..pb::HeartbeatFromResourceManagerRequest::default()
    };
    let answer = connector
        .task_executor(&address)
        .heartbeat_from_resource_manager(request)
        .await;
    let Err(GatewayError::Outdated { epoch, .. }) = answer else {
        anyhow::bail!("a call of epoch {} was answered {answer:?}", first.epoch);
    };
    ensure!(
        epoch == second.epoch,
        "refused for epoch {epoch}, not {second:?}"
    );
    Ok(())
}
