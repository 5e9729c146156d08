//! The rate at which a leader accepts jobs: each is persisted before it is acknowledged.

use std::time::Duration;

use anyhow::Context as _;
use tanist_chaos::store::{Store, StoreKind};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::BenchOptions;
use crate::host::milliseconds;
use crate::http::Http;
use crate::jobs::{TINY, Template};
use crate::proc;
use crate::report::Figure;
use crate::samples::{Samples, Unit};

pub(super) const METHOD: &str = "One JobManager and no TaskManager: the jobs are accepted, persisted, get their \
JobMaster and wait for slots. Each client posts a compiled graph of one vertex with a new job id to `/v1/jobs` \
over its own connection and waits for the answer before the next one. Counted for 3 s after 0.5 s of warm-up, on \
a new cluster each time; the clients share the cores with the JobManager and the store. *At a steady pace*: 100 \
submissions per second for 10 s over 16 connections, each sent at its scheduled time, even if earlier ones are \
not answered yet; from the scheduled time until the answer.";

const REPETITIONS: (usize, usize) = (3, 1);
const WARM_UP: Duration = Duration::from_millis(500);
const WINDOW: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(1));
const CLIENTS: [usize; 3] = [1, 16, 64];
/// Interval between two submissions at a constant rate: 100 per second.
const PACE: Duration = Duration::from_millis(10);
const PACED: (u32, u32) = (1_000, 100);
const PACED_CONNECTIONS: usize = 16;

pub(super) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let window = options.pick(WINDOW.0, WINDOW.1);
    let mut figures = Vec::new();
    for clients in CLIENTS {
        let plural = if clients == 1 { "" } else { "s" };
        let name = |what: &str| format!("{clients} client{plural}: {what}");
        let mut of_clients = [
            Figure::new(name("acknowledged"), Unit::PerSecond),
            Figure::new(name("p50 of the answer"), Unit::Milliseconds),
            Figure::new(name("p99 of the answer"), Unit::Milliseconds),
            Figure::new(name("leader's processor time a job"), Unit::Milliseconds),
        ];
        for _ in 0..options.pick(REPETITIONS.0, REPETITIONS.1) {
            let round = round(store, options, clients, window).await?;
            let count = round.latencies.all().len() as f64;
            of_clients[0].push(count / window.as_secs_f64());
            of_clients[1].push(round.latencies.median().unwrap_or(f64::NAN));
            of_clients[2].push(round.latencies.quantile(0.99).unwrap_or(f64::NAN));
            of_clients[3].push(milliseconds(round.cpu) / count);
        }
        figures.extend(of_clients);
    }
    let name = |what: &str| format!("at a steady pace, 100/s: {what}");
    let mut median = Figure::new(name("p50 of the answer"), Unit::Milliseconds);
    let mut slow = Figure::new(name("p99 of the answer"), Unit::Milliseconds);
    let mut slowest = Figure::new(name("slowest answer"), Unit::Milliseconds);
    for _ in 0..options.pick(REPETITIONS.0, REPETITIONS.1) {
        let latencies = paced(store, options, options.pick(PACED.0, PACED.1)).await?;
        median.push(latencies.median().unwrap_or(f64::NAN));
        slow.push(latencies.quantile(0.99).unwrap_or(f64::NAN));
        slowest.push(latencies.max().unwrap_or(f64::NAN));
    }
    figures.extend([median, slow, slowest]);
    Ok(figures)
}

/// The latencies of this number of submissions, each sent at its scheduled time.
async fn paced(store: StoreKind, options: &BenchOptions, count: u32) -> anyhow::Result<Samples> {
    let builder = options.cluster(Store::own(store).await?);
    let cluster = builder.jobmanagers(1).taskmanagers(0).start().await?;
    let template = Template::of(TINY)?;
    let address = cluster.rest_address(0).to_owned();
    let clients: Vec<Http> = (0..PACED_CONNECTIONS).map(|_| Http::default()).collect();
    for http in &clients {
        // Connects before the measurement.
        template.submit(http, &address).await?;
    }
    let from = Instant::now() + WARM_UP;
    let mut submitting = JoinSet::new();
    for (number, http) in (0..count).zip(clients.iter().cycle()) {
        let (template, address, http) = (template.clone(), address.clone(), http.clone());
        let due = from + PACE * number;
        submitting.spawn(async move {
            tokio::time::sleep_until(due).await;
            template.submit(&http, &address).await?;
            anyhow::Ok(milliseconds(due.elapsed()))
        });
    }
    let mut latencies = Samples::default();
    while let Some(done) = submitting.join_next().await {
        latencies.push(done??);
    }
    cluster.discard();
    Ok(latencies)
}

struct Round {
    latencies: Samples,
    cpu: Duration,
}

async fn round(
    store: StoreKind,
    options: &BenchOptions,
    clients: usize,
    window: Duration,
) -> anyhow::Result<Round> {
    // A new server: data of earlier clusters would slow it down.
    let builder = options.cluster(Store::own(store).await?);
    let mut cluster = builder.jobmanagers(1).taskmanagers(0).start().await?;
    let template = Template::of(TINY)?;
    let address = cluster.rest_address(0).to_owned();
    let pid = cluster.jobmanager(0).pid().context("it runs")?;
    let from = Instant::now() + WARM_UP;
    let until = from + window;
    let mut submitting = JoinSet::new();
    for _ in 0..clients {
        let (template, address) = (template.clone(), address.clone());
        submitting.spawn(async move {
            let http = Http::default();
            let mut latencies = Vec::new();
            while Instant::now() < until {
                let start = Instant::now();
                template.submit(&http, &address).await?;
                let end = Instant::now();
                if (from..until).contains(&end) {
                    latencies.push(milliseconds(end - start));
                }
            }
            anyhow::Ok(latencies)
        });
    }
    tokio::time::sleep_until(from).await;
    let before = proc::total_cpu(pid)?;
    tokio::time::sleep_until(until).await;
    let cpu = proc::total_cpu(pid)?.saturating_sub(before);
    let mut latencies = Samples::default();
    while let Some(done) = submitting.join_next().await {
        done??
            .into_iter()
            .for_each(|latency| latencies.push(latency));
    }
    cluster.discard();
    Ok(Round { latencies, cpu })
}
