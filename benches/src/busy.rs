//! A healthy cluster on an overloaded machine: no process may be declared dead, and no task may restart.
//!
//! The processes that load the machine end with this one in any case. They stay in its session: Linux
//! divides the cores among sessions first. In a session of its own each of them would get as much CPU time as
//! the whole cluster, regardless of niceness.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use parking_lot::Mutex;
use serde_json::Value;
use tanist_chaos::Cluster;
use tanist_chaos::demo::ticks;
use tanist_chaos::store::{Store, StoreKind};
use tanist_ha::detector::service::PEER;
use tanist_ha::detector::{Peers as _, Role};
use tanist_rpc::TonicPeers;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::BenchOptions;
use crate::host::milliseconds;
use crate::http::Http;
use crate::jobs;
use crate::report::Figure;
use crate::samples::Unit;
use crate::stream::TickFollower;
use crate::watch::until_running;

pub(super) const METHOD: &str = "Three JobManagers and one TaskManager of 2 slots run a streaming job (as in \
*Failover*). At the same time, one process per core counts without a pause at the same niceness, and another one \
writes 64 MiB to the disk, with `fsync`, each second; for 30 minutes, or for `--minutes`. *Failovers*: number of \
terms that the store's history has gained at the end. *Restarts*: tasks whose attempt number has changed. *Gap*: \
the longest time between two printed records of one key. *Silence*: the longest time between two heartbeats of \
the leader, received on a stream like that of a standby by the measuring process, which gets no larger share of the \
machine than the others. Gap and silence are measured in windows of 10 s. The run fails if a record is missing \
or duplicated.";

const MINUTES: (u64, u64) = (1800, 30);
/// One sample of gap and silence is taken in each window.
const WINDOW: Duration = Duration::from_secs(10);
/// Pause before a broken stream of heartbeats is opened again.
const REOPEN: Duration = Duration::from_millis(50);

pub(super) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let seconds = options.pick(MINUTES.0, MINUTES.1);
    let seconds = options.minutes.map_or(seconds, |minutes| 60 * minutes);
    let builder = options.cluster(Store::own(store).await?);
    let mut cluster = builder.jobmanagers(3).taskmanagers(1).start().await?;
    let http = Http::default();
    let leader = cluster.leader().await?;
    let job = jobs::submit(&http, &leader.rest, ticks::JOB_FILE, 2, &[]).await?;
    until_running(&http, &leader.rest, job).await?;
    let attempts = cluster.attempts(job).await?;
    let records = TickFollower::start(cluster.taskmanager(0).log_path());
    records.more(1).await?;
    let heartbeats = HeartbeatFollower::start(&cluster).await?;

    let load = BusyMachine::start(cluster.directory())?;
    let mut gap = Figure::new("longest gap in the records", Unit::Milliseconds);
    let mut silence = Figure::new("longest silence of the leader", Unit::Milliseconds);
    records.take_longest_gap();
    heartbeats.take_longest();
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        tokio::time::sleep_until(end.min(Instant::now() + WINDOW)).await;
        gap.push(milliseconds(records.take_longest_gap()));
        silence.push(milliseconds(heartbeats.take_longest()));
    }
    drop(load);

    records.more(1).await?;
    records.check()?;
    let now = cluster.leader().await?;
    let terms = cluster.terms_up_to(now.epoch).await?;
    let later: Vec<&Value> = terms
        .iter()
        .filter(|term| term["epoch"].as_u64() > Some(leader.epoch))
        .collect();
    for term in &later {
        eprintln!("a takeover on {store}: {term}");
    }
    until_running(&http, &now.rest, job).await?;
    let restarted = attempts.changed(&cluster.attempts(job).await?);
    ensure!(
        later.len() as u64 == now.epoch - leader.epoch,
        "the history has {} terms from {leader:?} to {now:?}",
        later.len()
    );
    if later.is_empty() && restarted == 0 {
        cluster.discard();
    } else {
        // Keeps the logs of the processes.
        eprintln!("see {}", cluster.directory().display());
    }
    let count = |what: &str, number: f64| {
        let mut figure = Figure::new(what, Unit::Count);
        figure.push(number);
        figure
    };
    Ok(vec![
        count("failovers", later.len() as f64),
        count("restarts of tasks", restarted as f64),
        count("records", records.records() as f64),
        gap,
        silence,
    ])
}

