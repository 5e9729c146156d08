//! The bodies of the REST server's answers, built from the messages of the Dispatcher.
//!
//! `tanist_rest_model` describes them; a body that only Flink's clients read is described here, where it is written.
//! Numbers of Flink that do not exist here (JVM memory, JMX) are 0 or -1, so that its clients work without changes.

mod aggregated;
pub(super) mod blocked_reason;
pub(super) mod checkpoints;
pub(super) mod cluster;
mod durations;
pub(super) mod events;
pub(super) mod exceptions;
mod failure_cause;
pub(super) mod ha;
pub(super) mod history;
pub(super) mod job;
pub(super) mod metric;
pub(super) mod plan;
pub(super) mod result;
pub(super) mod savepoint;
mod states;
mod store;
pub(super) mod task_managers;
pub(super) mod vertex;
pub(super) mod vertex_checkpoints;
mod warnings;

#[cfg(test)]
mod tests;

use tanist_proto::id::JobId;

pub(super) use tanist_telemetry::{REVISION, VERSION};

/// The job type of all jobs.
const JOB_TYPE: &str = "STREAMING";

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

/// The text of a message, unless it is empty.
fn known(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

/// The id in a message. A Dispatcher writes only ids that it has parsed: any other text is shown as id 0.
pub(super) fn job_id(text: &str) -> JobId {
    text.parse().unwrap_or(JobId::from_bits(0))
}
