//! One job with very many subtasks: time until all of them run, and the share of the JobMaster's decisions in it.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_chaos::store::{Store, StoreKind};
use tanist_chaos::wait::wait_for_every;
use tanist_compile::{CompileOptions, JobBuilder, Partition, StreamGraph};
use tanist_model::Comparison;
use tanist_process::simulation::TaskCounts;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::time::Instant;

use crate::BenchOptions;
use crate::core_time;
use crate::host::milliseconds;
use crate::http::{Http, PROTOBUF};
use crate::memory::mebibytes;
use crate::proc;
use crate::report::Figure;
use crate::samples::Unit;
use crate::simulated::{FILES_A_TASK_EXECUTOR, simulate, until_registered};
use crate::watch::{all_subtasks_run, until};

pub(super) const METHOD: &str = "One JobManager; TaskExecutors are simulated as in *Takeover*. *Independent*: \
one vertex of 10,000 subtasks, each in its own slot. *Shuffled*: a hundred vertices of 100 subtasks, each of \
which reads from all 100 of the vertex before, in 100 slots. Measured from posting the graph until it is \
acknowledged, until the TaskExecutors have started every task, and until the leader reports all as RUNNING; then \
the job is cancelled, until it is CANCELED. *Decisions*: the CPU time of the JobMaster's core alone for the same \
job, in this process: each of its TaskManagers registers and offers each slot separately, placements are \
durable, and each task is reported RUNNING separately.";

const REPETITIONS: (usize, usize) = (3, 1);
const SUBTASKS: (u32, u32) = (10_000, 1_000);
/// Numbers of TaskExecutors that share the slots.
const TASK_EXECUTORS: ([usize; 2], [usize; 1]) = ([100, 1_000], [10]);
/// Interval of checks whether all tasks run: an answer lists every subtask.
const INTERVAL: Duration = Duration::from_millis(5);
const BOUND: Duration = Duration::from_secs(300);

/// How the subtasks are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Independent,
    Shuffled,
}

impl Shape {
    const ALL: [Shape; 2] = [Shape::Independent, Shape::Shuffled];
    /// Number of vertices of the second shape.
    const STAGES: u32 = 100;

    fn name(self) -> &'static str {
        match self {
            Shape::Independent => "independent",
            Shape::Shuffled => "shuffled",
        }
    }

    fn slots(self, subtasks: u32) -> u32 {
        match self {
            Shape::Independent => subtasks,
            Shape::Shuffled => subtasks / Shape::STAGES,
        }
    }

    fn graph(self, subtasks: u32) -> anyhow::Result<pb::JobGraph> {
        let job = JobBuilder::new(self.name())
            .parallelism(self.slots(subtasks))
            .max_parallelism(subtasks);
        let steps = job.datagen("numbers", Some(1), None, 1, 100);
        let job: StreamGraph = match self {
            Shape::Independent => steps.discard("out").build(),
            Shape::Shuffled => {
                let mut steps = steps;
                for stage in 1..Shape::STAGES {
                    let name = format!("stage-{stage}");
                    let filter = steps.filter(name, "seq", Comparison::Ge, 0);
                    steps = filter.partitioned(Partition::Rebalance);
                }
                steps.discard("out").build()
            }
        };
        Ok(job.compile(&CompileOptions::default())?)
    }
}

pub(super) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let counts: &[usize] = options.pick(&TASK_EXECUTORS.0, &TASK_EXECUTORS.1);
    let most = counts.iter().max().copied().unwrap_or_default();
    proc::allow_open_files(FILES_A_TASK_EXECUTOR * most as u64)?;
    let subtasks = options.pick(SUBTASKS.0, SUBTASKS.1);
    let mut figures = Vec::new();
    for shape in Shape::ALL {
        for &task_executors in counts {
            figures.extend(of_cluster(store, options, shape, subtasks, task_executors).await?);
        }
        let name = format!("{subtasks} {}: decisions", shape.name());
        let mut decisions = Figure::new(name, Unit::Milliseconds);
        let graph = shape.graph(subtasks)?;
        for _ in 0..options.pick(REPETITIONS.0, REPETITIONS.1) {
            let (graph, slots) = (graph.clone(), shape.slots(subtasks));
            let took = tokio::task::spawn_blocking(move || core_time::of(graph, slots, counts[0]));
            decisions.push(milliseconds(took.await??));
        }
        figures.push(decisions);
    }
    Ok(figures)
}

