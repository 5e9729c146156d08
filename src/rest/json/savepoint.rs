//! The status of a savepoint or a stop: the body of `/jobs/:id/savepoints/:trigger`. It follows from the description of
//! the job alone, so that each JobManager has the same answer.

use tanist_proto::JobEnd;
use tanist_proto::v1::{
    BlockedReasonKind, JobDetails, JobEventKind, SavepointOutcome, SavepointSummary,
};
use tanist_rest_model::{OperationEnd, OperationStatus, SavepointInfo};

use super::failure_cause::failure_cause;
use super::job::status_of;
use super::time;

/// Takes the place of a savepoint's path after a job was drained. Flink's client displays it; nothing can be
/// restored from it, as it is neither a scheme nor a file.
const NO_SAVEPOINT: &str = "none: the job was drained and has finished, no savepoint was taken";

/// Why a savepoint failed whose job has ended.
const LOST: &str = "the job ended before the savepoint was complete";

/// The requested savepoints of a job, oldest first.
pub(crate) fn savepoints_of(job: &JobDetails) -> &[SavepointSummary] {
    let checkpoints = job.checkpoints.as_ref();
    checkpoints.map_or(&[], |checkpoints| &checkpoints.savepoints)
}

/// The request for a savepoint of a job with this trigger id.
pub(crate) fn find<'a>(job: &'a JobDetails, trigger: &str) -> Option<&'a SavepointSummary> {
    let mut savepoints = savepoints_of(job).iter();
    savepoints.find(|it| it.trigger_id == trigger)
}

fn failed(class: &'static str, text: &str) -> OperationStatus {
    OperationStatus::ended(OperationEnd {
        failure_cause: Some(failure_cause(class, text)),
        ..OperationEnd::default()
    })
}

fn located(location: &str) -> OperationStatus {
    OperationStatus::ended(OperationEnd {
        location: Some(location.to_owned()),
        ..OperationEnd::default()
    })
}

/// The status of the operation with this trigger id; `None` if there is none.
pub(crate) fn operation(job: &JobDetails, trigger: &str) -> Option<OperationStatus> {
    match find(job, trigger) {
        Some(savepoint) => Some(of_savepoint(job, savepoint)),
        // The job stops with a savepoint, under another trigger id, so it is not drained.
        None if savepoints_of(job).iter().any(is_stop_in_effect) => None,
        None => of_drain(job),
    }
}

/// Whether the job stops with this savepoint. After one that failed the job continued.
fn is_stop_in_effect(savepoint: &SavepointSummary) -> bool {
    savepoint.stops && savepoint.outcome() != SavepointOutcome::Failed
}

fn of_savepoint(job: &JobDetails, savepoint: &SavepointSummary) -> OperationStatus {
    let has_ended = status_of(job).end().is_some();
    match savepoint.outcome() {
        // A client that has the path may start the next job, so this one must have ended.
        SavepointOutcome::Completed if !savepoint.stops || has_ended => located(&savepoint.text),
        SavepointOutcome::Completed => OperationStatus::in_progress(),
        SavepointOutcome::Failed => failed("tanist.SavepointFailed", &savepoint.text),
        SavepointOutcome::InProgress if has_ended => failed("tanist.SavepointFailed", LOST),
        SavepointOutcome::InProgress => OperationStatus {
            waits_for: waits_for(savepoint),
            ..OperationStatus::in_progress()
        },
    }
}

fn waits_for(savepoint: &SavepointSummary) -> Option<String> {
    let is_open = savepoint.outcome() == SavepointOutcome::InProgress;
    (is_open && !savepoint.text.is_empty()).then(|| savepoint.text.clone())
}

/// The status of a job's stop without a savepoint; `None` if it was not asked to stop. The job is stopped once, so the
/// trigger id does not matter.
fn of_drain(job: &JobDetails) -> Option<OperationStatus> {
    let has_event = |kind| job.events.iter().any(|event| event.kind() == kind);
    let is_stopping = |kind| kind == BlockedReasonKind::Stopping;
    let is_asked = has_event(JobEventKind::Stop)
        || job.blocked_reasons.iter().any(|it| is_stopping(it.kind()))
        // The remaining record of an old job does not say whether it was asked to stop.
        || !job.undescribed.is_empty();
    if !is_asked {
        return None;
    }
    let Some(end) = status_of(job).end() else {
        return Some(OperationStatus::in_progress());
    };
    Some(match end {
        JobEnd::Finished => located(NO_SAVEPOINT),
        JobEnd::Canceled if has_event(JobEventKind::Cancel) => failed(
            "tanist.JobCanceled",
            "the job was cancelled before it had stopped",
        ),
        JobEnd::Canceled => failed(
            "tanist.JobCanceled",
            "the job was cancelled: none of its tasks had begun, so there was nothing to drain",
        ),
        JobEnd::Failed => {
            let why = job.failures.last().map_or("the job failed", |it| &it.cause);
            failed("tanist.JobFailed", why)
        }
    })
}

/// A requested savepoint, in the description of the checkpoints.
pub(crate) fn savepoint_info(savepoint: &SavepointSummary) -> SavepointInfo {
    let outcome = savepoint.outcome();
    let name = outcome.as_str_name();
    let status = name.strip_prefix("SAVEPOINT_OUTCOME_").unwrap_or(name);
    let text = |wanted| (outcome == wanted).then(|| savepoint.text.clone());
    SavepointInfo {
        trigger_id: savepoint.trigger_id.clone(),
        status: status.into(),
        requested_at: time(savepoint.requested_at_ms),
        number: Some(savepoint.number).filter(|number| *number != 0),
        stops: savepoint.stops,
        location: text(SavepointOutcome::Completed),
        reason: text(SavepointOutcome::Failed),
        waits_for: waits_for(savepoint),
    }
}
