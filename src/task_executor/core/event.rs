//! Events: inputs of the core that need no answer. Data only. Inputs that need one are methods: [`super::requests`].

use std::sync::Arc;
use std::time::Duration;

use tanist_dataflow::{CheckpointStatus, Requester};
use tanist_gateway::registration::Registered;
use tanist_gateway::{GatewayResult, NoAnswer, StoredJobs};
use tanist_ha::retrieval::LeaderView;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::effect::TaskKey;
use super::graphs::GraphKey;
use crate::launcher::TaskStatus;

/// A snapshot of a task whose large pieces are written in objects.
#[derive(Debug, Clone)]
pub(crate) struct WrittenSnapshot {
    /// It names the objects.
    pub snapshot: pb::SubtaskSnapshot,
    /// The name of the storage that has them; empty: it has no marker.
    pub storage: String,
}

/// An input of the core.
#[derive(Debug)]
pub(crate) enum Event {
    /// The store names a leader, or none.
    LeaderShown(LeaderView),
    /// A leader has seen a registration of this number.
    RegistrationSeen(u64),
    /// Result of a run of attempts to register at the ResourceManager.
    RegisteredAtResourceManager {
        run: u64,
        result: Registered<pb::RegistrationSuccess>,
    },
    /// Result of a run of attempts to register at a JobMaster.
    RegisteredAtJobMaster {
        job: JobId,
        run: u64,
        /// The result, with the incarnation of the JobMaster.
        result: Registered<(pb::RegistrationSuccess, u64)>,
    },
    /// Answer to a notification of slots.
    SlotsNotified {
        /// Run of the connection.
        run: u64,
        answer: GatewayResult<pb::Ack>,
    },
    /// Answer to an offer of slots.
    SlotsOffered {
        job: JobId,
        /// Run of the connection.
        run: u64,
        answer: GatewayResult<pb::OfferSlotsResponse>,
    },
    /// Answer to a report of executions.
    ExecutionsReported {
        job: JobId,
        /// Run of the connection.
        run: u64,
        answer: GatewayResult<pb::UpdateTaskExecutionStatesResponse>,
    },
    /// An operator asks its coordinator.
    CoordinatorAsked {
        /// Number of the request.
        request_id: u64,
        /// The operator.
        requester: Requester,
        /// The operator's own number of the request.
        number: u64,
    },
    /// Answer to a request of an operator.
    CoordinatorAnswered {
        job: JobId,
        /// Run of the connection.
        run: u64,
        /// Number of the request.
        request_id: u64,
        answer: GatewayResult<pb::AskCoordinatorResponse>,
    },
    /// Result of a read of the store.
    GenerationsRead(Result<StoredJobs, NoAnswer>),
    /// A graph was fetched.
    GraphFetched(GraphKey, Arc<pb::JobGraph>),
    /// The status of a task changed.
    TaskChanged {
        task: TaskKey,
        status: TaskStatus,
        /// Its last counters.
        metrics: Option<pb::TaskMetrics>,
    },
    /// The snapshot from which a task is restored can't be read at present.
    StateUnread { task: TaskKey, reason: String },
    /// All notices of a task for users.
    NoticesChanged { task: TaskKey, notices: Vec<String> },
    /// The checkpoint status of a task changed.
    CheckpointChanged {
        task: TaskKey,
        status: CheckpointStatus,
    },
    /// The snapshot of a task was written, or could not be.
    SnapshotWritten {
        task: TaskKey,
        number: u64,
        written: Result<WrittenSnapshot, String>,
        /// Time that it took.
        took: Duration,
    },
    /// Answer to a report of checkpoints.
    CheckpointsReported {
        job: JobId,
        /// Run of the connection.
        run: u64,
        /// Number of the call.
        call: u64,
        answer: GatewayResult<pb::ReportCheckpointsResponse>,
    },
    /// A deadline was reached.
    DeadlineReached,
    /// The TaskExecutor stops: all tasks are cancelled, and nothing more is accepted.
    Stopped,
}
