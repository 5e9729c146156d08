//! The parts of answers that clients use.

use std::collections::BTreeMap;

use serde::Deserialize;
use tanist_proto::id::JobId;
use tanist_proto::v1::JobStatus;

/// Parses the name of a status, such as `RUNNING`.
pub(super) fn status_of(name: &str) -> Option<JobStatus> {
    JobStatus::from_str_name(&format!("JOB_STATUS_{name}"))
}

fn read_status<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<JobStatus, D::Error> {
    let name = String::deserialize(deserializer)?;
    let unknown = || serde::de::Error::custom(format!("there is no job status {name}"));
    status_of(&name).ok_or_else(unknown)
}

/// A job in a list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct JobSummary {
    /// Its id.
    pub jid: JobId,
    /// Its name.
    pub name: String,
    /// Its status.
    #[serde(deserialize_with = "read_status")]
    pub state: JobStatus,
    /// The status for people, if the cluster reports it: `WAITING` while the job runs nothing because it has no slots.
    #[serde(default)]
    pub shown_state: Option<String>,
    /// Time of its submission, in milliseconds since 1970.
    pub start_time: i64,
    /// Time of its end, or -1.
    pub end_time: i64,
    /// Duration so far, in milliseconds.
    pub duration: i64,
    /// Numbers of its tasks.
    pub tasks: TaskCounts,
    /// Why it is quarantined.
    #[serde(default)]
    pub quarantine: Option<String>,
    /// Why not all of its tasks run.
    #[serde(default)]
    pub blocked_by: Option<String>,
    /// Why it failed, and why it was not restarted.
    #[serde(default)]
    pub cause: Option<String>,
}

/// Number of tasks of a job, in total and by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct TaskCounts {
    /// All tasks.
    pub total: u64,
    /// Running tasks.
    pub running: u64,
    /// Finished tasks.
    pub finished: u64,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct JobInfo {
    /// Its id.
    pub jid: JobId,
    /// Its name.
    pub name: String,
    /// Its status.
    #[serde(deserialize_with = "read_status")]
    pub state: JobStatus,
    /// The status for people, if the cluster reports it: `WAITING` while the job runs nothing because it has no slots.
    #[serde(rename = "shown-state", default)]
    pub shown_state: Option<String>,
    /// Time of its submission, in milliseconds since 1970.
    #[serde(rename = "start-time")]
    pub start_time: i64,
    /// Time of its end, or -1.
    #[serde(rename = "end-time")]
    pub end_time: i64,
    /// Duration so far, in milliseconds.
    pub duration: i64,
    /// Its vertices, sources first.
    pub vertices: Vec<VertexInfo>,
    /// Number of restarts after failures.
    #[serde(default)]
    pub restarts: u32,
    /// Whether it has ended and its leftovers are still being removed.
    #[serde(rename = "cleaning-up", default)]
    pub cleaning_up: bool,
    /// Why it is quarantined.
    #[serde(default)]
    pub quarantine: Option<String>,
    /// Why not all of its tasks run.
    #[serde(rename = "blocked-by", default)]
    pub blocked_by: Vec<BlockedReason>,
    /// Why it failed, and why it was not restarted.
    #[serde(default)]
    pub cause: Option<String>,
}

/// A reason that keeps a job from running.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BlockedReason {
    /// Its kind: `no-slots`, `restarting`, and so on.
    #[serde(default)]
    pub kind: String,
    /// Text for people.
    pub text: String,
    /// Time at which it ends on its own or is given up, in milliseconds since 1970, or -1.
    pub until: i64,
    /// Time of the next retry, in milliseconds since 1970; 0: unknown.
    #[serde(rename = "retry-at", default)]
    pub retry_at: i64,
    /// Missing subtasks or TaskManagers.
    #[serde(default)]
    pub missing: Vec<String>,
}

impl BlockedReason {
    /// Whether it is the same as before: same kind and same text. Elapsed time makes no difference; times are
    /// in separate fields.
    pub fn is_same_as(&self, other: &BlockedReason) -> bool {
        self.kind == other.kind && self.text == other.text
    }
}

