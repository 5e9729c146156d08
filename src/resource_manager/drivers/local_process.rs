//! Driver whose workers are processes of this host: `taskmanager` of this same program, started with this process's
//! configuration.
//!
//! - The leading JobManager starts them and is their parent, but they outlive it: they are in process groups of
//!   their own, write to files, and do not end when it ends. The next leader finds them by their command lines.
//! - A worker itself watches whether it still has a record (`process/worker.rs`). That, and not this driver, ends
//!   workers that a deposed leader started late or that belong to a cluster that is gone.
//!
//! Not here: decisions about starting and stopping, and persistence.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use rustix::process::Signal;
use tanist_config::{ExternalResource, MemoryOptions};
use tanist_ha::election::ClusterIncarnation;
use tanist_ha::own_directory;
use tanist_ha::retry::Backoff;
use tanist_proto::id::ResourceId;
use tanist_proto::resources::WorkerResourceSpec;
use tanist_telemetry::control_group::{self, ControlGroups, GroupLimits};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::processes::{CLUSTER_ARGUMENT, ID_ARGUMENT, Processes, WorkerProcess};
use crate::workers::{DriverError, Found, RecordedWorker, ResourceManagerDriver, WorkerRequest};

/// The executable of this process, even if its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";
/// Precedes the path of the worker's control group in its command-line argument.
const GROUP_ARGUMENT: &str = "taskmanager.control-group=";
/// Maximum number of logs that are kept.
const KEPT_LOGS: usize = 50;
/// Number of bytes read from the end of a log to find its last line.
const TAIL: u64 = 4096;
const LOG_SUFFIX: &str = ".log";
/// Delays between attempts to read the process table.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const SLOWEST_LOOK: Duration = Duration::from_secs(5);

/// Options for starting workers on this host.
#[derive(Debug, Clone)]
pub struct LocalProcessOptions {
    /// Name of workers in process listings.
    pub name: String,
    /// The configuration of this process, as environment variables.
    pub environment: Vec<(String, String)>,
    /// The kind of worker that the environment results in. Workers of another kind get additional options.
    pub usual: WorkerResourceSpec,
    /// Options from which the memory of a worker is computed.
    pub memory: MemoryOptions,
    /// The extended resources of a worker of the usual kind.
    pub external_resources: Vec<ExternalResource>,
    /// Control groups that limit memory and CPU of workers.
    pub groups: WorkerGroups,
    /// Directory of the workers' logs.
    pub log_dir: PathBuf,
    /// How long a worker may take to end in order before it is killed.
    pub stop_timeout: Duration,
}

/// How workers are limited to their resources.
#[derive(Debug, Clone)]
pub enum WorkerGroups {
    /// By a control group each, created in this directory.
    In(ControlGroups),
    /// Not at all.
    None,
    /// Limits are required but not possible, with the reason. No worker is started.
    Refused(String),
}

/// Environment variables that contradict the memory parts of another kind of worker, or give it resources that it
/// must not have.
const NOT_OF_A_KIND: [&str; 3] = [
    "TANIST_TASKMANAGER_MEMORY_PROCESS_SIZE",
    "TANIST_TASKMANAGER_MEMORY_FLINK_SIZE",
    "TANIST_EXTERNAL_RESOURCES",
];

impl LocalProcessOptions {
    /// The options that make a worker of this kind.
    fn settings_of(&self, kind: &WorkerResourceSpec) -> Vec<(&'static str, String)> {
        let mut settings = self.memory.for_worker(kind).settings();
        settings.push(("taskmanager.cpu.cores", kind.total().cpu.to_string()));
        let external = self.external_resources.iter().filter_map(|resource| {
            let (name, amount) = (&resource.name, kind.total().extended(&resource.name));
            let variable = resource.variable.iter();
            let variable: String = variable.map(|name| format!(":{name}")).collect();
            (amount > 0).then(|| format!("{name}:{amount}{variable}"))
        });
        let external: Vec<String> = external.collect();
        if !external.is_empty() {
            settings.push(("external-resources", external.join(",")));
        }
        settings
    }
}

