//! A large state in memory: how long a task stands still for a checkpoint, how much of the state each writes, and how
//! long the state takes to be restored.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::store::{Store, StoreKind};
use tanist_proto::id::JobId;
use tokio::time::{Instant, sleep};

use super::recovery::{checkpoints, host_of_tasks, restarts_soon, until_restored};
use super::{LOOK_EACH, Setup};
use crate::BenchOptions;
use crate::http::Http;
use crate::jobs::{self, CHECKPOINTED_COUNT};
use crate::memory::mebibytes;
use crate::proc;
use crate::report::Figure;
use crate::samples::Unit;
use crate::watch::until_running;

pub(crate) const METHOD: &str = "One subtask counts keys that are drawn at random, with a checkpoint each \
second. What `summary` of `/checkpoints/details/N/subtasks/V` says once 95 % of the keys are there; then SIGKILL of its \
TaskManager, beside one with a free slot, with restarts after 100 ms.";

/// Keys, records a second, and how long they are drawn before anything is measured: 95 % of the keys are there then.
const KEYS: (u64, u64) = (23_000_000, 300_000);
const RATE: (u64, u64) = (230_000, 100_000);
const FILLED: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(9));
const WATCHED: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(4));
const RESTORES: (usize, usize) = (3, 1);
/// Interval of requests during a restore. More requests would take a part of the cores, all of which load the state.
const ASKED_EACH: Duration = Duration::from_millis(20);

/// The part of the counting step in one checkpoint.
struct Taken {
    /// Time in which the task did nothing else.
    stood_still_ms: f64,
    written: f64,
}

pub(crate) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let setup = &Setup::new(options)?;
    let (keys, rate) = (setup.pick(KEYS.0, KEYS.1), setup.pick(RATE.0, RATE.1));
    let name = |what: &str| format!("{keys} keys, {rate} of them drawn a second: {what}");
    let mut stood_still = Figure::new(name("task stands still"), Unit::Milliseconds);
    let mut written = Figure::new(name("written a checkpoint"), Unit::Mebibytes);
    let mut state = Figure::new(name("state in objects"), Unit::Mebibytes);
    let mut memory = Figure::new(name("TaskManager, resident"), Unit::Mebibytes);
    let mut restored = Figure::new(
        name("TaskManager SIGKILL, spare slot: -> RUNNING, restored"),
        Unit::Milliseconds,
    );
    let builder = setup.cluster(Store::own(store).await?).slots(1);
    let builder = restarts_soon(builder);
    let mut cluster = builder.jobmanagers(1).taskmanagers(2).start().await?;
    let http = Http::default();
    let address = cluster.rest_address(0).to_owned();
    let parameters = [
        ("count", "100000000000"),
        ("keys", &*keys.to_string()),
        ("interval", "1s"),
        ("rate", &*rate.to_string()),
    ];
    let job = jobs::submit(&http, &address, CHECKPOINTED_COUNT, 1, &parameters).await?;
    until_running(&http, &address, job).await?;
    sleep(setup.pick(FILLED.0, FILLED.1)).await;
    let vertex = counting_vertex(&http, &address, job).await?;
    let mut taken = BTreeMap::new();
    let until = Instant::now() + setup.pick(WATCHED.0, WATCHED.1);
    while Instant::now() < until {
        sleep(LOOK_EACH).await;
        let body = checkpoints(&http, &address, job).await?;
        let newest = &body["latest"]["completed"];
        let number = newest["id"].as_u64().context("a checkpoint")?;
        let size = newest["state_size"].as_f64().context("a size")?;
        state.push(size / f64::from(1 << 20));
        taken.insert(
            number,
            at_vertex(&http, &address, job, number, &vertex).await?,
        );
    }
    for it in taken.values() {
        stood_still.push(it.stood_still_ms);
        written.push(it.written / f64::from(1 << 20));
    }
    for _ in 0..setup.pick(RESTORES.0, RESTORES.1) {
        let victim = host_of_tasks(&http, &mut cluster).await?;
        let pid = cluster.taskmanager(victim).pid().context("it runs")?;
        memory.push(mebibytes(proc::memory(pid)?.resident));
        let took = until_restored(&http, &mut cluster, job, victim, ASKED_EACH).await?;
        restored.push(took);
        cluster.taskmanager(victim).start()?;
        cluster.wait_until_complete().await?;
        sleep(5 * LOOK_EACH).await;
    }
    cluster.discard();
    Ok(vec![stood_still, written, state, memory, restored])
}

async fn counting_vertex(http: &Http, address: &str, job: JobId) -> anyhow::Result<String> {
    let body = http.get(address, &format!("/v1/jobs/{job}")).await?;
    let vertices = body["vertices"].as_array().context("vertices")?;
    let counts = |it: &&Value| {
        it["name"]
            .as_str()
            .is_some_and(|name| name.contains("counts"))
    };
    let vertex = vertices
        .iter()
        .find(counts)
        .context("the step that counts")?;
    Ok(vertex["id"].as_str().context("an id")?.to_owned())
}

async fn at_vertex(
    http: &Http,
    address: &str,
    job: JobId,
    number: u64,
    vertex: &str,
) -> anyhow::Result<Taken> {
    let path = format!("/v1/jobs/{job}/checkpoints/details/{number}/subtasks/{vertex}");
    let body = http.get(address, &path).await?;
    let summary = &body["summary"];
    ensure!(body["num_acknowledged_subtasks"] == 1, "{body}");
    let stood_still_ms = summary["checkpoint_duration"]["sync"]["max"].as_f64();
    let written = summary["checkpointed_size"]["max"].as_f64();
    Ok(Taken {
        stood_still_ms: stood_still_ms.context("a duration")?,
        written: written.context("a size")?,
    })
}
