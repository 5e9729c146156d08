//! Bodies about the vertices of a job: part of `/jobs/:id`, and `/jobs/:id/vertices/:vid` with every subtask.

use std::collections::BTreeMap;

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tanist_proto::v1::{ExecutionState, SubtaskDetails, TaskMetrics, VertexDetails};

use super::aggregated::Aggregated;
use super::durations::{status_durations, timestamps};
use super::states::{Counts, execution_state, vertex_state};
use super::{duration, time};

/// A vertex in `/jobs/:id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VertexSummary {
    /// Its id.
    pub id: String,
    /// The id of the slot sharing group, in Flink's format: 32 hexadecimal digits, always the same for one name
    /// in one job.
    #[serde(rename = "slotSharingGroupId")]
    pub slot_sharing_group_id: String,
    /// The group's name.
    #[serde(rename = "slot-sharing-group")]
    pub slot_sharing_group: String,
    /// Its name.
    pub name: String,
    /// The largest parallelism that it can have.
    #[serde(rename = "maxParallelism")]
    pub max_parallelism: u32,
    /// The number of its subtasks.
    pub parallelism: u32,
    /// Its state, from those of its subtasks.
    pub status: &'static str,
    /// When its first subtask started.
    #[serde(rename = "start-time")]
    pub start_time: i64,
    /// When its last subtask ended.
    #[serde(rename = "end-time")]
    pub end_time: i64,
    /// Its duration until now.
    pub duration: i64,
    /// Number of subtasks in each state.
    pub tasks: Counts,
    /// Sums over its subtasks.
    pub metrics: IoMetrics,
}

impl VertexSummary {
    /// A vertex of a job at `now`.
    pub fn new(job_id: &str, vertex: &VertexDetails, now: u64) -> VertexSummary {
        let subtasks = || vertex.subtasks.iter();
        let started = subtasks().map(|subtask| subtask.started_at_ms);
        let start = started.filter(|at| *at > 0).min().unwrap_or(0);
        let all_ended = subtasks().all(|subtask| subtask.ended_at_ms > 0);
        let last_end = subtasks().map(|subtask| subtask.ended_at_ms).max();
        let end = last_end.filter(|_| all_ended).unwrap_or(0);
        VertexSummary {
            id: vertex.id.clone(),
            slot_sharing_group_id: slot_sharing_group_id(job_id, &vertex.slot_sharing_group),
            slot_sharing_group: vertex.slot_sharing_group.clone(),
            name: vertex.name.clone(),
            max_parallelism: vertex.max_parallelism,
            parallelism: vertex.parallelism,
            status: execution_state(vertex_state(vertex)),
            start_time: time(start),
            end_time: time(end),
            duration: duration(start, end, now),
            tasks: subtasks().map(|subtask| subtask.state()).collect(),
            metrics: IoMetrics::sum(subtasks()),
        }
    }
}

fn slot_sharing_group_id(job_id: &str, name: &str) -> String {
    let digest = Sha256::new()
        .chain_update(job_id)
        .chain_update([0])
        .chain_update(name)
        .finalize();
    let hex = digest.iter().take(16).map(|byte| format!("{byte:02x}"));
    hex.collect()
}

/// What tasks read and wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct IoMetrics {
    /// Bytes from other tasks.
    pub read_bytes: u64,
    /// Whether every subtask reported them.
    pub read_bytes_complete: bool,
    /// Bytes to other tasks.
    pub write_bytes: u64,
    /// Whether every subtask reported them.
    pub write_bytes_complete: bool,
    /// Records from other tasks.
    pub read_records: u64,
    /// Whether every subtask reported them.
    pub read_records_complete: bool,
    /// Records to other tasks.
    pub write_records: u64,
    /// Whether every subtask reported them.
    pub write_records_complete: bool,
    /// Records that windows dropped because they came too late.
    pub late_records_dropped: u64,
    /// Records that were skipped because they could not be read.
    pub records_skipped: u64,
    /// Not measured.
    pub accumulated_backpressured_time: u64,
    /// Not measured.
    pub accumulated_idle_time: u64,
    /// Not measured.
    pub accumulated_busy_time: u64,
}

impl IoMetrics {
    fn sum<'a>(subtasks: impl Iterator<Item = &'a SubtaskDetails>) -> IoMetrics {
        let mut sum = TaskMetrics::default();
        let mut complete = true;
        for subtask in subtasks {
            match &subtask.metrics {
                Some(metrics) => {
                    sum.records_in += metrics.records_in;
                    sum.records_out += metrics.records_out;
                    sum.bytes_in += metrics.bytes_in;
                    sum.bytes_out += metrics.bytes_out;
                    sum.late_records_dropped += metrics.late_records_dropped;
                    sum.records_skipped += metrics.records_skipped;
                }
                None => complete = false,
            }
        }
        IoMetrics {
            read_bytes: sum.bytes_in,
            read_bytes_complete: complete,
            write_bytes: sum.bytes_out,
            write_bytes_complete: complete,
            read_records: sum.records_in,
            read_records_complete: complete,
            write_records: sum.records_out,
            write_records_complete: complete,
            late_records_dropped: sum.late_records_dropped,
            records_skipped: sum.records_skipped,
            ..IoMetrics::default()
        }
    }
}

