//! Bodies about jobs: `/jobs`, `/jobs/overview`, `/jobs/:id`, `/jobs/:id/status`.

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use tanist_proto::v1::{BlockedReasonKind, ExecutionState, JobDetails, JobStatus, StatusTimestamp};

use super::blocked_reason::{BlockedReasonBody, QuarantineBody};
use super::plan::Plan;
use super::states::{Counts, JOB_STATUSES, LowerCaseCounts, job_status, vertex_state};
use super::vertex::VertexSummary;
use super::{duration, time};

/// The job type of all jobs.
const JOB_TYPE: &str = "STREAMING";

/// The status to show: a job that can't be recovered is SUSPENDED, whichever status its record has.
pub fn status_of(job: &JobDetails) -> JobStatus {
    if job.quarantine.is_empty() {
        job.status()
    } else {
        JobStatus::Suspended
    }
}

/// The displayed state of a job that gets no slots: Flink has no status for it.
const WAITING: &str = "WAITING";

/// The displayed state: WAITING while a job runs nothing because it has no slots, else its status.
fn shown_state(job: &JobDetails) -> &'static str {
    let lacks_slots = job
        .blocked_reasons
        .iter()
        .any(|it| it.kind() == BlockedReasonKind::NoSlots);
    let is_idle = |state| {
        matches!(
            state,
            ExecutionState::Created | ExecutionState::Scheduled | ExecutionState::Finished
        )
    };
    let status = status_of(job);
    match status {
        JobStatus::Created | JobStatus::Running | JobStatus::Restarting
            if lacks_slots && execution_states(job).all(is_idle) =>
        {
            WAITING
        }
        _ => job_status(status),
    }
}

/// Whether a job with this status can be stopped.
fn is_stoppable(status: JobStatus) -> bool {
    match status {
        JobStatus::Initializing
        | JobStatus::Created
        | JobStatus::Running
        | JobStatus::Restarting
        | JobStatus::Reconciling => true,
        JobStatus::Failing
        | JobStatus::Failed
        | JobStatus::Cancelling
        | JobStatus::Canceled
        | JobStatus::Finished
        | JobStatus::Suspended => false,
    }
}

fn cause_of(job: &JobDetails) -> Option<String> {
    Some(job.cause.clone()).filter(|cause| !cause.is_empty())
}

fn quarantine_of(job: &JobDetails) -> Option<String> {
    Some(job.quarantine.clone()).filter(|reason| !reason.is_empty())
}

/// A job in `/jobs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobIdAndStatus {
    /// Its id.
    pub id: String,
    /// Its status.
    pub status: &'static str,
}

impl JobIdAndStatus {
    /// A job.
    pub fn new(job: &JobDetails) -> JobIdAndStatus {
        JobIdAndStatus {
            id: job.job_id.clone(),
            status: job_status(status_of(job)),
        }
    }
}

/// `/jobs/:id/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobStatusBody {
    /// The status.
    pub status: &'static str,
}

impl JobStatusBody {
    /// The status of a job.
    pub fn new(job: &JobDetails) -> JobStatusBody {
        JobStatusBody {
            status: job_status(status_of(job)),
        }
    }
}

/// A job in `/jobs/overview`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct JobOverview {
    /// Its id.
    pub jid: String,
    /// Its name.
    pub name: String,
    /// When it was submitted.
    pub start_time: i64,
    /// When it ended.
    pub end_time: i64,
    /// Its duration until now.
    pub duration: i64,
    /// Its status.
    pub state: &'static str,
    /// The displayed state: WAITING while it runs nothing because it has no slots.
    pub shown_state: &'static str,
    /// When the status last changed.
    pub last_modification: i64,
    /// Number of its tasks in each state.
    pub tasks: LowerCaseCounts,
    /// Always 0.
    pub pending_operators: u32,
    /// The same for all jobs.
    pub job_type: &'static str,
    /// Why it is set aside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<String>,
    /// Why not all of it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// Why it failed, and why it was not restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl JobOverview {
    /// A job at `now`.
    pub fn new(job: &JobDetails, now: u64) -> JobOverview {
        let changes = job.timestamps.iter().map(|timestamp| timestamp.at_ms);
        let last_change = changes.chain([job.started_at_ms, job.ended_at_ms]).max();
        JobOverview {
            jid: job.job_id.clone(),
            name: job.name.clone(),
            start_time: time(job.started_at_ms),
            end_time: time(job.ended_at_ms),
            duration: duration(job.started_at_ms, job.ended_at_ms, now),
            state: job_status(status_of(job)),
            shown_state: shown_state(job),
            last_modification: last_change.map_or(-1, time),
            tasks: LowerCaseCounts(execution_states(job).collect()),
            pending_operators: 0,
            job_type: JOB_TYPE,
            quarantine: quarantine_of(job),
            blocked_by: job.blocked_reasons.first().map(|first| first.text.clone()),
            cause: cause_of(job),
        }
    }
}

