//! Events (inputs of the core) and effects (its outputs). Data only.

use std::fmt;
use std::sync::Arc;

use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;

use super::adopted_slots::Held;
use super::coordinator::{Coordinated, Unprepared};
use crate::dataflow::Look;
use crate::gateway::{Leaving, SubmissionNumber, Unfulfillable};

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
        /// [`super::core::JobMasterCore::turn`] when the heartbeat was sent.
        asked_in: u64,
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
    /// All sinks are committed.
    SinksCommitted,
    /// The commit of the sinks failed; a retry may succeed.
    SinksFailed(String),
    /// The commit of the sinks failed and can never succeed.
    SinksRefused(String),
    /// A deadline has passed; see [`super::core::JobMasterCore::next_deadline_ms`].
    TimePassed,
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

/// The outcome of a request to a coordinator.
#[derive(Debug, Clone, PartialEq)]
pub enum CoordinatorAnswer {
    /// The answer, which is durable.
    Decided(pb::ask_coordinator_response::Answer),
    /// There is no answer at present; the reason.
    NotServed(String),
    /// The request is invalid and will never be answered; the reason.
    Invalid(String),
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

/// A decision that a write of the record makes durable. Tests can stop the process at each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Milestone {
    /// The job is canceled.
    CancelDecided,
    /// The job is stopped.
    StopDecided,
    /// A generation is placed.
    GenerationPlaced,
    /// Coordinators have decided answers to tasks' requests.
    CoordinatorDecided,
    /// All executions have finished.
    AllFinished,
    /// The job fails for good.
    FailureDecided,
}

/// The answer to clients that requested cancellation or a stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelAnswer {
    /// The decision is durable.
    Decided,
    /// The job ends in another way, or can't be stopped at present; the reason.
    TooLate(String),
    /// The decision could not be persisted; the reason.
    Refused(String),
}

/// The slots that a job needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needs {
    /// The maximum by profile: the slots of all regions that could run.
    pub slots: Vec<(ResourceProfile, u32)>,
    /// The minimum by profile: without these slots the next region can't start. The ResourceManager gives all
    /// of it or nothing.
    pub at_once: Vec<(ResourceProfile, u32)>,
    /// The slots among them that the job has held since before this term, by TaskManager.
    pub held: Arc<Held>,
    /// The job's place in the queue of jobs that lack slots.
    pub submission: SubmissionNumber,
    /// Whether all of the job ends by itself.
    pub is_bounded: bool,
}

/// An output of the core, run by the actor.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Write the record.
    Persist {
        /// Identifies the write in its answer.
        number: u64,
        /// The record.
        state: Arc<pb::JobState>,
        /// The decisions that it makes durable.
        milestones: Vec<Milestone>,
    },
    /// Prepare the coordinators of a region, e.g. list the files to read.
    Prepare {
        /// The region.
        region: usize,
        /// The generation to prepare for.
        generation: u64,
        /// Whether this is the first attempt.
        look: Look,
        /// The operators whose coordinators are prepared.
        operators: Arc<[Coordinated]>,
    },
    /// The answer to a request to a coordinator.
    AnswerCoordinator {
        /// The request.
        token: u64,
        /// The outcome.
        answer: CoordinatorAnswer,
    },
    /// Declare the needed slots to the ResourceManager.
    Declare(Arc<Needs>),
    /// Deploy tasks.
    Deploy {
        /// The TaskManager's connection.
        connection: Connection,
        /// The tasks.
        tasks: Vec<pb::TaskDeployment>,
    },
    /// Cancel tasks, each up to a generation, and release their outputs.
    Cancel {
        /// The TaskManager's connection.
        connection: Connection,
        /// The tasks.
        tasks: Vec<pb::TaskCancellation>,
    },
    /// Acknowledge these ended executions: they are in the durable record.
    Acknowledge {
        /// The TaskManager's connection.
        connection: Connection,
        /// The executions.
        executions: Vec<pb::ExecutionId>,
    },
    /// Give slots back to a TaskManager.
    FreeSlots {
        /// The TaskManager's connection.
        connection: Connection,
        /// The slots.
        allocations: Vec<AllocationId>,
        /// The reason, for its log.
        cause: String,
    },
    /// Request a full report from a TaskManager immediately.
    AskReport(Connection),
    /// Disconnect a TaskManager that was given up, so that it registers again.
    Disconnect {
        /// Its connection.
        connection: Connection,
        /// Its address.
        location: Arc<pb::TaskManagerLocation>,
        /// The cause.
        cause: String,
    },
    /// Commit the sinks: make their output visible.
    CommitSinks(Vec<pb::Committable>),
    /// The answer to an offer.
    AnswerOffer {
        /// Slots that the job now holds.
        accepted: Vec<AllocationId>,
        /// Slots that the TaskManager has to free.
        rejected: Vec<AllocationId>,
    },
    /// The answer to all pending cancellation requests.
    AnswerCancels(CancelAnswer),
    /// The answer to all pending stop requests.
    AnswerStops(CancelAnswer),
    /// The job has ended. No write follows.
    End(Box<pb::JobResult>),
}
