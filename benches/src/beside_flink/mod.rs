//! Compares Tanist and Apache Flink on one machine in one run, in turns: start time, memory, throughput,
//! recovery from the loss of the leader and of a worker, and savepoints.
//!
//! Both use the same ZooKeeper for high availability, and the jobs process the same records. How the clusters are
//! started and asked is in `flink_cluster` and `tanist_cluster`.

mod flink_cluster;
mod restores;
mod tanist_cluster;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::wait::wait_for_every;
use tanist_ha::zookeeper::test_servers::{ZooKeeperServer, ZooKeeperServerOptions};
use tokio::time::Instant;

use self::flink_cluster::FlinkCluster;
use self::restores::Restores;
use self::tanist_cluster::TanistCluster;
use crate::BenchOptions;
use crate::host::milliseconds;
use crate::memory::mebibytes;
use crate::proc;
use crate::report::Figure;
use crate::samples::Unit;
use crate::watch::{BOUND, all_subtasks_run};

pub(super) const METHOD: &str = "Tanist and Apache Flink 2.3 (session cluster of the jars on PyPI, Java options \
as its own scripts compute them for the stock sizes) in turns, on one ZooKeeper server. Two JobManagers and one \
worker of 2 slots, restarted for each turn. *Leads*: from the start of the first JobManager until its REST \
server reports that it leads. *Idle*: resident memory 10 s after all processes are registered. *Count*: 50 \
million records of 1,000 keys, the same numbers in both, generated -> by key -> counted with each update emitted \
-> discarded, at parallelism 2, in Flink with object reuse; from the acknowledgement until \
the job is seen FINISHED. *A CPU second* is one second of user and system time of all JobManagers and workers \
together. The *first* count runs in new processes and takes no checkpoint, the *second* follows in the same ones, the \
*third* takes one each second. *SIGKILL*: of the leader, with an endless job of 2,000 records per second and a \
checkpoint each second, until the next leader has every subtask RUNNING. *Worker SIGKILL*: of the one with all tasks \
of that job, beside another one with free slots, until the job was restored and every subtask is RUNNING. *Stop*: \
from the request until the location of the savepoint is known. *Start*: from the request until every subtask is \
RUNNING. Tanist always uses its defaults. Flink uses *short timeouts*: ZooKeeper \
session and heartbeat timeout of 2 s, heartbeats every 500 ms, restarts after 100 ms; or its *defaults*, with a \
ZooKeeper server in its default configuration (ticks of 2 s, so that it grants a session of 40 s).";

const ROUNDS: (usize, usize) = (3, 1);
const KILLS: (usize, usize) = (5, 1);
/// Each kill takes about a minute.
const KILLS_WITH_DEFAULTS: (usize, usize) = (2, 1);
const RECORDS: (u64, u64) = (50_000_000, 1_000_000);
const IDLE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(2));
/// Records per second of the endless job.
const RATE: u64 = 2_000;
/// Interval of checks of the counting job: long, because each check costs both systems time.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of checks for an event that is expected soon.
const SOON: Duration = Duration::from_millis(10);
/// The tick of ZooKeeper's own configuration.
const STOCK_TICK: Duration = Duration::from_secs(2);

/// One of the two systems.
trait System: Sized {
    /// The name in figures.
    const NAME: &'static str;

    /// Prepares a cluster without starting a process.
    async fn prepare(
        options: &BenchOptions,
        timeouts: Timeouts,
        zookeeper: &str,
    ) -> anyhow::Result<Self>;
    /// Starts the first JobManager and waits until it leads.
    async fn start_leader(&mut self) -> anyhow::Result<()>;
    /// Starts the other JobManager and a worker, and waits until its slots are registered.
    async fn start_the_rest(&mut self) -> anyhow::Result<()>;
    /// Starts another worker, and waits until its slots are registered.
    async fn start_spare_worker(&mut self) -> anyhow::Result<()>;
    /// The process ids of the leader, the standby and the worker.
    fn pids(&mut self) -> anyhow::Result<[u32; 3]>;
    /// Submits a job that counts this number of records, and takes a checkpoint each second or none; returns once the
    /// job is acknowledged.
    async fn submit_count(&mut self, records: u64, with_checkpoints: bool) -> anyhow::Result<()>;
    /// Submits the endless job, which takes a checkpoint each second, and may begin from a savepoint.
    async fn submit_endless(&mut self, rate: u64, savepoint: Option<&str>) -> anyhow::Result<()>;
    /// What a JobManager answers to `GET` of a path.
    async fn get(&self, jobmanager: usize, path: &str) -> anyhow::Result<Value>;
    /// The same of the first one, for a path below that of the job that was submitted last.
    async fn get_of_job(&self, path: &str) -> anyhow::Result<Value>;
    /// The same for `POST`.
    async fn post_of_job(&self, path: &str, body: &Value) -> anyhow::Result<Value>;
    /// A directory for savepoints, an absolute path or a URL.
    fn savepoints(&self) -> String;
    /// Sends SIGKILL to the worker that was started first.
    fn kill_worker(&mut self) -> anyhow::Result<()>;
    /// Sends SIGKILL to the leader.
    fn kill_leader(&mut self) -> anyhow::Result<()>;
    /// Waits until the endless job runs again under the next leader.
    async fn until_running_again(&mut self) -> anyhow::Result<()>;
    /// Ends all processes.
    fn end(self);
}

