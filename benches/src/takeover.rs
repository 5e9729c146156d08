//! The leader ends while it leads very many jobs, or very many TaskExecutors: time until all of them are led again.
//!
//! JobManagers and stores are real processes. The TaskExecutors are simulated, all in this process: real
//! TaskExecutors without a data plane.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::store::{Store, StoreKind};
use tanist_chaos::wait::wait_for;
use tanist_chaos::{Cluster, Leader};
use tanist_ha::election::Member;
use tokio::time::Instant;

use crate::BenchOptions;
use crate::adopted::LogReader;
use crate::host::milliseconds;
use crate::http::Http;
use crate::memory::mebibytes;
use crate::phases::PhaseFigures;
use crate::proc;
use crate::report::Figure;
use crate::samples::Unit;
use crate::simulated::{
    FILES_A_TASK_EXECUTOR, PREPARATION_BOUND, simulate, submit_pairs, until_registered,
};
use crate::watch::{until, until_all_run, until_led};

pub(super) const METHOD: &str = "JobManagers are processes; TaskExecutors are simulated, all in the measuring \
process: real ones (RPC server, connections, registrations, one slot per job), whose tasks do nothing, and which \
learn of a leader from one shared watch of the store and from its calls. *Jobs*: of two vertices at parallelism \
1, which share a slot; 100 TaskExecutors of 100 slots (10 for 1,000 jobs). The leader gets SIGKILL. *Warm*: a \
second JobManager stands by with all records in its cache. *Cold*: it was the only one, and is started again at \
once with empty memory; the figures show how many records its cache held at the grant, and how many were read \
after it. Measured from the signal until the successor's `/v1/ha/leader` reports that it is confirmed, until its \
log reports that all tasks of all jobs are accounted for (also its CPU time from the signal, or its start, until \
then), and until an answer of its `/v1/jobs/overview`, requested after that, has all jobs and tasks RUNNING. \
*Grant ->*, the records and the numbers of tasks come from the term's record in the store. The run fails if a \
task is started or restarted. *TaskExecutors*: 1,000 of 2 slots without jobs, two JobManagers: from SIGKILL \
until the successor's `/v1/overview` counts all.";

/// Number of warm takeovers, and of cold ones, for each number of jobs.
const WARM: (usize, usize) = (5, 1);
const COLD: (usize, usize) = (3, 1);
const JOBS: ([usize; 2], [usize; 1]) = ([1_000, 10_000], [100]);
const SLOTS: (usize, usize) = (100, 10);
const TASK_EXECUTORS: (usize, usize) = (1_000, 50);
/// Number of takeovers with TaskExecutors.
const REGISTRATIONS: (usize, usize) = (5, 1);

pub(super) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let task_executors = options.pick(TASK_EXECUTORS.0, TASK_EXECUTORS.1);
    proc::allow_open_files(FILES_A_TASK_EXECUTOR * task_executors as u64)?;
    let mut figures = Vec::new();
    let counts: &[usize] = match options.jobs.as_slice() {
        [] => options.pick(&JOBS.0, &JOBS.1),
        chosen => chosen,
    };
    for &count in counts {
        for standby in [Standby::Warm, Standby::Cold] {
            figures.extend(of_jobs(store, options, count, standby).await?);
        }
    }
    figures.extend(of_task_executors(store, options, task_executors).await?);
    Ok(figures)
}

/// The JobManager that takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standby {
    /// A standby that was running.
    Warm,
    /// The killed JobManager, started again.
    Cold,
}

impl Standby {
    fn repetitions(self, options: &BenchOptions) -> usize {
        match self {
            Standby::Warm => options.pick(WARM.0, WARM.1),
            Standby::Cold => options.pick(COLD.0, COLD.1),
        }
    }
}

