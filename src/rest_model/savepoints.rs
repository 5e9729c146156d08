//! Savepoints: the requests to take and to remove one, and the status of such a request.
//!
//! Flink's clients read and write these bodies; their names are Flink's.

use serde::{Deserialize, Serialize};

use crate::Word;

/// The body that asks for a savepoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SavepointRequest {
    /// The directory below which it gets a directory of its own, an absolute path or a URL. Absent: the configured one.
    #[serde(rename = "target-directory", skip_serializing_if = "Option::is_none")]
    pub target_directory: Option<String>,
    /// Whether the job stops with it.
    #[serde(rename = "cancel-job")]
    pub cancel_job: Option<bool>,
    /// `CANONICAL` or `NATIVE`. There is one format.
    #[serde(rename = "formatType", skip_serializing_if = "Option::is_none")]
    pub format_type: Option<String>,
    /// Identifies the request: with the id of another one it is the same request. 32 hex digits. Absent: a random one.
    #[serde(rename = "triggerId", skip_serializing_if = "Option::is_none")]
    pub trigger_id: Option<String>,
}

/// The body that stops a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct StopRequest {
    /// Whether the sources end and what they have read is processed to its end, without a savepoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<bool>,
    /// As in [`SavepointRequest`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_directory: Option<String>,
    /// As in [`SavepointRequest`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format_type: Option<String>,
    /// As in [`SavepointRequest`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger_id: Option<String>,
}

/// The body that has a savepoint removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DisposalRequest {
    /// The directory of the savepoint.
    #[serde(rename = "savepoint-path")]
    pub savepoint_path: String,
}

/// An accepted request whose result comes later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Triggered {
    /// The id under which its status is asked for.
    #[serde(rename = "request-id")]
    pub request_id: String,
}

/// `IN_PROGRESS` or `COMPLETED`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// The value.
    pub id: Word,
}

impl QueueStatus {
    /// Not ended yet.
    pub const IN_PROGRESS: QueueStatus = QueueStatus {
        id: Word::Borrowed("IN_PROGRESS"),
    };
    /// Ended, in whatever way.
    pub const COMPLETED: QueueStatus = QueueStatus {
        id: Word::Borrowed("COMPLETED"),
    };
}

/// The status of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationStatus {
    /// Whether it has ended.
    pub status: QueueStatus,
    /// How it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationEnd>,
    /// In progress: what a savepoint waits for, if its checkpoint is not complete.
    #[serde(rename = "waits-for", default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}

impl OperationStatus {
    /// It has not ended yet.
    pub fn in_progress() -> OperationStatus {
        OperationStatus {
            status: QueueStatus::IN_PROGRESS,
            operation: None,
            waits_for: None,
        }
    }

    /// It has ended in this way.
    pub fn ended(end: OperationEnd) -> OperationStatus {
        OperationStatus {
            status: QueueStatus::COMPLETED,
            operation: Some(end),
            waits_for: None,
        }
    }
}

/// The end of a request. Without a `failure_cause` it was carried out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct OperationEnd {
    /// The path of the savepoint; for a stop without one, a text that says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// Why it was not carried out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_cause: Option<FailureCause>,
}

/// A failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FailureCause {
    /// The class of the failure.
    pub class: Word,
    /// The whole text.
    pub stack_trace: String,
    /// The same as a Java object, in Base64, for Flink's clients.
    #[serde(default)]
    pub serialized_throwable: String,
}

/// A requested savepoint, in the description of a job's checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SavepointInfo {
    /// Identifies the request.
    pub trigger_id: String,
    /// `IN_PROGRESS`, `COMPLETED` or `FAILED`.
    pub status: Word,
    /// When it was requested.
    pub requested_at: i64,
    /// Number of the checkpoint that it is a copy of, once that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// Whether the job stops with it.
    pub stops: bool,
    /// COMPLETED: its path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// FAILED: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// IN_PROGRESS: what it waits for, if its checkpoint is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}
