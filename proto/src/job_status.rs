//! Which statuses of a job are ends.

use crate::v1::JobStatus;

/// How a job has ended, for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEnd {
    /// All of its tasks have.
    Finished,
    /// It was cancelled.
    Canceled,
    /// It failed, and was not restarted.
    Failed,
}

impl JobStatus {
    /// The end that this status is; nothing: a job with it goes on.
    pub fn end(self) -> Option<JobEnd> {
        match self {
            JobStatus::Finished => Some(JobEnd::Finished),
            JobStatus::Canceled => Some(JobEnd::Canceled),
            JobStatus::Failed => Some(JobEnd::Failed),
            JobStatus::Initializing
            | JobStatus::Created
            | JobStatus::Running
            | JobStatus::Failing
            | JobStatus::Cancelling
            | JobStatus::Restarting
            | JobStatus::Suspended
            | JobStatus::Reconciling => None,
        }
    }

    /// Whether a job with it has ended.
    pub fn has_ended(self) -> bool {
        self.end().is_some()
    }
}
