//! The parts of the answers that a client makes use of.

use std::collections::BTreeMap;

use serde::Deserialize;
use tanist_proto::id::JobId;
use tanist_proto::v1::JobStatus;

/// A status by its name: `RUNNING` and the like.
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
    /// The same for people, if the cluster tells it: `WAITING` while it runs nothing because it has no slots.
    #[serde(default)]
    pub shown_state: Option<String>,
    /// When it was submitted: milliseconds since 1970.
    pub start_time: i64,
    /// When it ended, or -1.
    pub end_time: i64,
    /// Milliseconds so far.
    pub duration: i64,
    /// What its tasks do.
    pub tasks: TaskCounts,
    /// Why it is set aside.
    #[serde(default)]
    pub quarantine: Option<String>,
    /// Why not all of it runs.
    #[serde(default)]
    pub not_running: Option<String>,
    /// Why it failed, and why it was not restarted.
    #[serde(default)]
    pub cause: Option<String>,
}

/// How many tasks a job has and how many of them do what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct TaskCounts {
    /// All.
    pub total: u64,
    /// Those that run.
    pub running: u64,
    /// Those that finished.
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
    /// The same for people, if the cluster tells it: `WAITING` while it runs nothing because it has no slots.
    #[serde(rename = "shown-state", default)]
    pub shown_state: Option<String>,
    /// When it was submitted: milliseconds since 1970.
    #[serde(rename = "start-time")]
    pub start_time: i64,
    /// When it ended, or -1.
    #[serde(rename = "end-time")]
    pub end_time: i64,
    /// Milliseconds so far.
    pub duration: i64,
    /// Its vertices, sources first.
    pub vertices: Vec<VertexInfo>,
    /// How often it was restarted after failures.
    #[serde(default)]
    pub restarts: u32,
    /// Whether it has ended and what it left is still being removed.
    #[serde(rename = "cleaning-up", default)]
    pub cleaning_up: bool,
    /// Why it can't be recovered.
    #[serde(default)]
    pub quarantine: Option<String>,
    /// Why not all of it runs.
    #[serde(rename = "not-running", default)]
    pub not_running: Vec<Hindrance>,
    /// Why it failed, and why it was not restarted.
    #[serde(default)]
    pub cause: Option<String>,
}

/// Something that keeps a job from running.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Hindrance {
    /// Of which kind: `no-slots`, `restarting`, and so on.
    #[serde(default)]
    pub kind: String,
    /// For people.
    pub text: String,
    /// When it ends by itself or is given up: milliseconds since 1970, or -1.
    pub until: i64,
    /// When what keeps it is tried again: milliseconds since 1970; 0: not known.
    #[serde(rename = "retry-at", default)]
    pub retry_at: i64,
    /// Which subtasks or TaskManagers are missed.
    #[serde(default)]
    pub missing: Vec<String>,
}

impl Hindrance {
    /// Whether it is the same as before: of one kind and in the same words. That time has passed is no news, and stands in fields
    /// of its own.
    pub fn is_same_as(&self, other: &Hindrance) -> bool {
        self.kind == other.kind && self.text == other.text
    }
}

/// A job that is set aside.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct QuarantinedJob {
    /// Its id.
    pub jid: JobId,
    /// Its name, if that can be read.
    pub name: String,
    /// In which way.
    pub kind: String,
    /// Why.
    pub reason: String,
    /// Since when: milliseconds since 1970.
    pub since: i64,
    /// What that rests on.
    #[serde(default)]
    pub evidence: Vec<Evidence>,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Evidence {
    /// In which term.
    pub epoch: u64,
    /// Who led.
    pub process: String,
    /// When: milliseconds since 1970, or -1.
    pub at: i64,
    /// What.
    pub what: String,
}

impl JobInfo {
    /// Whether nothing more will happen to it by itself: it ended, or it can't be recovered.
    pub fn has_ended(&self) -> bool {
        self.state.has_ended() || self.quarantine.is_some()
    }

    /// How many tasks it has in all.
    pub fn parallelism(&self) -> u64 {
        self.vertices.iter().map(|v| u64::from(v.parallelism)).sum()
    }

    /// How many of its tasks are RUNNING.
    pub fn running(&self) -> u64 {
        self.vertices
            .iter()
            .map(|vertex| vertex.tasks.running)
            .sum()
    }

    /// How many of its tasks are FINISHED.
    pub fn finished(&self) -> u64 {
        let finished = self.vertices.iter().map(|vertex| vertex.tasks.finished);
        finished.sum()
    }

    /// What its tasks have left out, as the end of a sentence: `7 records skipped`. Nothing if that is none.
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

    /// Records that its tasks sent each other.
    pub fn records(&self) -> u64 {
        let written = self.vertices.iter();
        written.map(|vertex| vertex.metrics.write_records).sum()
    }
}

