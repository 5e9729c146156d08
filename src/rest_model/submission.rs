//! Answers to a submission and to what precedes it.

use serde::{Deserialize, Serialize};
use tanist_proto::id::JobId;

/// An accepted submission: the job is in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submitted {
    /// Id of the job.
    #[serde(rename = "jobid")]
    pub job: JobId,
    /// URL of its description.
    #[serde(rename = "jobUrl", default)]
    pub job_url: String,
    /// Whether an earlier attempt of the same submission was accepted already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
}

/// Time of the leader's term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermTime {
    /// The leader's epoch.
    pub epoch: u64,
    /// The time by the clock of its term, in milliseconds.
    pub now: u64,
    /// The longest time from `now` to a deadline, in milliseconds.
    pub longest: u64,
}

/// An uploaded file: the values that the graph of the job has to contain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uploaded {
    /// The name of the object.
    pub object: String,
    /// The number of its pieces.
    pub pieces: u32,
    /// Its size in bytes.
    pub size: u64,
}
