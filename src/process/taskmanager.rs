//! The TaskManager process: one TaskExecutor, the exchange of its tasks, and the retrieval of the leader.
//!
//! It owns the servers, the runtime of the tasks, and its connection to the store. The state of slots and tasks belongs
//! to the [`TaskExecutor`], which decides. The process ends on request, when it was drained, when its cluster has
//! ended, and as [`TaskManagerFailure`] when its TaskExecutor can't continue ([`Fatal`]). With
//! [`TaskManager::guarded`], a thread kills it if isolated tasks run after their deadline.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rustix::process::{Signal, getpid, kill_process};
use tanist_config::{ClusterOptions, Configuration, HaOptions, MemoryContradiction};
use tanist_dataflow::{Exchange, ExchangeOptions, TaskRuntime};
use tanist_gateway::fencing::{HighestEpoch, OwnStore};
use tanist_gateway::{Connector, NoAnswer};
use tanist_ha::election::{ElectionDriver, ProcessId};
use tanist_ha::retrieval::{self, LeaderView};
use tanist_ha::services;
use tanist_leadership::ha::{self, DirectoryError};
use tanist_net::{Listener, Port};
use tanist_operators::{Operators, TaskHost};
use tanist_proto::id::ResourceId;
use tanist_proto::resources::{CpuCores, Resources, WorkerResourceSpec};
use tanist_proto::v1 as pb;
use tanist_rpc::{RpcServer, Services, TonicConnector};
use tanist_task_executor::{
    Fatal, IsolationGuard, Presence, TaskExecutor, TaskExecutorDescription, TaskExecutorServices,
    first_registration,
};
use tanist_telemetry::{ExitCode, VERSION_AND_REVISION, memory_limit_bytes};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::cluster_watch::until_over;
use super::control_groups::{self, Claimed};
use super::job_records::StoredJobRecords;
use super::listen::{self, BindError};
use super::settings;
use super::tasks_runtime::TasksRuntime;
use super::uploads::LeadersUploads;
use super::worker::{Wanted, until_unwanted};

/// Why a TaskManager did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A server's port can't be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The host does not have what it needs.
    #[error("the TaskManager can't start: {0}")]
    Host(#[source] io::Error),
    /// The configured control groups can't be made, or its own one can't be entered.
    #[error("the TaskManager can't start: {0}")]
    ControlGroups(String),
    /// A directory of the store is accessible to other users.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The configuration asks for more than the host has.
    #[error(transparent)]
    Memory(#[from] MemoryContradiction),
}

impl StartError {
    /// The exit code of a process whose TaskManager did not start.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            StartError::Bind(error) => error.exit_code(),
            StartError::Directory(_) => ExitCode::Directory,
            StartError::Host(_) => ExitCode::Fatal,
            StartError::ControlGroups(_) | StartError::Memory(_) => ExitCode::Configuration,
        }
    }
}

/// A TaskManager that can't continue: its process must end, which ends the remaining tasks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("TaskManager {taskmanager} has ended: {cause}")]
pub struct TaskManagerFailure {
    /// Its resource id.
    pub taskmanager: String,
    /// The exit code of the process.
    pub code: ExitCode,
    /// The reason.
    pub cause: String,
}

/// A TaskManager whose servers are bound. It registers once it runs.
#[derive(Debug)]
pub struct TaskManager {
    options: Arc<ClusterOptions>,
    description: TaskExecutorDescription,
    rpc: RpcServer,
    exchange: Exchange,
    highest_epoch: HighestEpoch,
    tasks: TasksRuntime,
    host: TaskHost,
    is_guarded: bool,
}

