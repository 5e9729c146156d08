//! The typed options that the rest of the program uses: checked against each other, with every default filled in.
//!
//! Plain data, built once by [`super::build`]. Sizes are in bytes.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tanist_ha::backend::Backend;
use tanist_ha::blob::{BlobOptions, BlobPlaces};
use tanist_ha::keys::Name;
use tanist_proto::resources::{CpuCores, Resources, WorkerResourceSpec};

use super::address::{AllowedHosts, Host, HostPort, PortRange, StorageLocation};
use super::checkpointing::{CheckpointRetention, ClaimMode, RestoreFrom};
use super::control_groups::ControlGroupsOption;
use super::external::ExternalResource;
use super::memory::{MemoryContradiction, MemoryOptions};
use super::umask::Umask;
use super::value::{
    Attempts, ExecutionTarget, FailoverStrategyType, FailureThreshold, LoadBalanceMode, LocalUsers,
    LogFormat, LogLevel, MemorySize, WorkerDriver,
};

/// All options of a cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The store of leadership and jobs.
    pub ha: HaOptions,
    /// The addresses of the JobManager, and how long it keeps results.
    pub jobmanager: JobManagerOptions,
    /// The REST server.
    pub rest: RestOptions,
    /// The TaskManager.
    pub taskmanager: TaskManagerOptions,
    /// Heartbeats between components.
    pub heartbeat: HeartbeatOptions,
    /// Calls between processes.
    pub rpc: RpcOptions,
    /// How components register with each other.
    pub registration: RegistrationOptions,
    /// Slots and the ResourceManager.
    pub resources: ResourceOptions,
    /// Defaults of jobs.
    pub jobs: JobOptions,
    /// The restart strategy of jobs that set none.
    pub restart_strategy: RestartStrategyOptions,
    /// Which tasks of a job restart after a failure.
    pub failover_strategy: FailoverStrategyType,
    /// When checkpoints are taken of jobs that don't say it.
    pub checkpoints: CheckpointOptions,
    /// The number of failures that are kept of a job.
    pub exception_history_size: NonZeroU32,
    /// Cleanup after ended jobs.
    pub cleanup: CleanupOptions,
    /// The client.
    pub client: ClientOptions,
    /// Who may connect to the ports of the process.
    pub security: SecurityOptions,
    /// The process: its directories and its shutdown.
    pub process: ProcessOptions,
    /// The log.
    pub log: LogOptions,
}

/// High availability.
#[derive(Debug, Clone)]
pub struct HaOptions {
    /// Distinguishes clusters that share a store.
    pub cluster_id: Name,
    /// The coordination store.
    pub backend: Arc<dyn Backend>,
    /// The options that say where the store is.
    pub place: StorePlace,
    /// The blob store. `None`: there is none, and large graphs are split over store keys.
    pub storage: Option<StorageOptions>,
    /// Where the objects of checkpoints are. `None`: in the blob store.
    pub checkpoint_storage: Option<StorageOptions>,
    /// How standbys watch the leader.
    pub detector: DetectorOptions,
    /// Timeout of a handover.
    pub transfer_timeout: Duration,
    /// A leader without progress for this long resigns. Longer than a lease and than the timeout of a call.
    pub stall_timeout: Duration,
    /// The largest compressed record that is kept in the store itself.
    pub inline_threshold: MemorySize,
    /// How much memory a standby's copy of the job records may take.
    pub standby_cache_max_size: MemorySize,
    /// How often a standby compares this copy with the store.
    pub standby_cache_check_interval: Duration,
    /// The largest compressed graph that is split over keys of the store.
    pub max_graph_size: MemorySize,
    /// Age at which a blob that no record refers to is deleted.
    pub blob_orphan_grace: Duration,
}

impl HaOptions {
    /// The places of the cluster's objects. `None`: there is no blob store.
    pub fn blob_places(&self) -> Option<BlobPlaces> {
        let storage = self.storage.as_ref()?;
        let checkpoints = self.checkpoint_storage.as_ref();
        Some(BlobPlaces {
            blobs: storage.blob_options(),
            checkpoints: checkpoints.map(StorageOptions::blob_options),
        })
    }
}

