//! Configures a test cluster: number of processes, store, settings and failpoints. Makes its directory and its guard,
//! and starts it.
//!
//! A setting of a test overrides one of the harness, and a setting of one process overrides one that all have: a
//! process refuses a key that is set twice.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use parking_lot::Mutex;
use tanist_ha::testing::servers::ports::free_port;
use tokio::sync::{OnceCell, Semaphore};

use crate::cli::Cli;
use crate::cluster::{Cluster, JobManager};
use crate::guard::Guard;
use crate::hosts::Hosts;
use crate::network::Host;
use crate::process::Process;
use crate::rest::RestClient;
use crate::store::Store;

/// Number of clusters per core that run at the same time: they mostly wait.
const CLUSTERS_PER_CORE: usize = 2;

static CLUSTERS: OnceCell<Semaphore> = OnceCell::const_new();

/// Default settings of all test clusters: failures are detected and repaired within fractions of a second.
const SETTINGS: [(&str, &str); 8] = [
    ("heartbeat.interval", "500 ms"),
    ("heartbeat.timeout", "8 s"),
    ("cluster.registration.error-delay", "500 ms"),
    ("cluster.registration.refused-registration-delay", "500 ms"),
    (
        "restart-strategy.exponential-delay.initial-backoff",
        "200 ms",
    ),
    ("restart-strategy.exponential-delay.max-backoff", "1 s"),
    ("client.retry-period", "100 ms"),
    ("process.shutdown-timeout", "10 s"),
];

/// A cluster that is not started yet.
#[derive(Debug)]
pub struct ClusterBuilder {
    program: PathBuf,
    store: Store,
    jobmanagers: usize,
    taskmanagers: usize,
    slots: usize,
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    defaults: bool,
    failpoints: Vec<(usize, String)>,
    stores_elsewhere: Vec<(usize, String)>,
    of_taskmanagers: Vec<(usize, String, String)>,
    on_hosts: bool,
    on_disks: bool,
    store_directory: Option<PathBuf>,
    descriptors: Option<u32>,
}

impl ClusterBuilder {
    /// Two JobManagers and two TaskManagers of two slots, running `program` on `store`.
    pub fn new(program: impl Into<PathBuf>, store: Store) -> ClusterBuilder {
        ClusterBuilder {
            program: program.into(),
            store,
            jobmanagers: 2,
            taskmanagers: 2,
            slots: 2,
            settings: Vec::new(),
            environment: Vec::new(),
            defaults: false,
            failpoints: Vec::new(),
            stores_elsewhere: Vec::new(),
            of_taskmanagers: Vec::new(),
            on_hosts: false,
            on_disks: false,
            store_directory: None,
            descriptors: None,
        }
    }

    /// Sets the number of JobManagers.
    #[must_use]
    pub fn jobmanagers(mut self, count: usize) -> ClusterBuilder {
        self.jobmanagers = count;
        self
    }

    /// Sets the number of TaskManagers.
    #[must_use]
    pub fn taskmanagers(mut self, count: usize) -> ClusterBuilder {
        self.taskmanagers = count;
        self
    }

    /// Sets the number of slots of each TaskManager.
    #[must_use]
    pub fn slots(mut self, count: usize) -> ClusterBuilder {
        self.slots = count;
        self
    }

    /// Sets an option of all processes; overrides the settings of the harness.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> ClusterBuilder {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Sets an environment variable of all processes, and of the cluster's clients.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> ClusterBuilder {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Keeps the program's own defaults for leases, heartbeats and pauses, as an operator gets them.
    #[must_use]
    pub fn with_default_settings(mut self) -> ClusterBuilder {
        self.defaults = true;
        self
    }

    /// Arms failpoints, as in `submit.persisted=kill`, for the first start of a JobManager.
    /// [`ClusterBuilder::start`] lets the JobManager with index 0 lead first.
    #[must_use]
    pub fn failpoints(mut self, jobmanager: usize, failpoints: &str) -> ClusterBuilder {
        self.failpoints.push((jobmanager, failpoints.to_owned()));
        self
    }

    /// Gives one JobManager another `host:port` for the store's server: that of a proxy.
    #[must_use]
    pub fn store_at(mut self, jobmanager: usize, endpoint: String) -> ClusterBuilder {
        self.stores_elsewhere.push((jobmanager, endpoint));
        self
    }

