//! Effects: the outputs of the core. Data only.

use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::{GatewayError, GatewayResult, JobMasterGateway};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{Command, Described, JobToRetry, ReadNumber, Replies, Submission, Timer};

/// An output of the core, run by the actor, in order.
#[derive(Debug)]
pub(crate) enum Effect<R: Replies> {
    /// Answer a submission.
    AnswerSubmission {
        reply: R::To<pb::SubmitJobResponse>,
        answer: GatewayResult<pb::SubmitJobResponse>,
    },
    /// Answer a request that changes something.
    Acknowledge {
        reply: R::To<pb::Ack>,
        answer: GatewayResult<()>,
    },
    /// Tell a caller in this process that its command is done.
    AnswerDone { reply: R::To<()> },
    /// Answer a command with an error.
    Refuse {
        command: Command<R>,
        error: GatewayError,
    },
    /// Answer with the JobMaster of the job.
    AnswerJobMaster {
        reply: R::To<Arc<dyn JobMasterGateway>>,
        answer: GatewayResult<JobId>,
    },
    /// Answer with the JobMasters of these jobs, in order; `None`: there is none.
    AnswerJobMasters {
        reply: R::To<Vec<Option<Arc<dyn JobMasterGateway>>>>,
        jobs: Vec<Option<JobId>>,
    },
    /// Answer with a job's description, once the JobMaster or the store has returned it.
    Describe {
        reply: R::To<pb::JobDetails>,
        described: GatewayResult<(JobId, Described)>,
    },
    /// Describe all these jobs, then [`super::Event::Listed`].
    List {
        reply: R::To<pb::ListJobsResponse>,
        jobs: Vec<(JobId, Described)>,
    },
    /// Answer with a list.
    AnswerList {
        reply: R::To<pb::ListJobsResponse>,
        jobs: Vec<pb::JobDetails>,
        as_of: pb::ReadPosition,
    },
    /// Answer with these numbers of jobs, and the numbers of slots from the ResourceManager.
    AnswerOverview {
        reply: R::To<pb::ClusterOverview>,
        jobs: Box<pb::ClusterOverview>,
    },
    /// Answer with the ResourceManager's TaskManagers.
    ListTaskManagers {
        reply: R::To<pb::ListTaskManagersResponse>,
    },
    /// Pass the request on to the ResourceManager, and its answer back.
    DrainTaskManager {
        request: Box<pb::DrainTaskManagerRequest>,
        reply: R::To<pb::Ack>,
    },
    /// Ask the store whether this term is the latest.
    ConfirmTerm,
    /// Write graph and state of a submitted job.
    WriteSubmission {
        submission: Box<Submission>,
        state: Box<pb::JobState>,
    },
    /// Start a JobMaster. The job has none.
    StartJobMaster {
        job: JobId,
        graph: Box<pb::JobGraph>,
        state: Box<pb::JobState>,
        /// Whether the job was read from the store; `false`: this term has accepted it.
        is_recovered: bool,
    },
    /// Ask the job's JobMaster to cancel it. It answers.
    CancelByJobMaster { job: JobId, reply: R::To<pb::Ack> },
    /// Ask the job's JobMaster to stop it. It answers.
    StopByJobMaster { job: JobId, reply: R::To<pb::Ack> },
    /// Ask the job's JobMaster for a savepoint. It answers.
    TriggerSavepoint {
        job: JobId,
        request: Box<pb::TriggerSavepointRequest>,
        reply: R::To<pb::Ack>,
    },
    /// Remove a savepoint.
    DisposeSavepoint { path: String, reply: R::To<pb::Ack> },
    /// Acknowledge a repeated retry of a quarantine: the job runs, and its events must contain a retry. Otherwise the
    /// answer is `Conflict`.
    AnswerRetried { job: JobId, reply: R::To<pb::Ack> },
    /// Stop what still runs of a broken JobMaster, withdraw its requirements, and read the job again after the pause.
    RemoveJobMaster {
        job: JobId,
        /// Number of this job's JobMasters that have broken; one more than is tolerated if it is `unfit`.
        broken: u32,
        /// Why no JobMaster can be created from the job's records; `None`: the JobMaster broke for another reason.
        unfit: Option<String>,
        /// The pause before the job is read; `None`: more have broken than is tolerated, and the job is read at once.
        pause: Option<Duration>,
    },
    /// Write a result, which replaces graph and state.
    WriteResult {
        job: JobId,
        result: Box<pb::JobResult>,
        /// Whether a write that fails is retried until the term ends. If not, the first failure is returned.
        is_retried: bool,
        /// The request that ended the job; `None`: its JobMaster ended it, or its cancellation was acknowledged before.
        reply: Option<R::To<pb::Ack>>,
    },
    /// The result is written: the JobMaster releases what it holds, and ends.
    ReleaseJobMaster { job: JobId },
    /// Remove what an ended job left.
    CleanUp { job: JobId, remove: pb::Cleanup },
    /// Write a result whose cleanup has finished.
    WriteCleanResult {
        job: JobId,
        result: Box<pb::JobResult>,
    },
    /// Check again for what these ended jobs left, then remove their results.
    DeleteResults {
        jobs: Vec<JobId>,
        /// What they left, of those among them that left anything.
        leftovers: Vec<(JobId, pb::Cleanup)>,
    },
    /// Drop the descriptions of these ended jobs. Their results stay.
    DropDescriptions { results: Vec<pb::JobResult> },
    /// Write the time that all leaders have counted for retention, in a clean result. Tried once.
    NoteRetention {
        job: JobId,
        result: Box<pb::JobResult>,
    },
    /// Write why a job is quarantined, for later terms.
    WriteQuarantine {
        job: JobId,
        state: Box<pb::JobState>,
    },
    /// Read jobs whose turn has come: crash suspects, or one whose cancellation failed.
    ReadWaitingJobs {
        jobs: Vec<JobId>,
        /// Number of this read.
        number: ReadNumber,
        /// The command to start crash suspects; `None`: no command asked for the read.
        reply: Option<R::To<()>>,
    },
    /// Read a job until the outcome is definite.
    AwaitRecords {
        job: JobId,
        /// Number of this read.
        number: ReadNumber,
    },
    /// Read the result of an ended job until the outcome is definite.
    AwaitResult { job: JobId },
    /// Read the results that existed when the term began.
    ReadResults,
    /// Read a quarantined job, to retry it.
    ReadQuarantined {
        job: JobId,
        /// The checkpoint that it goes back to; `None`: it continues as its records say.
        from_checkpoint: Option<u64>,
        reply: R::To<pb::Ack>,
    },
    /// Write the record of a job without its quarantine. With `from_checkpoint` the job goes back to this checkpoint:
    /// the record of its checkpoints is written in the same transaction. If it can't go back, nothing is written.
    RemoveQuarantine {
        job: JobId,
        to_retry: JobToRetry,
        from_checkpoint: Option<u64>,
        reply: R::To<pb::Ack>,
    },
    /// Remove an unreadable result.
    DeleteUnreadableResult { job: JobId, reply: R::To<pb::Ack> },
    /// Return the timer after this time.
    StartTimer { timer: Timer, after: Duration },
}
