//! Benchmarks: figures of the released program, taken from outside as its users see them.
//!
//! Every cluster here consists of real processes with the program's default settings (unless a method says otherwise) and
//! is thrown away after its figure. Not here: judging a figure. Whoever compares two runs looks at minima and medians and
//! at what else the machine did, which stands next to each figure.

pub mod adopted;
pub mod beside_flink;
pub mod busy;
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

use crate::host::{Host, LoadWatch};
use crate::report::{Figure, Measurement, Report};
use tanist_chaos::builder::ClusterBuilder;
use tanist_chaos::store::{Store, StoreKind};

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Benchmark {
    /// Process start to leading.
    Startup,
    /// Resident memory of idle processes.
    Memory,
    /// The leader's end to the job running again.
    Failover,
    /// The same where the leader is only out of reach.
    Unreachable,
    /// The leader's end with very many jobs and TaskExecutors.
    Takeover,
    /// A healthy cluster on a machine that is kept busy.
    Busy,
    /// Submissions acknowledged a second.
    Submission,
    /// Jobs that are over at once, completed a second.
    ShortJobs,
    /// The leader's end where very many jobs have ended.
    EndedJobs,
    /// One job of very many subtasks.
    Scheduling,
    /// Slots of very many TaskManagers.
    SlotMatching,
    /// Resident memory of a leader with very many jobs.
    LeaderMemory,
    /// A start with many persisted jobs.
    Recovery,
    /// Words counted a second.
    Wordcount,
    /// Records counted by key a second, with nothing read from files.
    KeyedCount,
    /// Tanist and Apache Flink in turns; not made unless it is asked for.
    BesideFlink,
}

impl Benchmark {
    /// All, in the order in which they are made and shown.
    pub const ALL: [Benchmark; 16] = [
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
        Benchmark::BesideFlink,
    ];

    /// Those of a run that names none.
    pub fn by_default() -> Vec<Benchmark> {
        let mut all = Benchmark::ALL.to_vec();
        all.retain(|benchmark| !matches!(benchmark, Benchmark::Busy | Benchmark::BesideFlink));
        all
    }

    /// As the command line has it.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// As a heading.
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
            Benchmark::BesideFlink => "Beside Flink",
        }
    }

    /// How it is measured, in a paragraph.
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
            Benchmark::BesideFlink => beside_flink::METHOD,
        }
    }

    /// Whether the store makes a difference: what does not touch it is measured on one only.
    fn depends_on_store(self) -> bool {
        !matches!(
            self,
            Benchmark::Wordcount | Benchmark::KeyedCount | Benchmark::SlotMatching
        )
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// The released program.
    pub program: PathBuf,
    /// How this run was called, for the report.
    pub command: String,
    /// Which benchmarks.
    pub benchmarks: Vec<Benchmark>,
    /// On which stores.
    pub stores: Vec<StoreKind>,
    /// Fewer repetitions and smaller inputs: to see that everything works.
    pub quick: bool,
    /// The folder with Flink in it, as set-up leaves it.
    pub flink: Option<PathBuf>,
    /// How long the machine is kept busy; else 30 minutes.
    pub minutes: Option<u64>,
    /// With how many jobs leadership is taken over, else 1,000 and 10,000; and how many a leader's memory holds, else 10,000.
    pub jobs: Vec<usize>,
}

impl BenchOptions {
    /// A number for full runs and one for quick ones.
    fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// A cluster with default settings.
    fn cluster(&self, store: Store) -> ClusterBuilder {
        ClusterBuilder::new(&self.program, store).with_default_settings()
    }
}

/// Measures one after the other; a benchmark that fails is told as such, and the others go on.
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
        Benchmark::BesideFlink => Box::pin(beside_flink::measure(options)).await,
    }
}
