//! The Dispatcher's entry of one job, and the description made from it.
//!
//! Two states in the diagram of the crate have no variant here: while its result is written, a job keeps the entry that
//! it had (*Ending*); and a job with a dirty result is `Ended` (*Dirty*). So a write that fails changes no entry.

use tanist_gateway::GatewayError;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{Ended, Known, Persisting, Quarantined, Rebuilding, Replies, SubmissionKey};

/// State of one job in the Dispatcher.
#[derive(Debug)]
pub(crate) enum Entry<R: Replies> {
    /// Its submission is being written.
    Persisting(Persisting<R>),
    /// It has a JobMaster.
    Running { key: SubmissionKey, name: String },
    /// It has no JobMaster now, and is being read.
    Rebuilding(Rebuilding),
    /// Its result is stored.
    Ended(Ended<R>),
    /// It is quarantined.
    Quarantined(Box<Quarantined>),
}

impl<R: Replies> Entry<R> {
    /// What decides about a submission under its id.
    pub(super) fn known(&self) -> Known<'_> {
        match self {
            Entry::Persisting(persisting) => Known::Persisting(persisting.key()),
            Entry::Running { key, .. } => Known::Accepted(key),
            Entry::Rebuilding(rebuilding) => Known::Accepted(rebuilding.key()),
            Entry::Quarantined(quarantined) => Known::Accepted(quarantined.key()),
            Entry::Ended(ended) => Known::Ended {
                key: ended.key(),
                dirty: ended.result().dirty,
            },
        }
    }
}

/// Source of a job's description.
#[derive(Debug)]
pub(crate) enum Described {
    /// The job's JobMaster must be asked.
    ByJobMaster,
    /// Known without asking.
    Known(Box<pb::JobDetails>),
    /// The description of this ended job must be read.
    Stored {
        result: Box<pb::JobResult>,
        /// Number of submissions that wait for the cleanup.
        waiting: usize,
        /// Why this term stopped the cleanup; `None`: it did not.
        left: Option<String>,
    },
}

/// Returns the source of a job's description. For an ended job this is what is in memory.
pub(crate) fn describe<R: Replies>(job: JobId, entry: &Entry<R>) -> Described {
    match entry {
        Entry::Running { .. } => Described::ByJobMaster,
        Entry::Persisting(_) | Entry::Rebuilding(_) | Entry::Ended(_) | Entry::Quarantined(_) => {
            Described::Known(Box::new(describe_without_job_master(job, entry)))
        }
    }
}

/// Describes a job without asking its JobMaster.
pub(crate) fn describe_without_job_master<R: Replies>(
    job: JobId,
    entry: &Entry<R>,
) -> pb::JobDetails {
    match entry {
        Entry::Running { name, .. } => {
            let why = (
                pb::BlockedReasonKind::Recovering,
                "its JobMaster gives no answer",
            );
            bare_details(job, name, pb::JobStatus::Reconciling, why)
        }
        Entry::Persisting(persisting) => {
            let why = (
                pb::BlockedReasonKind::Store,
                "its submission is being written",
            );
            bare_details(job, persisting.name(), pb::JobStatus::Initializing, why)
        }
        Entry::Rebuilding(rebuilding) => {
            let why = (pb::BlockedReasonKind::Recovering, rebuilding.why());
            bare_details(job, rebuilding.name(), pb::JobStatus::Reconciling, why)
        }
        Entry::Ended(ended) => {
            let details = ended.result().details.clone().unwrap_or_default();
            ended_details(details, ended.result(), ended.waiting(), ended.left())
        }
        Entry::Quarantined(quarantined) => quarantined.details(job),
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
pub(crate) fn ended_details(
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

pub(crate) fn no_such_job(job: JobId) -> GatewayError {
    GatewayError::NotFound(format!("there is no job {job}"))
}

pub(crate) fn accepted(job: JobId, repeated: bool) -> pb::SubmitJobResponse {
    pb::SubmitJobResponse {
        job_id: job.to_string(),
        repeated,
    }
}

pub(crate) fn state_key(state: &pb::JobState) -> SubmissionKey {
    SubmissionKey {
        token: state.submission_token.clone(),
        digest: state.graph_digest.clone(),
    }
}

pub(crate) fn result_key(result: &pb::JobResult) -> SubmissionKey {
    SubmissionKey {
        token: result.submission_token.clone(),
        digest: result.graph_digest.clone(),
    }
}

/// The name of a status in REST and for people.
pub(crate) fn status_name(status: pb::JobStatus) -> &'static str {
    status.as_str_name().trim_start_matches("JOB_STATUS_")
}
