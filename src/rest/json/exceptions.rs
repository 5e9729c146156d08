//! The body of `/jobs/:id/exceptions`: the newest failures, newest first.

use std::collections::BTreeMap;

use serde::Serialize;
use tanist_proto::v1::{FailureRecord, JobDetails};

/// `/jobs/:id/exceptions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Exceptions {
    /// The history.
    pub exception_history: ExceptionHistory,
}

/// The failures of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExceptionHistory {
    /// The failures, newest first.
    pub entries: Vec<ExceptionEntry>,
    /// Whether there were more.
    pub truncated: bool,
}

/// One failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExceptionEntry {
    /// The first line of its text.
    pub exception_name: String,
    /// The whole text.
    pub stacktrace: String,
    /// Time of the failure.
    pub timestamp: u64,
    /// The failed task; `null` for a failure of the whole job.
    pub task_name: Option<String>,
    /// Address of the place where it ran.
    pub endpoint: Option<String>,
    /// The TaskManager on which it ran.
    pub task_manager_id: Option<String>,
    /// Always empty.
    pub failure_labels: BTreeMap<String, String>,
    /// Failures at the same moment, or before the failed tasks ran again; absent in those entries themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent_exceptions: Option<Vec<ExceptionEntry>>,
}

impl Exceptions {
    /// At most `maximum` of the job's failures.
    pub fn new(job: &JobDetails, maximum: usize) -> Exceptions {
        let newest = job.failures.iter().rev().take(maximum);
        Exceptions {
            exception_history: ExceptionHistory {
                entries: newest.map(ExceptionEntry::of_root).collect(),
                truncated: job.failures.len() > maximum,
            },
        }
    }
}

impl ExceptionEntry {
    fn of_root(failure: &FailureRecord) -> ExceptionEntry {
        let concurrent = failure.concurrent.iter();
        ExceptionEntry {
            concurrent_exceptions: Some(concurrent.map(ExceptionEntry::of).collect()),
            ..ExceptionEntry::of(failure)
        }
    }

    fn of(failure: &FailureRecord) -> ExceptionEntry {
        let named = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        ExceptionEntry {
            exception_name: failure.cause.lines().next().unwrap_or_default().to_owned(),
            stacktrace: failure.cause.clone(),
            timestamp: failure.at_ms,
            task_name: named(&failure.task),
            endpoint: named(&failure.host),
            task_manager_id: named(&failure.resource_id),
            failure_labels: BTreeMap::new(),
            concurrent_exceptions: None,
        }
    }
}
