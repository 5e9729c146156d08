//! Requests about savepoints. A request has an id of the client, so that repeating it has no further effect.

use tanist_proto::id::JobId;
use tanist_rest_model::{
    DisposalRequest, OperationStatus, QueueStatus, SavepointRequest, StopRequest, Triggered, paths,
};

use super::cluster_client::ClusterClient;
use super::error::ClientError;
use super::job_client::{FIRST_PAUSE, JobClient, LONGEST_PAUSE};
use super::job_execution::JobExecution;
use super::rest_client::Request;

/// How far a requested savepoint is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SavepointStatus {
    /// It is being taken, or the job that stops with it has not ended yet.
    InProgress {
        /// What it waits for, if its checkpoint is not complete.
        waits_for: Option<String>,
    },
    /// It is complete.
    Completed {
        /// Its directory.
        path: String,
    },
    /// There is none.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Why there is no savepoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SavepointFailure {
    /// The request was refused or not answered.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It was accepted, and the savepoint could not be taken. A job that was to stop with it continues, unless it has
    /// ended in another way.
    #[error("{reason}")]
    Failed {
        /// Why.
        reason: String,
    },
}

impl JobClient {
    /// Requests a savepoint of the job: a directory of its own below `directory`, or below the configured one. Returns
    /// the id of the request. An acknowledged request is durable, but the savepoint is complete later. Refused: the job
    /// has ended (409), or no directory is known (400).
    pub async fn trigger_savepoint(
        &self,
        job: JobId,
        directory: Option<&str>,
    ) -> Result<String, ClientError> {
        let body = SavepointRequest {
            target_directory: directory.map(str::to_owned),
            trigger_id: Some(random_trigger()),
            ..SavepointRequest::default()
        };
        let request = Request::post(&paths::job_savepoints(job), &body);
        let triggered: Triggered = self.fetch_json(&request).await?;
        Ok(triggered.request_id)
    }

    /// The same, and the job stops with the savepoint: its sources pause behind it, and the job FINISHES without
    /// further output. If there can be no savepoint, the job continues.
    pub async fn stop_with_savepoint(
        &self,
        job: JobId,
        directory: Option<&str>,
    ) -> Result<String, ClientError> {
        let body = StopRequest {
            drain: Some(false),
            target_directory: directory.map(str::to_owned),
            trigger_id: Some(random_trigger()),
            ..StopRequest::default()
        };
        let request = Request::post(&paths::job_stop(job), &body);
        let triggered: Triggered = self.fetch_json(&request).await?;
        Ok(triggered.request_id)
    }

    /// Returns how far the savepoint with this id of its request is. Refused with 404 if the job's record has no such
    /// request among its last ones.
    pub async fn savepoint_status(
        &self,
        job: JobId,
        trigger: &str,
    ) -> Result<SavepointStatus, ClientError> {
        let request = Request::get(&paths::job_savepoint(job, trigger));
        let answer: OperationStatus = self.fetch_json(&request).await?;
        if answer.status == QueueStatus::IN_PROGRESS {
            return Ok(SavepointStatus::InProgress {
                waits_for: answer.waits_for,
            });
        }
        let end = answer.operation.unwrap_or_default();
        Ok(match (end.location, end.failure_cause) {
            (Some(path), None) => SavepointStatus::Completed { path },
            (_, Some(cause)) => SavepointStatus::Failed {
                reason: cause.stack_trace,
            },
            (None, None) => SavepointStatus::Failed {
                reason: "the answer of the cluster has no path".to_owned(),
            },
        })
    }

    /// Waits until the savepoint is complete, and returns its path. Calls `seen` after each check with what the
    /// savepoint waits for, if that is known.
    pub async fn wait_for_savepoint(
        &self,
        job: JobId,
        trigger: &str,
        mut seen: impl FnMut(Option<&str>),
    ) -> Result<String, SavepointFailure> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.savepoint_status(job, trigger).await? {
                SavepointStatus::InProgress { waits_for } => seen(waits_for.as_deref()),
                SavepointStatus::Completed { path } => return Ok(path),
                SavepointStatus::Failed { reason } => {
                    return Err(SavepointFailure::Failed { reason });
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Has a savepoint removed. Refused: it is not there (404), or a job still needs it (409).
    pub async fn dispose_savepoint(&self, path: &str) -> Result<(), ClientError> {
        let body = DisposalRequest {
            savepoint_path: path.to_owned(),
        };
        let request = Request::post(paths::SAVEPOINT_DISPOSAL, &body);
        let _: Triggered = self.fetch_json(&request).await?;
        Ok(())
    }
}

impl ClusterClient {
    /// Removes a savepoint. Refused: it is not there (404), or a job still needs it (409): one that began from it and
    /// has no checkpoint of its own yet.
    pub async fn dispose(&self, path: &str) -> Result<(), ClientError> {
        self.jobs().dispose_savepoint(path).await
    }
}

impl JobExecution {
    /// Takes a savepoint below `directory`, or below the configured one, and returns its path.
    pub async fn savepoint(&self, directory: Option<&str>) -> Result<String, SavepointFailure> {
        let jobs = self.jobs();
        let trigger = jobs.trigger_savepoint(self.id(), directory).await?;
        jobs.wait_for_savepoint(self.id(), &trigger, |_| {}).await
    }

    /// The same, and the job stops with it. It has FINISHED when this returns the path.
    pub async fn stop_with_savepoint(
        &self,
        directory: Option<&str>,
    ) -> Result<String, SavepointFailure> {
        let jobs = self.jobs();
        let trigger = jobs.stop_with_savepoint(self.id(), directory).await?;
        jobs.wait_for_savepoint(self.id(), &trigger, |_| {}).await
    }
}

fn random_trigger() -> String {
    format!("{:032x}", rand::random::<u128>())
}
