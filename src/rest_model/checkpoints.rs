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
    /// Those that failed.
    pub failed: u64,
}

/// Statistics over checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointSummaries {
    /// The same as `state_size`.
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
    /// Always `false`.
    pub is_savepoint: bool,
    /// Always absent.
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
    /// The same as `state_size`.
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
    /// Always empty: there are no statistics by vertex.
    #[serde(default)]
    pub tasks: BTreeMap<String, ()>,
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

/// A region of which no checkpoint is taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedRegion {
    /// Names of its vertices.
    pub vertices: Vec<String>,
    /// Why.
    pub reason: String,
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
    /// When it became durable.
    pub completed_at: i64,
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
    /// The savepoint that was requested last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub savepoint: Option<SavepointInfo>,
    /// What the job was started from: the path of a savepoint, or the checkpoint of another job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_from: Option<String>,
}