async fn of_cluster(
    store: StoreKind,
    options: &BenchOptions,
    shape: Shape,
    subtasks: u32,
    task_executors: usize,
) -> anyhow::Result<Vec<Figure>> {
    let named = |unit: Unit, what: &str| {
        let shape = shape.name();
        let name = format!("{subtasks} {shape}, {task_executors} TaskExecutors: {what}");
        Figure::new(name, unit)
    };
    let mut acknowledged = named(Unit::Milliseconds, "-> acknowledged");
    let mut started = named(Unit::Milliseconds, "-> all tasks started");
    let mut running = named(Unit::Milliseconds, "-> all RUNNING");
    let mut cpu = named(Unit::Milliseconds, "leader's processor time to there");
    let mut resident = named(Unit::Mebibytes, "leader, resident");
    let mut canceled = named(Unit::Milliseconds, "cancel -> CANCELED");
    let builder = options.cluster(Store::own(store).await?);
    let mut cluster = builder.jobmanagers(1).taskmanagers(0).start().await?;
    let slots = (shape.slots(subtasks) as usize).div_ceil(task_executors);
    let simulated = simulate(&cluster, task_executors, slots).await?;
    let tasks = simulated.tasks();
    let http = Http::default();
    let address = cluster.rest_address(0).to_owned();
    until_registered(&http, &address, task_executors).await?;
    let pid = cluster.jobmanager(0).pid().context("it runs")?;
    for repetition in 0..options.pick(REPETITIONS.0, REPETITIONS.1) {
        let body = prost::Message::encode_to_vec(&shape.graph(subtasks)?);
        let before = proc::total_cpu(pid)?;
        let wanted = (repetition as u64 + 1) * u64::from(subtasks);
        let start = Instant::now();
        let job = http.submit(&address, "", PROTOBUF, body.into()).await?;
        acknowledged.push(milliseconds(start.elapsed()));
        until_started(&tasks, wanted).await?;
        started.push(milliseconds(start.elapsed()));
        until_runs(&http, &address, job).await?;
        running.push(milliseconds(start.elapsed()));
        cpu.push(milliseconds(proc::total_cpu(pid)?.saturating_sub(before)));
        resident.push(mebibytes(proc::memory(pid)?.resident));
        let start = Instant::now();
        http.cancel(&address, job).await?;
        until_canceled(&http, &address, job).await?;
        canceled.push(milliseconds(start.elapsed()));
        until_slots_are_free(&http, &address).await?;
    }
    simulated.kill().await;
    cluster.discard();
    Ok(vec![
        acknowledged,
        started,
        running,
        cpu,
        resident,
        canceled,
    ])
}

async fn until_started(tasks: &TaskCounts, wanted: u64) -> anyhow::Result<()> {
    wait_for_every(INTERVAL, "all tasks to be started", BOUND, async || {
        let started = tasks.started();
        ensure!(started >= wanted, "{started} of {wanted}");
        anyhow::Ok(())
    })
    .await
}

async fn until_runs(http: &Http, address: &str, job: JobId) -> anyhow::Result<()> {
    let path = format!("/v1/jobs/{job}");
    wait_for_every(INTERVAL, "all subtasks to run", BOUND, async || {
        let body = http.get(address, &path).await?;
        ensure!(all_subtasks_run(&body), "not all of {job} runs");
        anyhow::Ok(())
    })
    .await
}

async fn until_canceled(http: &Http, address: &str, job: JobId) -> anyhow::Result<()> {
    let path = format!("/v1/jobs/{job}/status");
    wait_for_every(INTERVAL, "the job to be canceled", BOUND, async || {
        let body = http.get(address, &path).await?;
        ensure!(body["status"] == "CANCELED", "{body}");
        anyhow::Ok(())
    })
    .await
}

async fn until_slots_are_free(http: &Http, address: &str) -> anyhow::Result<()> {
    until("all slots to be free", async || {
        let overview = http.get(address, "/v1/overview").await?;
        let (total, free) = (&overview["slots-total"], &overview["slots-available"]);
        ensure!(total == free, "{overview}");
        Ok(())
    })
    .await
}
