//! Paths that both sides use, without the [`VERSION`] in front of them. The server uses the same functions for its
//! routes, with the name of the part in braces: `job("{job}")`.

use std::fmt::Display;

/// In front of every path of a request.
pub const VERSION: &str = "/v1";

/// `GET`: ids and statuses of all jobs; `POST`: a submission.
pub const JOBS: &str = "/jobs";
/// [`JobList`](crate::JobList).
pub const JOBS_OVERVIEW: &str = "/jobs/overview";
/// [`QuarantineList`](crate::QuarantineList).
pub const QUARANTINED_JOBS: &str = "/jobs/quarantine";
/// `POST` with a [`DisposalRequest`](crate::DisposalRequest): removes a savepoint; the answer is
/// [`Triggered`](crate::Triggered).
pub const SAVEPOINT_DISPOSAL: &str = "/savepoint-disposal";
/// [`TaskManagerList`](crate::TaskManagerList).
pub const TASK_MANAGERS: &str = "/taskmanagers";
/// [`HaStatusInfo`](crate::HaStatusInfo).
pub const HA_STATUS: &str = "/ha/status";
/// [`OwnStatus`](crate::OwnStatus).
pub const HA_SELF: &str = "/ha/self";
/// [`TermList`](crate::TermList).
pub const HA_HISTORY: &str = "/ha/history";
/// `POST`: a [`TransferRequest`](crate::TransferRequest).
pub const HA_TRANSFER: &str = "/ha/transfer";
/// [`TermTime`](crate::TermTime).
pub const HA_TIME: &str = "/ha/time";

/// `GET`: [`JobInfo`](crate::JobInfo); `PATCH` with `mode`: cancels or stops the job.
pub fn job(job: impl Display) -> String {
    format!("{JOBS}/{job}")
}

/// [`JobStatusBody`](crate::JobStatusBody).
pub fn job_status(job: impl Display) -> String {
    format!("{JOBS}/{job}/status")
}

/// `POST` with a [`StopRequest`](crate::StopRequest), or without a body: stops the job. With a savepoint the answer is
/// [`Triggered`](crate::Triggered).
pub fn job_stop(job: impl Display) -> String {
    format!("{JOBS}/{job}/stop")
}

/// `POST` with a [`SavepointRequest`](crate::SavepointRequest), or without a body: takes a savepoint of the job; the
/// answer is [`Triggered`](crate::Triggered).
pub fn job_savepoints(job: impl Display) -> String {
    format!("{JOBS}/{job}/savepoints")
}

/// [`OperationStatus`](crate::OperationStatus) of a savepoint or a stop.
pub fn job_savepoint(job: impl Display, trigger: impl Display) -> String {
    format!("{JOBS}/{job}/savepoints/{trigger}")
}

/// [`OperationStatus`](crate::OperationStatus) of the removal of a savepoint.
pub fn savepoint_disposal(trigger: impl Display) -> String {
    format!("{SAVEPOINT_DISPOSAL}/{trigger}")
}

/// [`JobExceptions`](crate::JobExceptions), at most `maxExceptions` of them.
pub fn job_exceptions(job: impl Display) -> String {
    format!("{JOBS}/{job}/exceptions")
}

/// [`CheckpointStatistics`](crate::CheckpointStatistics).
pub fn job_checkpoints(job: impl Display) -> String {
    format!("{JOBS}/{job}/checkpoints")
}

/// [`JobEvents`](crate::JobEvents); with `tasks=true` also the states of its tasks.
pub fn job_events(job: impl Display) -> String {
    format!("{JOBS}/{job}/events")
}

/// `DELETE`: cancels a quarantined job.
pub fn job_quarantine(job: impl Display) -> String {
    format!("{JOBS}/{job}/quarantine")
}

/// `POST`: starts a quarantined job again, from an older checkpoint.
pub fn job_quarantine_retry_from(
    job: impl Display,
    checkpoint: u64,
    accept_duplicates: bool,
) -> String {
    let path = job_quarantine_retry(job);
    format!("{path}?{FROM_CHECKPOINT}={checkpoint}&{ACCEPT_DUPLICATES}={accept_duplicates}")
}

/// The number of the checkpoint to which a quarantined job goes back.
pub const FROM_CHECKPOINT: &str = "from-checkpoint";
/// `true`: what the job has made visible since that checkpoint may appear twice.
pub const ACCEPT_DUPLICATES: &str = "accept-duplicates";

/// `POST`: starts a quarantined job again.
pub fn job_quarantine_retry(job: impl Display) -> String {
    format!("{JOBS}/{job}/quarantine/retry")
}

/// [`VertexSubtasks`](crate::VertexSubtasks).
pub fn vertex(job: impl Display, vertex: impl Display) -> String {
    format!("{JOBS}/{job}/vertices/{vertex}")
}

/// `PUT`: uploads a file of a job; the answer is [`Uploaded`](crate::Uploaded).
pub fn artifact(job: impl Display, sha256: impl Display) -> String {
    format!("{JOBS}/{job}/artifacts/{sha256}")
}

/// A TaskManager.
pub fn task_manager(id: impl Display) -> String {
    format!("{TASK_MANAGERS}/{id}")
}

/// All TaskManagers of a host.
pub fn host(host: impl Display) -> String {
    format!("/hosts/{host}")
}

/// `POST` with [`DrainOptions`](crate::DrainOptions): drains a [`task_manager`] or [`host`].
pub fn drain(target: &str) -> String {
    format!("{target}/drain")
}

/// `POST`: ends the drain of a [`task_manager`] or [`host`].
pub fn undrain(target: &str) -> String {
    format!("{target}/undrain")
}
