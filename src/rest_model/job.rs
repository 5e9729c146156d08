//! Jobs: `/jobs/overview`, `/jobs/{job}`, `/jobs/{job}/status`.

use serde::{Deserialize, Serialize};
use tanist_proto::id::JobId;
use tanist_proto::v1::JobStatus;

use super::Word;
use super::blocked_reason::{BlockedReason, Quarantine};
use super::checkpoints::JobCheckpoints;
use super::counts::{StateCounts, TaskCounts};
use super::plan::Plan;
use super::states::{in_order, job_status};
use super::vertex::VertexInfo;

/// `/jobs/{job}/status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatusBody {
    /// The status.
    #[serde(with = "job_status")]
    pub status: JobStatus,
}

/// `/jobs/overview`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobList {
    /// All jobs that the cluster knows.
    pub jobs: Vec<JobSummary>,
}

/// A job in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct JobSummary {
    /// Its id.
    pub jid: JobId,
    /// Its name.
    pub name: String,
    /// Time of its submission.
    pub start_time: i64,
    /// Time of its end.
    pub end_time: i64,
    /// Duration so far, in milliseconds.
    pub duration: i64,
    /// Its status.
    #[serde(with = "job_status")]
    pub state: JobStatus,
    /// The status for people: `WAITING` while the job runs nothing because it has no slots.
    pub shown_state: Option<Word>,
    /// When the status last changed.
    #[serde(default)]
    pub last_modification: i64,
    /// Number of its tasks in each state.
    pub tasks: TaskCounts,
    /// Always 0.
    #[serde(default)]
    pub pending_operators: u32,
    /// The same for all jobs.
    #[serde(default)]
    pub job_type: Word,
    /// Why it is quarantined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<String>,
    /// Why not all of its tasks run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// Why it failed, and why it was not restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// A job: `/jobs/{job}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct JobInfo {
    /// Its id.
    pub jid: JobId,
    /// Its name.
    pub name: String,
    /// Whether it runs, or will run: then it can be stopped.
    #[serde(rename = "isStoppable", default)]
    pub is_stoppable: bool,
    /// Its status.
    #[serde(with = "job_status")]
    pub state: JobStatus,
    /// The status for people: `WAITING` while the job runs nothing because it has no slots.
    pub shown_state: Option<Word>,
    /// The same for all jobs.
    #[serde(default)]
    pub job_type: Word,
    /// Time of its submission.
    pub start_time: i64,
    /// Time of its end.
    pub end_time: i64,
    /// Duration so far, in milliseconds.
    pub duration: i64,
    /// The largest parallelism that it can have.
    #[serde(rename = "maxParallelism", default)]
    pub max_parallelism: i64,
    /// Time of this answer.
    #[serde(default)]
    pub now: u64,
    /// When it last entered each status; 0 if it never did.
    #[serde(default, with = "in_order")]
    pub timestamps: Vec<(Word, u64)>,
    /// Its vertices, sources first.
    pub vertices: Vec<VertexInfo>,
    /// Number of its vertices in each state.
    #[serde(default)]
    pub status_counts: StateCounts,
    /// The vertices and their inputs.
    pub plan: Option<Plan>,
    /// Always 0.
    #[serde(default)]
    pub pending_operators: u32,
    /// Number of restarts after failures.
    #[serde(default)]
    pub restarts: u32,
    /// Whether it has ended and its leftovers are still being removed.
    #[serde(default)]
    pub cleaning_up: bool,
    /// Why it is quarantined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<String>,
    /// The same with the evidence. It is kept for a job that was deleted from quarantine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantined: Option<Quarantine>,
    /// Why not all of its tasks run; empty if they do.
    #[serde(default)]
    pub blocked_by: Vec<BlockedReason>,
    /// Its checkpoints, if any are taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<JobCheckpoints>,
    /// Why vertices and plan of an ended job are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undescribed: Option<String>,
    /// Why it failed, and why it was not restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl JobInfo {
    /// Whether it will not change on its own: it ended or is quarantined.
    pub fn has_ended(&self) -> bool {
        self.state.has_ended() || self.quarantine.is_some()
    }

    /// Returns the number of its tasks.
    pub fn parallelism(&self) -> u64 {
        self.sum(|vertex| vertex.parallelism.into())
    }

    /// Returns the number of RUNNING tasks.
    pub fn running(&self) -> u64 {
        self.sum(|vertex| vertex.tasks.running)
    }

    /// Returns the number of FINISHED tasks.
    pub fn finished(&self) -> u64 {
        self.sum(|vertex| vertex.tasks.finished)
    }

    /// Returns the number of records that its tasks sent to each other.
    pub fn records(&self) -> u64 {
        self.sum(|vertex| vertex.metrics.write_records)
    }

    /// Returns what its tasks have left out, as the end of a sentence: `7 records skipped`. `None` if nothing.
    pub fn left_out(&self) -> Option<String> {
        let said = [
            (self.sum(|it| it.metrics.records_skipped), "skipped"),
            (
                self.sum(|it| it.metrics.late_records_dropped),
                "dropped as too late",
            ),
        ];
        let said = said.iter().filter(|(count, _)| *count > 0);
        let said = said.map(|(count, how)| match count {
            1 => format!("1 record {how}"),
            count => format!("{count} records {how}"),
        });
        let said: Vec<String> = said.collect();
        (!said.is_empty()).then(|| said.join(", "))
    }

    fn sum(&self, count: impl Fn(&VertexInfo) -> u64) -> u64 {
        self.vertices.iter().map(count).sum()
    }
}
