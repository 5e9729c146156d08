//! Requests to the Dispatcher: what each asks for, what its answer depends on, and who decides it.
//!
//! A request waits here for at most two things: results that are not read yet, and the store's confirmation of the
//! term. Without that confirmation "no such job" could be the answer of a term that is over.

use std::fmt;
use std::sync::Arc;

use tanist_gateway::{GatewayError, GatewayResult, JobMasterGateway};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{DispatcherCore, Effect, Known, Resolution, Submission, admit, suspended};

/// The handles with which requests are answered. The core keeps them and passes them on in effects. It sends nothing.
pub(crate) trait Replies: fmt::Debug + 'static {
    /// A handle to answer one request with a `T` or an error.
    type To<T: fmt::Debug>: fmt::Debug;
}

/// Answers requests with errors.
pub(crate) trait Refuse<R: Replies> {
    fn refuse<T: fmt::Debug>(&mut self, reply: R::To<T>, error: GatewayError);
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
        /// Whether the description in memory is enough. If not, that of an ended job is read.
        brief: bool,
        reply: R::To<pb::JobDetails>,
    },
    /// The JobMaster of a job.
    JobMaster {
        job: JobId,
        reply: R::To<Arc<dyn JobMasterGateway>>,
    },
    /// The JobMasters of jobs; `None` for a job for which [`Command::JobMaster`] would return an error.
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
    /// Drain a TaskManager, or end its drain. The ResourceManager decides.
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
    /// Does nothing, and is answered after the commands before it.
    Turn { reply: R::To<()> },
}

/// A message of the gateway that is a request to the core. A submission is none: its graph is checked first.
pub(crate) trait GatewayRequest<R: Replies> {
    type Answer: fmt::Debug;
    /// The answer waits for a write. The caller waits for it no longer than for the store.
    const IS_WRITTEN: bool;

    /// Returns the command, which lacks the handle for its answer. The error says why the message is invalid.
    fn command(self) -> GatewayResult<impl FnOnce(R::To<Self::Answer>) -> Command<R> + Send>;
}

impl<R: Replies> GatewayRequest<R> for pb::CancelJobRequest {
    type Answer = pb::Ack;
    const IS_WRITTEN: bool = true;

    fn command(self) -> GatewayResult<impl FnOnce(R::To<pb::Ack>) -> Command<R> + Send> {
        let job = job_of(&self.job_id)?;
        Ok(move |reply| Command::Cancel { job, reply })
    }
}

impl<R: Replies> GatewayRequest<R> for pb::StopJobRequest {
    type Answer = pb::Ack;
    const IS_WRITTEN: bool = true;

    fn command(self) -> GatewayResult<impl FnOnce(R::To<pb::Ack>) -> Command<R> + Send> {
        let job = job_of(&self.job_id)?;
        Ok(move |reply| Command::StopJob { job, reply })
    }
}

impl<R: Replies> GatewayRequest<R> for pb::TriggerSavepointRequest {
    type Answer = pb::Ack;
    const IS_WRITTEN: bool = true;

    fn command(self) -> GatewayResult<impl FnOnce(R::To<pb::Ack>) -> Command<R> + Send> {
        let job = job_of(&self.job_id)?;
        let request = Box::new(self);
        Ok(move |reply| Command::TriggerSavepoint {
            job,
            request,
            reply,
        })
    }
}

impl<R: Replies> GatewayRequest<R> for pb::DisposeSavepointRequest {
    type Answer = pb::Ack;
    const IS_WRITTEN: bool = true;

    fn command(self) -> GatewayResult<impl FnOnce(R::To<pb::Ack>) -> Command<R> + Send> {
        let path = self.path;
        Ok(move |reply| Command::DisposeSavepoint { path, reply })
    }
}

impl<R: Replies> GatewayRequest<R> for pb::ListJobsRequest {
    type Answer = pb::ListJobsResponse;
    const IS_WRITTEN: bool = false;

    fn command(
        self,
    ) -> GatewayResult<impl FnOnce(R::To<pb::ListJobsResponse>) -> Command<R> + Send> {
        Ok(move |reply| Command::List { reply }.consistent_if(self.consistent))
    }
}

