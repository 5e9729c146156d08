//! Effects: what the core of a TaskExecutor has its actor do. Decides nothing.

use std::sync::Arc;

use tanist_ha::clock::Moment;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ask_coordinator_response::Answer as CoordinatorAnswer;
use tanist_proto::v1::trigger_answer::Answer;

use super::checkpoints::SnapshotPlace;
use super::executions::ExecutionKey;
use crate::Fatal;
use crate::launcher::TaskStart;

/// The component a connection leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// The ResourceManager.
    ResourceManager,
    /// The JobMaster of a job.
    JobMaster(JobId),
}

/// The JobMaster that a message goes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobMasterAddress {
    /// Its job.
    pub job: JobId,
    /// Its address.
    pub address: String,
    /// Run of the connection, to be named with the result.
    pub run: u64,
}

/// A task of this TaskExecutor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskKey {
    /// The job.
    pub job: JobId,
    /// The execution.
    pub execution: ExecutionKey,
}

/// The source of an execution for which a checkpoint is triggered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TriggeredSource {
    /// Its task runs: the task answers.
    Runs(TaskKey),
    /// Its answer is known.
    Answered(Answer),
}

/// Something to do.
#[derive(Debug, Clone)]
pub(crate) enum Effect {
    /// Start attempts to register, in place of those that run.
    Register {
        target: Target,
        address: String,
        /// Run of attempts, to be named with the result.
        run: u64,
    },
    /// End a delay between attempts.
    Wake(Target),
    /// Stop the attempts.
    StopRegistering(Target),
    /// Notify the ResourceManager of slots.
    NotifySlots {
        address: String,
        /// Run of the connection, to be named with the result.
        run: u64,
        request: pb::NotifySlotsAvailableRequest,
    },
    /// Offer slots to a JobMaster.
    Offer {
        /// The JobMaster.
        to: JobMasterAddress,
        request: pb::OfferSlotsRequest,
    },
    /// Report executions to a JobMaster.
    Update {
        /// The JobMaster.
        to: JobMasterAddress,
        request: pb::UpdateTaskExecutionStatesRequest,
    },
    /// Send an operator's request to its coordinator.
    AskCoordinator {
        /// The JobMaster.
        to: JobMasterAddress,
        /// Number of the request, to be named with the result.
        request_id: u64,
        request: pb::AskCoordinatorRequest,
    },
    /// Report checkpoint states of executions to a JobMaster.
    ReportCheckpoints {
        /// The JobMaster.
        to: JobMasterAddress,
        /// Number of the call, to be named with the result.
        call: u64,
        request: pb::ReportCheckpointsRequest,
    },
    /// Write the large pieces of a task's snapshot as an object, in place of a snapshot that is being written for it.
    WriteSnapshot {
        task: TaskKey,
        /// The checkpoint, to be named with the result.
        number: u64,
        place: SnapshotPlace,
        snapshot: Arc<pb::SubtaskSnapshot>,
    },
    /// End the write of a task's snapshot.
    DropSnapshot(TaskKey),
    /// Allow a task to drop what it has saved for a checkpoint: it is written, in the objects that the snapshot names,
    /// or it is not needed (`None`).
    ReleaseSnapshot(TaskKey, u64, Option<Arc<pb::SubtaskSnapshot>>),
    /// Have the tasks of these sources begin a checkpoint, and answer the request.
    TriggerCheckpoint {
        /// Number of the request.
        request_id: u64,
        barrier: pb::CheckpointBarrier,
        /// In the order of the request.
        sources: Vec<TriggeredSource>,
    },
    /// Report to a task that a checkpoint is aborted.
    AbortCheckpoint(TaskKey, u64),
    /// Have a task decline the checkpoint for which it blocks inputs.
    DeclineBlocked(TaskKey),
    /// Answer an operator's request, or end it without answer.
    AnswerCoordinatorRequest {
        /// Number of the request.
        request_id: u64,
        /// The answer, or why there is none.
        answer: Result<CoordinatorAnswer, String>,
    },
    /// Read the generations of these jobs from the store.
    ReadGenerations(Vec<JobId>),
    /// Set the time at which tasks of an isolated job have ended unless it is extended again.
    Extend(JobId, Moment),
    /// Start a task.
    Start(TaskKey, Box<TaskStart>),
    /// Cancel a task.
    Cancel(TaskKey),
    /// End the source of a task.
    Stop(TaskKey),
    /// Release the output of this execution and older ones of its subtask: no consumer takes it.
    ReleaseTask(TaskKey),
    /// Release the files kept for the next tasks of a job that has no slot here.
    ReleaseFiles(JobId),
    /// Release everything of a job.
    Release(JobId),
    /// Report that this process can't continue.
    Fatal(Fatal),
}
