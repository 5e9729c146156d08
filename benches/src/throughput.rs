//! Records per second through a job, and the CPU time of a million of them.

use std::time::Duration;

use anyhow::Context as _;
use tanist_chaos::cluster::Cluster;
use tanist_chaos::store::{Store, StoreKind};
use tanist_chaos::wordcount::{check_counts, read_output};
use tokio::time::Instant;

use crate::http::Http;
use crate::jobs::{self, KEYED_COUNT, WORDCOUNT};
use crate::memory::mebibytes;
use crate::report::Figure;
use crate::samples::Unit;
use crate::watch::until_finished;
use crate::{BenchOptions, proc, text};

pub(super) const WORDCOUNT_METHOD: &str = "`examples/wordcount.yaml` over 4 local files of 50 MB (50,000 \
different words, distributed by Zipf's law; in the page cache), one TaskManager, restarted for each run; the \
result is checked. From the submission's acknowledgement until the job is seen FINISHED, with files written and \
renamed. A record is a word. *Per core*: words divided by the TaskManager's CPU time.";

pub(super) const KEYED_COUNT_METHOD: &str = "`datagen` (unthrottled, 1000 keys) -> key-by -> count with each \
update emitted -> discard, one TaskManager of 2 slots, parallelism 2, a fixed number of records, from the \
submission's acknowledgement until the job is seen FINISHED.";

const REPETITIONS: (usize, usize) = (5, 1);
const FILES: usize = 4;
const FILE_BYTES: (u64, u64) = (50_000_000, 2_000_000);
const PARALLELISMS: [u32; 2] = [1, 2];
const RECORDS: (u64, u64) = (50_000_000, 1_000_000);

pub(super) async fn wordcount(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let directory = tempfile::Builder::new().prefix("tanist-bench-").tempdir()?;
    let input = directory.path().join("input");
    let bytes = options.pick(FILE_BYTES.0, FILE_BYTES.1);
    let counts = text::write(&input, FILES, bytes)?;
    let words: u64 = counts.values().sum();
    let mut figures = Vec::new();
    for parallelism in PARALLELISMS {
        let name = |what: &str| format!("parallelism {parallelism}: {what}");
        let mut rate = Figure::new(name("words"), Unit::MillionsPerSecond);
        let mut per_core = Figure::new(name("words per core"), Unit::MillionsPerSecond);
        let mut resident = Figure::new(name("TaskManager, resident"), Unit::Mebibytes);
        for repetition in 0..options.pick(REPETITIONS.0, REPETITIONS.1) {
            let output = directory
                .path()
                .join(format!("output-{parallelism}-{repetition}"));
            let pattern = input.join("*.txt");
            let parameters = [
                ("input", &*pattern.to_string_lossy()),
                ("output", &*output.to_string_lossy()),
            ];
            let mut cluster = start(store, options).await?;
            let ran = run(&mut cluster, WORDCOUNT, parallelism, &parameters).await?;
            rate.push(words as f64 / 1e6 / ran.elapsed.as_secs_f64());
            per_core.push(words as f64 / 1e6 / ran.cpu.as_secs_f64());
            resident.push(mebibytes(ran.resident));
            cluster.discard();
            check_counts(&counts, &read_output(&output)?)?;
        }
        figures.extend([rate, per_core, resident]);
    }
    Ok(figures)
}

pub(super) async fn keyed_count(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let records = options.pick(RECORDS.0, RECORDS.1);
    let millions = records as f64 / 1e6;
    let mut rate = Figure::new("parallelism 2: records", Unit::MillionsPerSecond);
    let mut cost = Figure::new("parallelism 2: cost", Unit::CpuSecondsPerMillion);
    let mut resident = Figure::new("parallelism 2: TaskManager, resident", Unit::Mebibytes);
    for _ in 0..options.pick(REPETITIONS.0, REPETITIONS.1) {
        let mut cluster = start(store, options).await?;
        let count = records.to_string();
        let ran = run(&mut cluster, KEYED_COUNT, 2, &[("count", &count)]).await?;
        rate.push(millions / ran.elapsed.as_secs_f64());
        cost.push(ran.cpu.as_secs_f64() / millions);
        resident.push(mebibytes(ran.resident));
        cluster.discard();
    }
    Ok(vec![rate, cost, resident])
}

async fn start(store: StoreKind, options: &BenchOptions) -> anyhow::Result<Cluster> {
    let builder = options.cluster(Store::shared(store).await?);
    builder
        .jobmanagers(1)
        .taskmanagers(1)
        .slots(2)
        .start()
        .await
}

struct Ran {
    elapsed: Duration,
    cpu: Duration,
    resident: u64,
}

async fn run(
    cluster: &mut Cluster,
    file: &'static str,
    parallelism: u32,
    parameters: &[(&str, &str)],
) -> anyhow::Result<Ran> {
    let http = Http::default();
    let leader = cluster.leader().await?;
    let pid = cluster.taskmanager(0).pid().context("it runs")?;
    let before = proc::total_cpu(pid)?;
    let job = jobs::submit(&http, &leader.rest, file, parallelism, parameters).await?;
    let start = Instant::now();
    until_finished(&http, &leader.rest, job).await?;
    let elapsed = start.elapsed();
    Ok(Ran {
        elapsed,
        cpu: proc::total_cpu(pid)?.saturating_sub(before),
        resident: proc::memory(pid)?.resident,
    })
}
