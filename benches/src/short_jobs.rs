//! Jobs that end at once: the cost of a job apart from its records.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_chaos::Cluster;
use tanist_chaos::store::{Store, StoreKind};
use tokio::time::Instant;

use crate::BenchOptions;
use crate::host::milliseconds;
use crate::http::Http;
use crate::jobs::{ONE_RECORD, Template};
use crate::proc;
use crate::report::Figure;
use crate::samples::Unit;
use crate::watch::{until, until_finished};

pub(super) const METHOD: &str = "One JobManager, one TaskManager of 32 slots; a job is one task that generates \
one record and discards it. *In a row*: one client submits a job, checks every millisecond until it is FINISHED, \
and submits the next one. *All at once*: 16 clients submit all of them as fast as they are accepted; from the \
first submission until the leader counts the last one as finished. A job is persisted, gets a slot, is placed \
(persisted), deployed, ends (persisted), has its result and its cleanup persisted, and returns its slot.";

const ALL_AT_ONCE: (usize, usize) = (2_000, 100);
const IN_A_ROW: (usize, usize) = (100, 10);
const REPETITIONS: (usize, usize) = (3, 1);
const SLOTS: usize = 32;
const CLIENTS: usize = 16;

pub(super) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let (many, few) = (
        options.pick(ALL_AT_ONCE.0, ALL_AT_ONCE.1),
        options.pick(IN_A_ROW.0, IN_A_ROW.1),
    );
    let mut alone = Figure::new("in a row: submission -> FINISHED", Unit::Milliseconds);
    let name = |what: &str| format!("{many} all at once: {what}");
    let mut rate = Figure::new(name("completed"), Unit::PerSecond);
    let mut leader = Figure::new(name("leader's processor time a job"), Unit::Milliseconds);
    let mut worker = Figure::new(
        name("TaskManager's processor time a job"),
        Unit::Milliseconds,
    );
    for _ in 0..options.pick(REPETITIONS.0, REPETITIONS.1) {
        let builder = options.cluster(Store::own(store).await?);
        let builder = builder.jobmanagers(1).taskmanagers(1).slots(SLOTS);
        let mut cluster = builder.start().await?;
        let http = Http::default();
        let template = Template::of(ONE_RECORD)?;
        let address = cluster.rest_address(0).to_owned();
        for _ in 0..few {
            let start = Instant::now();
            let job = template.submit(&http, &address).await?;
            until_finished(&http, &address, job).await?;
            alone.push(milliseconds(start.elapsed()));
        }
        let before = [cpu_of_leader(&mut cluster)?, cpu_of_worker(&mut cluster)?];
        let start = Instant::now();
        template.submit_many(&address, many, CLIENTS).await?;
        until_all_finished(&http, &address, many + few).await?;
        rate.push(many as f64 / start.elapsed().as_secs_f64());
        let after = [cpu_of_leader(&mut cluster)?, cpu_of_worker(&mut cluster)?];
        for (figure, (before, after)) in [&mut leader, &mut worker]
            .into_iter()
            .zip(before.into_iter().zip(after))
        {
            figure.push(milliseconds(after.saturating_sub(before)) / many as f64);
        }
        cluster.discard();
    }
    Ok(vec![alone, rate, leader, worker])
}

fn cpu_of_leader(cluster: &mut Cluster) -> anyhow::Result<Duration> {
    proc::total_cpu(cluster.jobmanager(0).pid().context("it runs")?)
}

fn cpu_of_worker(cluster: &mut Cluster) -> anyhow::Result<Duration> {
    proc::total_cpu(cluster.taskmanager(0).pid().context("it runs")?)
}

/// Waits until the leader counts this number of jobs as finished.
pub(super) async fn until_all_finished(
    http: &Http,
    address: &str,
    count: usize,
) -> anyhow::Result<()> {
    until("all jobs to have finished", async || {
        let overview = http.get(address, "/v1/overview").await?;
        let finished = overview["jobs-finished"].as_u64();
        ensure!(finished == Some(count as u64), "{overview}");
        Ok(())
    })
    .await
}