/// How standbys watch the leader.
#[derive(Debug, Clone)]
pub struct DetectorOptions {
    /// Interval between two heartbeats of a JobManager.
    pub heartbeat_interval: Duration,
    /// Silence after which a standby asks other processes about the leader; at least three intervals, and
    /// shorter than a lease.
    pub silence_timeout: Duration,
    /// How long these processes may take to answer; at least two intervals.
    pub inquiry_timeout: Duration,
    /// How long a standby does not take free leadership while it still receives heartbeats of the last leader.
    pub hold_off_timeout: Duration,
}

/// The options that say where the store is, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorePlace {
    /// The name of the option with its servers or directory.
    pub option: &'static str,
    /// The name of another option that is part of the place.
    pub also: Option<&'static str>,
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.also {
            Some(also) => write!(f, "{} and {also}", self.option),
            None => f.write_str(self.option),
        }
    }
}

/// The blob store.
#[derive(Debug, Clone)]
pub struct StorageOptions {
    /// The directory or bucket.
    pub location: StorageLocation,
    /// Whether every host of the cluster sees it, so that its content survives the loss of this host.
    pub shared: bool,
}

impl StorageOptions {
    /// The same in the form that opens the blob store.
    fn blob_options(&self) -> BlobOptions {
        BlobOptions {
            url: match &self.location {
                StorageLocation::Directory(path) => path.to_string_lossy().into_owned(),
                StorageLocation::S3(url) => url.clone(),
            },
            shared: self.shared,
        }
    }
}

/// The JobManager.
#[derive(Debug, Clone)]
pub struct JobManagerOptions {
    /// Its name across restarts. `None`: host and bound RPC port.
    pub id: Option<Name>,
    /// The address that the RPC server binds.
    pub bind_host: Host,
    /// The address that other processes connect to.
    pub address: Host,
    /// Ports to try for the RPC server.
    pub ports: PortRange,
    /// Ports to try for heartbeats of peers.
    pub peer_ports: PortRange,
    /// Ports to try for the blob server, on the same addresses.
    pub blob_ports: PortRange,
    /// How long results of ended jobs are kept; at least ten times the client's timeout.
    pub result_expiration: Duration,
    /// Limit for the total size of the files that a job uploads.
    pub max_artifacts: MemorySize,
    /// Number of ended jobs whose description is kept.
    pub max_described: NonZeroU32,
    /// How much memory a leader uses for descriptions of ended jobs.
    pub description_cache: MemorySize,
}

/// The REST server.
#[derive(Debug, Clone)]
pub struct RestOptions {
    /// The address that clients connect to.
    pub address: Host,
    /// The address that the server binds.
    pub bind_address: Host,
    /// Ports to try for the server.
    pub bind_ports: PortRange,
    /// Further names under which clients reach the server.
    pub allowed_hosts: AllowedHosts,
    /// How long a request waits for a leader.
    pub await_leader_timeout: Duration,
    /// The largest body of a request.
    pub max_content_length: MemorySize,
}

/// The TaskManager.
#[derive(Debug, Clone)]
pub struct TaskManagerOptions {
    /// Its name. `None`: generated at start.
    pub resource_id: Option<Name>,
    /// The address that its servers bind.
    pub bind_host: Host,
    /// The address that other processes connect to.
    pub host: Host,
    /// Ports to try for RPC.
    pub rpc_ports: PortRange,
    /// Ports to try for receiving records.
    pub data_ports: PortRange,
    /// Number of slots that it offers.
    pub slots: NonZeroU32,
    /// CPU cores of all its slots together. `None`: the cores that the process may use.
    pub cpu: Option<CpuCores>,
    /// The sizes of its memory.
    pub memory: MemoryOptions,
    /// Its other resources, each name once.
    pub external_resources: Vec<ExternalResource>,
    /// It logs a warning after this time without a ResourceManager.
    pub registration_timeout: Duration,
    /// An allocated slot that no JobMaster has taken for this long is free again.
    pub slot_timeout: Duration,
    /// The incarnation of the cluster whose driver started it. `None`: no driver did.
    pub worker_of: Option<Name>,
    /// The control group that it enters first.
    pub control_group: Option<PathBuf>,
    /// How long tasks continue while neither a leader nor the store can be reached.
    pub failover_timeout: Duration,
    /// After this time without an answer from the store the tasks of isolated jobs are stopped.
    pub isolation_timeout: Duration,
    /// How long these tasks may take to end.
    pub isolation_cancellation_timeout: Duration,
}