/// The timeouts of Flink; Tanist uses its defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timeouts {
    /// The shortest timeouts that work.
    Short,
    /// Flink's defaults.
    Default,
}

impl Timeouts {
    fn name(self) -> &'static str {
        match self {
            Timeouts::Short => "short timeouts",
            Timeouts::Default => "default timeouts",
        }
    }
}

pub(super) async fn measure(options: &BenchOptions) -> anyhow::Result<Vec<Figure>> {
    options
        .flink
        .as_ref()
        .context("Flink is not there: `cargo xtask bench --beside-flink` brings it")?;
    let mut figures = Vec::new();
    let server = ZooKeeperServer::start(ZooKeeperServerOptions::default()).await?;
    let zookeeper = server.endpoint();
    let mut ours = Rounds::of::<TanistCluster>();
    let mut theirs = Rounds::of::<FlinkCluster>();
    let mut our_restores = Restores::of::<TanistCluster>();
    let mut their_restores = Restores::of::<FlinkCluster>();
    for _ in 0..options.pick(ROUNDS.0, ROUNDS.1) {
        ours.take::<TanistCluster>(options, &zookeeper).await?;
        theirs.take::<FlinkCluster>(options, &zookeeper).await?;
    }
    for _ in 0..options.pick(KILLS.0, KILLS.1) {
        our_restores
            .take::<TanistCluster>(options, &zookeeper)
            .await?;
        their_restores
            .take::<FlinkCluster>(options, &zookeeper)
            .await?;
    }
    figures.extend(
        ours.all()
            .into_iter()
            .zip(theirs.all())
            .flat_map(|(our, their)| [our, their]),
    );
    let restores = our_restores.all().into_iter().zip(their_restores.all());
    figures.extend(restores.flat_map(|(our, their)| [our, their]));
    let short = options.pick(KILLS.0, KILLS.1);
    figures.extend(kills(options, Timeouts::Short, &zookeeper, short).await?);
    drop(server);
    let stock = ZooKeeperServerOptions {
        tick_time: STOCK_TICK,
        ..ZooKeeperServerOptions::default()
    };
    let server = ZooKeeperServer::start(stock).await?;
    let long = options.pick(KILLS_WITH_DEFAULTS.0, KILLS_WITH_DEFAULTS.1);
    figures.extend(kills(options, Timeouts::Default, &server.endpoint(), long).await?);
    Ok(figures)
}

async fn kills(
    options: &BenchOptions,
    timeouts: Timeouts,
    zookeeper: &str,
    count: usize,
) -> anyhow::Result<[Figure; 2]> {
    let figure = |name: &str| {
        let what = format!("{name}: SIGKILL -> all RUNNING, {}", timeouts.name());
        Figure::new(what, Unit::Milliseconds)
    };
    let mut ours = figure(TanistCluster::NAME);
    let mut theirs = figure(FlinkCluster::NAME);
    for _ in 0..count {
        ours.push(kill::<TanistCluster>(options, timeouts, zookeeper).await?);
        theirs.push(kill::<FlinkCluster>(options, timeouts, zookeeper).await?);
    }
    Ok([ours, theirs])
}

async fn kill<S: System>(
    options: &BenchOptions,
    timeouts: Timeouts,
    zookeeper: &str,
) -> anyhow::Result<f64> {
    eprintln!("{}, {} ...", S::NAME, timeouts.name());
    let mut cluster = S::prepare(options, timeouts, zookeeper).await?;
    cluster.start_leader().await?;
    cluster.start_the_rest().await?;
    run_endless(&mut cluster).await?;
    let killed = Instant::now();
    cluster.kill_leader()?;
    cluster.until_running_again().await?;
    let took = milliseconds(killed.elapsed());
    cluster.end();
    Ok(took)
}

