//! One run of an application's program: it submits jobs and waits for them. What can be done with a submitted
//! job is in [`super::job`].
//!
//! Invariants: the job that is submitted as number *n* has an id and a token that follow only from the
//! cluster's id and *n*. A program that runs again, in another process, therefore gets the existing jobs.
//! Submissions are numbered in the order in which the methods that submit are called, whenever their futures are
//! polled. The program must make the same submissions in the same order each time; otherwise it ends with
//! [`ApplicationError::AnotherGraph`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tanist_gateway::remote_files::embed_remote;
use tanist_gateway::{DispatcherGateway, GatewayError};
use tanist_ha::failpoint::failpoint;
use tanist_ha::keys::Name;
use tanist_ha::retry::Backoff;
use tanist_model::InvalidJob;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::watch;
use tracing::{info, warn};

use super::bootstrap::ApplicationTerm;
use super::commits::retries;
use super::job::{ApplicationJob, JobOutcome};
use super::record::{ApplicationRecord, ApplicationStatus};
use super::setup::Application;
use super::submissions::{NotNoted, Submissions};

/// Pauses between two queries of an awaited job; short at first, so that the end of a short job is seen at
/// once.
const FIRST_POLL: Duration = Duration::from_millis(20);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Why a job of an application was not submitted, or did not finish.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ApplicationError {
    /// The graph is invalid.
    #[error(transparent)]
    InvalidJob(#[from] InvalidJob),
    /// The cluster refused the job.
    #[error("job {job} was refused: {reason}")]
    Refused {
        /// The job.
        job: JobId,
        /// The reason.
        reason: String,
    },
    /// The program builds another graph for this job than an earlier run did.
    #[error(
        "the program builds another graph as job number {position} ({job}) than the one that was \
         submitted: it is not the program that this application was started with. {reason}"
    )]
    AnotherGraph {
        /// The job.
        job: JobId,
        /// Its number, from 0.
        position: u32,
        /// The cluster's answer.
        reason: String,
    },
    /// The job ended, but did not finish.
    #[error("job {job} {}{}", .status.as_str_name().trim_start_matches("JOB_STATUS_"), because(.cause))]
    NotFinished {
        /// The job.
        job: JobId,
        /// FAILED or CANCELED.
        status: pb::JobStatus,
        /// The reason; empty if it is not known.
        cause: String,
    },
    /// The cluster has the job, but the store does not accept the record that says so.
    #[error(
        "job {job} was submitted, but the application's record of it can't be written: {reason}"
    )]
    NotNoted {
        /// The job.
        job: JobId,
        /// The reason.
        reason: String,
    },
    /// The job is gone, and it is not known how it ended.
    #[error("job {job} has no result: its records were removed")]
    Unknown {
        /// The job.
        job: JobId,
    },
}

fn because(cause: &str) -> String {
    if cause.is_empty() {
        return String::new();
    }
    format!(": {cause}")
}

/// Why the application as a whole did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause {
    /// It ended with this status and diagnosis.
    Status(ApplicationStatus, String),
    /// This process has another program than the one that ran before.
    AnotherProgram(String),
}

#[derive(Debug, Default)]
struct Noted {
    /// The jobs that the application waits for.
    jobs: Vec<JobId>,
    /// The number of the next submission.
    next_position: u32,
}

pub(super) struct RunInner {
    application: Application,
    cluster_id: Name,
    dispatcher: Arc<dyn DispatcherGateway>,
    submissions: Submissions,
    noted: Mutex<Noted>,
    /// The first cause counts.
    cause: watch::Sender<Option<Cause>>,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct ProgramRun {
    inner: Arc<RunInner>,
}

impl fmt::Debug for ProgramRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramRun")
            .field("application", &self.inner.application.name)
            .field("cluster_id", &self.inner.cluster_id)
            .finish_non_exhaustive()
    }
}

/// The id of the job that the application of a cluster submits under this number.
pub fn job_id_of(cluster_id: &Name, position: u32) -> JobId {
    let mut digest = Sha256::new();
    digest.update(b"tanist application job\0");
    digest.update(cluster_id.as_str().as_bytes());
    digest.update(b"\0");
    digest.update(position.to_be_bytes());
    let digest = digest.finalize();
    let mut bits = [0; 16];
    bits.copy_from_slice(&digest[..16]);
    JobId::from_bits(u128::from_be_bytes(bits))
}

impl ProgramRun {
    pub(super) fn new(term: &ApplicationTerm, record: ApplicationRecord) -> ProgramRun {
        ProgramRun {
            inner: Arc::new(RunInner {
                application: term.application.clone(),
                cluster_id: term.cluster_id.clone(),
                dispatcher: term.dispatcher.clone(),
                submissions: Submissions::new(
                    term.pipeline.clone(),
                    term.cluster_id.clone(),
                    record,
                ),
                noted: Mutex::default(),
                cause: watch::Sender::new(None),
            }),
        }
    }

    /// The cluster of this application.
    pub fn cluster_id(&self) -> &str {
        self.inner.cluster_id.as_str()
    }

