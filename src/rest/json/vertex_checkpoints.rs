//! The parts of vertices and subtasks in a checkpoint: `/jobs/:id/checkpoints/details/:number/subtasks/:vertex`, and
//! which subtask is slow.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::v1::{
    CheckpointOutcome, CheckpointSummary as Summary, CheckpointTimes, JobDetails,
    SubtaskAcknowledgement as Acknowledgement, VertexCheckpoint as Vertex,
};
use tanist_rest_model::{
    CheckpointAlignment, CheckpointDurations, CheckpointInProgress, CheckpointSummary,
    SlowestSubtask, SubtaskAcknowledgement, SubtaskCheckpoint, SubtaskSummaries, VertexCheckpoint,
    VertexCheckpointInfo,
};

use super::checkpoints::{statistics, status_name};
use super::{duration, time};

/// Number of subtasks that are named of those that have not acknowledged a checkpoint.
const NAMED: usize = 5;

/// The parts of all vertices, at `now`.
pub(super) fn vertices(summary: &Summary, now: u64) -> BTreeMap<String, VertexCheckpointInfo> {
    let vertices = summary.vertices.iter();
    let infos = vertices.map(|it| (it.vertex_id.clone(), vertex_info(summary, it, now)));
    infos.collect()
}

fn vertex_info(summary: &Summary, vertex: &Vertex, now: u64) -> VertexCheckpointInfo {
    let acknowledged = vertex.acknowledgements.iter();
    let last = acknowledged.map(|it| it.at_ms).max().unwrap_or_default();
    let is_whole = vertex.acknowledged_subtasks == vertex.subtasks;
    let ended_at_ms = match (is_whole, last) {
        (true, last) if last > 0 => last,
        _ => summary.ended_at_ms,
    };
    VertexCheckpointInfo {
        id: summary.number,
        status: status_name(summary.outcome()).into(),
        latest_ack_timestamp: time(last),
        checkpointed_size: vertex.acknowledgements.iter().map(|it| it.written).sum(),
        state_size: vertex.acknowledgements.iter().map(|it| it.size).sum(),
        end_to_end_duration: duration(summary.triggered_at_ms, ended_at_ms, now),
        alignment_buffered: 0,
        processed_data: 0,
        persisted_data: 0,
        num_subtasks: vertex.subtasks,
        num_acknowledged_subtasks: vertex.acknowledged_subtasks,
    }
}

/// The part of one vertex with its subtasks, at `now`; `parallelism` is that of the vertex.
pub(crate) fn vertex_checkpoint(
    summary: &Summary,
    vertex: &Vertex,
    parallelism: u32,
    now: u64,
) -> VertexCheckpoint {
    let mut known = vertex.acknowledgements.iter().peekable();
    let subtasks = (0..parallelism).map(|index| {
        let acknowledged = known.next_if(|it| it.subtask == index);
        subtask(index, acknowledged.map(|it| acknowledgement(summary, it)))
    });
    VertexCheckpoint {
        vertex: vertex_info(summary, vertex, now),
        subtasks: subtasks.collect(),
        summary: summaries(summary, &vertex.acknowledgements),
    }
}

fn subtask(index: u32, acknowledgement: Option<SubtaskAcknowledgement>) -> SubtaskCheckpoint {
    let (class_name, status) = match acknowledgement {
        Some(_) => ("completed", "completed"),
        None => ("pending", "pending_or_failed"),
    };
    SubtaskCheckpoint {
        class_name: class_name.into(),
        index,
        status: status.into(),
        acknowledgement,
    }
}

fn millis(micros: u64) -> u64 {
    micros.div_ceil(1000)
}

/// Time from the trigger until an acknowledgement.
fn until(summary: &Summary, acknowledgement: &Acknowledgement) -> u64 {
    acknowledgement
        .at_ms
        .saturating_sub(summary.triggered_at_ms)
}

/// The part of that time which the subtask does not account for: until the first barrier came.
fn start_delay(summary: &Summary, acknowledgement: &Acknowledgement) -> u64 {
    until(summary, acknowledgement).saturating_sub(accounted_us(acknowledgement) / 1000)
}

/// The part of that time which the subtask accounts for.
fn accounted_us(acknowledgement: &Acknowledgement) -> u64 {
    let times = acknowledgement.times.unwrap_or_default();
    times.alignment_us + times.saving_us + times.writing_us
}

