//! Bodies about jobs: `/jobs`, `/jobs/overview`, `/jobs/:id`.

use serde::Serialize;
use tanist_proto::v1::{BlockedReasonKind, ExecutionState, JobDetails, JobStatus};
use tanist_rest_model::{JobInfo, JobSummary, Word, job_status_name};

use super::blocked_reason::{blocked_reason, quarantine};
use super::checkpoints::job_checkpoints;
use super::plan::plan_of;
use super::states::{JOB_STATUSES, vertex_state};
use super::vertex::vertex_info;
use super::{JOB_TYPE, duration, job_id, known, time};

/// The status to show: a job that can't be recovered is SUSPENDED, whichever status its record has.
pub(crate) fn status_of(job: &JobDetails) -> JobStatus {
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
        _ => job_status_name(status),
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

/// A job in `/jobs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct JobIdAndStatus {
    id: String,
    status: &'static str,
}

impl JobIdAndStatus {
    /// A job.
    pub(crate) fn new(job: &JobDetails) -> JobIdAndStatus {
        JobIdAndStatus {
            id: job.job_id.clone(),
            status: job_status_name(status_of(job)),
        }
    }
}

/// A job in `/jobs/overview`, at `now`.
pub(crate) fn job_summary(job: &JobDetails, now: u64) -> JobSummary {
    let changes = job.timestamps.iter().map(|timestamp| timestamp.at_ms);
    let last_change = changes.chain([job.started_at_ms, job.ended_at_ms]).max();
    JobSummary {
        jid: job_id(&job.job_id),
        name: job.name.clone(),
        start_time: time(job.started_at_ms),
        end_time: time(job.ended_at_ms),
        duration: duration(job.started_at_ms, job.ended_at_ms, now),
        state: status_of(job),
        shown_state: Some(shown_state(job).into()),
        last_modification: last_change.map_or(-1, time),
        tasks: execution_states(job).collect(),
        pending_operators: 0,
        job_type: JOB_TYPE.into(),
        quarantine: known(&job.quarantine),
        blocked_by: job.blocked_reasons.first().map(|first| first.text.clone()),
        cause: known(&job.cause),
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

/// `/jobs/:id`, at `now`.
pub(crate) fn job_info(job: &JobDetails, now: u64) -> JobInfo {
    let vertices = job.vertices.iter();
    JobInfo {
        jid: job_id(&job.job_id),
        name: job.name.clone(),
        is_stoppable: is_stoppable(status_of(job)),
        state: status_of(job),
        shown_state: Some(shown_state(job).into()),
        job_type: JOB_TYPE.into(),
        start_time: time(job.started_at_ms),
        end_time: time(job.ended_at_ms),
        duration: duration(job.started_at_ms, job.ended_at_ms, now),
        // Like a time: -1 if it is not known.
        max_parallelism: time(job.max_parallelism.into()),
        now,
        timestamps: JOB_STATUSES.map(|status| entered(job, status)).into(),
        vertices: vertices
            .clone()
            .map(|vertex| vertex_info(&job.job_id, vertex, now))
            .collect(),
        status_counts: vertices.map(vertex_state).collect(),
        plan: Some(plan_of(job)),
        pending_operators: 0,
        restarts: job.restarts,
        cleaning_up: job.cleaning_up,
        quarantine: known(&job.quarantine),
        quarantined: job.quarantined.as_ref().map(quarantine),
        blocked_by: job.blocked_reasons.iter().map(blocked_reason).collect(),
        checkpoints: job.checkpoints.as_ref().map(|it| job_checkpoints(job, it)),
        undescribed: known(&job.undescribed),
        cause: known(&job.cause),
    }
}

/// When the job last entered this status; 0 if it never did.
fn entered(job: &JobDetails, status: JobStatus) -> (Word, u64) {
    let mut of_status = job.timestamps.iter().filter(|it| it.status() == status);
    let at_ms = of_status.next_back().map_or(0, |entry| entry.at_ms);
    (job_status_name(status).into(), at_ms)
}
