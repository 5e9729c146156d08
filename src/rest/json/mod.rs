//! The bodies of the REST server's answers, with Flink's names: one serde struct per body, built from the
//! messages of the Dispatcher.
//!
//! Flink writes -1 for a time that has not come and for the duration of something that has not begun; times are
//! in milliseconds since 1970. Numbers of Flink that do not exist here (JVM memory, JMX) are 0 or -1, so that
//! its clients work without changes.

mod aggregated;
pub mod blocked_reason;
pub mod cluster;
mod durations;
pub mod events;
pub mod exceptions;
pub mod failure_cause;
pub mod ha;
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

/// The version of this program.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The revision from which it was built.
pub(super) const REVISION: &str = env!("TANIST_BUILD_REVISION");

/// The body of every error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Errors {
    /// One text for each problem.
    pub errors: Vec<String>,
}

/// The answer to a submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Submitted {
    /// The job.
    pub jobid: String,
    /// URL of its description.
    #[serde(rename = "jobUrl")]
    pub job_url: String,
    /// Whether an earlier attempt of this submission had been accepted already.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
}

/// `/ha/time`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TimeBody {
    /// The leader's epoch.
    pub epoch: u64,
    /// The time by the clock of its term, in milliseconds.
    pub now: u64,
    /// The longest time from `now` to a deadline, in milliseconds.
    pub longest: u64,
}

/// The answer to an upload: the values that the graph of the job has to contain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Uploaded {
    /// The name of the object.
    pub object: String,
    /// The number of its pieces.
    pub pieces: u32,
    /// Its size in bytes.
    pub size: u64,
}

/// The answer to a request to stop a job, with Flink's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StopTriggered {
    /// The trigger id: `/jobs/:id/savepoints/:trigger` returns the status of the stop.
    #[serde(rename = "request-id")]
    pub request_id: String,
}

/// A body without content, as Flink's empty answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Nothing {}

/// A time, or -1 if it has not come.
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
