//! The cost of checkpoints, the time for one, and the recovery with checkpoints. Each measurement has a cluster of its
//! own.

pub(crate) mod large_state;
pub(crate) mod many_subtasks;
mod recovery;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_chaos::ClusterBuilder;
use tanist_chaos::cluster::Cluster;
use tanist_chaos::store::{Store, StoreKind};
use tanist_proto::id::JobId;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::BenchOptions;
use crate::http::Http;
use crate::jobs::{self, CHECKPOINTED_COUNT, UNTHROTTLED};
use crate::memory::mebibytes;
use crate::proc;
use crate::report::Figure;
use crate::samples::{self, Unit};
use crate::watch::{until_finished, until_running};

pub(super) const METHOD: &str = "`datagen` (unthrottled) -> key-by -> count with each update emitted -> discard, one \
TaskManager of 2 slots, parallelism 2, a fixed number of records; in turns with an interval that \
never ends and with one each second. *Cost*: CPU time of the TaskManager. *Trigger to durable*: of each \
checkpoint of a job of 20,000 records a \
second, one each 200 ms, as `/checkpoints` says. *Puts a checkpoint*: what etcd counts meanwhile \
(`etcd_mvcc_put_total`), everything that the cluster writes included; *store*: the growth of its file \
(`etcd_mvcc_db_total_size_in_bytes`), with no compaction. *Leader*: SIGKILL while a checkpoint of that job is \
in progress, until one of at least its number is durable; no task may be restarted. *TaskManager*: SIGKILL of the one \
with all tasks, beside one with free slots, with restarts after 100 ms.";

const REPETITIONS: (usize, usize) = (3, 1);
const RECORDS: (u64, u64) = (100_000_000, 2_000_000);
const KEYS: [u64; 2] = [1_000, 100_000];
/// Interval of a job that takes no checkpoint while it runs.
const NEVER: &str = "1d";
const WATCHED: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(4));
const LOOK_EACH: Duration = Duration::from_millis(1_000);

/// The common settings of all clusters of this benchmark.
struct Setup<'o> {
    options: &'o BenchOptions,
    /// The directory of objects. Without it a state above 64 KiB could not be saved.
    objects: TempDir,
}

impl Setup<'_> {
    fn new(options: &BenchOptions) -> anyhow::Result<Setup<'_>> {
        let objects = tempfile::tempdir()?;
        Ok(Setup { options, objects })
    }

    fn cluster(&self, store: Store) -> ClusterBuilder {
        let objects = self.objects.path().to_string_lossy();
        let builder = self.options.cluster(store);
        let builder = builder.set("high-availability.storageDir", &objects);
        builder.set("high-availability.storage-shared", "true")
    }

    fn pick<T>(&self, full: T, quick: T) -> T {
        self.options.pick(full, quick)
    }
}

pub(super) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let setup = &Setup::new(options)?;
    let mut figures = Vec::new();
    for keys in KEYS {
        figures.extend(shown(cost(store, setup, keys).await?));
    }
    for keys in KEYS {
        figures.extend(shown(durations(store, setup, keys).await?));
    }
    figures.extend(shown(recovery::of_leader(store, setup).await?));
    figures.extend(shown(recovery::of_taskmanager(store, setup).await?));
    Ok(figures)
}

/// Prints the figures of a part as soon as it is done: the next one may take minutes, or fail.
fn shown(figures: Vec<Figure>) -> Vec<Figure> {
    for Figure {
        what,
        unit,
        samples,
    } in &figures
    {
        let (count, all) = (samples.all().len(), samples);
        let numbers = [all.min(), all.median(), all.quantile(0.99), all.max()];
        let numbers = numbers.map(Option::unwrap_or_default);
        let [min, median, p99, max] = numbers.map(samples::shown);
        eprintln!("{what} ({unit}): n {count}, min {min}, median {median}, p99 {p99}, max {max}");
    }
    figures
}

async fn start(store: Store, setup: &Setup<'_>) -> anyhow::Result<Cluster> {
    let builder = setup.cluster(store).jobmanagers(1).taskmanagers(1);
    builder.slots(2).start().await
}

