//! The options as the rest of the program sees them: typed, related, with every default filled in.
//!
//! Plain data, built once by [`super::build`]. Durations are durations, sizes are in bytes.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use tanist_ha::keys::Name;
use tanist_proto::resources::{CpuCores, Resources, WorkerResourceSpec};

use super::address::{AllowedHosts, Host, HostPort, PortRange, StorageLocation};
use super::control_groups::ControlGroupsOption;
use super::external::ExternalResource;
use super::memory::{MemoryContradiction, MemoryOptions};
use super::umask::Umask;
use super::value::{
    Attempts, ExecutionTarget, FailoverStrategyType, FailureThreshold, LoadBalanceMode, LocalUsers,
    LogFormat, LogLevel, MemorySize, Secret, WorkerDriver,
};

/// Everything.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The store of leadership and jobs.
    pub ha: HaOptions,
    /// The JobManager's own addresses and the results that it keeps.
    pub jobmanager: JobManagerOptions,
    /// The REST server.
    pub rest: RestOptions,
    /// The TaskManager.
    pub taskmanager: TaskManagerOptions,
    /// Heartbeats between components.
    pub heartbeat: HeartbeatOptions,
    /// Calls between processes.
    pub rpc: RpcOptions,
    /// Registrations of components at each other.
    pub registration: RegistrationOptions,
    /// Slots and the ResourceManager.
    pub resources: ResourceOptions,
    /// Defaults of jobs.
    pub jobs: JobOptions,
    /// The restart strategy of jobs that name none.
    pub restart_strategy: RestartStrategyOptions,
    /// Which tasks of a job start anew after a failure.
    pub failover_strategy: FailoverStrategyType,
    /// How many failures of a job are remembered.
    pub exception_history_size: NonZeroU32,
    /// Cleanup after ended jobs.
    pub cleanup: CleanupOptions,
    /// The client.
    pub client: ClientOptions,
    /// Who may connect.
    pub security: SecurityOptions,
    /// The process: directories and its end.
    pub process: ProcessOptions,
    /// The log.
    pub log: LogOptions,
}

/// High availability.
#[derive(Debug, Clone)]
pub struct HaOptions {
    /// Tells clusters in one store apart.
    pub cluster_id: Name,
    /// The store.
    pub backend: BackendOptions,
    /// Where blobs go; `None`: nowhere, larger graphs are split over store keys.
    pub storage: Option<StorageOptions>,
    /// Watching the leader.
    pub detector: DetectorOptions,
    /// How long handing over may take.
    pub transfer_timeout: Duration,
    /// How long nothing may move in a leader; above a lease, and above the deadline of a call.
    pub stall_timeout: Duration,
    /// The largest compressed record that is kept in the store itself.
    pub inline_threshold: MemorySize,
    /// How much of the jobs' records a standby keeps in memory.
    pub standby_cache_max_size: MemorySize,
    /// How often a standby compares these with what the store holds.
    pub standby_cache_check_interval: Duration,
    /// The largest compressed graph that is split over keys of the store.
    pub max_graph_size: MemorySize,
    /// How old a blob is that nothing points to before it is deleted.
    pub blob_orphan_grace: Duration,
}

/// How standbys watch the leader.
#[derive(Debug, Clone)]
pub struct DetectorOptions {
    /// From one sign of life to the next.
    pub beat_interval: Duration,
    /// Silence after which others are asked; at least three intervals, and shorter than a lease.
    pub silence_timeout: Duration,
    /// How long those may take; at least two intervals.
    pub ask_timeout: Duration,
    /// How long free leadership is left to a leader that is heard.
    pub hold_off_timeout: Duration,
}

/// The store of leadership and jobs.
#[derive(Debug, Clone)]
pub enum BackendOptions {
    /// etcd.
    Etcd(EtcdOptions),
    /// ZooKeeper.
    Zookeeper(ZookeeperOptions),
    /// A directory on this host.
    Embedded(EmbeddedOptions),
}

/// A user with a password.
#[derive(Debug, Clone)]
pub struct UserPassword {
    /// The user.
    pub user: String,
    /// The password.
    pub password: Secret,
}

/// How etcd is reached.
#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// At least one server.
    pub endpoints: Vec<HostPort>,
    /// The prefix, as `/tanist`.
    pub root: String,
    /// If authentication is on.
    pub auth: Option<UserPassword>,
    /// Asked time to live of a lease: whole seconds, from 2.
    pub lease_ttl: Duration,
    /// Bound of one request; below the lease's time to live.
    pub request_timeout: Duration,
    /// The servers' quota; `None`: what they say, or their default.
    pub quota: Option<MemorySize>,
}

/// How ZooKeeper is reached.
#[derive(Debug, Clone)]
pub struct ZookeeperOptions {
    /// At least one server.
    pub quorum: Vec<HostPort>,
    /// The root node, as `/tanist`.
    pub root: String,
    /// For digest authentication.
    pub auth: Option<UserPassword>,
    /// Asked session timeout.
    pub session_timeout: Duration,
    /// Bound of one attempt to connect; below the session timeout.
    pub connection_timeout: Duration,
}

