//! Benchmarks: figures of the released program, measured from outside as users see it.
//!
//! Every cluster consists of real processes with the program's default settings (unless a method says
//! otherwise) and is removed after its figure. Not here: the assessment of figures. To compare two runs,
//! look at minima and medians, and at the load by other processes, which is printed next to each figure.

pub mod adopted;
pub mod beside_flink;
pub mod busy;
pub mod checkpoints;
pub mod core_time;
pub mod ended_jobs;
pub mod failover;
pub mod host;
pub mod http;
pub mod jobs;
pub mod leader_memory;
pub mod memory;
pub mod phases;
pub mod proc;
pub mod recovery;
pub mod report;
pub mod samples;
pub mod scheduling;
pub mod short_jobs;
pub mod simulated;
pub mod slot_matching;
pub mod startup;
pub mod stream;
pub mod submission;
pub mod takeover;
pub mod text;
pub mod throughput;
pub mod unreachable;
pub mod watch;

use std::path::PathBuf;

use clap::ValueEnum;
use tanist_chaos::builder::ClusterBuilder;
use tanist_chaos::store::{Store, StoreKind};

use crate::host::{Host, LoadWatch};
use crate::report::{Figure, Measurement, Report};

/// A benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Benchmark {
    /// Time from the start of a process until it leads.
    Startup,
    /// Resident memory of idle processes.
    Memory,
    /// Time from the leader's end until the job runs again.
    Failover,
    /// The same for a leader that is only unreachable.
    Unreachable,
    /// The leader's end with very many jobs and TaskExecutors.
    Takeover,
    /// A healthy cluster on an overloaded machine.
    Busy,
    /// Acknowledged submissions per second.
    Submission,
    /// Completed jobs per second, for jobs that end at once.
    ShortJobs,
    /// The leader's end with very many ended jobs.
    EndedJobs,
    /// One job with very many subtasks.
    Scheduling,
    /// Slot matching with very many TaskManagers.
    SlotMatching,
    /// Resident memory of a leader with very many jobs.
    LeaderMemory,
    /// A start with many persisted jobs.
    Recovery,
    /// Counted words per second.
    Wordcount,
    /// Records counted by key per second, without reading files.
    KeyedCount,
    /// The cost of checkpoints, and how long one takes.
    Checkpoints,
    /// Checkpoints and the restore of a state of about 1 GiB.
    LargeState,
    /// Checkpoints of a job with very many subtasks.
    ManySubtasks,
    /// Tanist and Apache Flink in turns; only on request.
    BesideFlink,
}

impl Benchmark {
    /// All benchmarks, in the order in which they are run and shown.
    pub const ALL: [Benchmark; 19] = [
        Benchmark::Startup,
        Benchmark::Memory,
        Benchmark::Failover,
        Benchmark::Unreachable,
        Benchmark::Takeover,
        Benchmark::Busy,
        Benchmark::Submission,
        Benchmark::ShortJobs,
        Benchmark::EndedJobs,
        Benchmark::Scheduling,
        Benchmark::SlotMatching,
        Benchmark::LeaderMemory,
        Benchmark::Recovery,
        Benchmark::Wordcount,
        Benchmark::KeyedCount,
        Benchmark::Checkpoints,
        Benchmark::LargeState,
        Benchmark::ManySubtasks,
        Benchmark::BesideFlink,
    ];

    /// The benchmarks of a run that selects none.
    pub fn by_default() -> Vec<Benchmark> {
        let mut all = Benchmark::ALL.to_vec();
        all.retain(|benchmark| !matches!(benchmark, Benchmark::Busy | Benchmark::BesideFlink));
        all
    }

    /// The name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The heading.
    pub fn title(self) -> &'static str {
        match self {
            Benchmark::Startup => "Start-up",
            Benchmark::Memory => "Memory",
            Benchmark::Failover => "Failover",
            Benchmark::Unreachable => "Unreachable leader",
            Benchmark::Takeover => "Takeover",
            Benchmark::Busy => "Busy machine",
            Benchmark::Submission => "Submission",
            Benchmark::ShortJobs => "Short jobs",
            Benchmark::EndedJobs => "Ended jobs",
            Benchmark::Scheduling => "Scheduling",
            Benchmark::SlotMatching => "Slot matching",
            Benchmark::LeaderMemory => "Memory of a leader",
            Benchmark::Recovery => "Recovery",
            Benchmark::Wordcount => "Word count",
            Benchmark::KeyedCount => "Keyed count",
            Benchmark::Checkpoints => "Checkpoints",
            Benchmark::LargeState => "Large state",
            Benchmark::ManySubtasks => "Checkpoints of many subtasks",
            Benchmark::BesideFlink => "Beside Flink",
        }
    }

    /// The method of measurement, in one paragraph.
    pub fn method(self) -> &'static str {
        match self {
            Benchmark::Startup => startup::METHOD,
            Benchmark::Memory => memory::METHOD,
            Benchmark::Failover => failover::METHOD,
            Benchmark::Unreachable => unreachable::METHOD,
            Benchmark::Takeover => takeover::METHOD,
            Benchmark::Busy => busy::METHOD,
            Benchmark::Submission => submission::METHOD,
            Benchmark::ShortJobs => short_jobs::METHOD,
            Benchmark::EndedJobs => ended_jobs::METHOD,
            Benchmark::Scheduling => scheduling::METHOD,
            Benchmark::SlotMatching => slot_matching::METHOD,
            Benchmark::LeaderMemory => leader_memory::METHOD,
            Benchmark::Recovery => recovery::METHOD,
            Benchmark::Wordcount => throughput::WORDCOUNT_METHOD,
            Benchmark::KeyedCount => throughput::KEYED_COUNT_METHOD,
            Benchmark::Checkpoints => checkpoints::METHOD,
            Benchmark::LargeState => checkpoints::large_state::METHOD,
            Benchmark::ManySubtasks => checkpoints::many_subtasks::METHOD,
            Benchmark::BesideFlink => beside_flink::METHOD,
        }
    }

    /// Whether the result depends on the store. Other benchmarks run on one store only.
    fn depends_on_store(self) -> bool {
        !matches!(
            self,
            Benchmark::Wordcount | Benchmark::KeyedCount | Benchmark::SlotMatching
        )
    }
}