/// Figures of takeovers with jobs.
struct JobFigures {
    confirmed: Figure,
    accounted: Figure,
    /// CPU time of the successor until then.
    processor: Figure,
    running: Figure,
    phases: PhaseFigures,
    /// Each with its name in the term's record, below `recovery`.
    records: Vec<(&'static str, Figure)>,
    adopted: Figure,
    restarted: Figure,
    standby: Figure,
    cache: Figure,
    leader: Figure,
}

impl JobFigures {
    fn new(count: usize, standby: Standby) -> JobFigures {
        let how = match standby {
            Standby::Warm => "warm",
            Standby::Cold => "cold",
        };
        let named =
            |unit: Unit, what: &str| Figure::new(format!("{count} jobs, {how}: {what}"), unit);
        let ms = |what: &str| named(Unit::Milliseconds, what);
        JobFigures {
            confirmed: ms("SIGKILL -> leader confirmed"),
            accounted: ms("SIGKILL -> all tasks accounted for"),
            processor: ms("new leader's processor time to there"),
            running: ms("SIGKILL -> all listed RUNNING"),
            phases: PhaseFigures::of(&format!("{count} jobs, {how}")),
            records: vec![
                ("from_cache", named(Unit::Count, "records from the cache")),
                ("read", named(Unit::Count, "records read")),
            ],
            adopted: named(Unit::Count, "tasks adopted"),
            restarted: named(Unit::Count, "tasks restarted"),
            standby: named(Unit::Mebibytes, "standby with its cache, resident"),
            cache: named(Unit::Mebibytes, "its cache"),
            leader: named(Unit::Mebibytes, "new leader, resident"),
        }
    }

    fn all(self) -> Vec<Figure> {
        let mut all = vec![self.confirmed, self.accounted, self.processor, self.running];
        all.extend(self.phases.all());
        all.extend(self.records.into_iter().map(|(_, figure)| figure));
        all.extend([
            self.adopted,
            self.restarted,
            self.standby,
            self.cache,
            self.leader,
        ]);
        // There is no standby in a cold takeover.
        all.retain(|figure| !figure.samples.all().is_empty());
        all
    }