/// Runs the endless job until it has state that a failure would lose.
async fn run_endless<S: System>(cluster: &mut S) -> anyhow::Result<()> {
    cluster.submit_endless(RATE, None).await?;
    until_all_run(cluster).await?;
    until_soon("the first checkpoint", async || {
        let body = cluster.get_of_job("/checkpoints").await?;
        let completed = body["counts"]["completed"].as_u64();
        ensure!(completed > Some(0), "{body}");
        Ok(())
    })
    .await
}

async fn until_all_run<S: System>(cluster: &S) -> anyhow::Result<()> {
    until_soon("all subtasks to run", async || {
        let body = cluster.get_of_job("").await?;
        ensure!(all_subtasks_run(&body), "{body}");
        Ok(())
    })
    .await
}

/// Waits for the end of the job that was submitted last.
async fn until_finished<S: System>(cluster: &S, every: Duration) -> anyhow::Result<()> {
    wait_for_every(every, "the end of the job", BOUND, async || {
        let body = cluster.get_of_job("").await?;
        ensure!(body["state"] == "FINISHED", "{body}");
        Ok(())
    })
    .await
}

/// Waits until both JobManagers know of this number of slots: the standby asks the leader.
async fn until_slots<S: System>(cluster: &S, slots: u64) -> anyhow::Result<()> {
    for jobmanager in [0, 1] {
        until_soon("the slots", async || {
            let body = cluster.get(jobmanager, "/overview").await?;
            ensure!(body["slots-total"] == slots, "{body}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Waits for what is expected soon; asks both systems equally often.
async fn until_soon<T>(
    what: &str,
    poll: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    wait_for_every(SOON, what, BOUND, poll).await
}

/// The figures of one system that need no kill.
struct Rounds {
    leads: Figure,
    leader: Figure,
    standby: Figure,
    worker: Figure,
    /// The first, the second and the third count.
    counts: [Count; 3],
}

struct Count {
    efficiency: Figure,
    rate: Figure,
}

impl Count {
    fn of(name: &str, which: &str) -> Count {
        let figure = |what: &str| {
            let what = format!("{name}: {which} count, records {what}");
            Figure::new(what, Unit::MillionsPerSecond)
        };
        Count {
            efficiency: figure("a CPU second"),
            rate: figure("a second"),
        }
    }
}

impl Rounds {
    fn of<S: System>() -> Rounds {
        let name = S::NAME;
        let figure = |what: &str, unit| Figure::new(format!("{name}: {what}"), unit);
        Rounds {
            leads: figure("process start -> leads", Unit::Milliseconds),
            leader: figure("leader, idle: resident", Unit::Mebibytes),
            standby: figure("standby, idle: resident", Unit::Mebibytes),
            worker: figure("worker, idle: resident", Unit::Mebibytes),
            counts: ["first", "second", "third"].map(|which| Count::of(name, which)),
        }
    }

    async fn take<S: System>(
        &mut self,
        options: &BenchOptions,
        zookeeper: &str,
    ) -> anyhow::Result<()> {
        eprintln!("{} ...", S::NAME);
        let mut cluster = S::prepare(options, Timeouts::Default, zookeeper).await?;
        let started = Instant::now();
        cluster.start_leader().await?;
        self.leads.push(milliseconds(started.elapsed()));
        cluster.start_the_rest().await?;
        // The idle time is part of the figure; there is no condition to wait for.
        tokio::time::sleep(options.pick(IDLE.0, IDLE.1)).await;
        let pids = cluster.pids()?;
        let resident = [&mut self.leader, &mut self.standby, &mut self.worker];
        for (pid, figure) in pids.into_iter().zip(resident) {
            figure.push(mebibytes(proc::memory(pid)?.resident));
        }
        let records = options.pick(RECORDS.0, RECORDS.1);
        let millions = records as f64 / 1e6;
        for (which, count) in self.counts.iter_mut().enumerate() {
            let before = cpu_of(pids)?;
            cluster.submit_count(records, which == 2).await?;
            let began = Instant::now();
            until_finished(&cluster, POLL_INTERVAL).await?;
            let took = began.elapsed();
            let used = cpu_of(pids)?.saturating_sub(before);
            count.efficiency.push(millions / used.as_secs_f64());
            count.rate.push(millions / took.as_secs_f64());
        }
        cluster.end();
        Ok(())
    }

    fn all(self) -> Vec<Figure> {
        let counts = self.counts.into_iter();
        let counts = counts.flat_map(|count| [count.efficiency, count.rate]);
        let others = [self.leads, self.leader, self.standby, self.worker];
        others.into_iter().chain(counts).collect()
    }
}

/// User and system time of several processes, including threads that have ended.
fn cpu_of(pids: [u32; 3]) -> anyhow::Result<Duration> {
    pids.into_iter().map(proc::total_cpu).sum()
}
