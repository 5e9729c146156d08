//! The terminal statuses of jobs.

use crate::v1::JobStatus;

/// The final result of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEnd {
    /// All of its tasks have finished.
    Finished,
    /// It was cancelled.
    Canceled,
    /// It failed and was not restarted.
    Failed,
}

impl JobStatus {
    /// The end that this status stands for; `None` while the job continues.
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

    /// Whether a job with this status has ended.
    pub fn has_ended(self) -> bool {
        self.end().is_some()
    }
}