impl TaskManager {
    /// Binds the servers and starts the runtime of the tasks. Tasks keep their files in `directory`, which
    /// belongs to this TaskManager alone: its content is removed without checking for other users.
    pub async fn bind(
        configuration: &Configuration,
        directory: &Path,
    ) -> Result<TaskManager, StartError> {
        let options = configuration.options().clone();
        ha::check_directories(&options.ha).await?;
        let manager = &options.taskmanager;
        if let Some(group) = &manager.control_group {
            control_groups::enter(group).map_err(StartError::ControlGroups)?;
        }
        let key = "taskmanager.rpc.port";
        let (host, security) = (&manager.bind_host, options.security);
        let what = ("the RPC server", Port::Rpc);
        let rpc = listen::bind(what, key, host, &manager.rpc_ports, security).await?;
        let key = "taskmanager.data.port";
        let what = ("the exchange", Port::Exchange);
        let data = listen::bind(what, key, host, &manager.data_ports, security).await?;
        let port = |listener: &Listener| listener.local_addr().map_or(0, |address| address.port());
        let rpc_address = manager.host.with_port(port(&rpc));
        let resource_id = match &manager.resource_id {
            Some(id) => id.to_string(),
            None => format!("{rpc_address}-{:08x}", rand::random::<u32>()),
        };
        let location = pb::TaskManagerLocation {
            resource_id,
            incarnation: format!("{:016x}", rand::random::<u64>()),
            rpc_address,
            data_address: manager.host.with_port(port(&data)),
        };
        let control_groups = match control_groups::claim(&options.process.control_groups) {
            Claimed::In(groups) => Ok(groups),
            Claimed::None(reason) => Err(reason),
            Claimed::Refused(reason) => return Err(StartError::ControlGroups(reason)),
        };
        let tasks = TasksRuntime::start().map_err(StartError::Host)?;
        let highest_epoch = HighestEpoch::default();
        let gate = Arc::new(highest_epoch.clone());
        let worker_of = manager.worker_of.as_ref().map(ToString::to_string);
        let description = TaskExecutorDescription {
            worker_of: worker_of.unwrap_or_default(),
            ..describe(location, &options)?
        };
        info!(worker = %description.worker, "resources");
        let location = &description.location;
        let exchange = ExchangeOptions {
            directories: options.process.tmp_dirs.clone(),
            network_memory: description.worker.total().network_memory,
            ..ExchangeOptions::new(&location.resource_id, &location.incarnation, gate)
        };
        let exchange = Exchange::serve(data, exchange, tasks.handle()).map_err(StartError::Host)?;
        Ok(TaskManager {
            rpc: RpcServer::new(rpc, settings::rpc(&options)),
            description,
            exchange,
            highest_epoch,
            tasks,
            host: with_resources(TaskHost::new(directory.to_owned()), &options)
                .with_control_groups(control_groups)
                .ended_by_tasks_after(options.jobs.task_cancellation_timeout),
            is_guarded: false,
            options: Arc::new(options),
        })
    }

    /// Adds the guard that kills the process if isolated tasks can't be stopped otherwise; everything else in
    /// the process must tolerate that.
    #[must_use]
    pub fn guarded(mut self) -> TaskManager {
        self.is_guarded = true;
        self
    }

    /// Marks a TaskManager in the process of a command that runs one job: that job reads the command's standard
    /// input, of any kind.
    #[must_use]
    pub fn of_a_command(mut self) -> TaskManager {
        self.host = self.host.of_a_command();
        self
    }

    /// The id of this TaskManager in the cluster.
    pub fn resource_id(&self) -> Option<ResourceId> {
        self.description.location.resource_id.parse().ok()
    }

    /// What it watches if a driver has started it.
    fn wanted(&self) -> Option<Wanted> {
        Some(Wanted {
            cluster: self.options.taskmanager.worker_of.as_ref()?.to_string(),
            worker: self.resource_id()?,
            ha: self.options.ha.clone(),
            failover_timeout: self.options.taskmanager.failover_timeout,
        })
    }

    /// Runs tasks for the current leader until `stop`, until it was drained, or until its cluster has ended;
    /// then stops its tasks and disconnects.
    pub async fn run(self, stop: CancellationToken) -> Result<(), TaskManagerFailure> {
        let process = ProcessId::new(self.description.location.resource_id.as_str());
        let wanted = self.wanted();
        let store = follow_store(self.options.clone(), process);
        let connector: Arc<dyn Connector> =
            Arc::new(TonicConnector::new(settings::rpc(&self.options)));
        let host = self.host.fetching_from(Arc::new(LeadersUploads {
            leaders: store.leaders(),
            connector: connector.clone(),
            ask_timeout: self.options.rpc.ask_timeout,
        }));
        let guard = IsolationGuard::default();
        if self.is_guarded {
            guard_isolation(guard.clone());
        }
        let services = TaskExecutorServices {
            description: self.description.clone(),
            highest_epoch: self.highest_epoch.clone(),
            store,
            records: Arc::new(StoredJobRecords::of(self.options.ha.clone())),
            connector,
            launcher: Arc::new(TaskRuntime::new(
                self.tasks.handle(),
                self.exchange.clone(),
                Operators::new(host),
            )),
            first_registration: first_registration(),
            guard,
        };
        let executor = TaskExecutor::start(settings::task_executor(&self.options), services);
        let serving = CancellationToken::new();
        let service = Services::TaskManager(Arc::new(executor.handle()));
        let server = tokio::spawn(self.rpc.serve(service, serving.clone()));
        let stop = stop.child_token();
        // Ends with this function.
        let mut watching = JoinSet::new();
        watching.spawn(stop_when_over(
            self.options.ha.clone(),
            executor.presence(),
            stop.clone(),
        ));
        if let Some(wanted) = wanted {
            watching.spawn(stop_when_unwanted(
                wanted,
                executor.presence(),
                stop.clone(),
            ));
        }
        let ended = until_it_ends(executor, &stop).await;
        serving.cancel();
        if let Err(error) = server.await {
            warn!(%error, "the RPC server ended with an error");
        }
        self.tasks.shut_down();
        ended.map_err(|cause| TaskManagerFailure {
            taskmanager: self.description.location.resource_id,
            code: exit_code(&cause),
            cause: cause.to_string(),
        })
    }
}

