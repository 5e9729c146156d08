//! What a Dispatcher knows of one job, and how it is described to people.

use std::sync::Arc;

use tanist_ha::clock::wall_clock_ms;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::core::SubmissionKey;
use super::handle::Reply;
use crate::gateway::{GatewayError, GatewayResult, JobMasterControl};

/// A job.
#[derive(Debug)]
pub(super) enum Entry {
    Persisting {
        key: SubmissionKey,
        waiting: Vec<Reply<pb::SubmitJobResponse>>,
    },
    Running {
        key: SubmissionKey,
        control: Arc<dyn JobMasterControl>,
    },
    /// Its JobMaster broke; the job is read again for another one.
    Rebuilding { key: SubmissionKey },
    /// Globally terminal; the result is being written, cleaned up after, or clean.
    Ended {
        key: SubmissionKey,
        result: Box<pb::JobResult>,
    },
    /// Its records can't be read.
    Quarantined { job: Box<Quarantined> },
}

/// A job whose records can't be read.
#[derive(Debug, Clone)]
pub(super) struct Quarantined {
    pub(super) key: SubmissionKey,
    pub(super) name: String,
    pub(super) sink_directories: Vec<String>,
    /// There is a result, only that it can't be read.
    pub(super) has_ended: bool,
    /// The result of its cancellation is being written.
    pub(super) is_canceling: bool,
    pub(super) reason: String,
}

impl Quarantined {
    pub(super) fn canceled_result(&self, job: JobId) -> pb::JobResult {
        pb::JobResult {
            job_id: job.to_string(),
            name: self.name.clone(),
            status: pb::JobStatus::Canceled.into(),
            cause: self.reason.clone(),
            ended_at_ms: wall_clock_ms(),
            dirty: true,
            remove: Some(pb::Cleanup {
                blobs: Vec::new(),
                parts: Vec::new(),
                sink_directories: self.sink_directories.clone(),
            }),
            submission_token: self.key.token.clone(),
            graph_digest: self.key.digest.clone(),
            details: Some(self.details(job)),
            ..pb::JobResult::default()
        }
    }

    pub(super) fn details(&self, job: JobId) -> pb::JobDetails {
        pb::JobDetails {
            job_id: job.to_string(),
            name: self.name.clone(),
            status: pb::JobStatus::Suspended.into(),
            quarantine: self.reason.clone(),
            ..pb::JobDetails::default()
        }
    }
}

/// The description of a job, whatever its entry.
pub(super) fn describe(
    job: JobId,
    entry: &Entry,
) -> impl Future<Output = GatewayResult<pb::JobDetails>> + Send + use<> {
    let (known, control) = match entry {
        Entry::Running { control, .. } => (None, Some(control.clone())),
        Entry::Persisting { .. } => (Some(bare_details(job, pb::JobStatus::Initializing)), None),
        Entry::Rebuilding { .. } => (Some(bare_details(job, pb::JobStatus::Reconciling)), None),
        Entry::Ended { result, .. } => (Some(ended_details(result)), None),
        Entry::Quarantined { job: quarantined } => (Some(quarantined.details(job)), None),
    };
    async move {
        match (known, control) {
            (_, Some(control)) => control.describe().await,
            (Some(details), None) => Ok(details),
            (None, None) => Err(no_such_job(job)),
        }
    }
}

pub(super) fn bare_details(job: JobId, status: pb::JobStatus) -> pb::JobDetails {
    pb::JobDetails {
        job_id: job.to_string(),
        status: status.into(),
        ..pb::JobDetails::default()
    }
}

pub(super) fn ended_details(result: &pb::JobResult) -> pb::JobDetails {
    let mut details = result.details.clone().unwrap_or_default();
    details.job_id = result.job_id.clone();
    details.name = result.name.clone();
    details.status = result.status;
    details.ended_at_ms = result.ended_at_ms;
    details.cleaning_up = result.dirty;
    details
}

pub(super) fn no_such_job(job: JobId) -> GatewayError {
    GatewayError::NotFound(format!("there is no job {job}"))
}

pub(super) fn accepted(job: JobId, repeated: bool) -> pb::SubmitJobResponse {
    pb::SubmitJobResponse {
        job_id: job.to_string(),
        repeated,
    }
}

pub(super) fn state_key(state: &pb::JobState) -> SubmissionKey {
    SubmissionKey {
        token: state.submission_token.clone(),
        digest: state.graph_digest.clone(),
    }
}

pub(super) fn result_key(result: &pb::JobResult) -> SubmissionKey {
    SubmissionKey {
        token: result.submission_token.clone(),
        digest: result.graph_digest.clone(),
    }
}

/// A status as REST and people write it.
pub(super) fn status_name(status: pb::JobStatus) -> &'static str {
    status.as_str_name().trim_start_matches("JOB_STATUS_")
}
