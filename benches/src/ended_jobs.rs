//! A takeover in a cluster that keeps the results of very many ended jobs.

use anyhow::ensure;
use tanist_chaos::Cluster;
use tanist_chaos::store::{Store, StoreKind};
use tokio::time::Instant;

use crate::BenchOptions;
use crate::host::milliseconds;
use crate::http::Http;
use crate::jobs::{ONE_RECORD, Template};
use crate::phases::PhaseFigures;
use crate::report::Figure;
use crate::samples::Unit;
use crate::short_jobs::until_all_finished;
use crate::takeover::{start_again, until_cached};
use crate::watch::{until, until_led};

pub(super) const METHOD: &str = "Two JobManagers and one TaskManager of 32 slots. The leader gets SIGKILL, once \
in a cluster to which no job was ever submitted, and once when the given number of jobs (one task, one record) \
have FINISHED and their results are kept. Measured from the signal until the standby's `/v1/ha/leader` reports \
that it is confirmed, and until its `/v1/overview` counts all jobs as finished.";

const JOBS: (usize, usize) = (10_000, 100);
const REPETITIONS: (usize, usize) = (5, 1);
const SLOTS: usize = 32;
const CLIENTS: usize = 16;

pub(super) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let builder = options.cluster(Store::own(store).await?);
    let builder = builder.jobmanagers(2).taskmanagers(1).slots(SLOTS);
    let mut cluster = builder.start().await?;
    let mut figures = of_takeovers(&mut cluster, 0, options).await?;
    let jobs = options.pick(JOBS.0, JOBS.1);
    let address = cluster.leader().await?.rest;
    let template = Template::of(ONE_RECORD)?;
    template.submit_many(&address, jobs, CLIENTS).await?;
    until_all_finished(&Http::default(), &address, jobs).await?;
    figures.extend(of_takeovers(&mut cluster, jobs, options).await?);
    cluster.discard();
    Ok(figures)
}

async fn of_takeovers(
    cluster: &mut Cluster,
    jobs: usize,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let name = format!("{jobs} ended jobs");
    let named = |what: &str| Figure::new(format!("{name}: {what}"), Unit::Milliseconds);
    let mut confirmed = named("SIGKILL -> leader confirmed");
    let mut listed = named("SIGKILL -> all counted");
    let mut phases = PhaseFigures::of(&name);
    let http = Http::default();
    for _ in 0..options.pick(REPETITIONS.0, REPETITIONS.1) {
        let leader = cluster.leader().await?;
        let index = 1 - leader.index;
        until_cached(cluster, index, jobs).await?;
        let successor = cluster.rest_address(index).to_owned();
        let start = Instant::now();
        cluster.jobmanager(leader.index).kill();
        until_led(&http, &[&successor], leader.epoch).await?;
        confirmed.push(milliseconds(start.elapsed()));
        until_all_finished(&http, &successor, jobs).await?;
        listed.push(milliseconds(start.elapsed()));
        let epoch = cluster.successor_of(&leader).await?.epoch;
        let record = until("the term's record to say that it leads", async || {
            let record = cluster.term_record(epoch).await?;
            ensure!(record["phase"] == "leading", "{record}");
            Ok(record)
        });
        phases.take(&record.await?);
        start_again(cluster, leader.index).await?;
    }
    Ok([confirmed, listed]
        .into_iter()
        .chain(phases.all())
        .collect())
}