fn acknowledgement(summary: &Summary, known: &Acknowledgement) -> SubtaskAcknowledgement {
    let times = known.times.unwrap_or_default();
    let delay = start_delay(summary, known);
    SubtaskAcknowledgement {
        ack_timestamp: time(known.at_ms),
        end_to_end_duration: until(summary, known).cast_signed(),
        checkpointed_size: known.written,
        state_size: known.size,
        checkpoint: CheckpointDurations {
            sync: millis(times.saving_us),
            beside: millis(times.writing_us),
        },
        alignment: CheckpointAlignment {
            duration: millis(times.alignment_us),
            ..CheckpointAlignment::default()
        },
        start_delay: delay.cast_signed(),
        unaligned_checkpoint: false,
        aborted: false,
    }
}

fn summaries(summary: &Summary, known: &[Acknowledgement]) -> SubtaskSummaries {
    let of = |value: &dyn Fn(&Acknowledgement) -> u64| statistics(known.iter().map(value));
    let of_time = |value: fn(&CheckpointTimes) -> u64| {
        let times = known.iter().filter_map(|it| it.times.as_ref());
        statistics(times.map(|it| millis(value(it))))
    };
    SubtaskSummaries {
        checkpointed_size: of(&|it| it.written),
        state_size: of(&|it| it.size),
        end_to_end_duration: of(&|it| until(summary, it)),
        checkpoint_duration: CheckpointDurations {
            sync: of_time(|it| it.saving_us),
            beside: of_time(|it| it.writing_us),
        },
        alignment: CheckpointAlignment {
            duration: of_time(|it| it.alignment_us),
            ..CheckpointAlignment::<CheckpointSummary>::default()
        },
        start_delay: of(&|it| start_delay(summary, it)),
    }
}

/// The name of a subtask: `count (2/4)`.
fn name_of(job: &JobDetails, vertex_id: &str, subtask: u32) -> String {
    let vertex = job.vertices.iter().find(|vertex| vertex.id == vertex_id);
    let (name, parallelism) = vertex.map_or((vertex_id, 0), |it| (&*it.name, it.parallelism));
    format!("{name} ({}/{parallelism})", subtask + 1)
}

/// The subtask that was the last to acknowledge a checkpoint.
pub(super) fn slowest(job: &JobDetails, summary: &Summary) -> Option<SlowestSubtask> {
    let all = summary.vertices.iter().flat_map(|vertex| {
        let known = vertex.acknowledgements.iter();
        known.map(move |it| (&*vertex.vertex_id, it))
    });
    // Several tasks of a TaskManager acknowledge at once: of these the one that took longest itself.
    let (vertex_id, last) = all.max_by_key(|(_, it)| (it.at_ms, accounted_us(it)))?;
    let times = last.times.unwrap_or_default();
    Some(SlowestSubtask {
        subtask: name_of(job, vertex_id, last.subtask),
        duration: until(summary, last).cast_signed(),
        alignment: millis(times.alignment_us),
        sync: millis(times.saving_us),
        beside: millis(times.writing_us),
    })
}

/// The checkpoint that is in progress, with the subtasks that it waits for.
pub(super) fn in_progress(job: &JobDetails, history: &[Summary]) -> Option<CheckpointInProgress> {
    let mut newest_first = history.iter().rev();
    let open = newest_first.find(|it| it.outcome() == CheckpointOutcome::InProgress)?;
    let vertices = open.vertices.iter();
    let missing = vertices
        .clone()
        .map(|it| it.subtasks.saturating_sub(it.acknowledged_subtasks))
        .sum();
    let named = vertices.flat_map(|vertex| {
        let known = job.vertices.iter().find(|it| it.id == vertex.vertex_id);
        let acknowledged = vertex.acknowledgements.iter().map(|it| it.subtask);
        let acknowledged: BTreeSet<u32> = acknowledged.collect();
        let subtasks = 0..known.map_or(0, |it| it.parallelism);
        let missing = subtasks.filter(move |subtask| !acknowledged.contains(subtask));
        missing.map(|subtask| name_of(job, &vertex.vertex_id, subtask))
    });
    Some(CheckpointInProgress {
        id: open.number,
        triggered_at: time(open.triggered_at_ms),
        missing,
        missing_subtasks: named.take(NAMED).collect(),
    })
}