    /// Sets an option of one TaskManager.
    #[must_use]
    pub fn set_of_taskmanager(
        mut self,
        taskmanager: usize,
        key: &str,
        value: &str,
    ) -> ClusterBuilder {
        let option = (taskmanager, key.to_owned(), value.to_owned());
        self.of_taskmanagers.push(option);
        self
    }

    /// Gives each process a host of its own in a [`Network`](crate::Network), and the store one. Only in
    /// [`on_a_network_of_its_own`](crate::on_a_network_of_its_own), and with a store that was started there.
    #[must_use]
    pub fn on_hosts_of_their_own(mut self) -> ClusterBuilder {
        self.on_hosts = true;
        self
    }

    /// Gives each process its own directory for local files and local blobs, as on a disk of its own.
    #[must_use]
    pub fn on_disks_of_their_own(mut self) -> ClusterBuilder {
        self.on_disks = true;
        self
    }

    /// Puts the embedded store in another directory than the cluster's: on a disk that fills up.
    #[must_use]
    pub fn store_directory(mut self, directory: impl Into<PathBuf>) -> ClusterBuilder {
        self.store_directory = Some(directory.into());
        self
    }

    /// Limits the file descriptors of each process. Not with hosts of their own.
    #[must_use]
    pub fn descriptors(mut self, limit: u32) -> ClusterBuilder {
        self.descriptors = Some(limit);
        self
    }

    /// Starts the first JobManager, then, when it leads, all others, and waits until all are registered.
    pub async fn start(self) -> anyhow::Result<Cluster> {
        let mut cluster = self.prepare().await?;
        cluster.jobmanager(0).start()?;
        cluster.leader().await?;
        cluster.start_the_rest()?;
        cluster.wait_until_complete().await?;
        Ok(cluster)
    }

    /// Starts all processes without waiting for anything.
    pub async fn launch(self) -> anyhow::Result<Cluster> {
        let mut cluster = self.prepare().await?;
        cluster.start_the_rest()?;
        Ok(cluster)
    }

