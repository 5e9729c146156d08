//! A running cluster: its processes by role, its leader, its store, and the check that ended jobs left nothing.
//!
//! A [`Cluster`] belongs to one test, which calls it with `&mut`. It owns its processes, its directory and its access
//! to the store; all of them go when it is dropped, in the order of its fields. Each wait has a timeout and returns an
//! error with the last value that was seen. A drop without [`Cluster::check_nothing_left`] or [`Cluster::discard`]
//! prints the ends of all logs: the test has failed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;
use serde_json::Value;
use tanist_gateway::kinds;
use tanist_ha::election::{ElectionDriver, Member};
use tanist_ha::keys::{Key, Name};
use tanist_ha::retrieval::LeaderView;
use tanist_ha::store::CoordinationStore;
use tanist_ha::testing::proxy::TcpProxy;
use tokio::sync::{OnceCell, SemaphorePermit};

use crate::cli::Cli;
use crate::dump::StoreDump;
use crate::guard::Guard;
use crate::hosts::Hosts;
use crate::network::{Host, Network};
use crate::process::Process;
use crate::rest::RestClient;
use crate::store::Store;
use crate::wait::wait_for;
use crate::wordcount;

/// Timeout for a new leader: long enough for the longest default lease on a busy machine.
const LEADER_BOUND: Duration = Duration::from_secs(45);
/// Timeout until all processes are registered.
const COMPLETE_BOUND: Duration = Duration::from_secs(30);
/// Timeout of the cleanup.
const CLEANUP_BOUND: Duration = Duration::from_secs(20);

/// A JobManager process and the address of its REST server.
#[derive(Debug)]
pub(crate) struct JobManager {
    pub(crate) process: Process,
    pub(crate) rest: String,
}

/// A confirmed leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Its term.
    pub epoch: u64,
    /// Index of the JobManager.
    pub index: usize,
    /// `host:port` of its REST server.
    pub rest: String,
}

/// Processes on a store. All are killed when it is dropped.
pub struct Cluster {
    pub(crate) id: String,
    pub(crate) jobmanagers: Vec<JobManager>,
    /// Index of the JobManager that answered last.
    pub(crate) answering: usize,
    pub(crate) taskmanagers: Vec<Process>,
    pub(crate) store: Store,
    pub(crate) store_directory: PathBuf,
    /// Watches the election without contending; opened on first use, as are the records.
    pub(crate) observer: OnceCell<Arc<dyn ElectionDriver>>,
    pub(crate) records: OnceCell<Arc<dyn CoordinationStore>>,
    pub(crate) rest: RestClient,
    pub(crate) cli: Cli,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) hosts: Option<Hosts>,
    /// The logs are not printed at the drop.
    pub(crate) ended_well: bool,
    pub(crate) directory: PathBuf,
    // Declared after all that uses the directory, which it removes: the processes have ended and the store is closed.
    pub(crate) guard: Arc<Mutex<Guard>>,
    /// Limits the number of clusters that run at the same time.
    pub(crate) _permit: SemaphorePermit<'static>,
}

impl Cluster {
    /// The cluster id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The cluster's directory. Tests also use it for inputs and outputs.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directory of an embedded store.
    pub fn store_directory(&self) -> &Path {
        &self.store_directory
    }

    /// The JobManager with that index.
    pub fn jobmanager(&mut self, index: usize) -> &mut Process {
        &mut self.jobmanagers[index].process
    }

    /// The TaskManager with that index.
    pub fn taskmanager(&mut self, index: usize) -> &mut Process {
        &mut self.taskmanagers[index]
    }

    /// Number of JobManagers, including dead ones.
    pub fn jobmanagers(&self) -> usize {
        self.jobmanagers.len()
    }

    /// Number of TaskManagers, including dead ones.
    pub fn taskmanagers(&self) -> usize {
        self.taskmanagers.len()
    }

    /// `host:port` of a JobManager's REST server.
    pub fn rest_address(&self, jobmanager: usize) -> &str {
        &self.jobmanagers[jobmanager].rest
    }

    /// The store, to kill and restart its server.
    pub fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    /// The network between the processes, if each has a host of its own.
    pub fn network(&self) -> anyhow::Result<&Network> {
        Ok(&self.hosts()?.network)
    }

    /// The proxy on the store's host through which the process on `host` reaches the store's server.
    pub fn store_proxy(&self, host: Host) -> anyhow::Result<&TcpProxy> {
        let proxy = self.hosts()?.store_proxies.get(&host);
        proxy.with_context(|| format!("{host} does not reach its store through a proxy"))
    }

