//! Options of a TaskExecutor.

use std::time::Duration;

use tanist_gateway::registration::RegistrationOptions;
use tanist_ha::blob::BlobOptions;

/// Intervals and limits. The defaults are Flink's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `cluster.registration.*`.
    pub registration: RegistrationOptions,
    /// `heartbeat.timeout`, if the leader names none.
    pub heartbeat_timeout: Duration,
    /// `rpc.ask.timeout`: timeout of every other call.
    pub rpc_timeout: Duration,
    /// `taskmanager.registration.timeout`: time without a ResourceManager after which a warning is logged.
    pub registration_timeout: Duration,
    /// Delay before a failed offer or report is sent again.
    pub retry_delay: Duration,
    /// `taskmanager.slot.timeout`: time in which a JobMaster must accept an allocated slot.
    pub slot_timeout: Duration,
    /// `job-manager-failover-timeout`: time without any leader and any answer of the store after which jobs are
    /// ended.
    pub job_manager_failover_timeout: Duration,
    /// `task.cancellation.timeout`: a task that does not end within it after its cancellation ends the process.
    pub task_cancellation_timeout: Duration,
    /// `task.cancellation.interval`: interval at which the cancellation is repeated until then.
    pub task_cancellation_interval: Duration,
    /// Timeout for tasks to end when the TaskExecutor stops, and for its disconnect messages.
    pub stop_timeout: Duration,
    /// `execution.checkpointing.dir`: where objects of checkpoints are. `None`: nowhere.
    pub checkpoints: Option<CheckpointPlace>,
}

/// Where objects of checkpoints are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointPlace {
    /// The place.
    pub blobs: BlobOptions,
    /// The option that names it, for messages.
    pub option: &'static str,
    /// Whether leaders mark it, so that an empty mount point is distinguished from it.
    pub is_marked: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            registration: RegistrationOptions::default(),
            heartbeat_timeout: Duration::from_secs(50),
            rpc_timeout: Duration::from_secs(10),
            registration_timeout: Duration::from_secs(300),
            retry_delay: Duration::from_millis(500),
            slot_timeout: Duration::from_secs(10),
            job_manager_failover_timeout: Duration::from_secs(300),
            task_cancellation_timeout: Duration::from_secs(180),
            task_cancellation_interval: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(5),
            checkpoints: None,
        }
    }
}