impl TaskManagerOptions {
    /// The resources of a TaskManager with these options on a system that allows it this CPU and memory.
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

/// Heartbeats between components.
#[derive(Debug, Clone)]
pub struct HeartbeatOptions {
    /// Interval between two requests; shorter than `timeout`.
    pub interval: Duration,
    /// A component that has been silent for this long counts as lost.
    pub timeout: Duration,
    /// Number of refused calls in a row after which a component counts as lost.
    pub rpc_failure_threshold: FailureThreshold,
}

/// Calls between processes.
#[derive(Debug, Clone)]
pub struct RpcOptions {
    /// The timeout of a call.
    pub ask_timeout: Duration,
    /// The largest message.
    pub max_message_size: MemorySize,
    /// The largest graph within a message; at most half of `max_message_size`.
    pub inline_deployment_threshold: MemorySize,
}

/// How components register with each other.
#[derive(Debug, Clone)]
pub struct RegistrationOptions {
    /// How long the first attempt waits; doubles with each further attempt.
    pub initial_timeout: Duration,
    /// The longest wait; not below `initial_timeout`.
    pub max_timeout: Duration,
    /// The pause after an error.
    pub error_delay: Duration,
    /// The pause after a refusal.
    pub refused_delay: Duration,
}

/// Slots and the ResourceManager.
#[derive(Debug, Clone)]
pub struct ResourceOptions {
    /// A job without a JobMaster for this long loses its requirements.
    pub job_timeout: Duration,
    /// How long TaskManagers may take to register before a job receives the error that none of them can serve it.
    pub start_up_time: Duration,
    /// Which TaskManagers a job gets slots from.
    pub load_balance: LoadBalanceMode,
    /// After this time slots are reserved for the first job that lacks some.
    pub reservation_delay: Duration,
    /// Timeout of a slot request.
    pub slot_request_timeout: Duration,
    /// A slot that has been unused for this long is returned.
    pub slot_idle_timeout: Duration,
    /// The TaskManagers that a driver starts.
    pub workers: WorkerOptions,
}

/// TaskManagers that a driver starts.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The driver.
    pub driver: WorkerDriver,
    /// Where `local-process` keeps the logs of the TaskManagers that it started.
    pub log_dir: PathBuf,
    /// An unused TaskManager is released after this time.
    pub idle_timeout: Duration,
    /// How long a started TaskManager may take to register.
    pub registration_timeout: Duration,
    /// Failed starts per minute at which the driver pauses; above zero.
    pub max_failure_rate: f64,
    /// Length of this pause.
    pub retry_interval: Duration,
    /// The least number of slots; not above `max_slots`.
    pub min_slots: u32,
    /// The largest number of slots.
    pub max_slots: u32,
    /// Number of TaskManagers whose slots are kept free.
    pub redundant: u32,
}

/// Defaults of jobs.
#[derive(Debug, Clone)]
pub struct JobOptions {
    /// The parallelism of steps that set none; not above `max_parallelism`.
    pub default_parallelism: NonZeroU32,
    /// Number of key groups, at most 32768.
    pub max_parallelism: NonZeroU32,
    /// Whether steps are chained.
    pub operator_chaining: bool,
    /// A cancelled task that has not ended after this time ends its process. `None`: never.
    pub task_cancellation_timeout: Option<Duration>,
    /// How often the cancellation is repeated. `None`: never.
    pub task_cancellation_interval: Option<Duration>,
}

