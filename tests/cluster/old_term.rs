//! What a term had sent arrives after its successor was confirmed: a write at the store, a call at a TaskExecutor. Both are
//! refused, and so is everybody else who speaks for that term.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use hyper::Method;
use tanist::gateway::{Connector as _, GatewayError};
use tanist::rpc::{RpcOptions, TonicConnector};
use tanist_chaos::{Cluster, ClusterBuilder, Host, Leader, Link, Store, StoreKind, wait_for};
use tanist_proto::v1 as pb;

use crate::support::{PROGRAM, RunningOn, need_failpoints};

/// How long something may take to be on its way, or to arrive.
const BOUND: Duration = Duration::from_secs(20);
/// So often in a row is nothing found written before the store counts as quiet.
const QUIET_LOOKS: u32 = 12;
/// Of every TaskManager: each has its own host.
const TASKMANAGER_PORT: u16 = 6122;

const STOPPED: Host = Host::JobManager(0);
const TASKMANAGER: Host = Host::TaskManager(0);

on_networks! {
    etcd(Etcd) { what_a_stopped_leader_had_sent_is_refused_after_its_successor_was_confirmed }
    zookeeper(ZooKeeper) { what_a_stopped_leader_had_sent_is_refused_after_its_successor_was_confirmed }
}

async fn what_a_stopped_leader_had_sent_is_refused_after_its_successor_was_confirmed(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
        .on_hosts_of_their_own()
        .set("taskmanager.rpc.port", &TASKMANAGER_PORT.to_string())
        .failpoints(0, "job.cancel-persisting=note")
        .start()
        .await?;
    let running = RunningOn::start(&mut cluster, 16).await?;
    let first = &running.first;
    ensure!(first.index == 0, "the first one leads first");

    nothing_is_written(&cluster).await?;
    hold_a_write(&mut cluster, &running).await?;
    hold_a_call(&cluster).await?;
    cluster.jobmanager(0).stop()?;
    // Its connections are gone for the store, and what is held is still on its way.
    cluster.store_proxy(STOPPED)?.freeze();
    let second = cluster.successor_of(first).await?;
    running.check_untouched(&mut cluster).await?;

    cluster.store_proxy(STOPPED)?.thaw();
    wait_for("the held write to arrive", BOUND, async || {
        let held = cluster.store_proxy(STOPPED)?.held_requests();
        ensure!(held == 0, "{held} bytes are held");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    cluster.network()?.heal()?;
    let refused = format!("refused a message epoch={}", first.epoch);
    cluster.taskmanager(0).says(&refused, BOUND).await?;
    a_call_for_the_old_term_is_refused(&cluster, first, &second).await?;

    cluster.jobmanager(0).cont()?;
    // The write would have cancelled the job.
    let seen = ["silent-confirmed", "lease-expired"];
    running
        .check_finished_under(&mut cluster, &[(second, &seen)])
        .await
}

/// Waits until the leader has written all that it had to: a write that is on its way holds up the next one.
async fn nothing_is_written(cluster: &Cluster) -> anyhow::Result<()> {
    let records = cluster.records().await?;
    let (mut last, mut looks) = (None, 0);
    wait_for("the store to be quiet", BOUND, async || {
        let change = records.guard().await?.change;
        looks = if last == Some(change) { looks + 1 } else { 0 };
        last = Some(change);
        ensure!(
            looks == QUIET_LOOKS,
            "change {change:?}, seen {looks} times"
        );
        Ok::<_, anyhow::Error>(())
    })
    .await
}

/// Has the leader decide that the job is cancelled, in a write that does not get to the store.
async fn hold_a_write(cluster: &mut Cluster, running: &RunningOn) -> anyhow::Result<()> {
    let proxy = cluster.store_proxy(STOPPED)?;
    proxy.hold_requests();
    let rest = cluster.rest().clone();
    let address = running.first.rest.clone();
    let path = format!("/v1/jobs/{}?mode=cancel", running.workload.job());
    let asking = tokio::spawn(async move { rest.ask(Method::PATCH, &address, &path).await });
    cluster
        .jobmanager(0)
        .reached("job.cancel-persisting", BOUND)
        .await?;
    let before = cluster.store_proxy(STOPPED)?.held_requests();
    wait_for("the write to be on its way", BOUND, async || {
        let held = cluster.store_proxy(STOPPED)?.held_requests();
        // More than renewals of a lease.
        ensure!(held >= before + 200, "{held} bytes are held, {before} were");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    // Nobody waits for the answer any more: else the question would be passed on to the next leader.
    asking.abort();
    wait_for("the question to be forgotten", BOUND, async || {
        let waits = cluster.network()?.is_connected(STOPPED, Host::Test)?;
        ensure!(!waits, "a connection is open");
        Ok::<_, anyhow::Error>(())
    })
    .await
}

/// Waits until the leader has called a TaskExecutor that does not hear it.
async fn hold_a_call(cluster: &Cluster) -> anyhow::Result<()> {
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

/// As somebody would who has taken the old leader's place in everything but the store.
async fn a_call_for_the_old_term_is_refused(
    cluster: &Cluster,
    first: &Leader,
    second: &Leader,
) -> anyhow::Result<()> {
    let guard = cluster.records().await?.guard().await?;
    let (_, _, incarnation) = guard.epoch.context("somebody leads")?;
    let connector = TonicConnector::new(RpcOptions::default());
    let address = format!("{}:{TASKMANAGER_PORT}", TASKMANAGER.address());
    let request = pb::HeartbeatFromResourceManagerRequest {
        sender: Some(pb::Sender {
            cluster_incarnation: incarnation.to_string(),
            epoch: first.epoch,
            registration: 0,
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
