//! A whole cluster in one process, for tests of jobs and applications (feature `testing`).
//!
//! It runs the code of real processes on an embedded store in a temporary directory: JobManagers and
//! TaskManagers that communicate over the loopback. Each has its own runtime, so that it can be killed: all its
//! tasks stop at once without notifying others. Detection is as fast as the configuration allows; every wait
//! has a timeout.
//!
//! ```no_run
//! use tanist::job::JobBuilder;
//! use tanist::testing::TestCluster;
//!
//! # async fn test() -> Result<(), Box<dyn std::error::Error>> {
//! let mut cluster = TestCluster::builder().jobmanagers(2).taskmanagers(1).slots(2).start().await?;
//! let job = JobBuilder::new("numbers")
//!     .datagen("numbers", Some(100), Some(300), 0, 10)
//!     .file_sink("out", cluster.directory().join("out").to_string_lossy())
//!     .build();
//! let execution = cluster.client().execute_async(job).await?;
//! cluster.wait_until_running(&execution).await?;
//! let killed = cluster.kill_leader().await?;
//! assert_ne!(cluster.leader().await?, killed);
//! execution.finished().await?;
//! # Ok(())
//! # }
//! ```

#[cfg(test)]
mod committer_tests;
#[cfg(test)]
mod state_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use tanist_client::{ClientError, ClusterClient, JobExecution};
use tanist_config::{ConfigError, Configuration, LoadOptions};
use tanist_gateway::kinds;
use tanist_ha::backend::Access;
use tanist_process::{ApplicationSetup, BindError, JobManager, StartError, TaskManager};
use tanist_proto::v1::JobStatus;
use tanist_telemetry::ExitCode;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::application::ApplicationMain;