/// A quarantined job.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct QuarantinedJob {
    /// Its id.
    pub jid: JobId,
    /// Its name, if it can be read.
    pub name: String,
    /// Kind of the quarantine.
    pub kind: String,
    /// Reason.
    pub reason: String,
    /// Start of the quarantine, in milliseconds since 1970.
    pub since: i64,
    /// Evidence for the reason.
    #[serde(default)]
    pub evidence: Vec<Evidence>,
}

/// An event that led to a quarantine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Evidence {
    /// Epoch of the term.
    pub epoch: u64,
    /// The leader of that term.
    pub process: String,
    /// Time, in milliseconds since 1970, or -1.
    pub at: i64,
    /// Description.
    pub what: String,
}

impl JobInfo {
    /// Whether it will not change on its own: it ended or is quarantined.
    pub fn has_ended(&self) -> bool {
        self.state.has_ended() || self.quarantine.is_some()
    }

    /// Returns the number of its tasks.
    pub fn parallelism(&self) -> u64 {
        self.vertices.iter().map(|v| u64::from(v.parallelism)).sum()
    }

    /// Returns the number of RUNNING tasks.
    pub fn running(&self) -> u64 {
        self.vertices
            .iter()
            .map(|vertex| vertex.tasks.running)
            .sum()
    }

    /// Returns the number of FINISHED tasks.
    pub fn finished(&self) -> u64 {
        let finished = self.vertices.iter().map(|vertex| vertex.tasks.finished);
        finished.sum()
    }

    /// Returns what its tasks have left out, as the end of a sentence: `7 records skipped`. `None` if nothing.
    pub fn left_out(&self) -> Option<String> {
        let sum = |count: fn(&VertexMetrics) -> u64| -> u64 {
            self.vertices.iter().map(|it| count(&it.metrics)).sum()
        };
        let said = [
            (sum(|it| it.records_skipped), "skipped"),
            (sum(|it| it.late_records_dropped), "dropped as too late"),
        ];
        let said = said.iter().filter(|(count, _)| *count > 0);
        let said = said.map(|(count, how)| match count {
            1 => format!("1 record {how}"),
            count => format!("{count} records {how}"),
        });
        let said: Vec<String> = said.collect();
        (!said.is_empty()).then(|| said.join(", "))
    }

    /// Returns the number of records that its tasks sent to each other.
    pub fn records(&self) -> u64 {
        let written = self.vertices.iter();
        written.map(|vertex| vertex.metrics.write_records).sum()
    }
}

/// An event of a job.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct JobEventInfo {
    /// Time in milliseconds since 1970.
    pub timestamp: i64,
    /// `STATUS`, `RESTART`, `TAKEOVER`, `ADOPTION`, `CANCEL`, `STOP`, `QUARANTINE`, `RETRY`, `TASK`.
    pub kind: String,
    /// Epoch of the term in which it happened; not for `TASK`.
    pub epoch: Option<u64>,
    /// For `STATUS` and `TASK`: the new status.
    pub status: Option<String>,
    /// For `RESTART`: the task that failed first. For `TASK`: the task.
    pub task: Option<String>,
    /// For `TASK`: its generation.
    pub attempt: Option<u64>,
    /// For `RESTART`: number of regions that are restarted.
    pub regions: Option<u32>,
    /// For `RESTART`: time at which it is due, in milliseconds since 1970.
    pub until: Option<i64>,
    /// Reason or consequence; for `TASK`: where the task runs.
    #[serde(default)]
    pub text: String,
}

/// A vertex of a job.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct VertexInfo {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Its state.
    pub status: String,
    /// Numbers of its subtasks by state.
    pub tasks: VertexTaskCounts,
    /// Numbers of records.
    pub metrics: VertexMetrics,
}

