//! Events: the inputs of the core. Data only.

use std::fmt;
use std::sync::Arc;

use tanist_gateway::{Leaving, Unfulfillable};
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::v1 as pb;

use super::checkpoint_commit::CommitProgress;
use super::checkpointing::RestorePoints;
use super::coordinator::Unprepared;

/// The number of a TaskManager's registration. Grows with each registration, also across restarts of the
/// TaskManager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Registration(u64);

impl Registration {
    /// The registration with this number.
    pub const fn new(number: u64) -> Registration {
        Registration(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A connection to a TaskManager.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connection {
    /// The TaskManager.
    pub task_manager: ResourceId,
    /// Its registration.
    pub registration: Registration,
}

/// An input of the core.
#[derive(Debug, Clone)]
pub enum Event {
    /// The first event.
    Started,
    /// A TaskManager registers and reports all that it runs and holds for the job.
    Registered {
        /// Its connection.
        connection: Connection,
        /// Its address and its incarnation.
        location: pb::TaskManagerLocation,
        /// All executions of the job there.
        executions: Vec<pb::ExecutionReport>,
        /// Slots that it offers with the registration.
        slots: Vec<pb::SlotOffer>,
        /// Finished executions of the job whose output it keeps.
        outputs: Vec<pb::ExecutionId>,
    },
    /// A TaskManager offers slots.
    SlotsOffered {
        /// Its connection.
        connection: Connection,
        /// The slots.
        slots: Vec<pb::SlotOffer>,
    },
    /// A TaskManager lost a slot.
    SlotFailed {
        /// Its connection.
        connection: Connection,
        /// The slot.
        allocation: AllocationId,
        /// The cause.
        cause: String,
    },
    /// A TaskManager reports changed executions.
    ExecutionsReported {
        /// Its connection.
        connection: Connection,
        /// The executions with their states.
        executions: Vec<pb::ExecutionReport>,
    },
    /// A heartbeat was answered, with a full report.
    HeartbeatAnswered {
        /// The connection of the TaskManager.
        connection: Connection,
        /// [`super::JobMasterCore::turn`] when the heartbeat was sent.
        requested_in: u64,
        /// All executions of the job there.
        executions: Vec<pb::ExecutionReport>,
        /// All slots of the job there.
        allocations: Vec<AllocationId>,
        /// Finished executions of the job whose output it keeps.
        outputs: Vec<pb::ExecutionId>,
    },
    /// A TaskManager is lost: its connection is not coming back.
    TaskManagerLost {
        /// Its connection.
        connection: Connection,
        /// The cause.
        cause: String,
    },
    /// A TaskManager leaves. It runs nothing of the job any more.
    TaskManagerLeft {
        /// Its connection.
        connection: Connection,
        /// The cause.
        cause: String,
    },
    /// This incarnation of a TaskManager is known to be gone.
    TaskManagerGone {
        /// The TaskManager.
        task_manager: ResourceId,
        /// The incarnation that is gone.
        incarnation: String,
    },
    /// The request to deploy tasks was answered or failed.
    TasksSubmitted {
        /// The connection that the request was sent on.
        connection: Connection,
        /// The tasks.
        tasks: Vec<pb::ExecutionId>,
        /// Its outcome.
        outcome: SubmitOutcome,
    },
    /// The request to cancel tasks was answered or failed.
    TasksCancelled {
        /// The connection that the request was sent on.
        connection: Connection,
        /// The tasks.
        tasks: Vec<pb::TaskCancellation>,
        /// Whether the TaskManager confirmed it.
        is_confirmed: bool,
    },
    /// The preparation of a region's coordinators succeeded or failed.
    Prepared {
        /// The region.
        region: usize,
        /// The generation that it was prepared for.
        generation: u64,
        /// The states of the coordinators, or the failure.
        outcome: Result<Vec<pb::CoordinatorState>, Unprepared>,
    },
    /// A task sends a request to the coordinator of one of its operators.
    CoordinatorAsked {
        /// The connection of its TaskManager.
        connection: Connection,
        /// The request.
        request: CoordinatorRequest,
    },
    /// The ResourceManager names the part of the job's needs that no TaskManager could ever fulfil; None:
    /// there is none.
    Unfulfillable(Option<Box<Unfulfillable>>),
    /// Whether the job's minimum would fit into the cluster if no other job had slots there.
    HasRoom(bool),
    /// The full list of the TaskManagers that the job has to leave, as they are drained.
    Leaving(Arc<Leaving>),
    /// A client requests cancellation.
    CancelRequested,
    /// A client requests a stop: the sources end, and the job finishes.
    StopRequested,
    /// The write with this number is durable.
    Persisted(u64),
    /// The store refused the write with this number for good. The term goes on.
    PersistRefused(u64, String),
    /// What the checkpoints of the job say has changed.
    CheckpointsChanged(Arc<RestorePoints>),
    /// More checkpoints of a region have failed than are tolerated.
    CheckpointsFailed {
        /// The region.
        region: usize,
        /// The cause.
        cause: String,
    },
    /// The commit of output that a checkpoint names made progress or failed.
    CheckpointCommit(CommitProgress),
    /// An event of the job: about a savepoint, or about checkpoints that fail.
    CheckpointNoted(pb::JobEventKind, String),
    /// All sinks are committed.
    SinksCommitted,
    /// The commit of the sinks failed; a retry may succeed.
    SinksFailed(String),
    /// The commit of the sinks failed and can never succeed.
    SinksRefused(String),
    /// A deadline has passed; see [`super::JobMasterCore::next_deadline_ms`].
    TimePassed,
}

impl Event {
    /// The connection that the event rests on. A registration makes a new one.
    pub(super) fn connection(&self) -> Option<&Connection> {
        match self {
            Event::SlotsOffered { connection, .. }
            | Event::SlotFailed { connection, .. }
            | Event::ExecutionsReported { connection, .. }
            | Event::HeartbeatAnswered { connection, .. }
            | Event::TaskManagerLost { connection, .. }
            | Event::TaskManagerLeft { connection, .. }
            | Event::TasksSubmitted { connection, .. }
            | Event::TasksCancelled { connection, .. }
            | Event::CoordinatorAsked { connection, .. } => Some(connection),
            Event::Started
            | Event::Registered { .. }
            | Event::TaskManagerGone { .. }
            | Event::Prepared { .. }
            | Event::Unfulfillable(_)
            | Event::HasRoom(_)
            | Event::Leaving(_)
            | Event::CancelRequested
            | Event::StopRequested
            | Event::Persisted(_)
            | Event::PersistRefused(..)
            | Event::CheckpointsChanged(_)
            | Event::CheckpointsFailed { .. }
            | Event::CheckpointCommit(_)
            | Event::CheckpointNoted(..)
            | Event::SinksCommitted
            | Event::SinksFailed(_)
            | Event::SinksRefused(_)
            | Event::TimePassed => None,
        }
    }
}

/// A request to a coordinator.
#[derive(Debug, Clone, PartialEq)]
pub struct CoordinatorRequest {
    /// Identifies the request in its answer.
    pub token: u64,
    /// The execution that asks.
    pub execution: pb::ExecutionId,
    /// The operator's name.
    pub operator: String,
    /// Its number among the operator's requests in this execution, from 1.
    pub number: u64,
}

/// The answer to a deployment.
#[derive(Debug, Clone, PartialEq)]
pub enum SubmitOutcome {
    /// All tasks were started except these.
    Answered(Vec<pb::TaskRefusal>),
    /// The TaskManager does not know this registration any more. It started none of the tasks, and registers
    /// again or is gone.
    Outdated,
    /// It is not known which tasks were started; the reason.
    Unknown(String),
}

/// The reason for which an event was refused. A refused event changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The TaskManager has to register first.
    #[error("TaskManager {0} is not registered at this JobMaster")]
    NotRegistered(ResourceId),
    /// The registration is not younger than one that was seen before.
    #[error("registration {offered} of TaskManager {task_manager} is outdated: {seen} was seen")]
    Outdated {
        /// The TaskManager.
        task_manager: ResourceId,
        /// The registration of the event.
        offered: Registration,
        /// The youngest registration that was seen.
        seen: Registration,
    },
    /// The execution gets no answer: it is not deployed there, or of another generation, or has to end.
    #[error("execution {}/{} of generation {} is not served", .0.vertex_id, .0.subtask, .0.generation)]
    NotServed(pb::ExecutionId),
    /// The job is over.
    #[error("the job has ended")]
    Ended,
}