/// The embedded store.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// Its directory. All processes of the cluster have the same.
    pub directory: PathBuf,
}

/// Where blobs go.
#[derive(Debug, Clone)]
pub struct StorageOptions {
    /// The directory or bucket.
    pub location: StorageLocation,
    /// Whether every host of the cluster sees it, so that what is in it survives the loss of this host.
    pub shared: bool,
}

/// The JobManager.
#[derive(Debug, Clone)]
pub struct JobManagerOptions {
    /// Its name across restarts; `None`: host and bound RPC port.
    pub id: Option<Name>,
    /// What the RPC server binds.
    pub bind_host: Host,
    /// What others connect to.
    pub address: Host,
    /// Ports to try for the RPC server.
    pub ports: PortRange,
    /// Ports to try for signs of life.
    pub peer_ports: PortRange,
    /// Ports to try for the blob server, on the same addresses.
    pub blob_ports: PortRange,
    /// How long results of ended jobs are kept; at least ten times the client's timeout.
    pub result_expiration: Duration,
    /// How many bytes the uploaded files of a job may have.
    pub max_artifacts: MemorySize,
    /// Of how many ended jobs the description is kept.
    pub max_described: NonZeroU32,
    /// How much memory descriptions of ended jobs may take.
    pub description_cache: MemorySize,
}

/// The REST server.
#[derive(Debug, Clone)]
pub struct RestOptions {
    /// What clients connect to.
    pub address: Host,
    /// What the server binds.
    pub bind_address: Host,
    /// Ports to try for the server.
    pub bind_ports: PortRange,
    /// Further names under which clients reach it.
    pub allowed_hosts: AllowedHosts,
    /// How long a request waits for a leader.
    pub await_leader_timeout: Duration,
    /// The largest body of a request.
    pub max_content_length: MemorySize,
}

/// The TaskManager.
#[derive(Debug, Clone)]
pub struct TaskManagerOptions {
    /// Its name; `None`: made up at start.
    pub resource_id: Option<Name>,
    /// What its servers bind.
    pub bind_host: Host,
    /// What others connect to.
    pub host: Host,
    /// Ports to try for RPC.
    pub rpc_ports: PortRange,
    /// Ports to try for records.
    pub data_ports: PortRange,
    /// How many slots it offers.
    pub slots: NonZeroU32,
    /// How many cores its slots have together; `None`: those that the process may use.
    pub cpu: Option<CpuCores>,
    /// What its memory is for.
    pub memory: MemoryOptions,
    /// What else it has; each name once.
    pub external_resources: Vec<ExternalResource>,
    /// After how long without a ResourceManager it complains.
    pub registration_timeout: Duration,
    /// After how long an allocated slot that no JobMaster took is free again.
    pub slot_timeout: Duration,
    /// The incarnation of the cluster whose driver started it; `None`: no driver did.
    pub worker_of: Option<Name>,
    /// The control group that it enters first.
    pub control_group: Option<PathBuf>,
    /// How long tasks go on while neither a leader nor the store can be reached.
    pub failover_timeout: Duration,
    /// After how long without an answer of the store the tasks of isolated jobs are stopped.
    pub isolation_timeout: Duration,
    /// How long they may take to end.
    pub isolation_cancellation_timeout: Duration,
}

impl TaskManagerOptions {
    /// What a TaskManager with these options has, where the system lets it have so much.
    pub fn worker(
        &self,
        system_cpu: CpuCores,
        system_memory: u64,
    ) -> Result<WorkerResourceSpec, MemoryContradiction> {
        let memory = self.memory.resolve(system_memory)?;
        let resources = Resources {
            cpu: self.cpu.unwrap_or(system_cpu),
            task_memory: memory.task,
            network_memory: memory.network,
            managed_memory: memory.managed,
            ..Resources::ZERO
        };
        let extended = self.external_resources.iter();
        let total = extended.fold(resources, |resources, it| {
            resources.with_extended(it.name.clone(), it.amount)
        });
        Ok(WorkerResourceSpec::new(total, self.slots.get()))
    }
}

/// Heartbeats.
#[derive(Debug, Clone)]
pub struct HeartbeatOptions {
    /// From one request to the next; below `timeout`.
    pub interval: Duration,
    /// After how much silence the other side counts as lost.
    pub timeout: Duration,
    /// After how many refused calls it does.
    pub rpc_failure_threshold: FailureThreshold,
}

/// Calls between processes.
#[derive(Debug, Clone)]
pub struct RpcOptions {
    /// The deadline of a call.
    pub ask_timeout: Duration,
    /// The largest message.
    pub max_message_size: MemorySize,
    /// The largest graph within a message; at most half of `max_message_size`.
    pub inline_deployment_threshold: MemorySize,
}

/// Registrations.
#[derive(Debug, Clone)]
pub struct RegistrationOptions {
    /// How long the first attempt waits; doubles from try to try.
    pub initial_timeout: Duration,
    /// The longest wait; not below `initial_timeout`.
    pub max_timeout: Duration,
    /// Pause after an error.
    pub error_delay: Duration,
    /// Pause after a refusal.
    pub refused_delay: Duration,
}

