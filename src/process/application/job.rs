//! A job as the program that submitted it has it: its id and status, its end, and how to bring that about.
//!
//! It holds nothing of the job but its id: every answer is the cluster's, so a handle serves under any leader. Submitting, and what the
//! job's end means for the application, is the context's.

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::context::{ApplicationContext, ApplicationError};
use crate::gateway::GatewayError;

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOutcome {
    /// Which job.
    pub job: JobId,
    /// FINISHED, FAILED or CANCELED.
    pub status: pb::JobStatus,
    /// Why it did not finish; empty otherwise.
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
    pub(super) context: ApplicationContext,
    pub(super) job: JobId,
}

impl ApplicationJob {
    /// Its id.
    pub fn id(&self) -> JobId {
        self.job
    }

    /// Waits for its end, whatever that is.
    pub async fn ended(&self) -> Result<JobOutcome, ApplicationError> {
        self.context.wait(self.job).await
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
        let described = self.context.describe(self.job).await;
        described
            .map(|details| details.status())
            .map_err(|error| self.refused(&error))
    }

    /// Has it stopped: its sources end, and it finishes with what they have read; acknowledged is durable.
    pub async fn stop(&self) -> Result<(), ApplicationError> {
        let request = pb::StopJobRequest {
            job_id: self.job.to_string(),
        };
        let answer = self.context.dispatcher().stop_job(request).await;
        answer.map(drop).map_err(|error| self.refused(&error))
    }

    /// Has it cancelled; acknowledged is durable.
    pub async fn cancel(&self) -> Result<(), ApplicationError> {
        let request = pb::CancelJobRequest {
            job_id: self.job.to_string(),
        };
        let answer = self.context.dispatcher().cancel_job(request).await;
        answer.map(drop).map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &GatewayError) -> ApplicationError {
        ApplicationError::Refused {
            job: self.job,
            reason: error.to_string(),
        }
    }
}
