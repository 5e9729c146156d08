//! Effects: the outputs of the core. Data only.

use std::sync::Arc;

use tanist_gateway::SubmissionNumber;
use tanist_model::files::Look;
use tanist_proto::id::AllocationId;
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;

use super::Connection;
use super::adopted_slots::Held;
use super::coordinator::Coordinated;

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

/// A decision that a write of the record makes durable. Tests can stop the process at each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Milestone {
    /// The job is canceled.
    CancelDecided,
    /// The job is stopped.
    StopDecided,
    /// The job has stopped with a savepoint.
    StoppedWithSavepoint,
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
    /// End this JobMaster and quarantine the job, for this reason: what a region is restored from is damaged.
    Quarantine(String),
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
