//! Checkpoints of a job: `/jobs/{job}/checkpoints` and `/jobs/{job}/checkpoints/details/{number}`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{SavepointInfo, Word};

/// `/jobs/{job}/checkpoints`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointStatistics {
    /// How many there were.
    pub counts: CheckpointCounts,
    /// Statistics over the completed ones in the history.
    pub summary: CheckpointSummaries,
    /// The last of each kind.
    pub latest: LatestCheckpoints,
    /// The last checkpoints, newest first.
    pub history: Vec<CheckpointInfo>,
    /// Regions of which no checkpoint is taken at present.
    #[serde(default)]
    pub skipped: Vec<SkippedRegion>,
    /// Regions whose last checkpoint failed, also while those of others complete.
    #[serde(default)]
    pub failing: Vec<FailingRegions>,
    /// Why objects that no checkpoint needs any more can't be removed.
    #[serde(
        rename = "storage-problem",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub storage_problem: Option<StorageProblem>,
    /// The last requested savepoints, newest first.
    #[serde(default)]
    pub savepoints: Vec<SavepointInfo>,
    /// What the job was started from: the path of a savepoint, or the checkpoint of another job.
    #[serde(rename = "started-from", skip_serializing_if = "Option::is_none")]
    pub started_from: Option<String>,
}

/// Numbers of checkpoints since the present JobMaster began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointCounts {
    /// 1 if a region was restored from a checkpoint.
    pub restored: u64,
    /// All of the following.
    pub total: u64,
    /// Those in progress.
    pub in_progress: u64,
    /// Those that are durable.
    pub completed: u64,
    /// Those that failed, at some regions or all.
    pub failed: u64,
}

/// Statistics over checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointSummaries {
    /// Of their state, what was written for each, in bytes.
    pub checkpointed_size: CheckpointSummary,
    /// Size of their state, in bytes.
    pub state_size: CheckpointSummary,
    /// From the trigger until they were durable, in milliseconds.
    pub end_to_end_duration: CheckpointSummary,
    /// Always 0.
    pub alignment_buffered: CheckpointSummary,
    /// Always 0.
    pub processed_data: CheckpointSummary,
    /// Always 0.
    pub persisted_data: CheckpointSummary,
}

/// Minimum, maximum, mean and percentiles; 0 if there are no values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointSummary {
    /// The smallest value.
    pub min: u64,
    /// The largest value.
    pub max: u64,
    /// The mean.
    pub avg: u64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
}

/// The last checkpoint of each kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatestCheckpoints {
    /// The last one that is durable.
    pub completed: Option<CheckpointInfo>,
    /// The last one of which a savepoint is a complete copy, if it is in the history.
    pub savepoint: Option<CheckpointInfo>,
    /// The last one that failed.
    pub failed: Option<CheckpointInfo>,
    /// The one from which a region was restored last.
    pub restored: Option<RestoredCheckpoint>,
}

/// A checkpoint from which a region was restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredCheckpoint {
    /// Its number.
    pub id: u64,
    /// When the region was restored.
    pub restore_timestamp: i64,
    /// Whether it was a savepoint.
    pub is_savepoint: bool,
    /// A savepoint: its path.
    pub external_path: Option<String>,
}