/// What happens after a failure.
#[derive(Debug, Clone, PartialEq)]
pub enum RestartStrategyOptions {
    /// The job fails.
    None,
    /// A limited number of restarts, each after the same delay.
    FixedDelay {
        /// The number of restarts.
        attempts: u32,
        /// The pause before each restart.
        delay: Duration,
    },
    /// Restarts until there are too many failures in one interval.
    FailureRate {
        /// Number of failures per interval that are tolerated.
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
        /// Growth factor, at least 1.
        backoff_multiplier: f64,
        /// Time without a failure after which the pause is reset to the first one.
        reset_backoff_threshold: Duration,
        /// Random fraction of a pause, 0 to 1.
        jitter_factor: f64,
        /// Number of restarts without a reset.
        attempts_before_reset: Attempts,
    },
}

/// Checkpoints of jobs. Each job can set its own values.
#[derive(Debug, Clone)]
pub struct CheckpointOptions {
    /// Time between the beginnings of two checkpoints, at least 10 ms. `None`: none are taken.
    pub interval: Option<Duration>,
    /// Time between the end of a checkpoint and the beginning of the next one, at least.
    pub min_pause: Duration,
    /// Timeout of one checkpoint; above zero.
    pub timeout: Duration,
    /// Number of failed checkpoints of a region in a row that are no failure of the region. `None`: any number.
    pub tolerable_failures: Option<u32>,
    /// Number of completed checkpoints that are kept.
    pub retained: NonZeroU32,
    /// Whether the newest one is kept when the job is cancelled.
    pub retention: CheckpointRetention,
    /// Directory of savepoints whose request names none. Jobs can't set it.
    pub savepoint_dir: Option<StorageLocation>,
}

/// What submitted jobs begin from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateRecoveryOptions {
    /// The savepoint, or the retained checkpoint. `None`: jobs begin from the start.
    pub path: Option<RestoreFrom>,
    /// Whether a job may drop saved state that belongs to none of its steps.
    pub ignore_unclaimed_state: bool,
    /// Which job owns the retained checkpoint after that.
    pub claim_mode: ClaimMode,
}

/// Cleanup after ended jobs.
#[derive(Debug, Clone)]
pub struct CleanupOptions {
    /// The first pause.
    pub initial_backoff: Duration,
    /// The longest pause; not below the first.
    pub max_backoff: Duration,
    /// Number of retries in one term.
    pub attempts: Attempts,
}

/// The options of clients.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Where jobs go. `None`: not set.
    pub target: Option<ExecutionTarget>,
    /// The REST server to ask: set when `rest.address` or `rest.port` is. `None`: look up the leader in the store.
    pub rest: Option<HostPort>,
    /// How long a client retries.
    pub timeout: Duration,
    /// The pause between retries; shorter than `timeout`.
    pub retry_period: Duration,
    /// The starting point of jobs that this process compiles and that name none.
    pub state_recovery: StateRecoveryOptions,
}

/// Who may connect to the ports of the process.
#[derive(Debug, Clone, Copy)]
pub struct SecurityOptions {
    /// Whether servers may bind addresses other than loopback although nothing is encrypted or authenticated.
    pub insecure: bool,
    /// Which users of this host may connect.
    pub local_users: LocalUsers,
}

/// The process.
#[derive(Debug, Clone)]
pub struct ProcessOptions {
    /// The directory in which each process has a directory of its own.
    pub working_dir: PathBuf,
    /// Directories for files that need not outlive the process; at least one.
    pub tmp_dirs: Vec<PathBuf>,
    /// How long an orderly shutdown may take.
    pub shutdown_timeout: Duration,
    /// Where the process makes control groups.
    pub control_groups: ControlGroupsOption,
    /// The file mode creation mask for files that jobs write. `None`: the mask with which the process was started.
    pub output_umask: Option<Umask>,
}

/// The log.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// The lowest level that is written.
    pub level: LogLevel,
    /// The format of log events.
    pub format: LogFormat,
}
