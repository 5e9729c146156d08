//! The start of a JobManager with many jobs in its store.

use anyhow::Context as _;
use tanist_chaos::store::{Store, StoreKind};
use tokio::time::Instant;

use crate::BenchOptions;
use crate::host::milliseconds;
use crate::http::Http;
use crate::jobs::{TINY, Template};
use crate::memory::mebibytes;
use crate::proc;
use crate::report::Figure;
use crate::samples::Unit;
use crate::watch::{until_all_run, until_led, until_listed};

pub(super) const METHOD: &str = "*Persisted jobs*: submitted to a JobManager without TaskManagers, which is then \
killed and started again (it ends its own earlier term at once, so there is no wait for a lease). Measured from \
the start of the process until its `/v1/ha/leader` reports that it is confirmed, and until `/v1/jobs` lists all \
jobs; also its memory at that time. *Running jobs*: two JobManagers and a TaskManager of 100 slots with 100 jobs \
of one task; the leader gets SIGKILL, and the clock starts when the standby has been confirmed, so that leases \
do not matter.";

const REPETITIONS: (usize, usize) = (5, 1);
const PERSISTED: ([usize; 2], [usize; 2]) = ([1_000, 10_000], [100, 1_000]);
const RUNNING: usize = 100;
/// Number of clients that submit while a cluster is prepared.
const CLIENTS: usize = 64;

pub(super) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for count in options.pick(PERSISTED.0, PERSISTED.1) {
        figures.extend(persisted(store, options, count).await?);
    }
    figures.extend(running(store, options).await?);
    Ok(figures)
}

async fn persisted(
    store: StoreKind,
    options: &BenchOptions,
    count: usize,
) -> anyhow::Result<Vec<Figure>> {
    let name = |what: &str| format!("{count} persisted jobs: {what}");
    let mut led = Figure::new(name("start -> leads"), Unit::Milliseconds);
    let mut listed = Figure::new(name("start -> all listed"), Unit::Milliseconds);
    let mut resident = Figure::new(name("leader, resident"), Unit::Mebibytes);
    let builder = options.cluster(Store::own(store).await?);
    let mut cluster = builder.jobmanagers(1).taskmanagers(0).start().await?;
    let http = Http::default();
    let template = Template::of(TINY)?;
    let address = cluster.rest_address(0).to_owned();
    template.submit_many(&address, count, CLIENTS).await?;
    for _ in 0..options.pick(REPETITIONS.0, REPETITIONS.1) {
        let former = cluster.kill_leader().await?;
        let start = Instant::now();
        cluster.jobmanager(0).start()?;
        until_led(&http, &[&address], former.epoch).await?;
        led.push(milliseconds(start.elapsed()));
        until_listed(&http, &address, count).await?;
        listed.push(milliseconds(start.elapsed()));
        let pid = cluster.jobmanager(0).pid().context("it runs")?;
        resident.push(mebibytes(proc::memory(pid)?.resident));
    }
    cluster.discard();
    Ok(vec![led, listed, resident])
}

async fn running(store: StoreKind, options: &BenchOptions) -> anyhow::Result<Vec<Figure>> {
    let mut figure = Figure::new(
        format!("{RUNNING} running jobs: confirmed -> all RUNNING"),
        Unit::Milliseconds,
    );
    let builder = options.cluster(Store::own(store).await?).slots(RUNNING);
    let mut cluster = builder.jobmanagers(2).taskmanagers(1).start().await?;
    let http = Http::default();
    let template = Template::of(TINY)?;
    let first = cluster.leader().await?;
    template.submit_many(&first.rest, RUNNING, CLIENTS).await?;
    for _ in 0..options.pick(REPETITIONS.0, REPETITIONS.1) {
        let leader = cluster.leader().await?;
        until_all_run(&http, &leader.rest, RUNNING).await?;
        let observer = cluster.rest_address(1 - leader.index).to_owned();
        cluster.jobmanager(leader.index).kill();
        let successor = until_led(&http, &[&observer], leader.epoch).await?;
        let start = Instant::now();
        until_all_run(&http, successor, RUNNING).await?;
        figure.push(milliseconds(start.elapsed()));
        cluster.jobmanager(leader.index).start()?;
        cluster.wait_until_complete().await?;
        // A leader that is killed before its recovery is over would look as if one of its jobs ended it.
        cluster.until_recovered().await?;
    }
    cluster.discard();
    Ok(vec![figure])
}
