//! Memory of a leader with very many jobs.

use anyhow::Context as _;
use tanist_chaos::Cluster;
use tanist_chaos::store::{Store, StoreKind};

use crate::BenchOptions;
use crate::http::Http;
use crate::jobs::{TINY, Template};
use crate::memory::mebibytes;
use crate::proc;
use crate::report::Figure;
use crate::samples::Unit;
use crate::simulated::{FILES_A_TASK_EXECUTOR, simulate, submit_pairs};
use crate::watch::{until_all_run, until_led, until_listed};

pub(super) const METHOD: &str = "One JobManager. *Waiting*: jobs of one vertex for which there is no slot. \
*Running*: jobs of two tasks that share a slot, on simulated TaskExecutors of 100 slots as in *Takeover*. \
Resident memory when all jobs have been accepted (*accepted*), and when the JobManager was killed, started again \
and leads all of them again (*recovered*). *A job*: the difference to the memory without jobs, divided by their \
number.";

const JOBS: (usize, usize) = (10_000, 200);
const REPETITIONS: (usize, usize) = (3, 1);
const SLOTS: usize = 100;
const CLIENTS: usize = 64;

pub(super) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let counts: &[usize] = match options.jobs.as_slice() {
        [] => &[options.pick(JOBS.0, JOBS.1)],
        chosen => chosen,
    };
    let mut figures = Vec::new();
    for &count in counts {
        for is_running in [false, true] {
            figures.extend(of_jobs(store, options, count, is_running).await?);
        }
    }
    Ok(figures)
}

async fn of_jobs(
    store: StoreKind,
    options: &BenchOptions,
    count: usize,
    is_running: bool,
) -> anyhow::Result<Vec<Figure>> {
    let how = if is_running { "running" } else { "waiting" };
    let named = |unit: Unit, what: &str| Figure::new(format!("{count} {how}: {what}"), unit);
    let mut accepted = named(Unit::Mebibytes, "accepted");
    let mut recovered = named(Unit::Mebibytes, "recovered");
    let mut of_one = named(Unit::Kibibytes, "recovered, a job");
    let task_executors = count.div_ceil(SLOTS);
    proc::allow_open_files(FILES_A_TASK_EXECUTOR * task_executors as u64)?;
    for _ in 0..options.pick(REPETITIONS.0, REPETITIONS.1) {
        let builder = options.cluster(Store::own(store).await?);
        let mut cluster = builder.jobmanagers(1).taskmanagers(0).start().await?;
        let http = Http::default();
        let address = cluster.rest_address(0).to_owned();
        let empty = resident(&mut cluster)?;
        let simulated = if is_running {
            let simulated = simulate(&cluster, task_executors, SLOTS).await?;
            submit_pairs(&http, &mut cluster, &simulated.tasks(), count).await?;
            Some(simulated)
        } else {
            let template = Template::of(TINY)?;
            template.submit_many(&address, count, CLIENTS).await?;
            until_listed(&http, &address, count).await?;
            None
        };
        accepted.push(mebibytes(resident(&mut cluster)?));
        let former = cluster.kill_leader().await?;
        cluster.jobmanager(0).start()?;
        until_led(&http, &[&address], former.epoch).await?;
        until_listed(&http, &address, count).await?;
        if is_running {
            until_all_run(&http, &address, count).await?;
        }
        let now = resident(&mut cluster)?;
        recovered.push(mebibytes(now));
        of_one.push(now.saturating_sub(empty) as f64 / 1024.0 / count as f64);
        if let Some(simulated) = simulated {
            simulated.kill().await;
        }
        cluster.discard();
    }
    Ok(vec![accepted, recovered, of_one])
}

fn resident(cluster: &mut Cluster) -> anyhow::Result<u64> {
    let pid = cluster.jobmanager(0).pid().context("it runs")?;
    Ok(proc::memory(pid)?.resident)
}
