//! The inputs of a JobMaster: options, collaborators and the job. No configuration text is parsed here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tanist_gateway::blobs::ServedBlobs;
use tanist_gateway::fencing::OnHigherEpoch;
use tanist_gateway::persistence::JobStateStore;
use tanist_gateway::refusals::Refusals;
use tanist_gateway::{Connector, ResourceRequirementsGateway};
use tanist_ha::blob::BlobStore;
use tanist_ha::clock::millis;
use tanist_model::MAX_REGIONS;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::core::{CoreOptions, FailoverStrategy, RestartStrategy};
use super::start_limiter::StartLimiter;

pub(crate) use tanist_model::CommitError;

/// Timeouts of isolated jobs, sent to TaskManagers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopFirst {
    /// `taskmanager.isolation-timeout`.
    pub timeout: Duration,
    /// `taskmanager.isolation-cancellation-timeout`.
    pub cancellation: Duration,
}

impl Default for StopFirst {
    fn default() -> StopFirst {
        StopFirst {
            timeout: Duration::from_secs(30),
            cancellation: Duration::from_secs(10),
        }
    }
}

/// When checkpoints are taken of jobs that say nothing else. Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointDefaults {
    /// Time between the beginnings of two checkpoints; 0: none are taken.
    pub interval_ms: u64,
    /// Time between the end of a checkpoint and the beginning of the next one, at least.
    pub min_pause_ms: u64,
    /// Timeout of one checkpoint.
    pub timeout_ms: u64,
    /// Number of failed checkpoints of a region in a row that are no failure of the region; `None`: any number.
    pub tolerable_failures: Option<u32>,
    /// Number of completed checkpoints that are kept, at least 1.
    pub retained: u32,
    /// Whether the newest one is kept when the job is canceled.
    pub retention: pb::CheckpointRetention,
    /// Time between two listings of the directory of a job's checkpoints, which find what nothing names
    /// (`blob.orphan-grace`).
    pub listing_interval_ms: u64,
}

impl Default for CheckpointDefaults {
    fn default() -> CheckpointDefaults {
        CheckpointDefaults {
            interval_ms: 0,
            min_pause_ms: 0,
            timeout_ms: 600_000,
            tolerable_failures: None,
            retained: 1,
            retention: pb::CheckpointRetention::DeleteOnCancellation,
            listing_interval_ms: 24 * 3_600_000,
        }
    }
}

/// Options of a JobMaster. The defaults are Apache Flink's.
#[derive(Debug, Clone, PartialEq)]
pub struct JobMasterOptions {
    /// Interval of the heartbeats to TaskManagers.
    pub heartbeat_interval: Duration,
    /// Time without an answer after which a TaskManager is lost.
    pub heartbeat_timeout: Duration,
    /// Number of consecutive failed calls after which a TaskManager is lost; 0: never. Counted are heartbeats
    /// that it refuses, and calls that can't reach it unless this process itself is cut off.
    pub rpc_failure_threshold: u32,
    /// Timeout of a call.
    pub rpc_ask_timeout: Duration,
    /// A graph that is larger (encoded, in bytes) is fetched, not sent with deployments
    /// (`rpc.inline-deployment-threshold`).
    pub inline_deployment_threshold: usize,
    /// Maximum size of a message in bytes (`rpc.max-message-size`). Deployments for one TaskManager are divided so that
    /// their tasks take at most half of it: the graph may take the other half.
    pub max_message_size: usize,
    /// Timeout of a region's wait for slots. After it the wait counts as a failure.
    pub slot_request_timeout: Duration,
    /// `slotmanager.number-of-slots.max`, if it is set and a driver starts TaskManagers. Named in messages
    /// about missing slots.
    pub max_slots: Option<u32>,
    /// Time after which an idle slot that the job doesn't need is given back.
    pub slot_idle_timeout: Duration,
    /// Timeout for a cancelled task to stop. After it the JobMaster gives its TaskManager up.
    pub task_cancellation_timeout: Duration,
    /// Time without an answer of the store after which a TaskManager stops the tasks of an isolated job, and
    /// timeout for them to stop: together well below `heartbeat_timeout`.
    pub stop_first: StopFirst,
    /// The strategy for graphs that name none.
    pub restart_strategy: RestartStrategy,
    /// The settings of checkpoints for graphs that name none.
    pub checkpoints: CheckpointDefaults,
    /// `execution.checkpointing.savepoint-dir`. Named in messages about that directory.
    pub savepoint_dir: Option<String>,
    /// Which regions restart after a failure.
    pub failover_strategy: FailoverStrategy,
    /// Number of the job's failures that are kept (`web.exception-history-size`).
    pub exception_history_size: usize,
    /// Capacity of the mailbox, besides one message of each sender.
    pub mailbox_capacity: usize,
}

