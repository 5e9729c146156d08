//! One job with very many subtasks: how long its checkpoints take, and what they cost the leader.

use std::time::Duration;

use anyhow::Context as _;
use tanist_chaos::store::{Store, StoreKind};
use tokio::time::{Instant, sleep};

use super::{Completed, NEVER, Setup, watch};
use crate::BenchOptions;
use crate::http::Http;
use crate::jobs;
use crate::memory::mebibytes;
use crate::proc;
use crate::report::Figure;
use crate::samples::Unit;
use crate::watch::until_running;

pub(crate) const METHOD: &str = "A vertex of 10,000 subtasks, each a region of its own, on four TaskManagers, \
with a checkpoint each second. *Trigger to durable*: of each checkpoint, as `/checkpoints` says.";

const SUBTASKS: (u32, u32) = (10_000, 200);
const TASKMANAGERS: usize = 4;
const WATCHED: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(4));

/// One vertex: each subtask is a region.
const INDEPENDENT: &str = "version: 1
name: independent
max-parallelism: 10000
checkpoints:
  interval: ${interval}
parameters:
  interval:
    description: Time between two checkpoints.
steps:
  - name: numbers
    datagen: { rate: 1 }
  - name: out
    discard: {}
";

pub(crate) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let setup = &Setup::new(options)?;
    let subtasks = setup.pick(SUBTASKS.0, SUBTASKS.1);
    let name = |what: &str| format!("{subtasks} subtasks: {what}");
    let mut duration = Figure::new(name("trigger to durable"), Unit::Milliseconds);
    let mut figures = Vec::new();
    for (variant, interval) in [("without", NEVER), ("each second", "1s")] {
        let slots = (subtasks as usize).div_ceil(TASKMANAGERS);
        let builder = setup.cluster(Store::own(store).await?).slots(slots);
        let builder = builder.jobmanagers(1).taskmanagers(TASKMANAGERS);
        let mut cluster = builder.start().await?;
        let http = Http::default();
        let address = cluster.rest_address(0).to_owned();
        let parameters = [("interval", interval)];
        let job = jobs::submit(&http, &address, INDEPENDENT, subtasks, &parameters).await?;
        until_running(&http, &address, job).await?;
        let pid = cluster.jobmanager(0).pid().context("it runs")?;
        let until = Instant::now() + setup.pick(WATCHED.0, WATCHED.1);
        let before = proc::total_cpu(pid)?;
        if interval == NEVER {
            sleep(until - Instant::now()).await;
        } else {
            let completed = watch(&http, &address, job, until).await?;
            for Completed { took, .. } in completed.values() {
                duration.push(*took);
            }
        }
        let cpu = proc::total_cpu(pid)?.saturating_sub(before);
        let mut peak = Figure::new(name(&format!("leader, peak, {variant}")), Unit::Mebibytes);
        peak.push(mebibytes(proc::memory(pid)?.peak));
        let mut share = Figure::new(name(&format!("leader, {variant}")), Unit::PercentOfACore);
        let watched = setup.pick(WATCHED.0, WATCHED.1);
        share.push(100.0 * cpu.as_secs_f64() / watched.as_secs_f64());
        figures.extend([peak, share]);
        cluster.discard();
    }
    figures.insert(0, duration);
    Ok(figures)
}
