//! One job, as who submitted it follows it.

use std::time::Duration;

use tanist_proto::id::JobId;
use tanist_proto::v1::JobStatus;

use super::cluster_client::ClusterClient;
use super::error::ClientError;
use super::model::JobInfo;
use crate::job::JobFileError;

/// Why a job was not executed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ExecuteError {
    /// It is wrong; nothing was submitted.
    #[error(transparent)]
    InvalidJob(JobFileError),
    /// The cluster did not answer, or said no.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It ended, but did not finish; or it is quarantined, which is no end: its tasks run on, and it may yet finish.
    #[error("{0}")]
    NotFinished(Box<JobExecutionResult>),
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobExecutionResult {
    /// Which job.
    pub job: JobId,
    /// FINISHED, FAILED or CANCELED; SUSPENDED if it is quarantined, and has not ended.
    pub status: JobStatus,
    /// How long it took.
    pub duration: Duration,
    /// Why it failed, or is quarantined.
    pub cause: Option<String>,
    /// The job as it stood at its end.
    pub info: JobInfo,
}

impl std::fmt::Display for JobExecutionResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let status = self.status.as_str_name();
        let status = status.trim_start_matches("JOB_STATUS_");
        write!(f, "job {} {status} after {:?}", self.job, self.duration)?;
        match &self.cause {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

/// A job that was submitted. Dropping it changes nothing about the job. Cheap to clone.
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

    /// Its id: with it, [`ClusterClient::job`] follows the job in another process.
    pub fn id(&self) -> JobId {
        self.job
    }

    /// Whether it had been accepted before.
    pub fn was_accepted_before(&self) -> bool {
        self.repeated
    }

    /// How it stands.
    pub async fn status(&self) -> Result<JobStatus, ClientError> {
        self.cluster.jobs().status(self.job).await
    }

    /// Everything about it.
    pub async fn info(&self) -> Result<JobInfo, ClientError> {
        self.cluster.jobs().info(self.job).await
    }

    /// Has it cancelled; acknowledged is durable, but it ends later.
    pub async fn cancel(&self) -> Result<(), ClientError> {
        self.cluster.jobs().cancel(self.job).await
    }

    /// Has it stopped: its sources end, and it finishes with what they have read. Acknowledged is durable, but it ends later.
    pub async fn stop(&self) -> Result<(), ClientError> {
        self.cluster.jobs().stop(self.job).await
    }

    /// Waits for its end, however it ends, or until it is quarantined.
    pub async fn result(&self) -> Result<JobExecutionResult, ClientError> {
        self.result_with(|_| {}).await
    }

    /// The same; tells `seen` of each look at the job.
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
