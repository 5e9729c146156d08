//! Events of a job, as `/jobs/{job}/events` answers them: from the job's record and, for `TASK`, from its tasks.

use serde::{Deserialize, Serialize};

use super::Word;

/// `/jobs/{job}/events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEvents {
    /// The events, newest first.
    pub events: Vec<JobEventInfo>,
    /// Whether there were more.
    #[serde(default)]
    pub truncated: bool,
}

/// An event of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEventInfo {
    /// Time of the event, in ms since the Unix epoch.
    pub timestamp: u64,
    /// `STATUS`, `RESTART`, `TAKEOVER`, `ADOPTION`, `CANCEL`, `STOP`, `QUARANTINE`, `RETRY`, `SAVEPOINT`, `CHECKPOINT`,
    /// `NOTICE`; `TASK` only on request.
    pub kind: Word,
    /// Epoch of the term in which it happened; not for `TASK`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// For `STATUS` and `TASK`: the new status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Word>,
    /// For `RESTART`: the task that failed first. For `TASK`: the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// For `TASK`: its generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// For `RESTART`: number of regions that are restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions: Option<u32>,
    /// For `RESTART`: time at which it is due, in ms since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Cause or consequence; for `TASK`: where it runs. May be empty.
    #[serde(default)]
    pub text: String,
}
