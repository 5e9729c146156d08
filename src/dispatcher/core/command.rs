//! Requests to the Dispatcher, with the handles to answer them. Data only.

use std::fmt;
use std::sync::Arc;

use tanist_gateway::{GatewayError, JobMasterGateway};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::Submission;

/// The handles with which requests are answered. The core keeps them and passes them on in effects. It sends nothing.
pub(crate) trait Replies: fmt::Debug + 'static {
    /// A handle to answer one request with a `T` or an error.
    type To<T: fmt::Debug>: fmt::Debug;
}

/// A request to the Dispatcher.
#[derive(Debug)]
pub(crate) enum Command<R: Replies> {
    /// Accept a job.
    Submit {
        submission: Box<Submission>,
        reply: R::To<pb::SubmitJobResponse>,
    },
    /// Cancel a job.
    Cancel { job: JobId, reply: R::To<pb::Ack> },
    /// Ask the job's sources to end.
    StopJob { job: JobId, reply: R::To<pb::Ack> },
    /// Take a savepoint of a job.
    TriggerSavepoint {
        job: JobId,
        request: Box<pb::TriggerSavepointRequest>,
        reply: R::To<pb::Ack>,
    },
    /// Remove a savepoint.
    DisposeSavepoint { path: String, reply: R::To<pb::Ack> },
    /// Describe all jobs in short.
    List { reply: R::To<pb::ListJobsResponse> },
    /// Describe a job.
    Describe {
        job: JobId,
        /// The description in memory is enough.
        brief: bool,
        reply: R::To<pb::JobDetails>,
    },
    /// The JobMaster of a job.
    JobMaster {
        job: JobId,
        reply: R::To<Arc<dyn JobMasterGateway>>,
    },
    /// `None` for a job for which [`Command::JobMaster`] would return an error.
    JobMasters {
        jobs: Vec<JobId>,
        reply: R::To<Vec<Option<Arc<dyn JobMasterGateway>>>>,
    },
    /// Numbers of jobs and slots.
    Overview { reply: R::To<pb::ClusterOverview> },
    /// The TaskManagers, from the ResourceManager.
    TaskManagers {
        reply: R::To<pb::ListTaskManagersResponse>,
    },
    /// The inner command, answered only after the store has confirmed the term.
    Consistent(Box<Command<R>>),
    /// Drain a TaskManager, or end that. For the ResourceManager.
    DrainTaskManager {
        request: Box<pb::DrainTaskManagerRequest>,
        reply: R::To<pb::Ack>,
    },
    /// Retry or delete a quarantined job.
    ResolveQuarantine {
        job: JobId,
        resolution: Resolution,
        reply: R::To<pb::Ack>,
    },
    /// Reads and starts suspect jobs whose turn has come.
    StartCrashSuspects { jobs: Vec<JobId>, reply: R::To<()> },
    /// Reads the kept results, as the term is confirmed. Answered when they are read.
    ReadResults { reply: R::To<()> },
    /// Answered after the commands before it.
    Turn { reply: R::To<()> },
}

/// How a job leaves quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// It is led again. `from_checkpoint`: from this retained checkpoint, which is not the newest.
    Retry { from_checkpoint: Option<u64> },
    /// It is cancelled.
    Delete,
}

impl Resolution {
    /// What a request asks for. The error says why it is refused.
    pub(crate) fn of(request: &pb::ResolveQuarantineRequest) -> Result<Resolution, GatewayError> {
        let number = Some(request.from_checkpoint).filter(|number| *number > 0);
        match (request.action(), number) {
            (pb::QuarantineAction::Unspecified, _) => Err(GatewayError::Invalid(
                "the request names no action for the quarantined job".to_owned(),
            )),
            (pb::QuarantineAction::Delete, None) => Ok(Resolution::Delete),
            (pb::QuarantineAction::Delete, Some(_)) => Err(GatewayError::Invalid(
                "a job that is deleted goes back to no checkpoint".to_owned(),
            )),
            (pb::QuarantineAction::Retry, Some(number)) if !request.accept_duplicates => {
                let job = &request.job_id;
                Err(GatewayError::Conflict(format!(
                    "job {job} was not led again from checkpoint {number}: what it has made visible since then would \
                     appear twice; to accept that, say so (--accept-duplicates)"
                )))
            }
            (pb::QuarantineAction::Retry, from_checkpoint) => {
                Ok(Resolution::Retry { from_checkpoint })
            }
        }
    }
}

/// What a command depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// Whether this submission may be accepted.
    Submission(&'a Submission),
    Job(JobId),
    /// All jobs, including ended ones.
    AllJobs,
    /// Nothing that the end of a job changes.
    Other,
}

impl<R: Replies> Command<R> {
    /// Returns what the command depends on.
    pub(crate) fn subject(&self) -> Subject<'_> {
        match self {
            Command::Consistent(command) => command.subject(),
            Command::Submit { submission, .. } => Subject::Submission(submission),
            Command::Cancel { job, .. }
            | Command::StopJob { job, .. }
            | Command::TriggerSavepoint { job, .. }
            | Command::Describe { job, .. }
            | Command::ResolveQuarantine { job, .. }
            | Command::JobMaster { job, .. } => Subject::Job(*job),
            Command::List { .. } | Command::Overview { .. } => Subject::AllJobs,
            Command::JobMasters { .. }
            | Command::TaskManagers { .. }
            | Command::DrainTaskManager { .. }
            | Command::DisposeSavepoint { .. }
            | Command::StartCrashSuspects { .. }
            | Command::ReadResults { .. }
            | Command::Turn { .. } => Subject::Other,
        }
    }
}
