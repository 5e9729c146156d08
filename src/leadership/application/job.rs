//! The handle of a program to a job that it submitted: id, status, end, and how to stop or cancel it.
//!
//! It holds nothing but the job's id: every answer comes from the cluster, so a handle works under any leader.
//! Submission, and the effect of the job's end on the application, belong to the run of the program.

use tanist_gateway::GatewayError;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::program_run::{ApplicationError, ProgramRun};

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOutcome {
    /// The job.
    pub job: JobId,
    /// FINISHED, FAILED or CANCELED.
    pub status: pb::JobStatus,
    /// Why it did not finish; empty if it did.
    pub cause: String,
}

impl JobOutcome {
    pub(super) fn error(&self) -> ApplicationError {
        ApplicationError::NotFinished {
            job: self.job,
            status: self.status,
            cause: self.cause.clone(),
        }
    }
}

/// A job that an application submitted. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ApplicationJob {
    pub(super) run: ProgramRun,
    pub(super) job: JobId,
}

impl ApplicationJob {
    /// Its id.
    pub fn id(&self) -> JobId {
        self.job
    }

    /// Waits for its end, with any status.
    pub async fn ended(&self) -> Result<JobOutcome, ApplicationError> {
        self.run.wait(self.job).await
    }

    /// Waits until it has finished.
    pub async fn finished(&self) -> Result<JobOutcome, ApplicationError> {
        let outcome = self.ended().await?;
        match outcome.status {
            pb::JobStatus::Finished => Ok(outcome),
            _ => Err(outcome.error()),
        }
    }

    /// Its status.
    pub async fn status(&self) -> Result<pb::JobStatus, ApplicationError> {
        let described = self.run.describe(self.job).await;
        described
            .map(|details| details.status())
            .map_err(|error| self.refused(&error))
    }

    /// Stops it: its sources end, and it finishes with what they have read. The stop is durable when this
    /// returns.
    pub async fn stop(&self) -> Result<(), ApplicationError> {
        let request = pb::StopJobRequest {
            job_id: self.job.to_string(),
        };
        let answer = self.run.dispatcher().stop_job(request).await;
        answer.map(drop).map_err(|error| self.refused(&error))
    }

    /// Cancels it. The cancellation is durable when this returns.
    pub async fn cancel(&self) -> Result<(), ApplicationError> {
        let request = pb::CancelJobRequest {
            job_id: self.job.to_string(),
        };
        let answer = self.run.dispatcher().cancel_job(request).await;
        answer.map(drop).map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &GatewayError) -> ApplicationError {
        ApplicationError::Refused {
            job: self.job,
            reason: error.to_string(),
        }
    }
}