    /// Submits the job that `compile` makes for its id. It is in the store when this returns. `compile` runs on
    /// a thread that may block. The submission is numbered by the call, before the future is polled.
    pub fn submit_compiled(
        &self,
        compile: impl FnOnce(JobId) -> Result<pb::JobGraph, InvalidJob> + Send + 'static,
        restore: Option<pb::RestoreRequest>,
    ) -> impl Future<Output = Result<ApplicationJob, ApplicationError>> + Send {
        let (position, id) = self.take_number();
        async move {
            let compiled = tokio::task::spawn_blocking(move || compile(id)).await;
            let compiled = compiled.map_err(|error| ApplicationError::Refused {
                job: id,
                reason: format!("compiling it failed: {error}"),
            })?;
            self.submit_as(position, id, compiled?, restore).await
        }
    }

    /// Submits a compiled graph; its job id is replaced. It is in the store when this returns. The submission is
    /// numbered by the call, before the future is polled.
    pub fn submit(
        &self,
        graph: pb::JobGraph,
    ) -> impl Future<Output = Result<ApplicationJob, ApplicationError>> + Send {
        self.submit_from(graph, None)
    }

    /// The same for a job that begins from a savepoint.
    pub fn submit_from(
        &self,
        mut graph: pb::JobGraph,
        restore: Option<pb::RestoreRequest>,
    ) -> impl Future<Output = Result<ApplicationJob, ApplicationError>> + Send {
        let (position, id) = self.take_number();
        graph.job_id = id.to_string();
        self.submit_as(position, id, graph, restore)
    }

    /// Takes the next number. Returns it with the id of its job.
    fn take_number(&self) -> (u32, JobId) {
        let mut noted = self.inner.noted.lock();
        let position = noted.next_position;
        noted.next_position += 1;
        (position, job_id_of(&self.inner.cluster_id, position))
    }

    async fn submit_as(
        &self,
        position: u32,
        job: JobId,
        mut graph: pb::JobGraph,
        restore: Option<pb::RestoreRequest>,
    ) -> Result<ApplicationJob, ApplicationError> {
        // Before anything is sent: a job that a user removed must not run a second time.
        if self.inner.submissions.has(position)
            && let Err(GatewayError::NotFound(_)) = self.describe(job).await
        {
            return Err(self.note_unknown_end(job));
        }
        // A job that an earlier run submitted already has its files; the content at their addresses may have
        // changed.
        let may_differ = |file: &pb::Artifact| !file.url.is_empty() && file.sha256.is_empty();
        if graph.artifacts.iter().any(may_differ) && self.is_there(job).await {
            return self.continue_with(job, position).await;
        }
        if let Err(error) = embed_remote(&mut graph).await {
            if self.is_there(job).await {
                warn!(%job, %error, "a file of the application's job can no longer be fetched");
                return self.continue_with(job, position).await;
            }
            let reason = error.to_string();
            return Err(ApplicationError::Refused { job, reason });
        }
        let request = pb::SubmitJobRequest {
            graph: Some(graph),
            submission_token: format!("application-{job}"),
            restore,
            ..pb::SubmitJobRequest::default()
        };
        let mut backoff = retries();
        let answer = loop {
            match self.inner.dispatcher.submit_job(request.clone()).await {
                Err(error) if error.is_retryable() => {
                    warn!(%job, %error, "a job of the application could not be submitted: retrying");
                    tokio::time::sleep(backoff.next_delay()).await;
                }
                definite => break definite,
            }
        };
        match answer {
            Ok(answer) => {
                info!(%job, position, attached = answer.repeated, "the application has submitted its job");
                self.note_submitted(position, job).await?;
                let submitted = self.add_job(job);
                failpoint("application.submitted").await;
                Ok(submitted)
            }
            // The id is this application's: no other client has submitted it. If the job is quarantined, an
            // operator has to decide about it.
            Err(GatewayError::Incomparable(reason)) => {
                warn!(%job, reason, "the program's graph can't be compared with that of the existing job");
                self.continue_with(job, position).await
            }
            Err(GatewayError::Conflict(reason)) => {
                let error = ApplicationError::AnotherGraph {
                    job,
                    position,
                    reason,
                };
                self.note_cause(Cause::AnotherProgram(error.to_string()));
                Err(error)
            }
            Err(error) => Err(ApplicationError::Refused {
                job,
                reason: error.to_string(),
            }),
        }
    }

    /// Whether the cluster has the job; retries until that is known.
    async fn is_there(&self, job: JobId) -> bool {
        let mut backoff = Backoff::new(FIRST_POLL, MAX_POLL_INTERVAL);
        loop {
            match self.describe(job).await {
                Ok(_) => return true,
                Err(GatewayError::NotFound(_)) => return false,
                Err(_) => tokio::time::sleep(backoff.next_delay()).await,
            }
        }
    }

    /// Continues with the job that an earlier run submitted, although it can't be compared with what this run
    /// submits.
    async fn continue_with(
        &self,
        job: JobId,
        position: u32,
    ) -> Result<ApplicationJob, ApplicationError> {
        info!(%job, position, "the application continues with its existing job, whose graph could not be compared");
        self.note_submitted(position, job).await?;
        Ok(self.add_job(job))
    }

