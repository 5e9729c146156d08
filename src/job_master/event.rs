//! What the core hears and what it wants done. Data only.

use std::fmt;
use std::sync::Arc;

use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;

use super::adopted_slots::Held;
use super::coordinator::{Coordinated, Unprepared};
use crate::dataflow::Look;
use crate::gateway::{Leaving, SubmissionNumber, Unfulfillable};

/// The number of a TaskManager's registration: grows with each, also across its restarts.
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
    /// To whom.
    pub task_manager: ResourceId,
    /// The registration that it rests on.
    pub registration: Registration,
}

/// Something happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// The first event.
    Started,
    /// A TaskManager registers, with all that it runs and holds for the job.
    Registered {
        /// Who.
        connection: Connection,
        /// Where it is reached, and which start of it this is.
        location: pb::TaskManagerLocation,
        /// All executions of the job there.
        executions: Vec<pb::ExecutionReport>,
        /// Slots that it offers at once.
        slots: Vec<pb::SlotOffer>,
        /// Finished executions of the job whose output it keeps.
        outputs: Vec<pb::ExecutionId>,
    },
    /// A TaskManager offers slots.
    SlotsOffered {
        /// Who.
        connection: Connection,
        /// Which.
        slots: Vec<pb::SlotOffer>,
    },
    /// A TaskManager lost a slot.
    SlotFailed {
        /// Who.
        connection: Connection,
        /// Which.
        allocation: AllocationId,
        /// Why.
        cause: String,
    },
    /// Executions changed.
    ExecutionsReported {
        /// Where.
        connection: Connection,
        /// How.
        executions: Vec<pb::ExecutionReport>,
    },
    /// A heartbeat was answered, with a full report.
    HeartbeatAnswered {
        /// By whom.
        connection: Connection,
        /// The core's turn when the heartbeat was sent.
        asked_in: u64,
        /// All executions of the job there.
        executions: Vec<pb::ExecutionReport>,
        /// All slots of the job there.
        allocations: Vec<AllocationId>,
        /// Finished executions of the job whose output it keeps.
        outputs: Vec<pb::ExecutionId>,
    },
    /// A connection is lost for good.
    TaskManagerLost {
        /// Which.
        connection: Connection,
        /// Why.
        cause: String,
    },
    /// A TaskManager says goodbye, and nothing of the job runs there any more.
    TaskManagerLeft {
        /// Which.
        connection: Connection,
        /// Why.
        cause: String,
    },
    /// This incarnation of a TaskManager is gone for certain.
    TaskManagerGone {
        /// Which.
        task_manager: ResourceId,
        /// Which start of it.
        incarnation: String,
    },
    /// A deployment was answered, or not.
    TasksSubmitted {
        /// To whom.
        connection: Connection,
        /// What.
        tasks: Vec<pb::ExecutionId>,
        /// What became of it.
        outcome: SubmitOutcome,
    },
    /// A cancellation of tasks was answered, or not.
    TasksCancelled {
        /// By whom.
        connection: Connection,
        /// What.
        tasks: Vec<pb::TaskCancellation>,
        /// Whether the TaskManager took note.
        is_confirmed: bool,
    },
    /// What the coordinators of a region have to know was found out, or why not.
    Prepared {
        /// Which region.
        region: usize,
        /// For which generation.
        generation: u64,
        /// What.
        outcome: Result<Vec<pb::CoordinatorState>, Unprepared>,
    },
    /// A task asks the coordinator of one of its operators.
    CoordinatorAsked {
        /// Through whom.
        connection: Connection,
        /// What.
        request: CoordinatorRequest,
    },
    /// The ResourceManager says what of the job's needs no TaskManager could ever give, or that there is nothing.
    Unfulfillable(Option<Box<Unfulfillable>>),
    /// Whether what the job needs at least would fit into the cluster if others left it.
    HasRoom(bool),
    /// Which TaskManagers the job is to leave: all of them.
    Leaving(Arc<Leaving>),
    /// Somebody wants the job canceled.
    CancelRequested,
    /// Somebody wants the job stopped: its sources end, and it finishes.
    StopRequested,
    /// The write with this number is durable.
    Persisted(u64),
    /// The write with this number was refused for good, though the term goes on.
    PersistRefused(u64, String),
    /// All sinks are committed.
    SinksCommitted,
    /// They are not; that may pass.
    SinksFailed(String),
    /// They are not and never will be.
    SinksRefused(String),
    /// Time has passed; see [`super::core::JobMasterCore::next_deadline_ms`].
    TimePassed,
}

/// A request to a coordinator.
#[derive(Debug, Clone, PartialEq)]
pub struct CoordinatorRequest {
    /// Names the request in its answer.
    pub token: u64,
    /// Who asks.
    pub execution: pb::ExecutionId,
    /// The operator.
    pub operator: String,
    /// Its number among the operator's requests in this execution, from 1.
    pub number: u64,
}

