//! A submitted job, for the program that submitted it. The cluster has the job's state; this has the id alone. A job
//! that is quarantined ends the wait for it, although it has not ended.

use std::time::Duration;

use tanist_compile::JobFileError;
use tanist_proto::id::JobId;
use tanist_proto::v1::JobStatus;
use tanist_rest_model::{JobInfo, job_status_name};

use super::cluster_client::ClusterClient;
use super::error::ClientError;
use super::job_client::JobClient;

/// Why a job was not executed to its end.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ExecuteError {
    /// The job is invalid; nothing was submitted.
    #[error(transparent)]
    InvalidJob(JobFileError),
    /// The cluster did not answer, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It ended without finishing. Or it is quarantined: then it has not ended, its tasks keep running, and it
    /// may still finish.
    #[error("{0}")]
    NotFinished(Box<JobExecutionResult>),
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobExecutionResult {
    /// Id of the job.
    pub job: JobId,
    /// FINISHED, FAILED or CANCELED; SUSPENDED if it is quarantined, and has not ended.
    pub status: JobStatus,
    /// Duration of the job.
    pub duration: Duration,
    /// Why it failed or is quarantined.
    pub cause: Option<String>,
    /// Details of the job at its end.
    pub info: JobInfo,
}

impl std::fmt::Display for JobExecutionResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let status = job_status_name(self.status);
        write!(f, "job {} {status} after {:?}", self.job, self.duration)?;
        match &self.cause {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

/// A submitted job. Dropping this does not affect the job. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobExecution {
    cluster: ClusterClient,
    job: JobId,
    repeated: bool,
}

impl JobExecution {
    pub(super) fn new(cluster: ClusterClient, job: JobId, repeated: bool) -> JobExecution {
        JobExecution {
            cluster,
            job,
            repeated,
        }
    }

    /// Returns its id, with which [`ClusterClient::job`] follows the job in another process.
    pub fn id(&self) -> JobId {
        self.job
    }

    pub(super) fn jobs(&self) -> &JobClient {
        self.cluster.jobs()
    }

    /// Whether an earlier submission of it was accepted already.
    pub fn was_accepted_before(&self) -> bool {
        self.repeated
    }

    /// Returns its status.
    pub async fn status(&self) -> Result<JobStatus, ClientError> {
        self.cluster.jobs().status(self.job).await
    }

    /// Returns its details.
    pub async fn info(&self) -> Result<JobInfo, ClientError> {
        self.cluster.jobs().info(self.job).await
    }

    /// Requests its cancellation. An acknowledged request is durable, but the job ends later.
    pub async fn cancel(&self) -> Result<(), ClientError> {
        self.cluster.jobs().cancel(self.job).await
    }

    /// Requests a stop: its sources end, and it finishes with what they have read. An acknowledged request is
    /// durable, but the job ends later.
    pub async fn stop(&self) -> Result<(), ClientError> {
        self.cluster.jobs().stop(self.job).await
    }

    /// Waits for its end, however it ends, or until it is quarantined.
    pub async fn result(&self) -> Result<JobExecutionResult, ClientError> {
        self.result_with(|_| {}).await
    }

    /// The same; calls `seen` after each check.
    pub async fn result_with(
        &self,
        seen: impl FnMut(&JobInfo),
    ) -> Result<JobExecutionResult, ClientError> {
        let jobs = self.cluster.jobs();
        let info = jobs.wait_for_end(self.job, seen).await?;
        let cause = match (&info.quarantine, info.state) {
            (Some(reason), _) => Some(format!("it is quarantined and has not ended: {reason}")),
            (None, JobStatus::Failed) => match &info.cause {
                Some(cause) => Some(cause.clone()),
                None => jobs.last_failure(self.job).await.ok().flatten(),
            },
            (None, _) => None,
        };
        Ok(JobExecutionResult {
            job: self.job,
            status: info.state,
            duration: Duration::from_millis(u64::try_from(info.duration).unwrap_or_default()),
            cause,
            info,
        })
    }

    /// Waits for its end. An error unless it FINISHED.
    pub async fn finished(&self) -> Result<JobExecutionResult, ExecuteError> {
        let result = self.result().await?;
        match result.status {
            JobStatus::Finished => Ok(result),
            _ => Err(ExecuteError::NotFinished(Box::new(result))),
        }
    }
}