/// `/jobs/:id/vertices/:vid`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VertexBody {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The number of its subtasks.
    pub parallelism: u32,
    /// The largest parallelism that it can have.
    #[serde(rename = "maxParallelism")]
    pub max_parallelism: u32,
    /// Time of this answer.
    pub now: u64,
    /// Its subtasks.
    pub subtasks: Vec<SubtaskBody>,
    /// Statistics over the subtasks.
    pub aggregated: Aggregated,
}

impl VertexBody {
    /// A vertex at `now`.
    pub fn new(vertex: &VertexDetails, now: u64) -> VertexBody {
        let subtasks = vertex.subtasks.iter();
        let subtasks: Vec<SubtaskBody> = subtasks
            .map(|subtask| SubtaskBody::new(subtask, now))
            .collect();
        VertexBody {
            id: vertex.id.clone(),
            name: vertex.name.clone(),
            parallelism: vertex.parallelism,
            max_parallelism: vertex.max_parallelism,
            now,
            aggregated: Aggregated::over(&subtasks),
            subtasks,
        }
    }
}

/// An address, or Flink's word for none.
fn placed(text: &str) -> String {
    let text = if text.is_empty() {
        "(unassigned)"
    } else {
        text
    };
    text.to_owned()
}

/// `/jobs/:id/vertices/:vid/subtasktimes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SubtaskTimesBody {
    /// The vertex's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Time of this answer.
    pub now: u64,
    /// Its subtasks.
    pub subtasks: Vec<SubtaskTimes>,
}

/// One subtask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SubtaskTimes {
    /// Its index.
    pub subtask: u32,
    /// Where it runs; `(unassigned)` while it is not placed.
    pub host: String,
    /// The same under Flink's name since 2.0.
    pub endpoint: String,
    /// Its duration until now.
    pub duration: i64,
    /// When its current attempt entered each state.
    pub timestamps: BTreeMap<&'static str, u64>,
}

impl SubtaskTimesBody {
    /// A vertex at `now`.
    pub fn new(vertex: &VertexDetails, now: u64) -> SubtaskTimesBody {
        let subtasks = vertex.subtasks.iter().map(|subtask| SubtaskTimes {
            subtask: subtask.subtask,
            host: placed(&subtask.host),
            endpoint: placed(&subtask.host),
            duration: duration(subtask.started_at_ms, subtask.ended_at_ms, now),
            timestamps: timestamps(subtask),
        });
        SubtaskTimesBody {
            id: vertex.id.clone(),
            name: vertex.name.clone(),
            now,
            subtasks: subtasks.collect(),
        }
    }
}

/// One subtask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SubtaskBody {
    /// Its index.
    pub subtask: u32,
    /// Its state.
    pub status: &'static str,
    /// Its generation.
    pub attempt: u64,
    /// Where it runs; `(unassigned)` while it is not placed.
    pub host: String,
    /// The same under Flink's name since 2.0.
    pub endpoint: String,
    /// When it started.
    pub start_time: i64,
    /// The same under Flink's former name, which Flink still writes.
    #[serde(rename = "start_time")]
    pub start_time_compatible: i64,
    /// When it ended.
    pub end_time: i64,
    /// Its duration until now.
    pub duration: i64,
    /// What it read and wrote.
    pub metrics: IoMetrics,
    /// The TaskManager on which it runs.
    pub taskmanager_id: String,
    /// When the current attempt entered each state; 0 if it did not, or the time is not known.
    pub timestamps: BTreeMap<&'static str, u64>,
    /// Duration of the current attempt in each state, in milliseconds; -1 if it was not in that state, or the
    /// time is not known.
    pub status_duration: BTreeMap<&'static str, i64>,
    /// Always empty: a subtask has one attempt at a time.
    pub other_concurrent_attempts: Vec<u64>,
}

impl SubtaskBody {
    fn new(subtask: &SubtaskDetails, now: u64) -> SubtaskBody {
        let state: ExecutionState = subtask.state();
        let (start, end) = (subtask.started_at_ms, subtask.ended_at_ms);
        SubtaskBody {
            subtask: subtask.subtask,
            status: execution_state(state),
            attempt: subtask.attempt,
            host: placed(&subtask.host),
            endpoint: placed(&subtask.host),
            start_time: time(start),
            start_time_compatible: time(start),
            end_time: time(end),
            duration: duration(start, end, now),
            metrics: IoMetrics::sum(std::iter::once(subtask)),
            taskmanager_id: placed(&subtask.resource_id),
            timestamps: timestamps(subtask),
            status_duration: status_durations(subtask, now),
            other_concurrent_attempts: Vec::new(),
        }
    }
}
