//! What the REST server answers, with Flink's names: one serde struct a body, built from the messages of the Dispatcher.
//!
//! Flink writes -1 for a time that has not come and for the duration of what has not begun; times are milliseconds since 1970. Where
//! Flink shows a number that does not exist here (JVM memory, JMX), it is 0 or -1, so that its users need not tell us apart.

mod aggregated;
pub mod cluster;
mod durations;
pub mod events;
pub mod exceptions;
pub mod failure_cause;
pub mod ha;
pub mod hindrance;
pub mod history;
pub mod job;
pub mod metric;
pub mod plan;
pub mod result;
pub mod savepoint;
pub mod states;
pub mod store;
pub mod task_managers;
pub mod vertex;
pub mod warnings;

#[cfg(test)]
mod tests;

use serde::Serialize;

/// This program's version.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The revision that it was built from.
pub(super) const REVISION: &str = env!("TANIST_BUILD_REVISION");

/// The body of every error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Errors {
    /// What is wrong, one text each.
    pub errors: Vec<String>,
}

/// The answer to a submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Submitted {
    /// The job.
    pub jobid: String,
    /// Where it is described.
    #[serde(rename = "jobUrl")]
    pub job_url: String,
    /// An earlier try of this submission had been accepted already.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
}

/// `/ha/time`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TimeBody {
    /// The leader's.
    pub epoch: u64,
    /// What the clock of its term shows, in milliseconds.
    pub now: u64,
    /// So many milliseconds ahead a deadline may be.
    pub longest: u64,
}

/// The answer to an upload: what the graph of the job has to name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Uploaded {
    /// Its name.
    pub object: String,
    /// In how many pieces it is kept.
    pub pieces: u32,
    /// In bytes.
    pub size: u64,
}

/// The answer to a request to stop a job, with Flink's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StopTriggered {
    /// Under which `/jobs/:id/savepoints/:trigger` tells how the stop stands.
    #[serde(rename = "request-id")]
    pub request_id: String,
}

/// A body without content, as Flink's empty answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Nothing {}

/// A time that has come, or -1.
fn time(ms: u64) -> i64 {
    match i64::try_from(ms) {
        Ok(ms) if ms > 0 => ms,
        _ => -1,
    }
}

/// From `start` to `end`, or to `now` if it has not ended; -1 if it has not begun.
fn duration(start: u64, end: u64, now: u64) -> i64 {
    if start == 0 {
        return -1;
    }
    let until = if end == 0 { now } else { end };
    i64::try_from(until.saturating_sub(start)).unwrap_or(i64::MAX)
}