/// Slots and the ResourceManager.
#[derive(Debug, Clone)]
pub struct ResourceOptions {
    /// After how long without a JobMaster a job loses its requirements.
    pub job_timeout: Duration,
    /// How long TaskManagers have to register before a job is told that none can serve it.
    pub start_up_time: Duration,
    /// From which TaskManagers a job is given slots.
    pub load_balance: LoadBalanceMode,
    /// After which slots are kept for the first job that lacks some.
    pub reservation_delay: Duration,
    /// After how long a request for slots fails.
    pub slot_request_timeout: Duration,
    /// After how long an idle slot is given back.
    pub slot_idle_timeout: Duration,
    /// The TaskManagers that a driver starts.
    pub workers: WorkerOptions,
}

/// TaskManagers that a driver starts.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The driver.
    pub driver: WorkerDriver,
    /// Where `local-process` keeps the logs of those that it started.
    pub log_dir: PathBuf,
    /// After how long one that is not used is released.
    pub idle_timeout: Duration,
    /// In which one that was started has to register.
    pub registration_timeout: Duration,
    /// How many failures a minute are too many; above zero.
    pub max_failure_rate: f64,
    /// For how long nothing is started then.
    pub retry_interval: Duration,
    /// So many slots there are at least; not above `max_slots`.
    pub min_slots: u32,
    /// So many slots there are at most.
    pub max_slots: u32,
    /// The slots of so many TaskManagers are kept free.
    pub redundant: u32,
}

/// Defaults of jobs.
#[derive(Debug, Clone)]
pub struct JobOptions {
    /// The parallelism of steps that name none; not above `max_parallelism`.
    pub default_parallelism: NonZeroU32,
    /// Key groups, at most 32768.
    pub max_parallelism: NonZeroU32,
    /// Whether steps are chained.
    pub operator_chaining: bool,
    /// After how long a cancelled task takes its process down; `None`: never.
    pub task_cancellation_timeout: Option<Duration>,
    /// How often it is told again; `None`: never.
    pub task_cancellation_interval: Option<Duration>,
}

/// What happens after a failure.
#[derive(Debug, Clone, PartialEq)]
pub enum RestartStrategyOptions {
    /// The job fails.
    None,
    /// So many restarts, each after the same delay.
    FixedDelay {
        /// How many.
        attempts: u32,
        /// The pause before each.
        delay: Duration,
    },
    /// Restarts until too many failures fall into one interval.
    FailureRate {
        /// How many failures are too many: one more than this.
        max_failures_per_interval: NonZeroU32,
        /// The interval.
        interval: Duration,
        /// The pause before each restart.
        delay: Duration,
    },
    /// Restarts after growing delays.
    ExponentialDelay {
        /// The first pause.
        initial_backoff: Duration,
        /// The longest pause; not below the first.
        max_backoff: Duration,
        /// Growth, from 1.
        backoff_multiplier: f64,
        /// After how long without failure the pause is the first again.
        reset_backoff_threshold: Duration,
        /// Random part of a pause, 0 to 1.
        jitter_factor: f64,
        /// How many restarts without a reset.
        attempts_before_reset: Attempts,
    },
}

/// Cleanup after ended jobs.
#[derive(Debug, Clone)]
pub struct CleanupOptions {
    /// The first pause.
    pub initial_backoff: Duration,
    /// The longest pause; not below the first.
    pub max_backoff: Duration,
    /// How many more tries in one term.
    pub attempts: Attempts,
}

/// The client.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Where jobs go. `None`: nobody said so.
    pub target: Option<ExecutionTarget>,
    /// The REST server to ask: set when `rest.address` or `rest.port` is. `None`: ask the store who leads.
    pub rest: Option<HostPort>,
    /// How long it goes on trying.
    pub timeout: Duration,
    /// The pause between tries; below `timeout`.
    pub retry_period: Duration,
}

/// Who may connect to the process's ports.
#[derive(Debug, Clone, Copy)]
pub struct SecurityOptions {
    /// Whether other addresses than loopback may be bound though nothing is encrypted or authenticated.
    pub insecure: bool,
    /// Which users of this host are served.
    pub local_users: LocalUsers,
}

/// The process.
#[derive(Debug, Clone)]
pub struct ProcessOptions {
    /// In it each process has a directory of its own.
    pub working_dir: PathBuf,
    /// For files that needn't outlive the process; at least one.
    pub tmp_dirs: Vec<PathBuf>,
    /// How long an orderly end may take.
    pub shutdown_timeout: Duration,
    /// Where it makes control groups.
    pub control_groups: ControlGroupsOption,
    /// The mask of the files that jobs write; none: the one with which the process was started.
    pub output_umask: Option<Umask>,
}

/// The log.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// The lowest level shown.
    pub level: LogLevel,
    /// How events look.
    pub format: LogFormat,
}