fn execution_states(job: &JobDetails) -> impl Iterator<Item = ExecutionState> {
    let subtasks = job.vertices.iter().flat_map(|vertex| &vertex.subtasks);
    let counted = job.state_counts.iter().flat_map(|of_state| {
        let count = usize::try_from(of_state.count).unwrap_or_default();
        std::iter::repeat_n(of_state.state(), count)
    });
    subtasks.map(|subtask| subtask.state()).chain(counted)
}

/// `/jobs/:id`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobBody {
    /// Its id.
    pub jid: String,
    /// Its name.
    pub name: String,
    /// Whether it runs, or will run: then it can be stopped.
    #[serde(rename = "isStoppable")]
    pub is_stoppable: bool,
    /// Its status.
    pub state: &'static str,
    /// The displayed state: WAITING while it runs nothing because it has no slots.
    #[serde(rename = "shown-state")]
    pub shown_state: &'static str,
    /// The same for all jobs.
    #[serde(rename = "job-type")]
    pub job_type: &'static str,
    /// When it was submitted.
    #[serde(rename = "start-time")]
    pub start_time: i64,
    /// When it ended.
    #[serde(rename = "end-time")]
    pub end_time: i64,
    /// Its duration until now.
    pub duration: i64,
    /// The largest parallelism that it can have.
    #[serde(rename = "maxParallelism")]
    pub max_parallelism: i64,
    /// Time of this answer.
    pub now: u64,
    /// When it last entered each status.
    pub timestamps: Timestamps,
    /// Its vertices.
    pub vertices: Vec<VertexSummary>,
    /// Number of vertices in each state.
    #[serde(rename = "status-counts")]
    pub status_counts: Counts,
    /// The vertices and their inputs.
    pub plan: Plan,
    /// Always 0.
    #[serde(rename = "pending-operators")]
    pub pending_operators: u32,
    /// Number of restarts after failures.
    pub restarts: u32,
    /// Whether it has ended and its cleanup still goes on.
    #[serde(rename = "cleaning-up")]
    pub cleaning_up: bool,
    /// Why it is set aside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<String>,
    /// The same with the evidence. It is kept for a job that was deleted from quarantine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantined: Option<QuarantineBody>,
    /// Why not all of it runs; empty if it does.
    #[serde(rename = "blocked-by")]
    pub blocked_by: Vec<BlockedReasonBody>,
    /// Why vertices and plan of an ended job are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undescribed: Option<String>,
    /// Why it failed, and why it was not restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl JobBody {
    /// A job at `now`.
    pub fn new(job: &JobDetails, now: u64) -> JobBody {
        let vertices = job.vertices.iter();
        JobBody {
            jid: job.job_id.clone(),
            name: job.name.clone(),
            is_stoppable: is_stoppable(status_of(job)),
            state: job_status(status_of(job)),
            shown_state: shown_state(job),
            job_type: JOB_TYPE,
            start_time: time(job.started_at_ms),
            end_time: time(job.ended_at_ms),
            duration: duration(job.started_at_ms, job.ended_at_ms, now),
            max_parallelism: time(job.max_parallelism.into()),
            now,
            timestamps: Timestamps(job.timestamps.clone()),
            vertices: vertices
                .clone()
                .map(|vertex| VertexSummary::new(&job.job_id, vertex, now))
                .collect(),
            status_counts: vertices.map(vertex_state).collect(),
            plan: Plan::new(job),
            pending_operators: 0,
            restarts: job.restarts,
            cleaning_up: job.cleaning_up,
            quarantine: quarantine_of(job),
            quarantined: job.quarantined.as_ref().map(QuarantineBody::new),
            blocked_by: job
                .blocked_reasons
                .iter()
                .map(BlockedReasonBody::new)
                .collect(),
            undescribed: Some(job.undescribed.clone()).filter(|why| !why.is_empty()),
            cause: cause_of(job),
        }
    }
}

/// When a job entered each status; 0 if it never did.
#[derive(Debug, Clone, PartialEq)]
pub struct Timestamps(Vec<StatusTimestamp>);

impl Serialize for Timestamps {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entered = |status: JobStatus| {
            let mut of_status = self.0.iter().filter(|entry| entry.status() == status);
            of_status.next_back().map_or(0, |entry| entry.at_ms)
        };
        let mut map = serializer.serialize_map(Some(JOB_STATUSES.len()))?;
        for status in JOB_STATUSES {
            map.serialize_entry(job_status(status), &entered(status))?;
        }
        map.end()
    }
}
