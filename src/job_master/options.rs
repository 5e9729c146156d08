//! What a JobMaster is given: bounds, collaborators, and the job. Nothing here is configuration text.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tanist_ha::clock::millis;
use tanist_proto::v1 as pb;

use super::beginnings::Beginnings;
use super::core::CoreOptions;
use super::failover::FailoverStrategy;
use super::restart::RestartStrategy;
use crate::gateway::blobs::ServedBlobs;
use crate::gateway::fencing::OnHigherEpoch;
use crate::gateway::persistence::JobStateStore;
use crate::gateway::refusals::Refusals;
use crate::gateway::{Connector, ResourceRequirementsGateway};
use crate::job::MAX_REGIONS;

/// What TaskManagers are told of isolated jobs.
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

/// Bounds of a JobMaster. The defaults are Apache Flink's.
#[derive(Debug, Clone, PartialEq)]
pub struct JobMasterOptions {
    /// How often TaskManagers are asked.
    pub heartbeat_interval: Duration,
    /// After this silence a TaskManager is lost.
    pub heartbeat_timeout: Duration,
    /// After so many calls in a row that can't reach it, unless this process is what is cut off, or heartbeats that it
    /// refuses, a TaskManager is lost; 0: never.
    pub rpc_failure_threshold: u32,
    /// A call that is not answered in this time has no answer.
    pub rpc_ask_timeout: Duration,
    /// A larger graph (encoded, in bytes) is not sent with deployments but fetched (`rpc.inline-deployment-threshold`).
    pub inline_deployment_threshold: usize,
    /// How long a region waits for slots before that counts as a failure.
    pub slot_request_timeout: Duration,
    /// `slotmanager.number-of-slots.max`, where a driver starts TaskManagers and somebody has set it: to be named where slots lack.
    pub max_slots: Option<u32>,
    /// How long a slot that nothing needs is kept.
    pub slot_idle_timeout: Duration,
    /// How long a task may take to stop before its TaskManager is given up.
    pub task_cancellation_timeout: Duration,
    /// After how long without an answer of the store a TaskManager stops the tasks of an isolated job, and how long they may
    /// take for that: together well below `heartbeat_timeout`.
    pub stop_first: StopFirst,
    /// Where the graph names no strategy.
    pub restart_strategy: RestartStrategy,
    /// Which regions start anew after a failure.
    pub failover_strategy: FailoverStrategy,
    /// How many failures of the job are remembered (`web.exception-history-size`).
    pub exception_history_size: usize,
    /// How many messages may wait, beside one of each sender.
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
            slot_request_timeout: Duration::from_secs(300),
            max_slots: None,
            slot_idle_timeout: Duration::from_secs(50),
            task_cancellation_timeout: Duration::from_secs(180),
            stop_first: StopFirst::default(),
            restart_strategy: RestartStrategy::default(),
            failover_strategy: FailoverStrategy::Region,
            exception_history_size: 16,
            mailbox_capacity: 256,
        }
    }
}

impl JobMasterOptions {
    /// The part that the core needs.
    pub(super) fn core_options(&self) -> CoreOptions {
        CoreOptions {
            slot_request_timeout_ms: millis(self.slot_request_timeout),
            max_slots: self.max_slots,
            slot_idle_timeout_ms: millis(self.slot_idle_timeout),
            // A TaskManager that is alive ends itself before: only one that does not is given up while its tasks may still run.
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

/// Makes visible what a job's sinks wrote.
#[async_trait]
pub trait SinkCommitter: Send + Sync + fmt::Debug + 'static {
    /// Makes all of it visible. Idempotent: what is visible already stays so.
    async fn commit(&self, committables: &[pb::Committable]) -> Result<(), CommitError>;
}

/// Why sinks were not committed. The texts are for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// This may pass: it is tried again, and seen among the job's exceptions.
    #[error("{0}")]
    Failed(String),
    /// This never passes: the job fails.
    #[error("{0}")]
    Refused(String),
}

/// The job, the term that it is in, and who the JobMaster works with.
pub struct JobMasterContext {
    /// What is executed.
    pub graph: Arc<pb::JobGraph>,
    /// Its record as it is stored.
    pub state: pb::JobState,
    /// Whether a former JobMaster may have run it.
    pub is_recovered: bool,
    /// Cluster incarnation and epoch of this term; goes with each message, with the registration filled in.
    pub sender: Arc<pb::Sender>,
    /// Where TaskManagers reach this JobMaster: `host:port`.
    pub rpc_address: Arc<str>,
    /// Persists the record.
    pub state_store: Arc<dyn JobStateStore>,
    /// The ResourceManager of this term.
    pub resources: Arc<dyn ResourceRequirementsGateway>,
    /// The way to TaskManagers.
    pub connector: Arc<dyn Connector>,
    /// Whether calls that TaskManagers refuse count.
    pub refusals: Arc<dyn Refusals>,
    /// Commits sinks.
    pub committer: Arc<dyn SinkCommitter>,
    /// Told of younger terms that others name.
    pub on_higher_epoch: OnHigherEpoch,
    /// Serves a graph that is too large for messages, while this JobMaster lives.
    pub blobs: ServedBlobs,
    /// Where a recovered one waits for its turn.
    pub beginnings: Beginnings,
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
