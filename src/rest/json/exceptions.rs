//! The body of `/jobs/:id/exceptions`: the newest failures, newest first.

use std::collections::BTreeMap;

use tanist_proto::v1::{FailureRecord, JobDetails};
use tanist_rest_model::{ExceptionHistory, JobExceptionInfo, JobExceptions};

use super::known;

/// At most `maximum` of the job's failures.
pub(crate) fn exceptions_of(job: &JobDetails, maximum: usize) -> JobExceptions {
    let newest = job.failures.iter().rev().take(maximum);
    JobExceptions {
        exception_history: ExceptionHistory {
            entries: newest.map(root).collect(),
            truncated: job.failures.len() > maximum,
        },
    }
}

fn root(failure: &FailureRecord) -> JobExceptionInfo {
    let concurrent = failure.concurrent.iter();
    JobExceptionInfo {
        concurrent_exceptions: Some(concurrent.map(alone).collect()),
        ..alone(failure)
    }
}

fn alone(failure: &FailureRecord) -> JobExceptionInfo {
    JobExceptionInfo {
        exception_name: failure.cause.lines().next().unwrap_or_default().to_owned(),
        stacktrace: failure.cause.clone(),
        timestamp: failure.at_ms,
        task_name: known(&failure.task),
        endpoint: known(&failure.host),
        task_manager_id: known(&failure.resource_id),
        failure_labels: BTreeMap::new(),
        concurrent_exceptions: None,
    }
}
