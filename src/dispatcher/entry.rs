//! What a Dispatcher knows of one job, and how it is described to people.

use std::sync::Arc;

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::core::{Submission, SubmissionKey};
use super::handle::Reply;
use super::quarantined::Quarantined;
use super::suspects::Suspect;
use crate::gateway::{GatewayError, GatewayResult, JobMasterControl};

/// A job.
#[derive(Debug)]
pub(super) enum Entry {
    Persisting {
        key: SubmissionKey,
        name: String,
        waiting: Vec<Reply<pb::SubmitJobResponse>>,
        /// Others under the same id, which are decided about when this one is.
        others: Vec<(Submission, Reply<pb::SubmitJobResponse>)>,
    },
    Running {
        key: SubmissionKey,
        name: String,
        control: Arc<dyn JobMasterControl>,
    },
    /// It has no JobMaster at present: the last one broke, its turn has not come, or it can't be read at present. The job is read again for
    /// another one; or its result is, which could not be read.
    Rebuilding {
        key: SubmissionKey,
        name: String,
        why: &'static str,
        /// Whose turn has not come, or of which only the state could be read.
        suspect: Option<Box<Suspect>>,
    },
    /// Globally terminal; the result is being written, cleaned up after, or clean.
    Ended {
        key: SubmissionKey,
        result: Box<pb::JobResult>,
        /// Submissions of the same job that came before all of it was cleaned up.
        waiting: Vec<Reply<pb::SubmitJobResponse>>,
        /// Why this term tries no longer to remove what it left.
        left: Option<String>,
    },
    /// Set aside.
    Quarantined { job: Box<Quarantined> },
}

/// Who describes a job.
pub(super) enum Described {
    /// Its JobMaster.
    ByJobMaster(Arc<dyn JobMasterControl>),
    /// Nobody has to be asked.
    Known(Box<pb::JobDetails>),
}

impl Described {
    /// The description.
    pub(super) async fn details(self) -> GatewayResult<pb::JobDetails> {
        match self {
            Described::ByJobMaster(control) => control.describe().await,
            Described::Known(details) => Ok(*details),
        }
    }
}

/// Who describes a job, whatever its entry; one that has ended as it is in memory.
pub(super) fn describe(job: JobId, entry: &Entry) -> Described {
    match entry {
        Entry::Running { control, .. } => Described::ByJobMaster(control.clone()),
        Entry::Persisting { .. }
        | Entry::Rebuilding { .. }
        | Entry::Ended { .. }
        | Entry::Quarantined { .. } => {
            Described::Known(Box::new(describe_without_job_master(job, entry)))
        }
    }
}

/// What there is to say of a job without asking its JobMaster.
pub(super) fn describe_without_job_master(job: JobId, entry: &Entry) -> pb::JobDetails {
    match entry {
        Entry::Running { name, .. } => {
            let why = (
                pb::HindranceKind::Recovering,
                "its JobMaster gives no answer",
            );
            bare_details(job, name, pb::JobStatus::Reconciling, why)
        }
        Entry::Persisting { name, .. } => {
            let why = (pb::HindranceKind::Store, "its submission is being written");
            bare_details(job, name, pb::JobStatus::Initializing, why)
        }
        Entry::Rebuilding { name, why, .. } => {
            let why = (pb::HindranceKind::Recovering, *why);
            bare_details(job, name, pb::JobStatus::Reconciling, why)
        }
        Entry::Ended {
            result,
            waiting,
            left,
            ..
        } => {
            let details = result.details.clone().unwrap_or_default();
            ended_details(details, result, waiting.len(), left.as_deref())
        }
        Entry::Quarantined { job: quarantined } => quarantined.details(job),
    }
}

fn bare_details(
    job: JobId,
    name: &str,
    status: pb::JobStatus,
    (kind, text): (pb::HindranceKind, &str),
) -> pb::JobDetails {
    pb::JobDetails {
        job_id: job.to_string(),
        name: name.to_owned(),
        status: status.into(),
        hindrances: vec![pb::Hindrance {
            kind: kind.into(),
            text: text.to_owned(),
            ..pb::Hindrance::default()
        }],
        ..pb::JobDetails::default()
    }
}

/// A description of an ended job, with what is true of it at present.
pub(super) fn ended_details(
    mut details: pb::JobDetails,
    result: &pb::JobResult,
    waiting: usize,
    left: Option<&str>,
) -> pb::JobDetails {
    details.job_id = result.job_id.clone();
    details.name = result.name.clone();
    details.status = result.status;
    details.ended_at_ms = result.ended_at_ms;
    details.cleaning_up = result.dirty;
    details.cause.clone_from(&result.cause);
    details.hindrances.clear();
    if result.dirty {
        let left = left.unwrap_or_default();
        details.left_behind = left.to_owned();
        let mut text = match left {
            "" => "what it left is being removed".to_owned(),
            reason => format!(
                "what it left could not be removed, which the next leader tries again: {reason}"
            ),
        };
        match waiting {
            0 => {}
            1 => text.push_str("; a submission with its id waits for that"),
            _ => text.push_str(&format!(
                "; {waiting} submissions with its id wait for that"
            )),
        }
        details.hindrances.push(pb::Hindrance {
            kind: pb::HindranceKind::CleaningUp.into(),
            text,
            since_ms: result.ended_at_ms,
            ..pb::Hindrance::default()
        });
    }
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