impl Default for JobMasterOptions {
    fn default() -> JobMasterOptions {
        JobMasterOptions {
            heartbeat_interval: Duration::from_secs(10),
            heartbeat_timeout: Duration::from_secs(50),
            rpc_failure_threshold: 2,
            rpc_ask_timeout: Duration::from_secs(10),
            inline_deployment_threshold: 256 << 10,
            max_message_size: 16 << 20,
            slot_request_timeout: Duration::from_secs(300),
            max_slots: None,
            slot_idle_timeout: Duration::from_secs(50),
            task_cancellation_timeout: Duration::from_secs(180),
            stop_first: StopFirst::default(),
            restart_strategy: RestartStrategy::default(),
            checkpoints: CheckpointDefaults::default(),
            savepoint_dir: None,
            failover_strategy: FailoverStrategy::Region,
            exception_history_size: 16,
            mailbox_capacity: 256,
        }
    }
}

impl JobMasterOptions {
    /// The options of the core.
    pub(super) fn core_options(&self) -> CoreOptions {
        CoreOptions {
            slot_request_timeout_ms: millis(self.slot_request_timeout),
            max_slots: self.max_slots,
            slot_idle_timeout_ms: millis(self.slot_idle_timeout),
            // A live TaskManager ends itself before this timeout. Only one that does not is given up while
            // its tasks may still run.
            task_cancellation_timeout_ms: millis(
                self.task_cancellation_timeout
                    .saturating_add(self.rpc_ask_timeout),
            ),
            reconcile_timeout_ms: millis(self.heartbeat_timeout),
            restart_strategy: self.restart_strategy.clone(),
            failover_strategy: self.failover_strategy,
            exception_history_size: self.exception_history_size,
            max_regions: MAX_REGIONS,
            seed: rand::random(),
        }
    }
}

/// Commits a job's sinks: makes their output visible.
#[async_trait]
pub trait SinkCommitter: Send + Sync + fmt::Debug + 'static {
    /// Makes all of it visible. Idempotent: visible output stays visible.
    async fn commit(&self, committables: &[pb::Committable]) -> Result<(), CommitError>;

    /// Makes the output visible that the durable manifest of a checkpoint lists. Idempotent, also beside another
    /// process that does the same; one call of a job at a time.
    async fn commit_checkpoint(
        &self,
        number: u64,
        committables: &[pb::CheckpointCommittable],
    ) -> Result<(), CommitError>;

    /// Removes the marks of commits up to this number, which the record says are done.
    async fn forget_marks(
        &self,
        sinks: &pb::SinkDirectories,
        job: JobId,
        up_to: u64,
    ) -> Result<(), String>;

    /// Removes pending files of attempts that are superseded.
    async fn remove_superseded(
        &self,
        sinks: &pb::SinkDirectories,
        job: JobId,
        superseded: &Superseded,
    ) -> Result<(), String>;
}

/// Attempts whose pending files can be removed: nothing of them is committed any more, except files that retained
/// manifests name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Superseded {
    /// By vertex and subtask: attempts of the generations below it. Subtasks that it does not have are not superseded.
    pub below: BTreeMap<(String, u32), u64>,
    /// Paths of the files that retained manifests name, also in committables, as the system has them.
    pub kept: BTreeSet<Vec<u8>>,
}

/// The job, its term, and the collaborators of the JobMaster.
pub struct JobMasterContext {
    /// The JobGraph.
    pub graph: Arc<pb::JobGraph>,
    /// The job's record as stored.
    pub state: pb::JobState,
    /// Whether an earlier JobMaster may have run the job.
    pub is_recovered: bool,
    /// Cluster incarnation and epoch of this term. Sent with each message, with the registration filled in.
    pub sender: Arc<pb::Sender>,
    /// The address at which TaskManagers reach this JobMaster: `host:port`.
    pub rpc_address: Arc<str>,
    /// Persists the record.
    pub state_store: Arc<dyn JobStateStore>,
    /// The ResourceManager of this term.
    pub resources: Arc<dyn ResourceRequirementsGateway>,
    /// Connects to TaskManagers.
    pub connector: Arc<dyn Connector>,
    /// Decides whether calls that TaskManagers refuse count.
    pub refusals: Arc<dyn Refusals>,
    /// Commits sinks.
    pub committer: Arc<dyn SinkCommitter>,
    /// The store of checkpoints' objects; `None`: state and manifests are kept in records.
    pub checkpoint_objects: Option<Arc<BlobStore>>,
    /// Called when another process names a younger term.
    pub on_higher_epoch: OnHigherEpoch,
    /// Serves a graph that is too large for messages, while this JobMaster lives.
    pub blobs: ServedBlobs,
    /// Limits how many recovered JobMasters start at the same time.
    pub start_limiter: StartLimiter,
}

impl fmt::Debug for JobMasterContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobMasterContext")
            .field("job", &self.graph.job_id)
            .field("epoch", &self.sender.epoch)
            .field("is_recovered", &self.is_recovered)
            .finish_non_exhaustive()
    }
}