/// Options of a run.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// The released program.
    pub program: PathBuf,
    /// The command line of this run, for the report.
    pub command: String,
    /// The benchmarks to run.
    pub benchmarks: Vec<Benchmark>,
    /// The stores to run them on.
    pub stores: Vec<StoreKind>,
    /// Fewer repetitions and smaller inputs, as a smoke test.
    pub quick: bool,
    /// The folder that contains Flink, as set-up creates it.
    pub flink: Option<PathBuf>,
    /// Duration of the load in `busy`; default: 30 minutes.
    pub minutes: Option<u64>,
    /// Numbers of jobs for takeovers, default 1,000 and 10,000; and for the leader's memory, default 10,000.
    pub jobs: Vec<usize>,
}

impl BenchOptions {
    /// Chooses between a value for full runs and one for quick runs.
    fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// A cluster with default settings.
    fn cluster(&self, store: Store) -> ClusterBuilder {
        ClusterBuilder::new(&self.program, store).with_default_settings()
    }
}

/// Runs the benchmarks one after another. A failed benchmark is reported, and the others continue.
pub async fn run(options: &BenchOptions) -> anyhow::Result<Report> {
    let mut report = Report {
        host: Host::look(&options.program)?,
        command: options.command.clone(),
        measurements: Vec::new(),
        failures: Vec::new(),
    };
    for benchmark in &options.benchmarks {
        let stores = match (benchmark.depends_on_store(), options.stores.first()) {
            (false, Some(first)) => vec![*first],
            (true, _) | (false, None) => options.stores.clone(),
        };
        for store in stores {
            eprintln!("{} on {store} ...", benchmark.name());
            let watch = LoadWatch::start();
            match measure(*benchmark, store, options).await {
                Ok(figures) => report.measurements.push(Measurement {
                    benchmark: *benchmark,
                    store,
                    load: watch.stop(),
                    figures,
                }),
                Err(error) => {
                    let failure = format!("{} on {store}: {error:#}", benchmark.name());
                    eprintln!("failed: {failure}");
                    report.failures.push(failure);
                }
            }
        }
    }
    Ok(report)
}

async fn measure(
    benchmark: Benchmark,
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    match benchmark {
        Benchmark::Startup => Box::pin(startup::measure(store, options)).await,
        Benchmark::Memory => Box::pin(memory::measure(store, options)).await,
        Benchmark::Failover => Box::pin(failover::measure(store, options)).await,
        Benchmark::Unreachable => Box::pin(unreachable::measure(store, options)).await,
        Benchmark::Takeover => Box::pin(takeover::measure(store, options)).await,
        Benchmark::Busy => Box::pin(busy::measure(store, options)).await,
        Benchmark::Submission => Box::pin(submission::measure(store, options)).await,
        Benchmark::ShortJobs => Box::pin(short_jobs::measure(store, options)).await,
        Benchmark::EndedJobs => Box::pin(ended_jobs::measure(store, options)).await,
        Benchmark::Scheduling => Box::pin(scheduling::measure(store, options)).await,
        Benchmark::SlotMatching => slot_matching::measure(options).await,
        Benchmark::LeaderMemory => Box::pin(leader_memory::measure(store, options)).await,
        Benchmark::Recovery => Box::pin(recovery::measure(store, options)).await,
        Benchmark::Wordcount => Box::pin(throughput::wordcount(store, options)).await,
        Benchmark::KeyedCount => Box::pin(throughput::keyed_count(store, options)).await,
        Benchmark::Checkpoints => Box::pin(checkpoints::measure(store, options)).await,
        Benchmark::LargeState => Box::pin(checkpoints::large_state::measure(store, options)).await,
        Benchmark::ManySubtasks => {
            Box::pin(checkpoints::many_subtasks::measure(store, options)).await
        }
        Benchmark::BesideFlink => Box::pin(beside_flink::measure(options)).await,
    }
}