    fn hosts(&self) -> anyhow::Result<&Hosts> {
        let hosts = self.hosts.as_ref();
        hosts.context("the processes have no hosts of their own")
    }

    /// The settings of all processes, as `-D` arguments.
    pub fn settings(&self) -> Vec<String> {
        let pair = |(key, value): &(String, String)| ["-D".to_owned(), format!("{key}={value}")];
        self.settings.iter().flat_map(pair).collect()
    }

    /// The program as a user calls it.
    pub fn cli(&self) -> &Cli {
        &self.cli
    }

    /// The REST client.
    pub fn rest(&self) -> &RestClient {
        &self.rest
    }

    /// Starts all processes that do not run.
    pub(crate) fn start_the_rest(&mut self) -> anyhow::Result<()> {
        let managers = self
            .jobmanagers
            .iter_mut()
            .map(|manager| &mut manager.process);
        for process in managers.chain(&mut self.taskmanagers) {
            if !process.runs() {
                process.start()?;
            }
        }
        Ok(())
    }

    /// Waits until every JobManager is a member and every TaskManager is registered with the leader.
    pub async fn wait_until_complete(&mut self) -> anyhow::Result<()> {
        let observer = self.observer().await?;
        let expected = self
            .jobmanagers
            .iter_mut()
            .filter_map(|m| m.process.runs().then_some(()))
            .count();
        wait_for(
            "all JobManagers to be members",
            COMPLETE_BOUND,
            async || {
                let members = observer.members().await?;
                ensure!(
                    members.len() == expected,
                    "{} of {expected} members",
                    members.len()
                );
                anyhow::Ok(())
            },
        )
        .await?;
        if self.taskmanagers.is_empty() {
            // TaskManagers of a driver are not expected here.
            return Ok(());
        }
        let expected = self
            .taskmanagers
            .iter_mut()
            .filter_map(|p| p.runs().then_some(()))
            .count();
        self.wait_for_rest(
            "all TaskManagers to be registered",
            COMPLETE_BOUND,
            "/v1/taskmanagers",
            |body| {
                body["taskmanagers"]
                    .as_array()
                    .is_some_and(|registered| registered.len() == expected)
            },
        )
        .await?;
        Ok(())
    }

    /// Kills all processes and removes everything, without printing logs.
    pub fn discard(mut self) {
        self.ended_well = true;
    }

    async fn observer(&self) -> anyhow::Result<Arc<dyn ElectionDriver>> {
        let open = || self.store.observe(&self.store_directory, &self.id);
        Ok(self.observer.get_or_try_init(open).await?.clone())
    }

    /// The records of this cluster in its store.
    pub async fn records(&self) -> anyhow::Result<Arc<dyn CoordinationStore>> {
        let open = || self.store.records(&self.store_directory, &self.id);
        Ok(self.records.get_or_try_init(open).await?.clone())
    }

    /// Waits for a confirmed leader whose process is running.
    pub async fn leader(&mut self) -> anyhow::Result<Leader> {
        self.leader_of_an_epoch_above(0).await
    }

    /// Waits for the leader that follows `former`.
    pub async fn successor_of(&mut self, former: &Leader) -> anyhow::Result<Leader> {
        self.leader_of_an_epoch_above(former.epoch).await
    }

    async fn leader_of_an_epoch_above(&mut self, epoch: u64) -> anyhow::Result<Leader> {
        let what = format!("a leader of an epoch above {epoch}");
        wait_for(&what, LEADER_BOUND, async || {
            let observer = self.observer().await?;
            let view = observer.observed().borrow().as_ref().map(LeaderView::from);
            let info = view
                .as_ref()
                .and_then(|view| view.leader.clone())
                .with_context(|| format!("no leader is confirmed: {view:?}"))?;
            ensure!(
                info.epoch.get() > epoch,
                "the leader is still that of epoch {}",
                info.epoch
            );
            let rest = info.addresses.get("rest").cloned().unwrap_or_default();
            let index = self
                .jobmanagers
                .iter()
                .position(|manager| manager.rest == rest)
                .with_context(|| format!("the leader is none of ours: {info:?}"))?;
            ensure!(
                self.jobmanager(index).runs(),
                "the leader in the store is dead: {info:?}"
            );
            // Other JobManagers may be cut off.
            self.answering = index;
            anyhow::Ok(Leader {
                epoch: info.epoch.get(),
                index,
                rest,
            })
        })
        .await
    }

