//! Bodies about the vertices of a job: part of `/jobs/:id`, and `/jobs/:id/vertices/:vid` with every subtask.

use std::collections::BTreeMap;

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tanist_proto::v1::{SubtaskDetails, TaskMetrics, VertexDetails};
use tanist_rest_model::{
    IoMetrics, SubtaskInfo, VertexInfo, VertexSubtasks, Word, execution_state_name,
};

use super::aggregated::aggregated;
use super::durations::{status_durations, timestamps};
use super::states::vertex_state;
use super::{duration, known, time};

/// A vertex of a job at `now`.
pub(super) fn vertex_info(job_id: &str, vertex: &VertexDetails, now: u64) -> VertexInfo {
    let subtasks = || vertex.subtasks.iter();
    let started = subtasks().map(|subtask| subtask.started_at_ms);
    let start = started.filter(|at| *at > 0).min().unwrap_or(0);
    let all_ended = subtasks().all(|subtask| subtask.ended_at_ms > 0);
    let last_end = subtasks().map(|subtask| subtask.ended_at_ms).max();
    let end = last_end.filter(|_| all_ended).unwrap_or(0);
    VertexInfo {
        id: vertex.id.clone(),
        slot_sharing_group_id: slot_sharing_group_id(job_id, &vertex.slot_sharing_group),
        slot_sharing_group: vertex.slot_sharing_group.clone(),
        name: vertex.name.clone(),
        max_parallelism: vertex.max_parallelism,
        parallelism: vertex.parallelism,
        status: execution_state_name(vertex_state(vertex)).into(),
        start_time: time(start),
        end_time: time(end),
        duration: duration(start, end, now),
        tasks: subtasks().map(|subtask| subtask.state()).collect(),
        metrics: sum(subtasks()),
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

/// The sums over these subtasks.
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
                sum.state_bytes += metrics.state_bytes;
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
        state_bytes: sum.state_bytes,
        ..IoMetrics::default()
    }
}

/// `/jobs/:id/vertices/:vid`, at `now`.
pub(crate) fn vertex_subtasks(vertex: &VertexDetails, now: u64) -> VertexSubtasks {
    let subtasks = vertex.subtasks.iter();
    let subtasks: Vec<SubtaskInfo> = subtasks.map(|subtask| subtask_info(subtask, now)).collect();
    VertexSubtasks {
        id: vertex.id.clone(),
        name: vertex.name.clone(),
        parallelism: vertex.parallelism,
        max_parallelism: vertex.max_parallelism,
        now,
        aggregated: aggregated(&subtasks),
        subtasks,
    }
}

fn subtask_info(subtask: &SubtaskDetails, now: u64) -> SubtaskInfo {
    let (start, end) = (subtask.started_at_ms, subtask.ended_at_ms);
    SubtaskInfo {
        subtask: subtask.subtask,
        status: execution_state_name(subtask.state()).into(),
        attempt: subtask.attempt,
        host: placed(&subtask.host),
        endpoint: placed(&subtask.host),
        start_time: time(start),
        start_time_compatible: time(start),
        end_time: time(end),
        duration: duration(start, end, now),
        metrics: sum(std::iter::once(subtask)),
        taskmanager_id: placed(&subtask.resource_id),
        timestamps: timestamps(subtask),
        status_duration: status_durations(subtask, now),
        unread_state: known(&subtask.unread_state),
        other_concurrent_attempts: Vec::new(),
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
pub(crate) struct SubtaskTimesBody {
    id: String,
    name: String,
    /// Time of this answer.
    now: u64,
    subtasks: Vec<SubtaskTimes>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct SubtaskTimes {
    subtask: u32,
    /// Where it runs; `(unassigned)` while it is not placed.
    host: String,
    /// The same under Flink's name since 2.0.
    endpoint: String,
    /// Its duration until now.
    duration: i64,
    /// When its current attempt entered each state.
    timestamps: BTreeMap<Word, u64>,
}

impl SubtaskTimesBody {
    /// A vertex at `now`.
    pub(crate) fn new(vertex: &VertexDetails, now: u64) -> SubtaskTimesBody {
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