/// Something that happened to a job.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct JobEventInfo {
    /// Milliseconds since 1970.
    pub timestamp: i64,
    /// `STATUS`, `RESTART`, `TAKEOVER`, `ADOPTION`, `CANCEL`, `STOP`, `QUARANTINE`, `RETRY`, `TASK`.
    pub kind: String,
    /// The term in which it happened; not of `TASK`.
    pub epoch: Option<u64>,
    /// Of `STATUS` and `TASK`: the one that was entered.
    pub status: Option<String>,
    /// Of `RESTART`: the task that failed first. Of `TASK`: which.
    pub task: Option<String>,
    /// Of `TASK`: its generation.
    pub attempt: Option<u64>,
    /// Of `RESTART`: how many regions start anew.
    pub regions: Option<u32>,
    /// Of `RESTART`: when that is due, milliseconds since 1970.
    pub until: Option<i64>,
    /// Why, or what follows; of `TASK`: where it runs.
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
    /// How many subtasks it has.
    pub parallelism: u32,
    /// Its state.
    pub status: String,
    /// What its subtasks do.
    pub tasks: VertexTaskCounts,
    /// What they read and wrote.
    pub metrics: VertexMetrics,
}

/// How many subtasks of a vertex do what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub struct VertexTaskCounts {
    /// Those that run.
    pub running: u64,
    /// Those that finished.
    pub finished: u64,
}

/// What a vertex read and wrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct VertexMetrics {
    /// Records from other tasks.
    pub read_records: u64,
    /// Records to other tasks.
    pub write_records: u64,
    /// Records that came after the last window which they belong to.
    #[serde(default)]
    pub late_records_dropped: u64,
    /// Records that could not be read, of steps that skip such.
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
    /// How many subtasks it has.
    pub parallelism: u32,
    /// They.
    pub subtasks: Vec<SubtaskInfo>,
}

/// A subtask of a vertex, by its present attempt.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SubtaskInfo {
    /// Its index, from 0.
    pub subtask: u32,
    /// Its state.
    pub status: String,
    /// Its generation.
    pub attempt: u64,
    /// Where it runs: `host:port`, or `(unassigned)`.
    pub host: String,
    /// On which TaskManager, or `(unassigned)`.
    pub taskmanager_id: String,
    /// When it entered each state: milliseconds since 1970; 0 where it did not, or nobody knows when.
    #[serde(default)]
    pub timestamps: BTreeMap<String, i64>,
}

impl SubtaskInfo {
    /// Since when it is in its state: milliseconds since 1970; none where nobody knows.
    pub fn since(&self) -> Option<i64> {
        let entered = self.timestamps.get(&self.status).copied();
        entered.filter(|at| *at > 0)
    }
}

/// A failure of a job or of one of its tasks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobExceptionInfo {
    /// When: milliseconds since 1970.
    pub timestamp: i64,
    /// Why, in all its lines.
    pub stacktrace: String,
    /// The task that failed; none: the whole job did.
    pub task_name: Option<String>,
    /// Where it ran: `host:port`.
    pub endpoint: Option<String>,
    /// On which TaskManager.
    pub task_manager_id: Option<String>,
    /// What failed with it.
    #[serde(default)]
    pub concurrent_exceptions: Vec<JobExceptionInfo>,
}

/// The TaskManagers, and what else is drained.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct TaskManagerList {
    /// Those that are registered.
    #[serde(rename = "taskmanagers")]
    pub registered: Vec<TaskManagerSummary>,
    /// Drains of TaskManagers and hosts of which none is registered, the oldest first.
    #[serde(rename = "unmatched-drains", default)]
    pub unmatched_drains: Vec<DrainSummary>,
}

/// A TaskManager in a list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskManagerSummary {
    /// Its resource id.
    pub id: String,
    /// Where it is reached.
    pub path: String,
    /// Its slots.
    pub slots_number: u32,
    /// Those that no job has.
    pub free_slots: u32,
    /// When it was last heard of: milliseconds since 1970.
    #[serde(rename = "timeSinceLastHeartbeat")]
    pub last_heartbeat: i64,
    /// Whether it is being drained: it is given no slots to jobs any more.
    #[serde(default)]
    pub blocked: bool,
    /// How far that is.
    #[serde(default)]
    pub drain: Option<DrainSummary>,
}

/// That a TaskManager is drained. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct DrainSummary {
    /// When that was asked for.
    pub since: i64,
    /// By whom.
    pub by: String,
    /// Why.
    pub reason: String,
    /// The host that is drained, if that is why.
    pub host: String,
    /// The TaskManager that is drained, where it is not registered.
    pub task_manager: String,
    /// Whether what runs there is being moved.
    pub evicting: bool,
    /// When it is moved in any case; not above 0: never.
    pub deadline: i64,
    /// The jobs that have slots there.
    pub jobs: Vec<String>,
    /// How many outputs are kept there for tasks that still read them.
    pub kept_outputs: u32,
    /// Whether nothing is left there.
    pub drained: bool,
}