impl<R: Replies> GatewayRequest<R> for pb::DescribeJobRequest {
    type Answer = pb::JobDetails;
    const IS_WRITTEN: bool = false;

    fn command(self) -> GatewayResult<impl FnOnce(R::To<pb::JobDetails>) -> Command<R> + Send> {
        let job = job_of(&self.job_id)?;
        let brief = self.brief;
        Ok(move |reply| Command::Describe { job, brief, reply }.consistent_if(self.consistent))
    }
}

impl<R: Replies> GatewayRequest<R> for pb::DescribeClusterRequest {
    type Answer = pb::ClusterOverview;
    const IS_WRITTEN: bool = false;

    fn command(
        self,
    ) -> GatewayResult<impl FnOnce(R::To<pb::ClusterOverview>) -> Command<R> + Send> {
        Ok(move |reply| Command::Overview { reply }.consistent_if(self.consistent))
    }
}

impl<R: Replies> GatewayRequest<R> for pb::ListTaskManagersRequest {
    type Answer = pb::ListTaskManagersResponse;
    const IS_WRITTEN: bool = false;

    fn command(
        self,
    ) -> GatewayResult<impl FnOnce(R::To<pb::ListTaskManagersResponse>) -> Command<R> + Send> {
        Ok(move |reply| Command::TaskManagers { reply }.consistent_if(self.consistent))
    }
}

impl<R: Replies> GatewayRequest<R> for pb::DrainTaskManagerRequest {
    type Answer = pb::Ack;
    const IS_WRITTEN: bool = false;

    fn command(self) -> GatewayResult<impl FnOnce(R::To<pb::Ack>) -> Command<R> + Send> {
        let request = Box::new(self);
        Ok(move |reply| Command::DrainTaskManager { request, reply })
    }
}

impl<R: Replies> GatewayRequest<R> for pb::ResolveQuarantineRequest {
    type Answer = pb::Ack;
    const IS_WRITTEN: bool = true;

    fn command(self) -> GatewayResult<impl FnOnce(R::To<pb::Ack>) -> Command<R> + Send> {
        let job = job_of(&self.job_id)?;
        let resolution = Resolution::of(&self)?;
        Ok(move |reply| Command::ResolveQuarantine {
            job,
            resolution,
            reply,
        })
    }
}

/// The job that a message names.
pub(crate) fn job_of(text: &str) -> GatewayResult<JobId> {
    text.parse()
        .map_err(|error| GatewayError::Invalid(format!("{error}")))
}

/// What a command depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// Whether this submission may be accepted.
    Submission(&'a Submission),
    /// This job.
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

    /// The same, answered only after the store has confirmed the term, if `consistent`.
    fn consistent_if(self, consistent: bool) -> Command<R> {
        match consistent {
            true => Command::Consistent(Box::new(self)),
            false => self,
        }
    }

    /// Answers the command with an error.
    pub(crate) fn refuse(self, error: GatewayError, replies: &mut impl Refuse<R>) {
        match self {
            Command::Consistent(command) => command.refuse(error, replies),
            Command::Submit { reply, .. } => replies.refuse(reply, error),
            Command::Cancel { reply, .. } => replies.refuse(reply, error),
            Command::StopJob { reply, .. } => replies.refuse(reply, error),
            Command::TriggerSavepoint { reply, .. } => replies.refuse(reply, error),
            Command::DisposeSavepoint { reply, .. } => replies.refuse(reply, error),
            Command::List { reply, .. } => replies.refuse(reply, error),
            Command::Describe { reply, .. } => replies.refuse(reply, error),
            Command::JobMaster { reply, .. } => replies.refuse(reply, error),
            Command::JobMasters { reply, .. } => replies.refuse(reply, error),
            Command::Overview { reply, .. } => replies.refuse(reply, error),
            Command::TaskManagers { reply, .. } => replies.refuse(reply, error),
            Command::DrainTaskManager { reply, .. } => replies.refuse(reply, error),
            Command::ResolveQuarantine { reply, .. } => replies.refuse(reply, error),
            Command::StartCrashSuspects { reply, .. } => replies.refuse(reply, error),
            Command::ReadResults { reply, .. } => replies.refuse(reply, error),
            Command::Turn { reply, .. } => replies.refuse(reply, error),
        }
    }
}