async fn stop_when_unwanted(
    wanted: Wanted,
    presence: watch::Receiver<Presence>,
    stop: CancellationToken,
) {
    let cause = until_unwanted(wanted, presence).await;
    warn!(cause, "this worker ends");
    stop.cancel();
}

async fn stop_when_over(
    ha: HaOptions,
    presence: watch::Receiver<Presence>,
    stop: CancellationToken,
) {
    let cause = until_over(&ha, presence).await;
    info!(cause, "this TaskManager ends");
    stop.cancel();
}

/// Makes the extended resources of the process visible to programs.
fn with_resources(host: TaskHost, options: &ClusterOptions) -> TaskHost {
    let all = options.taskmanager.external_resources.iter();
    let variables = all.map(|it| (it.name.clone(), it.variable.clone()));
    host.with_external_resources(variables.collect())
}

/// The exit code of a process that must end for this cause.
pub(super) fn exit_code(cause: &Fatal) -> ExitCode {
    match cause {
        Fatal::Drained => ExitCode::Ended,
        Fatal::Refused(_) => ExitCode::Refused,
        Fatal::CancellationTimedOut(_) | Fatal::Broken(_) => ExitCode::Fatal,
    }
}

/// Waits until a TaskExecutor is asked to end, was drained, or can't continue; then it stops its tasks and disconnects.
/// An error: why the process must end.
pub(super) async fn until_it_ends(
    executor: TaskExecutor,
    stop: &CancellationToken,
) -> Result<(), Fatal> {
    let cause = tokio::select! {
        () = stop.cancelled() => {
            info!("stopping tasks and deregistering");
            executor.stop("the TaskManager was requested to end").await;
            return Ok(());
        }
        cause = executor.fatal() => cause,
    };
    match cause {
        Fatal::Drained => {
            info!("the TaskManager is drained: deregistering");
            executor.stop("the TaskManager was drained").await;
            return Ok(());
        }
        Fatal::Refused(_) => {
            executor
                .stop(&format!("the TaskManager is refused: {cause}"))
                .await;
        }
        // Not stopped in order: that would wait for a task that does not end. The leader notices that the process has
        // ended.
        Fatal::CancellationTimedOut(_) | Fatal::Broken(_) => {}
    }
    Err(cause)
}

/// Interval between two checks whether the process must end because of isolated jobs.
const GUARD_INTERVAL: Duration = Duration::from_millis(50);

/// Kills this process when isolated tasks still run after their deadline: the process may hang, or it was suspended
/// and runs again, and another attempt of these tasks may run elsewhere.
fn guard_isolation(guard: IsolationGuard) {
    let watching = std::thread::Builder::new().name("isolation".to_owned());
    let started = watching.spawn(move || {
        while !guard.is_overdue() {
            std::thread::park_timeout(GUARD_INTERVAL);
        }
        eprintln!("tasks of isolated jobs run after their deadline: this process is killed");
        let _killed = kill_process(getpid(), Signal::KILL);
    });
    if let Err(error) = started {
        warn!(%error, "the guard thread for isolated tasks can't be started");
    }
}

