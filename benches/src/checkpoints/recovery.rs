//! Recovery with checkpoints: the death of a leader in the middle of a checkpoint, and of a TaskManager with state.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::store::{Store, StoreKind};
use tanist_chaos::wait::wait_for_every;
use tanist_chaos::{Cluster, ClusterBuilder};
use tanist_proto::id::JobId;
use tokio::time::Instant;

use super::Setup;
use crate::host::milliseconds;
use crate::http::Http;
use crate::jobs::{self, CHECKPOINTED_COUNT};
use crate::report::Figure;
use crate::samples::Unit;
use crate::watch::{BOUND, INTERVAL, all_subtasks_run, until, until_led, until_running};

const REPETITIONS: (usize, usize) = (20, 2);
const KEYS: &str = "100000";

/// Submits a job of 20,000 records a second that takes a checkpoint each 200 ms, and waits for its first one.
async fn start_job(http: &Http, cluster: &mut Cluster) -> anyhow::Result<JobId> {
    let leader = cluster.leader().await?;
    let parameters = [
        ("count", "100000000"),
        ("keys", KEYS),
        ("interval", "200ms"),
        ("rate", "20000"),
    ];
    let job = jobs::submit(http, &leader.rest, CHECKPOINTED_COUNT, 2, &parameters).await?;
    until_running(http, &leader.rest, job).await?;
    until_completed(http, &leader.rest, job, 1).await?;
    Ok(job)
}

pub(super) async fn checkpoints(http: &Http, address: &str, job: JobId) -> anyhow::Result<Value> {
    http.get(address, &format!("/v1/jobs/{job}/checkpoints"))
        .await
}

/// Waits until a checkpoint of at least this number is durable.
async fn until_completed(
    http: &Http,
    address: &str,
    job: JobId,
    number: u64,
) -> anyhow::Result<()> {
    until("a checkpoint to be durable", async || {
        let body = checkpoints(http, address, job).await?;
        let found = body["latest"]["completed"]["id"].as_u64();
        ensure!(found >= Some(number), "{body}");
        Ok(())
    })
    .await
}

/// The number of a checkpoint that is in progress.
async fn in_progress(http: &Http, address: &str, job: JobId) -> anyhow::Result<u64> {
    until("a checkpoint in progress", async || {
        let body = checkpoints(http, address, job).await?;
        let history = body["history"].as_array().context("a history")?;
        let mut under_way = history.iter().filter(|it| it["status"] == "IN_PROGRESS");
        let found = under_way.find_map(|it| it["id"].as_u64());
        found.context("none is in progress")
    })
    .await
}

pub(super) async fn of_leader(store: StoreKind, setup: &Setup<'_>) -> anyhow::Result<Vec<Figure>> {
    let mut completed = Figure::new(
        "leader SIGKILL in a checkpoint: confirmed -> it is durable",
        Unit::Milliseconds,
    );
    let builder = setup.cluster(Store::own(store).await?);
    let mut cluster = builder.jobmanagers(2).taskmanagers(1).start().await?;
    let http = Http::default();
    let job = start_job(&http, &mut cluster).await?;
    let attempts = cluster.attempts(job).await?;
    for _ in 0..setup.pick(REPETITIONS.0, REPETITIONS.1) {
        let leader = cluster.leader().await?;
        let observer = cluster.rest_address(1 - leader.index).to_owned();
        let number = in_progress(&http, &leader.rest, job).await?;
        cluster.jobmanager(leader.index).kill();
        let successor = until_led(&http, &[&observer], leader.epoch).await?;
        let start = Instant::now();
        until_completed(&http, successor, job, number).await?;
        completed.push(milliseconds(start.elapsed()));
        until_running(&http, successor, job).await?;
        let after = cluster.attempts(job).await?;
        ensure!(after == attempts, "a task was restarted: {after:?}");
        cluster.jobmanager(leader.index).start()?;
        cluster.wait_until_complete().await?;
        cluster.until_recovered().await?;
    }
    cluster.discard();
    Ok(vec![completed])
}

pub(super) async fn of_taskmanager(
    store: StoreKind,
    setup: &Setup<'_>,
) -> anyhow::Result<Vec<Figure>> {
    let mut running = Figure::new(
        format!("TaskManager SIGKILL, {KEYS} keys, spare slots: -> all RUNNING, restored"),
        Unit::Milliseconds,
    );
    let builder = setup.cluster(Store::own(store).await?).slots(2);
    let builder = restarts_soon(builder);
    let mut cluster = builder.jobmanagers(1).taskmanagers(2).start().await?;
    let http = Http::default();
    let job = start_job(&http, &mut cluster).await?;
    let address = cluster.rest_address(0).to_owned();
    for _ in 0..setup.pick(REPETITIONS.0, REPETITIONS.1) {
        let victim = host_of_tasks(&http, &mut cluster).await?;
        running.push(until_restored(&http, &mut cluster, job, victim, INTERVAL).await?);
        cluster.taskmanager(victim).start()?;
        cluster.wait_until_complete().await?;
        let completed = checkpoints(&http, &address, job).await?;
        let newest = completed["latest"]["completed"]["id"]
            .as_u64()
            .unwrap_or_default();
        until_completed(&http, &address, job, newest + 1).await?;
    }
    cluster.discard();
    Ok(vec![running])
}

/// Restarts come after 100 ms. By default the pause before a restart grows with each failure.
pub(super) fn restarts_soon(builder: ClusterBuilder) -> ClusterBuilder {
    builder
        .set("restart-strategy.type", "fixed-delay")
        .set("restart-strategy.fixed-delay.attempts", "1000000")
        .set("restart-strategy.fixed-delay.delay", "100 ms")
}

/// Kills a TaskManager, and waits until its job is restored and runs. Returns how many milliseconds that takes; the
/// leader is asked each `asked_each`.
pub(super) async fn until_restored(
    http: &Http,
    cluster: &mut Cluster,
    job: JobId,
    victim: usize,
    asked_each: Duration,
) -> anyhow::Result<f64> {
    let address = cluster.rest_address(0).to_owned();
    let before = checkpoints(http, &address, job).await?;
    let restored = &before["latest"]["restored"]["restore_timestamp"];
    let start = Instant::now();
    cluster.taskmanager(victim).kill();
    let what = "the job to be restored and to run";
    wait_for_every(asked_each, what, BOUND, async || {
        let body = checkpoints(http, &address, job).await?;
        let now = &body["latest"]["restored"]["restore_timestamp"];
        ensure!(now != restored, "it has not been restored");
        let body = http.get(&address, &format!("/v1/jobs/{job}")).await?;
        ensure!(all_subtasks_run(&body), "{body}");
        Ok(())
    })
    .await?;
    Ok(milliseconds(start.elapsed()))
}

/// The index of the TaskManager that has no free slot. It has all tasks, because slots are taken from as few
/// TaskManagers as possible.
pub(super) async fn host_of_tasks(http: &Http, cluster: &mut Cluster) -> anyhow::Result<usize> {
    let address = cluster.rest_address(0).to_owned();
    let body = http.get(&address, "/v1/taskmanagers").await?;
    let all = body["taskmanagers"].as_array().context("TaskManagers")?;
    let busy = all.iter().find(|it| it["freeSlots"] == 0);
    let id = busy.context("no TaskManager has all tasks")?["id"].clone();
    let id = id.as_str().context("an id")?;
    (0..cluster.taskmanagers())
        .find(|index| cluster.taskmanager(*index).name() == id)
        .with_context(|| format!("{id} is none of this cluster"))
}