    /// Kills the leader by SIGKILL and returns which one it was.
    pub async fn kill_leader(&mut self) -> anyhow::Result<Leader> {
        let leader = self.leader().await?;
        self.jobmanager(leader.index).kill();
        Ok(leader)
    }

    /// The body of `path` from any running JobManager.
    pub async fn get(&mut self, path: &str) -> anyhow::Result<Value> {
        let mut last = anyhow::anyhow!("no JobManager runs");
        let count = self.jobmanagers.len();
        // Starts with the JobManager that answered last: a stopped one would delay every request.
        for offset in 0..count {
            let index = (self.answering + offset) % count;
            let manager = &mut self.jobmanagers[index];
            if manager.process.runs() {
                match self.rest.get(&manager.rest, path).await {
                    Ok(body) => {
                        self.answering = index;
                        return Ok(body);
                    }
                    Err(error) => last = error,
                }
            }
        }
        Err(last)
    }

    /// Waits until the body of `path` satisfies the condition.
    pub async fn wait_for_rest(
        &mut self,
        what: &str,
        bound: Duration,
        path: &str,
        mut wanted: impl FnMut(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        wait_for(what, bound, async || {
            let body = self.get(path).await?;
            ensure!(wanted(&body), "{body}");
            anyhow::Ok(body)
        })
        .await
    }

    /// The JobManagers in the store's list of members, with their own descriptions.
    pub async fn members(&self) -> anyhow::Result<Vec<Member>> {
        Ok(self.observer().await?.members().await?)
    }

    /// The record of a term in `history/`, once the term is confirmed.
    pub async fn term_record(&self, epoch: u64) -> anyhow::Result<Value> {
        let key = Key::new(kinds::HISTORY, Name::new(format!("{epoch:020}"))?);
        wait_for("the record of the term", LEADER_BOUND, async || {
            let values = self
                .records()
                .await?
                .get(std::slice::from_ref(&key))
                .await?;
            let value = values.into_iter().next().flatten();
            let value = value.with_context(|| format!("no {key}"))?;
            let record: Value = serde_json::from_slice(&value)?;
            // Before that the record shows only that the leader recovers.
            ensure!(record["recovery"].is_object(), "not confirmed: {record}");
            anyhow::Ok(record)
        })
        .await
    }

    /// Waits until the recovery of the current term is over: a later death of the leader does not count
    /// as one during recovery.
    pub async fn until_recovered(&mut self) -> anyhow::Result<()> {
        wait_for("the end of the recovery", LEADER_BOUND, async || {
            let leader = self.leader().await?;
            let record = self.term_record(leader.epoch).await?;
            ensure!(record["phase"] == "leading", "{record}");
            anyhow::Ok(())
        })
        .await
    }

    /// The content of the store.
    pub async fn store_dump(&self) -> anyhow::Result<StoreDump> {
        wait_for("an answer of the store", LEADER_BOUND, async || {
            StoreDump::read(&*self.records().await?).await
        })
        .await
    }

    /// Checks that ended jobs left nothing: only clean results in the store, and no pending file in
    /// `outputs`; then ends every process in order and checks that it exits by itself.
    pub async fn check_nothing_left(&mut self, outputs: &[PathBuf]) -> anyhow::Result<()> {
        wait_for("an empty store", CLEANUP_BOUND, async || {
            self.store_dump().await?.check_empty()?;
            outputs
                .iter()
                .try_for_each(|output| wordcount::check_nothing_pending(output))
        })
        .await?;
        let managers = self
            .jobmanagers
            .iter_mut()
            .map(|manager| &mut manager.process);
        for process in managers.chain(&mut self.taskmanagers) {
            if process.runs() {
                let status = process.terminate().await?;
                ensure!(
                    status.success(),
                    "{} did not end in order: {status}",
                    process.name()
                );
            }
        }
        self.ended_well = true;
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.ended_well && !std::thread::panicking() {
            return;
        }
        let managers = self.jobmanagers.iter().map(|manager| &manager.process);
        for process in managers.chain(&self.taskmanagers) {
            eprintln!(
                "--- the end of the log of {}:\n{}",
                process.name(),
                process.log_tail()
            );
        }
        if std::env::var_os("TANIST_TEST_KEEP").is_some() {
            eprintln!("--- all files are kept in {}", self.directory.display());
            self.guard.lock().keep_directory();
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("id", &self.id)
            .field("directory", &self.directory)
            .field("store", &self.store.kind())
            .finish_non_exhaustive()
    }
}