/// Timeout of all waits.
const BOUND: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Why a test cluster did not do what a test needs.
#[derive(Debug, thiserror::Error)]
pub enum TestClusterError {
    /// The host provides no directory or threads.
    #[error("the host can't provide the directory or threads of a test cluster: {0}")]
    Host(#[from] io::Error),
    /// The settings are wrong.
    #[error(transparent)]
    Configuration(#[from] ConfigError),
    /// No port could be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A TaskManager can't start.
    #[error(transparent)]
    TaskManager(#[from] StartError),
    /// The cluster does not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A wait timed out.
    #[error("{what}: not within {BOUND:?}; last seen: {last}")]
    TooLate {
        /// The awaited condition.
        what: String,
        /// The last state seen.
        last: String,
    },
    /// There is no such process, or it was killed.
    #[error("no JobManager {0} runs")]
    NoSuchProcess(String),
}

/// Builder of a test cluster.
#[derive(Debug)]
pub struct TestClusterBuilder {
    jobmanagers: u32,
    taskmanagers: u32,
    slots: u32,
    settings: BTreeMap<String, String>,
    application: Option<ApplicationSetup>,
}

impl TestClusterBuilder {
    /// Sets the number of JobManagers: `jm-1`, `jm-2` ...
    #[must_use]
    pub fn jobmanagers(mut self, count: u32) -> TestClusterBuilder {
        self.jobmanagers = count;
        self
    }

    /// Sets the number of TaskManagers: `tm-1`, `tm-2` ...
    #[must_use]
    pub fn taskmanagers(mut self, count: u32) -> TestClusterBuilder {
        self.taskmanagers = count;
        self
    }

    /// Sets the slots of each TaskManager.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> TestClusterBuilder {
        self.slots = slots;
        self
    }

    /// Sets a configuration option of every process.
    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> TestClusterBuilder {
        self.settings.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Makes it the cluster of this application.
    #[must_use]
    pub fn application(mut self, application: &ApplicationMain) -> TestClusterBuilder {
        self.application = Some(application.setup().clone());
        self
    }

    /// Starts all processes. When this returns, the first JobManager leads.
    pub async fn start(self) -> Result<TestCluster, TestClusterError> {
        let (first, jobmanagers) = ("jm-1", self.jobmanagers);
        let one = TestClusterBuilder {
            jobmanagers: jobmanagers.min(1),
            ..self
        };
        let mut cluster = one.start_unled().await?;
        if jobmanagers > 0 {
            wait_for("jm-1 leads", async || match cluster.leader().await {
                Ok(leader) if leader == first => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await?;
        }
        for number in 2..=jobmanagers {
            cluster.start_jobmanager(&format!("jm-{number}")).await?;
        }
        Ok(cluster)
    }

    /// Starts all processes without waiting: an application may have ended when this returns.
    pub async fn start_unled(self) -> Result<TestCluster, TestClusterError> {
        let directory = TestDirectory::create()?;
        let store = directory.0.join("store");
        let mut load = LoadOptions::default()
            .with("high-availability.embedded.dir", &store.to_string_lossy())
            .with("high-availability.cluster-id", "test")
            .with("rest.port", "0")
            .with("jobmanager.rpc.port", "0")
            .with(
                "taskmanager.numberOfTaskSlots",
                &self.slots.max(1).to_string(),
            );
        for (key, value) in &self.settings {
            load = load.with(key, value);
        }
        let configuration = Configuration::load(load.clone())?;
        // The client is created before the JobManagers. It reports an error if the store could not be created.
        let backend = &configuration.ha().backend;
        let _ = backend.open_store(kinds::ALL, Access::Contend).await;
        let client = ClusterClient::connect(&configuration).await?;
        let mut cluster = TestCluster {
            load,
            client,
            jobmanagers: BTreeMap::new(),
            taskmanagers: BTreeMap::new(),
            application: self.application,
            directory,
        };
        for number in 1..=self.jobmanagers {
            cluster.start_jobmanager(&format!("jm-{number}")).await?;
        }
        for number in 1..=self.taskmanagers {
            cluster.start_taskmanager(&format!("tm-{number}")).await?;
        }
        Ok(cluster)
    }
}

/// A test cluster; see the module. Dropping it kills all its processes and removes its directory.
#[derive(Debug)]
pub struct TestCluster {
    load: LoadOptions,
    client: ClusterClient,
    jobmanagers: BTreeMap<String, Process>,
    taskmanagers: BTreeMap<String, Process>,
    application: Option<ApplicationSetup>,
    directory: TestDirectory,
}

/// A JobManager or TaskManager. Dropping it kills it.
#[derive(Debug)]
struct Process {
    runtime: Option<Runtime>,
    stop: CancellationToken,
    ended: oneshot::Receiver<ExitCode>,
}

impl Process {
    fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A runtime must not wait for the end of another one.
            runtime.shutdown_background();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[derive(Debug)]
struct TestDirectory(std::path::PathBuf);

impl TestDirectory {
    fn create() -> io::Result<TestDirectory> {
        let name = format!("tanist-test-{:016x}", rand::random::<u64>());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(TestDirectory(path))
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        // Files that a killed process still writes do not matter.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl TestCluster {
    /// Returns a builder; by default with one JobManager and one TaskManager with one slot.
    pub fn builder() -> TestClusterBuilder {
        TestClusterBuilder {
            jobmanagers: 1,
            taskmanagers: 1,
            slots: 1,
            settings: BTreeMap::new(),
            application: None,
        }
    }

    /// Returns a client that follows the leader.
    pub fn client(&self) -> &ClusterClient {
        &self.client
    }

    /// Returns a directory for input and output, removed with the cluster. Its `store` and `working` belong to
    /// the cluster.
    pub fn directory(&self) -> &Path {
        &self.directory.0
    }

    /// Returns the configuration of its processes and clients.
    pub fn configuration(&self) -> Result<Configuration, TestClusterError> {
        Ok(Configuration::load(self.load.clone())?)
    }

    /// Starts or restarts a JobManager.
    pub async fn start_jobmanager(&mut self, id: &str) -> Result<(), TestClusterError> {
        let load = self.load.clone().with("jobmanager.id", id);
        let (configuration, application) = (Configuration::load(load)?, self.application.clone());
        let process = launch(id, async move |stop, bound| {
            match JobManager::bind_for(&configuration, application).await {
                Ok(manager) => {
                    let _ = bound.send(Ok(()));
                    Box::pin(tanist_cli::run_jobmanager(manager, &configuration, stop)).await
                }
                Err(error) => {
                    let code = error.exit_code();
                    let _ = bound.send(Err(error.into()));
                    code
                }
            }
        });
        self.jobmanagers.insert(id.to_owned(), process.await?);
        Ok(())
    }

    /// Starts or restarts a TaskManager.
    pub async fn start_taskmanager(&mut self, id: &str) -> Result<(), TestClusterError> {
        let load = self.load.clone().with("taskmanager.resource-id", id);
        let configuration = Configuration::load(load)?;
        // Not the directory of a killed predecessor, which may still remove files there.
        let name = format!("{id}-{:08x}", rand::random::<u32>());
        let directory = self.directory.0.join("working").join(name);
        let process = launch(id, async move |stop, bound| {
            match TaskManager::bind(&configuration, &directory).await {
                Ok(manager) => {
                    let _ = bound.send(Ok(()));
                    let ended = Box::pin(manager.run(stop)).await;
                    ended.map_or_else(|failure| failure.code, |()| ExitCode::Ended)
                }
                Err(error) => {
                    let code = error.exit_code();
                    let _ = bound.send(Err(error.into()));
                    code
                }
            }
        });
        self.taskmanagers.insert(id.to_owned(), process.await?);
        Ok(())
    }

    /// Returns the id of the leading JobManager. Waits for one that runs.
    pub async fn leader(&self) -> Result<String, TestClusterError> {
        let leads = async || {
            let status = self.client.jobs().ha_status().await;
            let leader = status.map(|status| status.leader.map(|leader| leader.process));
            match leader {
                Ok(Some(leader)) if self.jobmanagers.contains_key(&leader) => Ok(leader),
                other => Err(format!("{other:?}")),
            }
        };
        wait_for("a JobManager leads", leads).await
    }

    /// Kills the leader: all its tasks stop at once. Returns its id.
    pub async fn kill_leader(&mut self) -> Result<String, TestClusterError> {
        let leader = self.leader().await?;
        self.kill_jobmanager(&leader)?;
        Ok(leader)
    }

    /// Kills a JobManager: all its tasks stop at once.
    pub fn kill_jobmanager(&mut self, id: &str) -> Result<(), TestClusterError> {
        let process = self.jobmanagers.remove(id);
        process
            .map(drop)
            .ok_or_else(|| TestClusterError::NoSuchProcess(id.to_owned()))
    }

    /// Kills a TaskManager with its tasks.
    pub fn kill_taskmanager(&mut self, id: &str) -> Result<(), TestClusterError> {
        let process = self.taskmanagers.remove(id);
        process
            .map(drop)
            .ok_or_else(|| TestClusterError::NoSuchProcess(id.to_owned()))
    }

    /// Ends a JobManager in order, as a signal does. Returns its exit code.
    pub async fn stop_jobmanager(&mut self, id: &str) -> Result<ExitCode, TestClusterError> {
        if let Some(process) = self.jobmanagers.get(id) {
            process.stop.cancel();
        }
        self.jobmanager_ended(id).await
    }

    /// Waits until a JobManager has ended by itself, as it does when its application has ended. Returns its exit code.
    pub async fn jobmanager_ended(&mut self, id: &str) -> Result<ExitCode, TestClusterError> {
        let unknown = || TestClusterError::NoSuchProcess(id.to_owned());
        let mut process = self.jobmanagers.remove(id).ok_or_else(unknown)?;
        let ended = tokio::time::timeout(BOUND, &mut process.ended).await;
        match ended {
            Ok(code) => code.map_err(|_| unknown()),
            Err(_) => {
                self.jobmanagers.insert(id.to_owned(), process);
                Err(TestClusterError::TooLate {
                    what: format!("{id} has ended"),
                    last: "it runs".to_owned(),
                })
            }
        }
    }

    /// Waits until every task of a job runs.
    pub async fn wait_until_running(&self, job: &JobExecution) -> Result<(), TestClusterError> {
        wait_for("every task of the job runs", async || {
            match job.info().await {
                Ok(info)
                    if info.state == JobStatus::Running && info.running() == info.parallelism() =>
                {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }
}

/// Starts a process on its own runtime. Returns when its ports are bound.
async fn launch<F>(
    name: &str,
    run: impl FnOnce(CancellationToken, oneshot::Sender<Result<(), TestClusterError>>) -> F,
) -> Result<Process, TestClusterError>
where
    F: Future<Output = ExitCode> + Send + 'static,
{
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name(name)
        .enable_all()
        .build()?;
    let stop = CancellationToken::new();
    let (bound, is_bound) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let running = run(stop.clone(), bound);
    runtime.spawn(async move {
        let code = running.await;
        let _ = end.send(code);
    });
    let process = Process {
        runtime: Some(runtime),
        stop,
        ended,
    };
    match is_bound.await {
        Ok(bound) => bound.map(|()| process),
        Err(_) => Err(TestClusterError::NoSuchProcess(name.to_owned())),
    }
}

/// Repeats `look` until it succeeds, up to the timeout.
async fn wait_for<T>(
    what: &str,
    look: impl AsyncFn() -> Result<T, String>,
) -> Result<T, TestClusterError> {
    let mut last = "nothing".to_owned();
    let looking = async {
        loop {
            match look().await {
                Ok(seen) => return seen,
                Err(seen) => last = seen,
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    };
    match tokio::time::timeout(BOUND, looking).await {
        Ok(seen) => Ok(seen),
        Err(_) => Err(TestClusterError::TooLate {
            what: what.to_owned(),
            last,
        }),
    }
}