/// Number of subtasks of a vertex by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub struct VertexTaskCounts {
    /// Running subtasks.
    pub running: u64,
    /// Finished subtasks.
    pub finished: u64,
}

/// Numbers of records of a vertex.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct VertexMetrics {
    /// Records read from other tasks.
    pub read_records: u64,
    /// Records written to other tasks.
    pub write_records: u64,
    /// Records that arrived after the last window to which they belong.
    #[serde(default)]
    pub late_records_dropped: u64,
    /// Records that could not be read, in steps that skip them.
    #[serde(default)]
    pub records_skipped: u64,
}

/// A vertex with its subtasks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct VertexSubtasks {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Number of subtasks.
    pub parallelism: u32,
    /// The subtasks.
    pub subtasks: Vec<SubtaskInfo>,
}

/// A subtask of a vertex, with its current attempt.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SubtaskInfo {
    /// Its index, from 0.
    pub subtask: u32,
    /// Its state.
    pub status: String,
    /// Its generation.
    pub attempt: u64,
    /// Address where it runs: `host:port`, or `(unassigned)`.
    pub host: String,
    /// Its TaskManager, or `(unassigned)`.
    pub taskmanager_id: String,
    /// Time at which it entered each state, in milliseconds since 1970; 0 if it did not, or if the time is unknown.
    #[serde(default)]
    pub timestamps: BTreeMap<String, i64>,
}

impl SubtaskInfo {
    /// Returns the time since which it is in its state, in milliseconds since 1970; `None` if unknown.
    pub fn since(&self) -> Option<i64> {
        let entered = self.timestamps.get(&self.status).copied();
        entered.filter(|at| *at > 0)
    }
}

/// A failure of a job or of one of its tasks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobExceptionInfo {
    /// Time in milliseconds since 1970.
    pub timestamp: i64,
    /// The cause, with all lines.
    pub stacktrace: String,
    /// The task that failed; `None`: the whole job failed.
    pub task_name: Option<String>,
    /// Address where it ran: `host:port`.
    pub endpoint: Option<String>,
    /// Its TaskManager.
    pub task_manager_id: Option<String>,
    /// Failures that occurred with it.
    #[serde(default)]
    pub concurrent_exceptions: Vec<JobExceptionInfo>,
}

/// The TaskManagers, and drains that match none of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct TaskManagerList {
    /// Registered TaskManagers.
    #[serde(rename = "taskmanagers")]
    pub registered: Vec<TaskManagerSummary>,
    /// Drains of TaskManagers and hosts without a registered TaskManager, oldest first.
    #[serde(rename = "unmatched-drains", default)]
    pub unmatched_drains: Vec<DrainSummary>,
}

/// A TaskManager in a list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskManagerSummary {
    /// Its resource id.
    pub id: String,
    /// Its address.
    pub path: String,
    /// Number of slots.
    pub slots_number: u32,
    /// Number of slots without a job.
    pub free_slots: u32,
    /// Time of its last heartbeat, in milliseconds since 1970.
    #[serde(rename = "timeSinceLastHeartbeat")]
    pub last_heartbeat: i64,
    /// Whether it is drained: it gives no slots to jobs any more.
    #[serde(default)]
    pub blocked: bool,
    /// Progress of the drain.
    #[serde(default)]
    pub drain: Option<DrainSummary>,
}

/// Drain of a TaskManager. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct DrainSummary {
    /// Time of the request.
    pub since: i64,
    /// The person who requested it.
    pub by: String,
    /// Reason.
    pub reason: String,
    /// The drained host, if the host is drained.
    pub host: String,
    /// The drained TaskManager, if it is not registered.
    pub task_manager: String,
    /// Whether its tasks are being moved.
    pub evicting: bool,
    /// Time at which its tasks are moved in any case; 0 or less: never.
    pub deadline: i64,
    /// Jobs that have slots there.
    pub jobs: Vec<String>,
    /// Number of outputs kept there for tasks that still read them.
    pub kept_outputs: u32,
    /// Whether nothing is left there.
    pub drained: bool,
}
