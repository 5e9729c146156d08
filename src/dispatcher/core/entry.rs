//! The Dispatcher's entry of one job, and the description made from it. Pure: it holds the replies of waiting callers
//! but sends none.

use std::sync::Arc;

use tanist_gateway::{GatewayError, JobMasterControl};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{Quarantined, Submission, SubmissionKey, Suspect};
use crate::handle::Reply;

/// State of one job in the Dispatcher.
#[derive(Debug)]
pub enum Entry {
    Persisting {
        key: SubmissionKey,
        name: String,
        waiting: Vec<Reply<pb::SubmitJobResponse>>,
        /// Other submissions under the same id. They are decided when this one is.
        others: Vec<(Submission, Reply<pb::SubmitJobResponse>)>,
    },
    Running {
        key: SubmissionKey,
        name: String,
        control: Arc<dyn JobMasterControl>,
    },
    /// It has no JobMaster now: the last one broke, its turn to be recovered has not come, or its records can't
    /// be read for now. The job, or its unreadable result, is being read again.
    Rebuilding {
        key: SubmissionKey,
        name: String,
        why: &'static str,
        /// Set if the turn has not come, or if only the state could be read.
        suspect: Option<Box<Suspect>>,
    },
    /// Globally terminal. The result is being written, is being cleaned up after, or is clean.
    Ended {
        key: SubmissionKey,
        result: Box<pb::JobResult>,
        /// Submissions of the same job that arrived before its cleanup was done.
        waiting: Vec<Reply<pb::SubmitJobResponse>>,
        /// Why this term stopped the cleanup.
        left: Option<String>,
    },
    /// Quarantined.
    Quarantined { job: Box<Quarantined> },
}

/// Source of a job's description.
pub enum Described {
    /// The job's JobMaster must be asked.
    ByJobMaster(Arc<dyn JobMasterControl>),
    /// Known without asking.
    Known(Box<pb::JobDetails>),
}

/// Returns the source of a job's description. For an ended job this is what is in memory.
pub fn describe(job: JobId, entry: &Entry) -> Described {
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

/// Describes a job without asking its JobMaster.
pub fn describe_without_job_master(job: JobId, entry: &Entry) -> pb::JobDetails {
    match entry {
        Entry::Running { name, .. } => {
            let why = (
                pb::BlockedReasonKind::Recovering,
                "its JobMaster gives no answer",
            );
            bare_details(job, name, pb::JobStatus::Reconciling, why)
        }
        Entry::Persisting { name, .. } => {
            let why = (
                pb::BlockedReasonKind::Store,
                "its submission is being written",
            );
            bare_details(job, name, pb::JobStatus::Initializing, why)
        }
        Entry::Rebuilding { name, why, .. } => {
            let why = (pb::BlockedReasonKind::Recovering, *why);
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
    (kind, text): (pb::BlockedReasonKind, &str),
) -> pb::JobDetails {
    pb::JobDetails {
        job_id: job.to_string(),
        name: name.to_owned(),
        status: status.into(),
        blocked_reasons: vec![pb::BlockedReason {
            kind: kind.into(),
            text: text.to_owned(),
            ..pb::BlockedReason::default()
        }],
        ..pb::JobDetails::default()
    }
}

/// Completes the description of an ended job with its current status.
pub fn ended_details(
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
    details.blocked_reasons.clear();
    if result.dirty {
        let left = left.unwrap_or_default();
        details.left_behind = left.to_owned();
        let mut text = match left {
            "" => "what it left is being removed".to_owned(),
            reason => {
                format!("what it left could not be removed; the next leader tries again: {reason}")
            }
        };
        match waiting {
            0 => {}
            1 => text.push_str("; a submission with its id waits for that"),
            _ => text.push_str(&format!(
                "; {waiting} submissions with its id wait for that"
            )),
        }
        details.blocked_reasons.push(pb::BlockedReason {
            kind: pb::BlockedReasonKind::CleaningUp.into(),
            text,
            since_ms: result.ended_at_ms,
            ..pb::BlockedReason::default()
        });
    }
    details
}

pub fn no_such_job(job: JobId) -> GatewayError {
    GatewayError::NotFound(format!("there is no job {job}"))
}

pub fn accepted(job: JobId, repeated: bool) -> pb::SubmitJobResponse {
    pb::SubmitJobResponse {
        job_id: job.to_string(),
        repeated,
    }
}

pub fn state_key(state: &pb::JobState) -> SubmissionKey {
    SubmissionKey {
        token: state.submission_token.clone(),
        digest: state.graph_digest.clone(),
    }
}

pub fn result_key(result: &pb::JobResult) -> SubmissionKey {
    SubmissionKey {
        token: result.submission_token.clone(),
        digest: result.graph_digest.clone(),
    }
}

/// The name of a status in REST and for people.
pub fn status_name(status: pb::JobStatus) -> &'static str {
    status.as_str_name().trim_start_matches("JOB_STATUS_")
}