/// Whether the store has confirmed the term since the request arrived. Only then may "no such job" be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confirmation {
    /// It has not.
    Believed,
    /// It has.
    Confirmed,
}

impl<R: Replies> DispatcherCore<R> {
    /// Decides a command, or keeps it until what it depends on is known.
    pub(super) fn take_command(&mut self, command: Command<R>) {
        if let Some(command) = self.or_wait_for_results(command) {
            self.on_command(command, Confirmation::Believed);
        }
    }

    fn on_command(&mut self, command: Command<R>, term: Confirmation) {
        if term == Confirmation::Believed && self.needs_confirmation(&command) {
            if self.read_barrier.take(command) {
                self.out.effect(Effect::ConfirmTerm);
            }
            return;
        }
        match command {
            Command::Consistent(command) => self.on_command(*command, term),
            Command::Submit { submission, reply } => self.submit(*submission, reply),
            Command::Cancel { job, reply } => self.cancel(job, reply),
            Command::StopJob { job, reply } => self.stop_job(job, reply),
            Command::TriggerSavepoint {
                job,
                request,
                reply,
            } => self.trigger_savepoint(job, request, reply),
            // A suspended term decides nothing new.
            Command::DisposeSavepoint { reply, .. } if self.is_suspended() => {
                self.out.acknowledge(reply, Err(suspended()));
            }
            Command::DisposeSavepoint { path, reply } => {
                self.out.effect(Effect::DisposeSavepoint { path, reply });
            }
            Command::List { reply } => self.list(reply),
            Command::Describe { job, brief, reply } => self.describe(job, brief, reply),
            Command::JobMaster { job, reply } => {
                let answer = self.job_master(job);
                self.out.effect(Effect::AnswerJobMaster { reply, answer });
            }
            Command::JobMasters { jobs, reply } => {
                let jobs = jobs.into_iter().map(|job| self.job_master(job).ok());
                let jobs = jobs.collect();
                self.out.effect(Effect::AnswerJobMasters { reply, jobs });
            }
            Command::Overview { reply } => self.overview(reply),
            Command::TaskManagers { reply } => {
                self.out.effect(Effect::ListTaskManagers { reply });
            }
            Command::DrainTaskManager { request, reply } => {
                self.out.effect(Effect::DrainTaskManager { request, reply });
            }
            Command::ResolveQuarantine {
                job,
                resolution,
                reply,
            } => {
                self.resolve_quarantine(job, resolution, reply);
            }
            Command::StartCrashSuspects { jobs, reply } => {
                self.read_waiting_jobs(jobs, Some(reply));
            }
            Command::ReadResults { reply } => self.read_results(reply),
            Command::Turn { reply } => self.out.effect(Effect::AnswerDone { reply }),
        }
    }

    /// Whether the answer says, or depends on, that a job does not exist; or the request asked for consistency.
    fn needs_confirmation(&self, command: &Command<R>) -> bool {
        if matches!(command, Command::Consistent(_)) {
            return true;
        }
        match command.subject() {
            Subject::Job(job) => !self.jobs.has(job),
            Subject::Submission(submission) => {
                !self.jobs.has(submission.job)
                    && admit(submission, Known::Nothing, &self.now.times).is_err()
            }
            Subject::AllJobs | Subject::Other => false,
        }
    }

    pub(super) fn on_term_confirmed(&mut self, confirmed: &Result<(), String>) {
        for command in self.read_barrier.end() {
            match confirmed {
                Ok(()) => self.on_command(command, Confirmation::Confirmed),
                Err(reason) => self.out.effect(Effect::Refuse {
                    command,
                    error: not_confirmed(reason),
                }),
            }
        }
        // Requests that arrived after this read began need one of their own.
        if self.read_barrier.begin() {
            self.out.effect(Effect::ConfirmTerm);
        }
    }
}

/// Error for a request whose term could not be confirmed.
fn not_confirmed(reason: &str) -> GatewayError {
    GatewayError::NotYet(format!(
        "this JobManager can't confirm that it leads: {reason}"
    ))
}
