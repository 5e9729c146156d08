//! Why a job does not run: part of `/jobs/{job}`, and `/jobs/quarantine`.

use serde::{Deserialize, Serialize};
use tanist_proto::id::JobId;

/// Why not all of a job runs, or what it waits for while it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct BlockedReason {
    /// `no-slots`, `restarting`, `reconciling`, `quarantined`, `store`, `cleaning-up`, `recovering`, `stopping`,
    /// `committing`, `peer-away`, `eviction`, `restoring`.
    #[serde(default)]
    pub kind: String,
    /// Text for people.
    pub text: String,
    /// When it began; -1: unknown.
    #[serde(default)]
    pub since: i64,
    /// When it ends on its own or is given up; -1: unknown.
    pub until: i64,
    /// Time of the next retry, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<i64>,
    /// Number of slots that the job needs, if slots are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_needed: Option<u32>,
    /// Number of slots that are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_missing: Option<u32>,
    /// The first of the subtasks that have no slot, have not stopped, can't reach their peer or can't read their
    /// state, or of the TaskManagers that are awaited.
    #[serde(default)]
    pub missing: Vec<String>,
}

impl BlockedReason {
    /// Whether it is the same as before: same kind and same text. Elapsed time makes no difference; times are
    /// in separate fields.
    pub fn is_same_as(&self, other: &BlockedReason) -> bool {
        self.kind == other.kind && self.text == other.text
    }
}

/// `/jobs/quarantine`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantineList {
    /// The quarantined jobs.
    pub jobs: Vec<QuarantinedJob>,
}

/// A quarantined job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantinedJob {
    /// Its id.
    pub jid: JobId,
    /// Its name, if it can be read.
    pub name: String,
    /// The reason and the evidence.
    #[serde(flatten)]
    pub quarantine: Quarantine,
}

/// Why a job is quarantined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// `unreadable`, `too-new`, `unknown-operator`, `broke`, `ended-process`.
    pub kind: String,
    /// Text for people.
    pub reason: String,
    /// When it began.
    pub since: i64,
    /// The evidence, oldest first.
    #[serde(default)]
    pub evidence: Vec<Evidence>,
}

/// An event that led to a quarantine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Epoch of the term.
    pub epoch: u64,
    /// The leader of that term.
    pub process: String,
    /// Time of the event; -1: unknown.
    pub at: i64,
    /// Description.
    pub what: String,
}