    /// Prepares the cluster without starting a process.
    pub async fn prepare(self) -> anyhow::Result<Cluster> {
        let permit = CLUSTERS
            .get_or_init(async || Semaphore::new(permits()))
            .await;
        let permit = permit
            .acquire()
            .await
            .context("the semaphore of clusters is never closed")?;
        let directory = tempfile::Builder::new()
            .prefix("tanist-cluster-")
            .tempdir()?
            .keep();
        let guard = Arc::new(Mutex::new(Guard::start(&directory)?));
        let cluster_id = directory
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .context("a directory has a name")?;
        let own = || directory.join("store");
        let store_directory = self.store_directory.clone().unwrap_or_else(own);
        let shared = self.shared_settings(&directory, &store_directory, &cluster_id);
        let shared = in_files(shared, &directory)?;
        let hosts = if self.on_hosts {
            Some(Hosts::create(
                &self.store,
                self.jobmanagers,
                self.taskmanagers,
            )?)
        } else {
            None
        };
        let process = |host: Host, command: &str, mut own: Vec<(&str, String)>| {
            if let Some(hosts) = &hosts {
                own.extend(hosts.settings(host));
            }
            if self.on_disks {
                let disk = directory.join(host.to_string());
                own.push(("io.tmp.dirs", disk.to_string_lossy().into_owned()));
            }
            let own: Vec<_> = own
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect();
            // A key must be set only once.
            let shared = shared
                .iter()
                .filter(|(key, _)| !own.iter().any(|(of_its_own, _)| of_its_own == key));
            let arguments = arguments(command, shared.cloned().chain(own.iter().cloned()));
            let name = host.to_string();
            let program = self.program.clone();
            let mut process = Process::new(name, program, arguments, &directory, guard.clone())?;
            process.set_environment(&self.environment);
            if let Some(hosts) = &hosts {
                process.enter_by(hosts.network.entrance(host)?);
            } else if let Some(limit) = self.descriptors {
                let limited = format!("ulimit -n {limit} && exec \"$0\" \"$@\"");
                process.enter_by(vec!["sh".to_owned(), "-c".to_owned(), limited]);
            }
            anyhow::Ok(process)
        };
        let mut jobmanagers = Vec::new();
        for index in 0..self.jobmanagers {
            // Known in advance, and the same after a restart.
            let rest_port = free_port();
            let host = Host::JobManager(index);
            let mut own = vec![
                ("jobmanager.id", host.to_string()),
                ("rest.port", rest_port.to_string()),
            ];
            let shares_blobs = self
                .settings
                .iter()
                .any(|(key, _)| key == "high-availability.storageDir");
            // By default the embedded store keeps blobs next to its data.
            if self.on_disks && !shares_blobs && self.store.endpoint_key().is_some() {
                let blobs = directory.join(host.to_string()).join("blobs");
                let blobs = blobs.to_string_lossy().into_owned();
                own.push(("high-availability.storageDir", blobs));
            }
            let elsewhere = self.stores_elsewhere.iter().find(|(of, _)| *of == index);
            if let Some((_, endpoint)) = elsewhere {
                let key = self.store.endpoint_key();
                own.push((key.context("this store has no server")?, endpoint.clone()));
            }
            let mut process = process(host, "jobmanager", own)?;
            if let Some((_, armed)) = self.failpoints.iter().find(|(of, _)| *of == index) {
                process.arm(armed);
            }
            let address = match &hosts {
                Some(_) => host.address(),
                None => Ipv4Addr::LOCALHOST,
            };
            jobmanagers.push(JobManager {
                process,
                rest: format!("{address}:{rest_port}"),
            });
        }
        let mut taskmanagers = Vec::new();
        for index in 0..self.taskmanagers {
            let host = Host::TaskManager(index);
            let mut own = vec![
                ("taskmanager.resource-id", host.to_string()),
                ("taskmanager.numberOfTaskSlots", self.slots.to_string()),
            ];
            let options = self.of_taskmanagers.iter().filter(|(of, ..)| *of == index);
            own.extend(options.map(|(_, key, value)| (key.as_str(), value.clone())));
            taskmanagers.push(process(host, "taskmanager", own)?);
        }
        let cli = Cli::new(&self.program, &directory).with_environment(&self.environment);
        Ok(Cluster {
            id: cluster_id,
            jobmanagers,
            answering: 0,
            taskmanagers,
            store: self.store,
            store_directory,
            observer: OnceCell::new(),
            records: OnceCell::new(),
            rest: RestClient::default(),
            cli,
            settings: shared,
            hosts,
            ended_well: false,
            directory,
            guard,
            _permit: permit,
        })
    }

    fn shared_settings(
        &self,
        directory: &Path,
        store_directory: &Path,
        cluster_id: &str,
    ) -> Vec<(String, String)> {
        let fixed = [
            ("high-availability.cluster-id", cluster_id.to_owned()),
            ("jobmanager.rpc.port", "0".to_owned()),
            ("io.tmp.dirs", directory.to_string_lossy().into_owned()),
        ];
        let mut settings = self.store.settings(store_directory, self.defaults);
        let quick: &[(&str, &str)] = if self.defaults { &[] } else { &SETTINGS };
        let quick = quick.iter().map(|(key, value)| (*key, (*value).to_owned()));
        let all = fixed.into_iter().chain(quick);
        settings.extend(all.map(|(key, value)| (key.to_owned(), value)));
        // A key must be set only once.
        settings.retain(|(key, _)| !self.settings.iter().any(|(own, _)| own == key));
        settings.extend(self.settings.iter().cloned());
        settings
    }
}

/// Writes passwords into files: a process accepts none on its command line.
fn in_files(
    settings: Vec<(String, String)>,
    directory: &Path,
) -> anyhow::Result<Vec<(String, String)>> {
    let in_file = |(key, value): (String, String)| {
        if !key.ends_with("password") {
            return Ok((key, value));
        }
        let path = directory.join(&key);
        let mut options = std::fs::File::options();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)?;
        writeln!(file, "{value}")?;
        Ok((format!("{key}-file"), path.to_string_lossy().into_owned()))
    };
    settings.into_iter().map(in_file).collect()
}

fn permits() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get()) * CLUSTERS_PER_CORE
}

fn arguments(command: &str, settings: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let mut arguments = vec![command.to_owned()];
    for (key, value) in settings {
        arguments.push("-D".to_owned());
        arguments.push(format!("{key}={value}"));
    }
    arguments
}
