//! Memory of idle processes, and with one small job.

use std::time::Duration;

use anyhow::Context as _;
use tanist_chaos::process::Process;
use tanist_chaos::store::{Store, StoreKind};
use tokio::time::sleep;

use crate::BenchOptions;
use crate::http::Http;
use crate::jobs::{self, STREAM};
use crate::proc;
use crate::report::Figure;
use crate::samples::Unit;
use crate::watch::until_running;

pub(super) const METHOD: &str = "Two JobManagers and one TaskManager of 2 slots, idle for 10 s. Resident memory \
(`VmRSS`) includes the touched pages of the program file, which all processes share; *anonymous* excludes them. \
After that, the streaming job at 2000 records per second for 10 s.";

const REPETITIONS: (usize, usize) = (3, 1);
const IDLE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(2));

pub(super) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let idle = options.pick(IDLE.0, IDLE.1);
    let mut figures = Vec::new();
    for who in ["leader", "standby", "TaskManager"] {
        let figure = |what: &str, unit| Figure::new(format!("{who}, {what}"), unit);
        figures.extend([
            figure("idle: resident", Unit::Mebibytes),
            figure("idle: anonymous", Unit::Mebibytes),
            figure("idle: threads", Unit::Count),
            figure("idle: processor", Unit::PercentOfACore),
            figure("with a job: resident", Unit::Mebibytes),
        ]);
    }
    for _ in 0..options.pick(REPETITIONS.0, REPETITIONS.1) {
        let builder = options.cluster(Store::shared(store).await?);
        let mut cluster = builder.jobmanagers(2).taskmanagers(1).start().await?;
        let leader = cluster.leader().await?;
        let pids = [
            pid(cluster.jobmanager(leader.index))?,
            pid(cluster.jobmanager(1 - leader.index))?,
            pid(cluster.taskmanager(0))?,
        ];
        let mut before = Vec::new();
        for pid in pids {
            before.push(proc::cpu(pid)?);
        }
        // The idle time is part of the figure; there is no condition to wait for.
        sleep(idle).await;
        for (index, pid) in pids.into_iter().enumerate() {
            let memory = proc::memory(pid)?;
            let used = proc::cpu(pid)?.saturating_sub(before[index]);
            let of_process = &mut figures[index * 5..];
            of_process[0].push(mebibytes(memory.resident));
            of_process[1].push(mebibytes(memory.anonymous));
            of_process[2].push(memory.threads as f64);
            of_process[3].push(100.0 * used.as_secs_f64() / idle.as_secs_f64());
        }
        let http = Http::default();
        let job = jobs::submit(&http, &leader.rest, STREAM, 2, &[("rate", "2000")]).await?;
        until_running(&http, &leader.rest, job).await?;
        sleep(idle).await;
        for (index, pid) in pids.into_iter().enumerate() {
            figures[index * 5 + 4].push(mebibytes(proc::memory(pid)?.resident));
        }
        cluster.discard();
    }
    Ok(figures)
}

fn pid(process: &Process) -> anyhow::Result<u32> {
    process
        .pid()
        .with_context(|| format!("{} does not run", process.name()))
}

/// Bytes in MiB.
pub(super) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}
