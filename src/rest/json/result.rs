//! The body of `/jobs/:id/execution-result`: whether a job has ended, and how.

use std::collections::BTreeMap;

use serde::Serialize;
use tanist_proto::JobEnd;
use tanist_proto::v1::JobDetails;
use tanist_rest_model::{FailureCause, QueueStatus};

use super::failure_cause::failure_cause;
use super::job::status_of;

/// `/jobs/:id/execution-result`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct ExecutionResult {
    /// Whether there is a result.
    pub(crate) status: QueueStatus,
    /// The result, once there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) job_execution_result: Option<JobExecutionResult>,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct JobExecutionResult {
    /// The job.
    pub(crate) id: String,
    /// `SUCCEEDED`, `CANCELED` or `FAILED`.
    pub(crate) application_status: &'static str,
    /// Always empty.
    pub(crate) accumulator_results: BTreeMap<String, String>,
    /// Its duration, in milliseconds.
    pub(crate) net_runtime: u64,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure_cause: Option<FailureCause>,
}

impl ExecutionResult {
    /// The result of a job, if it has ended.
    pub(crate) fn new(job: &JobDetails) -> ExecutionResult {
        let Some(end) = status_of(job).end() else {
            return ExecutionResult {
                status: QueueStatus::IN_PROGRESS,
                job_execution_result: None,
            };
        };
        let application_status = match end {
            JobEnd::Finished => "SUCCEEDED",
            JobEnd::Canceled => "CANCELED",
            JobEnd::Failed => "FAILED",
        };
        let cause = job.failures.last().filter(|_| end == JobEnd::Failed);
        let result = JobExecutionResult {
            id: job.job_id.clone(),
            application_status,
            accumulator_results: BTreeMap::new(),
            net_runtime: job.ended_at_ms.saturating_sub(job.started_at_ms),
            failure_cause: cause.map(|failure| failure_cause("tanist.JobFailed", &failure.cause)),
        };
        ExecutionResult {
            status: QueueStatus::COMPLETED,
            job_execution_result: Some(result),
        }
    }
}