/// A checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointInfo {
    /// `in_progress`, `completed` or `failed`: Flink's clients choose a class by it.
    #[serde(rename = "className", default)]
    pub class_name: Word,
    /// Its number.
    pub id: u64,
    /// `IN_PROGRESS`, `COMPLETED` or `FAILED`.
    pub status: Word,
    /// Whether it is shown as a savepoint.
    pub is_savepoint: bool,
    /// A savepoint: `CANONICAL`.
    #[serde(rename = "savepointFormat")]
    pub savepoint_format: Option<String>,
    /// When it was triggered.
    pub trigger_timestamp: i64,
    /// When its last acknowledgement came.
    pub latest_ack_timestamp: i64,
    /// Of `state_size`, what was written for it.
    pub checkpointed_size: u64,
    /// Size of the state that it names, in bytes.
    pub state_size: u64,
    /// From its trigger until it was durable or failed, or until the answer, in milliseconds.
    pub end_to_end_duration: i64,
    /// Always 0.
    pub alignment_buffered: u64,
    /// Always 0.
    pub processed_data: u64,
    /// Always 0.
    pub persisted_data: u64,
    /// Number of its subtasks.
    pub num_subtasks: u32,
    /// Number of these that have acknowledged it.
    pub num_acknowledged_subtasks: u32,
    /// `CHECKPOINT`, or `SAVEPOINT`.
    pub checkpoint_type: Word,
    /// By vertex; empty in lists of checkpoints.
    #[serde(default)]
    pub tasks: BTreeMap<String, VertexCheckpointInfo>,
    /// A savepoint: its path.
    pub external_path: Option<String>,
    /// COMPLETED: whether later ones have replaced it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discarded: Option<bool>,
    /// FAILED: when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_timestamp: Option<i64>,
    /// FAILED: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_message: Option<String>,
}

/// The part of a vertex in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VertexCheckpointInfo {
    /// Number of the checkpoint.
    pub id: u64,
    /// That of the checkpoint.
    pub status: Word,
    /// When its last acknowledgement came.
    pub latest_ack_timestamp: i64,
    /// Of `state_size`, what was written for this checkpoint.
    pub checkpointed_size: u64,
    /// Size of its state, in bytes.
    pub state_size: u64,
    /// From the trigger until its last acknowledgement, or until the answer, in milliseconds.
    pub end_to_end_duration: i64,
    /// Always 0.
    pub alignment_buffered: u64,
    /// Always 0.
    pub processed_data: u64,
    /// Always 0.
    pub persisted_data: u64,
    /// Number of its subtasks that take part.
    pub num_subtasks: u32,
    /// Number of these that have acknowledged it, or had ended before.
    pub num_acknowledged_subtasks: u32,
}

/// `/jobs/{job}/checkpoints/details/{number}/subtasks/{vertex}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VertexCheckpoint {
    /// The vertex.
    #[serde(flatten)]
    pub vertex: VertexCheckpointInfo,
    /// Statistics over the subtasks that have acknowledged it.
    pub summary: SubtaskSummaries,
    /// Its subtasks, in their order.
    pub subtasks: Vec<SubtaskCheckpoint>,
}

/// Statistics over subtasks. Times in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SubtaskSummaries {
    /// What was written for the checkpoint, in bytes.
    pub checkpointed_size: CheckpointSummary,
    /// Size of the state, in bytes.
    pub state_size: CheckpointSummary,
    /// From the trigger until the acknowledgement.
    pub end_to_end_duration: CheckpointSummary,
    /// Taking the state, and writing it.
    pub checkpoint_duration: CheckpointDurations<CheckpointSummary>,
    /// Waiting for barriers.
    pub alignment: CheckpointAlignment<CheckpointSummary>,
    /// From the trigger until the first barrier came.
    pub start_delay: CheckpointSummary,
}

/// Time for the state of a subtask, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointDurations<T> {
    /// The task did nothing else meanwhile.
    pub sync: T,
    /// Beside the task.
    #[serde(rename = "async")]
    pub beside: T,
}

/// The alignment of a subtask.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointAlignment<T> {
    /// Always 0.
    pub buffered: T,
    /// Always 0.
    pub processed: T,
    /// Always 0.
    pub persisted: T,
    /// From the first barrier that blocked a channel until the last one came, in milliseconds.
    pub duration: T,
}