/// Processes that leave no core and no disk idle. They end when this is dropped, and when this process ends.
struct BusyMachine(Vec<Child>);

impl BusyMachine {
    fn start(directory: &Path) -> anyhow::Result<BusyMachine> {
        let cores = std::thread::available_parallelism()?.get();
        let mut busy = BusyMachine(Vec::new());
        for _ in 0..cores {
            busy.run(
                directory,
                "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done",
            )?;
        }
        busy.run(
            directory,
            "dd if=/dev/zero of=busy.tmp bs=1M count=64 conv=fsync; sleep 1",
        )?;
        Ok(busy)
    }

    /// Runs a script repeatedly.
    fn run(&mut self, directory: &Path, script: &str) -> anyhow::Result<()> {
        let parent = std::process::id();
        let script = format!("while kill -0 {parent}; do {script}; done");
        let child = Command::new("sh")
            .args(["-c", &script])
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("sh does not run")?;
        self.0.push(child);
        Ok(())
    }
}

impl Drop for BusyMachine {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // If it has ended already, nothing is left to do.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Receives the heartbeats of the leader until it is dropped.
struct HeartbeatFollower {
    times: Arc<Mutex<HeartbeatTimes>>,
    _stop: DropGuard,
}

struct HeartbeatTimes {
    last: Instant,
    longest: Duration,
}

impl HeartbeatTimes {
    fn note(&mut self) {
        self.longest = self.longest.max(self.last.elapsed());
        self.last = Instant::now();
    }
}

impl HeartbeatFollower {
    async fn start(cluster: &Cluster) -> anyhow::Result<HeartbeatFollower> {
        let members = cluster.members().await?;
        let addresses = members
            .into_iter()
            .filter_map(|member| member.addresses.get(PEER).cloned());
        let times = Arc::new(Mutex::new(HeartbeatTimes {
            last: Instant::now(),
            longest: Duration::ZERO,
        }));
        let stop = CancellationToken::new();
        for address in addresses {
            let following = follow(address, cluster.id().to_owned(), times.clone());
            tokio::spawn(stop.clone().run_until_cancelled_owned(following));
        }
        Ok(HeartbeatFollower {
            times,
            _stop: stop.drop_guard(),
        })
    }

    /// The longest time without a heartbeat since the last call, including a silence that is still going on.
    fn take_longest(&self) -> Duration {
        let mut times = self.times.lock();
        let longest = times.longest.max(times.last.elapsed());
        times.longest = Duration::ZERO;
        longest
    }
}

/// Records each heartbeat of a leader from this address.
async fn follow(address: String, cluster: String, times: Arc<Mutex<HeartbeatTimes>>) {
    let peers = TonicPeers::new(cluster);
    loop {
        if let Ok(mut heartbeats) = peers.heartbeats(&address).await {
            while let Some(heartbeat) = heartbeats.next().await {
                if heartbeat.role != Role::Standby {
                    times.lock().note();
                }
            }
        }
        tokio::time::sleep(REOPEN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_the_machine_busy_is_in_the_session_of_this_process() -> anyhow::Result<()> {
        // The sixth field, which is the fourth after the name, which ends with a parenthesis.
        let session_of = |pid: u32| -> anyhow::Result<String> {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
            let fields = stat.rsplit_once(')').context("a name")?.1;
            let session = fields.split_whitespace().nth(3);
            Ok(session.context("a session")?.to_owned())
        };
        let directory = tempfile::tempdir()?;
        let mut busy = BusyMachine(Vec::new());
        busy.run(directory.path(), "sleep 0.01")?;
        let own = session_of(std::process::id())?;
        assert_eq!(session_of(busy.0[0].id())?, own);
        Ok(())
    }
}
