//! Vertices of a job: part of `/jobs/{job}`, and `/jobs/{job}/vertices/{vertex}` with every subtask.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Word;
use super::counts::StateCounts;

/// A vertex in `/jobs/{job}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct VertexInfo {
    /// Its id.
    pub id: String,
    /// Id of the slot sharing group, in Flink's format: 32 hexadecimal digits, always the same for one name in one job.
    #[serde(rename = "slotSharingGroupId", default)]
    pub slot_sharing_group_id: String,
    /// Name of the slot sharing group.
    #[serde(default)]
    pub slot_sharing_group: String,
    /// Its name.
    pub name: String,
    /// The largest parallelism that it can have.
    #[serde(rename = "maxParallelism", default)]
    pub max_parallelism: u32,
    /// Number of its subtasks.
    pub parallelism: u32,
    /// Its state, from those of its subtasks.
    pub status: Word,
    /// When its first subtask started.
    #[serde(default)]
    pub start_time: i64,
    /// When its last subtask ended.
    #[serde(default)]
    pub end_time: i64,
    /// Duration so far, in milliseconds.
    #[serde(default)]
    pub duration: i64,
    /// Number of its subtasks in each state.
    pub tasks: StateCounts,
    /// Sums over its subtasks.
    pub metrics: IoMetrics,
}

/// What tasks read and wrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
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
    /// Memory of the keyed state.
    pub state_bytes: u64,
    /// Not measured.
    pub accumulated_backpressured_time: u64,
    /// Not measured.
    pub accumulated_idle_time: u64,
    /// Not measured.
    pub accumulated_busy_time: u64,
}

/// A vertex with its subtasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VertexSubtasks {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Number of its subtasks.
    pub parallelism: u32,
    /// The largest parallelism that it can have.
    #[serde(rename = "maxParallelism", default)]
    pub max_parallelism: u32,
    /// Time of this answer.
    #[serde(default)]
    pub now: u64,
    /// Its subtasks.
    pub subtasks: Vec<SubtaskInfo>,
    /// Statistics over the subtasks.
    #[serde(default)]
    pub aggregated: Aggregated,
}

/// A subtask of a vertex, with its current attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SubtaskInfo {
    /// Its index, from 0.
    pub subtask: u32,
    /// Its state.
    pub status: Word,
    /// Its generation.
    pub attempt: u64,
    /// Address where it runs: `host:port`, or `(unassigned)`.
    pub host: String,
    /// The same under Flink's name since 2.0.
    #[serde(default)]
    pub endpoint: String,
    /// When it started.
    #[serde(default)]
    pub start_time: i64,
    /// The same under Flink's former name, which Flink still writes.
    #[serde(rename = "start_time", default)]
    pub start_time_compatible: i64,
    /// When it ended.
    #[serde(default)]
    pub end_time: i64,
    /// Duration so far, in milliseconds.
    #[serde(default)]
    pub duration: i64,
    /// What it read and wrote.
    #[serde(default)]
    pub metrics: IoMetrics,
    /// Its TaskManager, or `(unassigned)`.
    pub taskmanager_id: String,
    /// When the attempt entered each state; 0 if it did not, or the time is not known.
    #[serde(default)]
    pub timestamps: BTreeMap<Word, u64>,
    /// Duration of the attempt in each state, in milliseconds; -1 if it was not in that state, or that is not known.
    #[serde(default)]
    pub status_duration: BTreeMap<Word, i64>,
    /// Why what it is restored from can't be read at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread_state: Option<String>,
    /// Always empty: a subtask has one attempt at a time.
    #[serde(default)]
    pub other_concurrent_attempts: Vec<u64>,
}

impl SubtaskInfo {
    /// Returns the time since which it is in its state; `None` if unknown.
    pub fn since(&self) -> Option<u64> {
        let entered = self.timestamps.get(&self.status).copied();
        entered.filter(|at| *at > 0)
    }
}

/// Statistics over all subtasks of a vertex.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Aggregated {
    /// Statistics of what they read and wrote.
    pub metrics: BTreeMap<Word, Statistics>,
    /// Statistics of the time in each state, in milliseconds; a subtask that was never in the state counts as -1.
    pub status_duration: BTreeMap<Word, Statistics>,
}

/// The distribution of values; all 0 if there are none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// The smallest.
    pub min: i64,
    /// The largest.
    pub max: i64,
    /// The mean, rounded towards 0.
    pub avg: i64,
    /// The sum.
    pub sum: i64,
    /// The 50th percentile.
    pub median: i64,
    /// The 25th percentile.
    pub p25: i64,
    /// The 75th percentile.
    pub p75: i64,
    /// The 95th percentile.
    pub p95: i64,
}