    fn take_record(&mut self, record: &Value) {
        self.phases.take(record);
        for (name, figure) in &mut self.records {
            if let Some(number) = record["recovery"][*name].as_f64() {
                figure.push(number);
            }
        }
    }
}

async fn of_jobs(
    store: StoreKind,
    options: &BenchOptions,
    count: usize,
    standby: Standby,
) -> anyhow::Result<Vec<Figure>> {
    let slots = options.pick(SLOTS.0, SLOTS.1);
    let jobmanagers = match standby {
        Standby::Warm => 2,
        Standby::Cold => 1,
    };
    let builder = options.cluster(Store::own(store).await?);
    let builder = builder.jobmanagers(jobmanagers).taskmanagers(0);
    let mut cluster = builder.start().await?;
    let simulated = simulate(&cluster, count.div_ceil(slots), slots).await?;
    let tasks = simulated.tasks();
    let http = Http::default();
    submit_pairs(&http, &mut cluster, &tasks, count).await?;
    let mut figures = JobFigures::new(count, standby);
    for _ in 0..standby.repetitions(options) {
        let leader = cluster.leader().await?;
        let successor = match standby {
            Standby::Warm => {
                let index = 1 - leader.index;
                let cached = until_cached(&cluster, index, 2 * count).await?;
                figures.cache.push(mebibytes(cached as u64));
                figures.standby.push(resident(&mut cluster, index)?);
                index
            }
            Standby::Cold => leader.index,
        };
        take_over(&http, &mut cluster, &leader, successor, count, &mut figures).await?;
        ensure!(
            (tasks.started(), tasks.running()) == (2 * count as u64, 2 * count as u64),
            "tasks were restarted: {tasks:?}"
        );
        if standby == Standby::Warm {
            start_again(&mut cluster, leader.index).await?;
        }
    }
    // Before the directory of their store is removed.
    simulated.kill().await;
    cluster.discard();
    Ok(figures.all())
}

/// Kills the leader and measures the times of its successor, which is started if it is not running.
async fn take_over(
    http: &Http,
    cluster: &mut Cluster,
    leader: &Leader,
    successor: usize,
    count: usize,
    figures: &mut JobFigures,
) -> anyhow::Result<()> {
    let address = cluster.rest_address(successor).to_owned();
    let mut log = LogReader::at_end_of(cluster.jobmanager(successor).log_path())?;
    let start = Instant::now();
    cluster.jobmanager(leader.index).kill();
    let before = if successor == leader.index {
        cluster.jobmanager(successor).start()?;
        Duration::ZERO
    } else {
        processor_time(cluster, successor)?
    };
    until_led(http, &[&address], leader.epoch).await?;
    figures.confirmed.push(milliseconds(start.elapsed()));
    until("all tasks to be accounted for", async || log.adoption()).await?;
    figures.accounted.push(milliseconds(start.elapsed()));
    let spent = processor_time(cluster, successor)?.saturating_sub(before);
    figures.processor.push(milliseconds(spent));
    until_all_run(http, &address, count).await?;
    figures.running.push(milliseconds(start.elapsed()));
    let now = cluster.successor_of(leader).await?;
    let record = record_of_adoption(cluster, now.epoch).await?;
    figures.take_record(&record);
    let counted = |name: &str| record[name].as_u64().unwrap_or_default();
    let (adopted, restarted) = (counted("tasks_adopted"), counted("tasks_restarted"));
    figures.adopted.push(adopted as f64);
    figures.restarted.push(restarted as f64);
    ensure!(
        (adopted, restarted) == (2 * count as u64, 0),
        "not all tasks were adopted: {record}"
    );
    figures.leader.push(resident(cluster, successor)?);
    Ok(())
}

/// The term's record, once it contains the adopted tasks and the end of the recovery: a leader that ends
/// before that looks as if its jobs had ended it.
async fn record_of_adoption(cluster: &Cluster, epoch: u64) -> anyhow::Result<Value> {
    until("the term's record to say what was adopted", async || {
        let record = cluster.term_record(epoch).await?;
        ensure!(record["tasks_adopted"].is_u64(), "{record}");
        ensure!(record["phase"] == "leading", "{record}");
        Ok(record)
    })
    .await
}

async fn of_task_executors(
    store: StoreKind,
    options: &BenchOptions,
    count: usize,
) -> anyhow::Result<Vec<Figure>> {
    let named = |what: &str| {
        let what = format!("{count} TaskExecutors: SIGKILL -> {what}");
        Figure::new(what, Unit::Milliseconds)
    };
    let mut confirmed = named("leader confirmed");
    let mut registered = named("all registered");
    let builder = options.cluster(Store::own(store).await?);
    let mut cluster = builder.jobmanagers(2).taskmanagers(0).start().await?;
    let simulated = simulate(&cluster, count, 2).await?;
    let http = Http::default();
    let leader = cluster.leader().await?;
    until_registered(&http, &leader.rest, count).await?;
    for _ in 0..options.pick(REGISTRATIONS.0, REGISTRATIONS.1) {
        let leader = cluster.leader().await?;
        until_cached(&cluster, 1 - leader.index, 0).await?;
        let successor = cluster.rest_address(1 - leader.index).to_owned();
        let start = Instant::now();
        cluster.jobmanager(leader.index).kill();
        until_led(&http, &[&successor], leader.epoch).await?;
        confirmed.push(milliseconds(start.elapsed()));
        until_registered(&http, &successor, count).await?;
        registered.push(milliseconds(start.elapsed()));
        start_again(&mut cluster, leader.index).await?;
    }
    simulated.kill().await;
    cluster.discard();
    Ok(vec![confirmed, registered])
}

/// Starts a killed JobManager and waits until its new incarnation is a member.
pub(super) async fn start_again(cluster: &mut Cluster, index: usize) -> anyhow::Result<()> {
    let former = member(cluster, index).await.ok();
    let former = former.map(|member| member.incarnation);
    cluster.jobmanager(index).start()?;
    wait_for("a JobManager to come back", PREPARATION_BOUND, async || {
        let member = member(cluster, index).await?;
        ensure!(Some(&member.incarnation) != former.as_ref(), "{member:?}");
        Ok(())
    })
    .await
}

async fn member(cluster: &Cluster, index: usize) -> anyhow::Result<Member> {
    let process = format!("jm-{index}");
    let mut members = cluster.members().await?.into_iter();
    let found = members.find(|member| member.process.as_str() == process);
    found.with_context(|| format!("{process} is no member"))
}

/// Waits until a JobManager stands by with at least this number of cached records; returns their size in bytes.
pub(super) async fn until_cached(
    cluster: &Cluster,
    index: usize,
    records: usize,
) -> anyhow::Result<usize> {
    wait_for("a warm standby", PREPARATION_BOUND, async || {
        let member = member(cluster, index).await?;
        let cache = member.cache.context("it says nothing of its cache")?;
        ensure!(cache.records >= records, "{cache:?}");
        Ok(cache.bytes)
    })
    .await
}

fn processor_time(cluster: &mut Cluster, index: usize) -> anyhow::Result<Duration> {
    let pid = cluster.jobmanager(index).pid().context("it runs")?;
    proc::cpu(pid)
}

fn resident(cluster: &mut Cluster, index: usize) -> anyhow::Result<f64> {
    let pid = cluster.jobmanager(index).pid().context("it runs")?;
    Ok(mebibytes(proc::memory(pid)?.resident))
}