/// See the module.
#[derive(Debug)]
pub struct LocalProcessDriver {
    options: LocalProcessOptions,
    processes: Processes,
    /// Read once, as it might not be readable later.
    place: String,
    /// Workers that this process started, each with how it ended, once it has.
    children: Mutex<BTreeMap<ResourceId, watch::Receiver<Option<String>>>>,
}

impl LocalProcessDriver {
    /// Without workers.
    pub fn new(options: LocalProcessOptions) -> LocalProcessDriver {
        LocalProcessDriver {
            options,
            processes: Processes::default(),
            place: own_place(),
            children: Mutex::default(),
        }
    }

    /// Creates the control group that limits the memory and CPU of a worker.
    fn make_group(&self, request: &WorkerRequest) -> io::Result<Option<PathBuf>> {
        let groups = match &self.options.groups {
            WorkerGroups::In(groups) => groups,
            WorkerGroups::None => return Ok(None),
            WorkerGroups::Refused(reason) => return Err(io::Error::other(reason.clone())),
        };
        let memory = self.options.memory.for_worker(&request.spec);
        let limits = GroupLimits {
            memory: Some(memory.process()),
            cpu_millis: Some(request.spec.total().cpu.millionths().div_ceil(1000)),
            processes: None,
        };
        let made = groups.make(request.worker.as_str(), &limits);
        made.map(Some).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("its control group can't be made: {error}"),
            )
        })
    }

    fn spawn(&self, request: &WorkerRequest, group: Option<&Path>) -> io::Result<Child> {
        let log_dir = &self.options.log_dir;
        let unusable = |error: io::Error| {
            let text = format!("its log can't be created in {}: {error}", log_dir.display());
            io::Error::new(error.kind(), text)
        };
        own_directory::make(log_dir).map_err(unusable)?;
        prune_logs(log_dir, &self.processes);
        let path = self.log_path(&request.worker);
        let log = File::options()
            .create(true)
            .append(true)
            .mode(own_directory::FILE_MODE)
            .open(path);
        let log = log.map_err(unusable)?;
        let mut command = self.command(request, group);
        command
            // Ctrl-C in the JobManager's terminal must not reach workers.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        // Dropping the handle neither kills nor waits; the task in `start_worker` reaps the process.
        Command::from(command).kill_on_drop(false).spawn()
    }

    /// The command line of a worker.
    fn command(&self, request: &WorkerRequest, group: Option<&Path>) -> std::process::Command {
        let mut command = std::process::Command::new(PROGRAM);
        command
            .arg0(&self.options.name)
            .arg("taskmanager")
            .args(["-D", &format!("{ID_ARGUMENT}{}", request.worker)])
            .args(["-D", &format!("{CLUSTER_ARGUMENT}{}", request.cluster)])
            .arg("-D")
            .arg(format!(
                "taskmanager.numberOfTaskSlots={}",
                request.spec.slots()
            ))
            // The environment variables include everything that the configuration file says.
            .env_remove("TANIST_CONF_DIR")
            .envs(self.options.environment.iter().cloned());
        if request.spec != self.options.usual {
            for (key, value) in self.options.settings_of(&request.spec) {
                command.arg("-D").arg(format!("{key}={value}"));
            }
            for variable in NOT_OF_A_KIND {
                command.env_remove(variable);
            }
        }
        if let Some(group) = group {
            // The worker enters the group itself: if this process moved it there, the worker might read its own
            // group too early. The groups of its programs are made within its own.
            let mut argument = OsString::from(GROUP_ARGUMENT);
            argument.push(group);
            command
                .arg("-D")
                .arg(argument)
                .args(["-D", "process.control-groups=auto"]);
        }
        command
    }

    fn log_path(&self, worker: &ResourceId) -> PathBuf {
        self.options.log_dir.join(format!("{worker}{LOG_SUFFIX}"))
    }

    fn child(&self, worker: &ResourceId) -> Option<watch::Receiver<Option<String>>> {
        let children = self.children.lock();
        children.get(worker).cloned()
    }
}