    /// Records that the cluster has the job. If that fails, a later run may submit the job a second time.
    async fn note_submitted(&self, position: u32, job: JobId) -> Result<(), ApplicationError> {
        match self.inner.submissions.note(position).await {
            Ok(()) => Ok(()),
            Err(NotNoted::RunIsOver) => Err(ApplicationError::Refused {
                job,
                reason: "the application has ended".to_owned(),
            }),
            Err(NotNoted::TooLarge(error)) => {
                let reason = error.to_string();
                let error = ApplicationError::NotNoted { job, reason };
                self.note(ApplicationStatus::Unknown, error.to_string());
                Err(error)
            }
        }
    }

    /// Adds a job that the cluster has to those that the application waits for.
    fn add_job(&self, job: JobId) -> ApplicationJob {
        self.inner.noted.lock().jobs.push(job);
        let run = self.clone();
        ApplicationJob { run, job }
    }

    /// Waits for a job's end, and notes it if it decides about the application.
    pub(super) async fn wait(&self, job: JobId) -> Result<JobOutcome, ApplicationError> {
        let mut backoff = Backoff::new(FIRST_POLL, MAX_POLL_INTERVAL);
        let mut is_quarantined = false;
        let details = loop {
            match self.describe(job).await {
                Ok(details) if details.status().has_ended() => break details,
                Ok(details) if !details.quarantine.is_empty() && !is_quarantined => {
                    is_quarantined = true;
                    warn!(%job, reason = details.quarantine, "the application waits for a job that is quarantined");
                }
                Err(GatewayError::NotFound(_)) => return Err(self.note_unknown_end(job)),
                Ok(_) | Err(_) => {}
            }
            tokio::time::sleep(backoff.next_delay()).await;
        };
        let newest = details.failures.last();
        let cause = match details.status() {
            pb::JobStatus::Failed => newest.map(|failure| failure.cause.clone()),
            _ => None,
        };
        let outcome = JobOutcome {
            job,
            status: details.status(),
            cause: cause.unwrap_or_default(),
        };
        let ended = match outcome.status {
            pb::JobStatus::Finished => return Ok(outcome),
            pb::JobStatus::Canceled => ApplicationStatus::Canceled,
            _ => ApplicationStatus::Failed,
        };
        self.note(ended, outcome.error().to_string());
        Ok(outcome)
    }

    /// Notes that the end of a job that was there is not known. Returns the error.
    fn note_unknown_end(&self, job: JobId) -> ApplicationError {
        let error = ApplicationError::Unknown { job };
        self.note(ApplicationStatus::Unknown, error.to_string());
        error
    }

    /// Ends the program's run. Returns the record as last written; from here on nothing of the program is
    /// written to it.
    pub(super) async fn close(&self) -> ApplicationRecord {
        self.inner.submissions.close().await
    }

    pub(super) async fn describe(&self, job: JobId) -> Result<pb::JobDetails, GatewayError> {
        let request = pb::DescribeJobRequest {
            job_id: job.to_string(),
            brief: true,
            ..pb::DescribeJobRequest::default()
        };
        self.inner.dispatcher.describe_job(request).await
    }

    /// The cluster's Dispatcher.
    pub(super) fn dispatcher(&self) -> &dyn DispatcherGateway {
        &*self.inner.dispatcher
    }

    /// Notes that the application ends with this status, unless an earlier cause decided otherwise.
    pub(super) fn note(&self, status: ApplicationStatus, diagnosis: String) {
        self.note_cause(Cause::Status(status, diagnosis));
    }

    pub(super) fn note_cause(&self, cause: Cause) {
        self.inner.cause.send_if_modified(|first| {
            let is_first = first.is_none();
            if is_first {
                *first = Some(cause);
            }
            is_first
        });
    }

    /// The cause that decides about the application, if there is one yet.
    pub(super) fn cause(&self) -> Option<Cause> {
        self.inner.cause.borrow().clone()
    }

    /// Waits for the cause that decides about the application.
    pub(super) async fn first_cause(&self) -> Cause {
        let mut causes = self.inner.cause.subscribe();
        let noted = causes.wait_for(Option::is_some).await;
        // The sender belongs to this run.
        match noted.ok().and_then(|cause| cause.clone()) {
            Some(cause) => cause,
            None => std::future::pending().await,
        }
    }

    /// The submitted jobs, by number.
    pub(super) fn jobs(&self) -> Vec<JobId> {
        self.inner.noted.lock().jobs.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_ids_follow_from_cluster_and_number_and_never_change() {
        let cluster = |name: &str| Name::new(name).expect("a name");
        let first = job_id_of(&cluster("c"), 0);
        assert_eq!(first, job_id_of(&cluster("c"), 0));
        assert_ne!(first, job_id_of(&cluster("c"), 1));
        assert_ne!(first, job_id_of(&cluster("d"), 0));
        // The program of the next leader finds by them what this one has submitted.
        assert_eq!(first.to_string(), "0006710d4ab205d7ddd8bb4a797d06e2");
    }
}