/// CPU time and memory of the TaskManager, without and with checkpoints.
async fn cost(store: StoreKind, setup: &Setup<'_>, keys: u64) -> anyhow::Result<Vec<Figure>> {
    let records = setup.pick(RECORDS.0, RECORDS.1);
    let variants = [("without", NEVER), ("each second", "1s")];
    let mut figures = Vec::new();
    for (name, _) in variants {
        let figure = |what: &str, unit| Figure::new(format!("{keys} keys, {name}: {what}"), unit);
        figures.push(figure("cost", Unit::CpuSecondsPerMillion));
        figures.push(figure("TaskManager, peak", Unit::Mebibytes));
    }
    for _ in 0..setup.pick(REPETITIONS.0, REPETITIONS.1) {
        for (variant, (_, interval)) in variants.into_iter().enumerate() {
            let mut cluster = start(Store::shared(store).await?, setup).await?;
            let http = Http::default();
            let leader = cluster.leader().await?;
            let pid = cluster.taskmanager(0).pid().context("it runs")?;
            let before = proc::total_cpu(pid)?;
            let (count, keys) = (records.to_string(), keys.to_string());
            let parameters = [
                ("count", &*count),
                ("keys", &*keys),
                ("interval", interval),
                ("rate", UNTHROTTLED),
            ];
            let rest = &leader.rest;
            let job = jobs::submit(&http, rest, CHECKPOINTED_COUNT, 2, &parameters).await?;
            until_finished(&http, rest, job).await?;
            let cpu = proc::total_cpu(pid)?.saturating_sub(before);
            figures[2 * variant].push(cpu.as_secs_f64() / (records as f64 / 1e6));
            figures[2 * variant + 1].push(mebibytes(proc::memory(pid)?.peak));
            cluster.discard();
        }
    }
    Ok(figures)
}

/// A checkpoint that is durable.
struct Completed {
    /// From the trigger, in milliseconds.
    took: f64,
    bytes: f64,
}

/// Collects the job's complete checkpoints by their numbers, until `until`.
async fn watch(
    http: &Http,
    address: &str,
    job: JobId,
    until: Instant,
) -> anyhow::Result<BTreeMap<u64, Completed>> {
    let path = format!("/v1/jobs/{job}/checkpoints");
    let mut completed = BTreeMap::new();
    while Instant::now() < until {
        sleep(LOOK_EACH).await;
        let checkpoints = http.get(address, &path).await?;
        for checkpoint in checkpoints["history"].as_array().into_iter().flatten() {
            if checkpoint["status"] == "COMPLETED" {
                let number = checkpoint["id"].as_u64().context("a number")?;
                let took = checkpoint["end_to_end_duration"].as_f64();
                let bytes = checkpoint["state_size"].as_f64();
                let it = Completed {
                    took: took.context("a duration")?,
                    bytes: bytes.context("a size")?,
                };
                completed.insert(number, it);
            }
        }
    }
    ensure!(!completed.is_empty(), "no checkpoint is complete");
    Ok(completed)
}

/// Metrics of etcd.
struct EtcdMetrics {
    puts: f64,
    bytes: f64,
}

async fn etcd_metrics(http: &Http, address: &str) -> anyhow::Result<EtcdMetrics> {
    let text = http.text(address, "/metrics").await?;
    let value = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
        let value = lines.find_map(|rest| rest.strip_prefix(' '));
        let value = value.with_context(|| format!("etcd has no {name}"))?;
        anyhow::Ok(value.parse()?)
    };
    Ok(EtcdMetrics {
        puts: value("etcd_mvcc_put_total")?,
        bytes: value("etcd_mvcc_db_total_size_in_bytes")?,
    })
}

/// How long checkpoints take from their trigger until they are durable, and what they write to the store.
async fn durations(store: StoreKind, setup: &Setup<'_>, keys: u64) -> anyhow::Result<Vec<Figure>> {
    let name = |what: &str| format!("{keys} keys: {what}");
    let mut duration = Figure::new(name("trigger to durable"), Unit::Milliseconds);
    let mut size = Figure::new(name("state"), Unit::Kibibytes);
    let own = Store::own(store).await?;
    let endpoint = own.endpoint().to_owned();
    let is_etcd = store == StoreKind::Etcd;
    let mut cluster = start(own, setup).await?;
    let http = Http::default();
    let leader = cluster.leader().await?;
    let keys_text = keys.to_string();
    let parameters = [
        ("count", "100000000"),
        ("keys", &*keys_text),
        ("interval", "200ms"),
        ("rate", "20000"),
    ];
    let rest = &leader.rest;
    let job = jobs::submit(&http, rest, CHECKPOINTED_COUNT, 2, &parameters).await?;
    until_running(&http, rest, job).await?;
    let before = match is_etcd {
        true => Some(etcd_metrics(&http, &endpoint).await?),
        false => None,
    };
    let until = Instant::now() + setup.pick(WATCHED.0, WATCHED.1);
    let completed = watch(&http, rest, job, until).await?;
    for Completed { took, bytes } in completed.values() {
        duration.push(*took);
        size.push(bytes / 1024.0);
    }
    let mut figures = vec![duration, size];
    if let Some(before) = before {
        let after = etcd_metrics(&http, &endpoint).await?;
        let count = completed.len() as f64;
        let mut puts = Figure::new(name("puts a checkpoint"), Unit::Count);
        puts.push((after.puts - before.puts) / count);
        let mut growth = Figure::new(name("store, a checkpoint"), Unit::Kibibytes);
        growth.push((after.bytes - before.bytes) / 1024.0 / count);
        figures.extend([puts, growth]);
    }
    cluster.discard();
    Ok(figures)
}