/// The part of a subtask in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubtaskCheckpoint {
    /// `completed` or `pending`: Flink's clients choose a class by it.
    #[serde(rename = "className")]
    pub class_name: Word,
    /// Its number.
    pub index: u32,
    /// `completed`, or `pending_or_failed`. A subtask that had ended before the checkpoint stays so.
    pub status: Word,
    /// `completed`: what it has acknowledged.
    #[serde(flatten)]
    pub acknowledgement: Option<SubtaskAcknowledgement>,
}

/// What a subtask has acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubtaskAcknowledgement {
    /// When.
    pub ack_timestamp: i64,
    /// From the trigger until then, in milliseconds.
    pub end_to_end_duration: i64,
    /// Of `state_size`, what was written for this checkpoint.
    pub checkpointed_size: u64,
    /// Size of its state, in bytes.
    pub state_size: u64,
    /// Taking the state, and writing it.
    pub checkpoint: CheckpointDurations<u64>,
    /// Waiting for barriers.
    pub alignment: CheckpointAlignment<u64>,
    /// From the trigger until the first barrier came, in milliseconds.
    pub start_delay: i64,
    /// Always `false`.
    pub unaligned_checkpoint: bool,
    /// Always `false`.
    pub aborted: bool,
}

/// A region of which no checkpoint is taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedRegion {
    /// Names of its vertices.
    pub vertices: Vec<String>,
    /// Why.
    pub reason: String,
}

/// Why objects of checkpoints can't be removed at present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageProblem {
    /// The directory, the JobManager, and the error.
    pub reason: String,
    /// Since when.
    pub since: i64,
}

/// Regions of the same vertices whose last checkpoint failed. The other fields are about the region with the most
/// failures in a row, and its last failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FailingRegions {
    /// Names of the vertices.
    pub vertices: Vec<String>,
    /// Number of the regions.
    pub regions: u32,
    /// The number that failed last.
    pub id: u64,
    /// Why.
    pub reason: String,
    /// How many have failed in a row.
    pub in_a_row: u64,
    /// When the first of these failed.
    pub since: i64,
}

/// The subtask that was the last to acknowledge a checkpoint. Times in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowestSubtask {
    /// Its name: `count (2/4)`.
    pub subtask: String,
    /// From the trigger until its acknowledgement.
    pub duration: i64,
    /// Of that, waiting for barriers.
    pub alignment: u64,
    /// Of that, taking the state: it did nothing else.
    pub sync: u64,
    /// Of that, writing the state, beside the task.
    #[serde(rename = "async")]
    pub beside: u64,
}

/// A checkpoint in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CheckpointInProgress {
    /// Its number.
    pub id: u64,
    /// When it was triggered.
    pub triggered_at: i64,
    /// Number of the subtasks that have not acknowledged it.
    pub missing: u32,
    /// The first ones of these.
    pub missing_subtasks: Vec<String>,
}

/// The checkpoints of a job in its description.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct JobCheckpoints {
    /// Time between the beginnings of two, in milliseconds; 0: none are taken.
    pub interval: u64,
    /// Number of the last one that is durable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<u64>,
    /// When it became durable; -1: before this leader led the job.
    pub completed_at: i64,
    /// The subtask that was the last to acknowledge that one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest: Option<SlowestSubtask>,
    /// The one that is in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_progress: Option<CheckpointInProgress>,
    /// Number of the checkpoint from which a region was restored last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored: Option<u64>,
    /// When.
    pub restored_at: i64,
    /// Why the last one failed, if none has completed since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Regions of which no checkpoint is taken at present.
    #[serde(default)]
    pub skipped: Vec<SkippedRegion>,
    /// Regions whose last checkpoint failed, also while those of others complete.
    #[serde(default)]
    pub failing: Vec<FailingRegions>,
    /// Why objects that no checkpoint needs any more can't be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_problem: Option<StorageProblem>,
    /// The savepoint that was requested last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub savepoint: Option<SavepointInfo>,
    /// What the job was started from: the path of a savepoint, or the checkpoint of another job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_from: Option<String>,
    /// After the job: the number of its checkpoint that was retained when it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<u64>,
}