async fn find(
    processes: &Processes,
    worker: &ResourceId,
) -> Result<Option<WorkerProcess>, DriverError> {
    let (processes, id) = (processes.clone(), worker.to_string());
    look(move || processes.find(&id)).await
}

/// Completes when no process of a worker is left. While the process table can't be read, the worker may exist. And
/// the found process may have been a fork of it, about to become a program of it: so the search is repeated when it
/// has ended.
async fn until_gone(processes: &Processes, worker: &ResourceId) {
    let mut backoff = Backoff::new(FIRST_LOOK, SLOWEST_LOOK);
    let mut is_logged = false;
    loop {
        match find(processes, worker).await {
            Ok(None) => return,
            Ok(Some(process)) => {
                process.ended().await;
                backoff.reset();
            }
            Err(error) => {
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!(%worker, %error, "the process table can't be read, retrying until it shows whether the worker runs");
                }
                tokio::time::sleep(backoff.next_delay()).await;
            }
        }
    }
}

/// Searches all processes, on a thread for blocking work.
async fn look<T: Send + 'static>(
    at: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, DriverError> {
    let looked = tokio::task::spawn_blocking(at)
        .await
        .map_err(io::Error::other);
    looked.flatten().map_err(|error| {
        DriverError::new(format!("the processes of this host can't be read: {error}"))
    })
}

#[async_trait]
impl ResourceManagerDriver for LocalProcessDriver {
    fn name(&self) -> &'static str {
        "local-process"
    }

    fn place(&self) -> String {
        self.place.clone()
    }

    async fn start_worker(&self, request: &WorkerRequest) -> Result<(), DriverError> {
        let worker = &request.worker;
        if find(&self.processes, worker).await?.is_some() {
            return Ok(());
        }
        let failed =
            |error: io::Error| DriverError::new(format!("its process can't be started: {error}"));
        let group = self.make_group(request).map_err(failed)?;
        let mut child = match self.spawn(request, group.as_deref()) {
            Ok(child) => child,
            Err(error) => {
                if let Some(group) = group {
                    leave_group(group).await;
                }
                return Err(failed(error));
            }
        };
        tracing::info!(%worker, pid = child.id(), log = %self.log_path(worker).display(), "started a worker");
        let (ended, follow) = watch::channel(None);
        self.children.lock().insert(worker.clone(), follow);
        let (log, processes, worker) = (
            self.log_path(worker),
            self.processes.clone(),
            worker.clone(),
        );
        // Belongs to the process, not to the term: a worker that ends after this term must be reaped as well.
        tokio::spawn(async move {
            let status = match child.wait().await {
                Ok(status) => status.to_string(),
                Err(error) => {
                    // This says nothing about the worker.
                    until_gone(&processes, &worker).await;
                    format!("it can't be waited for: {error}")
                }
            };
            let last = last_line(&log).map_or_else(String::new, |line| format!(": {line}"));
            let last = match group {
                Some(group) => leave_group(group).await + &last,
                None => last,
            };
            ended.send_replace(Some(format!("{status}{last} (log: {})", log.display())));
        });
        Ok(())
    }

    async fn recover_workers(
        &self,
        cluster: &ClusterIncarnation,
        recorded: &[RecordedWorker],
    ) -> Result<Vec<(ResourceId, Found)>, DriverError> {
        let (processes, cluster) = (self.processes.clone(), cluster.to_string());
        let running = look(move || processes.workers_of(&cluster)).await?;
        let mut found = Vec::new();
        for RecordedWorker { worker, place } in recorded {
            let runs = running.iter().any(|it| it == worker.as_str());
            let state = match (runs, *place == self.place) {
                (true, _) => Found::Running,
                (false, true) => Found::Gone,
                (false, false) => Found::Unseen,
            };
            found.push((worker.clone(), state));
        }
        let known = |id: &ResourceId| recorded.iter().any(|it| it.worker == *id);
        let others = running.iter().filter_map(|id| id.parse().ok());
        let others = others
            .filter(|id| !known(id))
            .map(|id| (id, Found::Running));
        found.extend(others.collect::<Vec<_>>());
        Ok(found)
    }

    async fn worker_ended(&self, worker: &ResourceId) -> String {
        // If the task that waits for it has ended without telling how, the process table shows when the worker is gone.
        if let Some(mut child) = self.child(worker)
            && let Ok(how) = child.wait_for(Option::is_some).await
        {
            return how.clone().unwrap_or_default();
        }
        until_gone(&self.processes, worker).await;
        let log = self.log_path(worker);
        let last = last_line(&log).map_or_else(String::new, |line| format!(": {line}"));
        format!("its process has ended{last} (log: {})", log.display())
    }

    async fn stop_worker(&self, worker: &ResourceId) -> Result<(), DriverError> {
        for signal in [Signal::TERM, Signal::KILL] {
            let Some(process) = find(&self.processes, worker).await? else {
                break;
            };
            let pid = process.pid.as_raw_pid();
            tracing::info!(%worker, pid, ?signal, "stopping a worker");
            process.signal(signal).map_err(|error| {
                DriverError::new(format!("process {pid} can't be signalled: {error}"))
            })?;
            let timeout = self.options.stop_timeout;
            let ended = tokio::time::timeout(timeout, process.ended()).await;
            if ended.is_err() && signal == Signal::KILL {
                let text = format!("process {pid} does not end within {timeout:?} of SIGKILL");
                return Err(DriverError::new(text));
            }
        }
        self.children.lock().remove(worker);
        Ok(())
    }
}

