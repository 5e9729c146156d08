//! Failures of a job: `/jobs/{job}/exceptions`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `/jobs/{job}/exceptions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobExceptions {
    /// The history.
    pub exception_history: ExceptionHistory,
}

/// The failures of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExceptionHistory {
    /// The failures, newest first.
    pub entries: Vec<JobExceptionInfo>,
    /// Whether there were more.
    #[serde(default)]
    pub truncated: bool,
}

/// A failure of a job or of one of its tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobExceptionInfo {
    /// The first line of the cause.
    #[serde(default)]
    pub exception_name: String,
    /// The cause, with all lines.
    pub stacktrace: String,
    /// Time of the failure.
    pub timestamp: u64,
    /// The task that failed; `None`: the whole job failed.
    pub task_name: Option<String>,
    /// Address where it ran: `host:port`.
    pub endpoint: Option<String>,
    /// Its TaskManager.
    pub task_manager_id: Option<String>,
    /// Always empty.
    #[serde(default)]
    pub failure_labels: BTreeMap<String, String>,
    /// Failures at the same moment, or before the failed tasks ran again; absent in those entries themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent_exceptions: Option<Vec<JobExceptionInfo>>,
}