/// Follows the leader in the store, once the store can be reached.
pub(super) fn follow_store(options: Arc<ClusterOptions>, process: ProcessId) -> OwnStore {
    let known = watch::Sender::new(LeaderView::default());
    let opened = watch::Sender::new(None);
    let store = OwnStore::start(known.clone(), read_with(opened.subscribe()));
    tokio::spawn(async move {
        let following = async {
            let driver = services::observe(&options.ha.backend, &process, |_| {}).await;
            opened.send_replace(Some(driver.clone()));
            follow_driver(&*driver, &known).await;
        };
        tokio::select! {
            () = following => {}
            () = known.closed() => {}
        }
    });
    store
}

/// Forwards the views that a driver watches. An older view does not replace one that a read has shown
/// meanwhile.
pub(super) async fn follow_driver(driver: &dyn ElectionDriver, known: &watch::Sender<LeaderView>) {
    let mut views = retrieval::follow(driver.observed());
    loop {
        let view = views.borrow_and_update().clone();
        known.send_if_modified(|known| {
            let is_news = view.epoch >= known.epoch && *known != view;
            if is_news {
                *known = view;
            }
            is_news
        });
        if views.changed().await.is_err() {
            return;
        }
    }
}

/// Reads through the driver, once there is one.
pub(super) fn read_with(
    opened: watch::Receiver<Option<Arc<dyn ElectionDriver>>>,
) -> impl Fn() -> BoxFuture<'static, Result<LeaderView, NoAnswer>> {
    move || {
        let driver = opened.borrow().clone();
        Box::pin(async move {
            let driver = driver.ok_or_else(|| NoAnswer("it is not open yet".to_owned()))?;
            let view = driver.read().await;
            let view = view.map_err(|error| NoAnswer(error.to_string()))?;
            Ok(LeaderView::from(&view))
        })
    }
}

/// The resources that the host leaves to a TaskManager.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostResources {
    cpu_cores: u32,
    physical_memory_bytes: u64,
    limit_bytes: Option<u64>,
}

impl HostResources {
    pub(super) fn own() -> HostResources {
        let cpu_cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let memory = rustix::system::sysinfo();
        HostResources {
            cpu_cores: u32::try_from(cpu_cores).unwrap_or(u32::MAX),
            physical_memory_bytes: memory.totalram.saturating_mul(u64::from(memory.mem_unit)),
            limit_bytes: memory_limit_bytes(),
        }
    }

    fn usable_memory(&self) -> u64 {
        let physical = self.physical_memory_bytes;
        self.limit_bytes
            .map_or(physical, |limit| limit.min(physical))
    }

    /// The resources of a TaskManager with these options on this host.
    pub(super) fn worker(
        &self,
        options: &ClusterOptions,
    ) -> Result<WorkerResourceSpec, MemoryContradiction> {
        let cores = CpuCores::whole(self.cpu_cores);
        options.taskmanager.worker(cores, self.usable_memory())
    }

    /// The largest amount that the slots of a TaskManager can have here: all cores, and all memory except its
    /// own overhead.
    pub(super) fn largest_worker(&self, options: &ClusterOptions) -> Resources {
        let usual = self.worker(options);
        let usual = usual.map_or(Resources::ZERO, |worker| worker.total().clone());
        let memory = options
            .taskmanager
            .memory
            .most_for_slots(self.usable_memory());
        Resources {
            cpu: CpuCores::whole(self.cpu_cores).max(usual.cpu),
            task_memory: memory,
            network_memory: memory,
            managed_memory: memory,
            extended: usual.extended,
        }
    }
}

/// The description with which a TaskManager with these options registers on this host.
pub(super) fn describe(
    location: pb::TaskManagerLocation,
    options: &ClusterOptions,
) -> Result<TaskExecutorDescription, MemoryContradiction> {
    let host = HostResources::own();
    let memory = options.taskmanager.memory.resolve(host.usable_memory())?;
    Ok(TaskExecutorDescription {
        location,
        hardware: pb::HardwareDescription {
            cpu_cores: host.cpu_cores,
            physical_memory_bytes: host.physical_memory_bytes,
        },
        worker: host.worker(options)?,
        memory_configuration: pb::MemoryConfiguration {
            process_limit_bytes: host.limit_bytes.unwrap_or_default(),
            framework_bytes: memory.framework,
            overhead_bytes: memory.overhead,
        },
        cluster_id: options.ha.cluster_id.to_string(),
        version: VERSION_AND_REVISION.to_owned(),
        protocol_version: tanist_proto::PROTOCOL_VERSION,
        worker_of: String::new(),
    })
}