/// What a request to a coordinator came to.
#[derive(Debug, Clone, PartialEq)]
pub enum CoordinatorAnswer {
    /// It is durable that this is the answer.
    Decided(pb::ask_coordinator_response::Answer),
    /// There is none, at least for now.
    NotServed(String),
    /// There never will be one.
    Invalid(String),
}

/// The answer to a deployment.
#[derive(Debug, Clone, PartialEq)]
pub enum SubmitOutcome {
    /// All were started but these.
    Answered(Vec<pb::TaskRefusal>),
    /// The TaskManager has no such registration any more: it started nothing of this message, and registers anew, or is gone.
    Outdated,
    /// It is not known what was started.
    Unknown(String),
}

/// An event that changed nothing, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The TaskManager has to register first.
    #[error("TaskManager {0} is not registered at this JobMaster")]
    NotRegistered(ResourceId),
    /// A registration as young or younger was seen.
    #[error("registration {offered} of TaskManager {task_manager} is outdated: {seen} was seen")]
    Outdated {
        /// Whose.
        task_manager: ResourceId,
        /// The one that came.
        offered: Registration,
        /// The youngest.
        seen: Registration,
    },
    /// No answer is due to this execution: it is not deployed there, or of another generation, or is to end.
    #[error("execution {}/{} of generation {} is not served", .0.vertex_id, .0.subtask, .0.generation)]
    NotServed(pb::ExecutionId),
    /// The job is over.
    #[error("the job has ended")]
    Ended,
}

/// What a write of the record decides; where tests may stop the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Milestone {
    /// The job is canceled.
    CancelDecided,
    /// The job is stopped.
    StopDecided,
    /// A generation has its placement.
    GenerationPlaced,
    /// Tasks get what they have asked coordinators for.
    CoordinatorDecided,
    /// All executions have finished.
    AllFinished,
    /// The job fails for good.
    FailureDecided,
}

/// The answer to whoever wanted the job canceled, or stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelAnswer {
    /// It is durable that this is so.
    Decided,
    /// The job ends otherwise; or it can't be stopped at present.
    TooLate(String),
    /// That could not be persisted.
    Refused(String),
}

/// The slots that a job needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needs {
    /// How many of each profile, for all that could run.
    pub slots: Vec<(ResourceProfile, u32)>,
    /// How many of them at least: with fewer the next region can't start, nor will it without any.
    pub at_once: Vec<(ResourceProfile, u32)>,
    /// Those of them that are held since before this term, by TaskManager.
    pub held: Arc<Held>,
    /// The job's place among those that lack slots.
    pub submission: SubmissionNumber,
    /// Whether all of the job ends by itself.
    pub is_bounded: bool,
}

/// Something is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Write the record.
    Persist {
        /// Names the write in its answer.
        number: u64,
        /// The record.
        state: Arc<pb::JobState>,
        /// What it decides.
        milestones: Vec<Milestone>,
    },
    /// Find out what the coordinators of a region have to know.
    Prepare {
        /// Which region.
        region: usize,
        /// For which generation.
        generation: u64,
        /// Whether it is the first time.
        look: Look,
        /// Which coordinators.
        operators: Arc<[Coordinated]>,
    },
    /// The answer to a request to a coordinator.
    AnswerCoordinator {
        /// Which request.
        token: u64,
        /// What it came to.
        answer: CoordinatorAnswer,
    },
    /// Declare which slots are needed.
    Declare(Arc<Needs>),
    /// Deploy tasks.
    Deploy {
        /// Where.
        connection: Connection,
        /// What.
        tasks: Vec<pb::TaskDeployment>,
    },
    /// Cancel tasks, each up to a generation, and let their outputs go.
    Cancel {
        /// Where.
        connection: Connection,
        /// What.
        tasks: Vec<pb::TaskCancellation>,
    },
    /// These ended executions are in the record.
    Acknowledge {
        /// Where.
        connection: Connection,
        /// Which.
        executions: Vec<pb::ExecutionId>,
    },
    /// Give slots back.
    FreeSlots {
        /// Whose.
        connection: Connection,
        /// Which.
        allocations: Vec<AllocationId>,
        /// Why.
        cause: String,
    },
    /// Ask for a full report at once.
    AskReport(Connection),
    /// Tell a TaskManager that it is given up, so that it registers again.
    Disconnect {
        /// Which.
        connection: Connection,
        /// Where it is reached.
        location: Arc<pb::TaskManagerLocation>,
        /// Why.
        cause: String,
    },
    /// Make visible what the sinks wrote.
    CommitSinks(Vec<pb::Committable>),
    /// The answer to an offer.
    AnswerOffer {
        /// Held from here on.
        accepted: Vec<AllocationId>,
        /// To be freed.
        rejected: Vec<AllocationId>,
    },
    /// The answer to all who wanted the job canceled so far.
    AnswerCancels(CancelAnswer),
    /// The answer to all who wanted the job stopped so far.
    AnswerStops(CancelAnswer),
    /// The job has ended; nothing is written any more.
    End(Box<pb::JobResult>),
}