/// Removes the group of a worker that has ended. Returns a text if the system killed one of its processes for lack
/// of memory.
async fn leave_group(group: PathBuf) -> String {
    let leaving = tokio::task::spawn_blocking(move || {
        let was_out_of_memory = control_group::was_out_of_memory(&group);
        if let Err(error) = control_group::remove(&group) {
            let group = group.display();
            tracing::debug!(%group, %error, "the control group of a worker can't be removed");
        }
        was_out_of_memory
    });
    match leaving.await {
        Ok(true) => " (a process of it exceeded the memory limit and was killed)".to_owned(),
        Ok(false) | Err(_) => String::new(),
    }
}

/// Identifies where this process sees every process of its user: host, boot id, and namespace of process ids.
/// A worker of another boot counts as out of sight, and not as gone: another host may have the same name, and run it.
fn own_place() -> String {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = boot.trim();
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let namespace = namespace.display();
    let user = rustix::process::getuid().as_raw();
    format!("{host} {boot} {namespace} uid:{user}")
}

/// The last non-blank line.
fn last_line(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))
        .ok()?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail);
    let line = tail.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(line.trim().to_owned())
}

/// Removes the oldest logs of workers that no longer run.
fn prune_logs(directory: &Path, processes: &Processes) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    let mut logs: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let worker = name.strip_suffix(LOG_SUFFIX)?.to_owned();
            let modified = entry.metadata().ok()?.modified().ok()?;
            Some((modified, worker, entry.path()))
        })
        .collect();
    logs.sort();
    let surplus = logs.len().saturating_sub(KEPT_LOGS);
    for (_, worker, path) in logs.into_iter().take(surplus) {
        if matches!(processes.find(&worker), Ok(None))
            && let Err(error) = fs::remove_file(&path)
        {
            tracing::debug!(path = %path.display(), %error, "an old log of a worker can't be removed");
        }
    }
}

#[cfg(test)]
#[path = "tests/local_process_tests.rs"]
mod tests;
