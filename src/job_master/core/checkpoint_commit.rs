//! The commit of output that a completed checkpoint names, as far as the job depends on it: why it failed, whether it
//! hangs, and whether it can ever succeed. The checkpoints begin and repeat it; the actor runs it.
//!
//! Invariant: `failure` is that of a commit that has not succeeded since.

use tanist_proto::v1 as pb;

use super::LogLine;
use super::job_end::COMMIT_TIMEOUT_MS;
use super::output::Output;

/// Progress of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitProgress {
    /// It has begun.
    Began,
    /// Everything is committed.
    Done,
    /// It failed, for this reason. A retry may succeed.
    Failed(String),
    /// It failed, for this reason, and can never succeed.
    Refused(String),
    /// The record of the checkpoint whose output is to be committed was refused, for this reason. A retry may succeed.
    Unrecorded(String),
    /// The record was written after a refusal.
    Recorded,
}

/// The commit; see the module.
#[derive(Debug, Default)]
pub(super) struct CheckpointCommit {
    since_ms: Option<u64>,
    failure: Option<Box<pb::FailureRecord>>,
    /// Why a checkpoint, which lists output, can't be recorded.
    unrecorded: Option<Box<pb::FailureRecord>>,
    is_refused: bool,
}

impl CheckpointCommit {
    /// A commit begins.
    pub(super) fn begin(&mut self, now_ms: u64) {
        self.since_ms = Some(now_ms);
    }

    /// The commit is done.
    pub(super) fn finish(&mut self) {
        *self = CheckpointCommit {
            unrecorded: self.unrecorded.take(),
            ..CheckpointCommit::default()
        };
    }

    /// The record of a checkpoint that lists output was refused, and is tried again.
    pub(super) fn fail_record(&mut self, reason: &str, now_ms: u64) {
        let cause = format!("a checkpoint can't be recorded and is tried again: {reason}");
        self.unrecorded = Some(failure(cause, now_ms));
    }

    /// The record is written.
    pub(super) fn note_recorded(&mut self) {
        self.unrecorded = None;
    }

    /// The commit failed, and is tried again.
    pub(super) fn fail(&mut self, reason: &str, now_ms: u64) {
        self.since_ms = None;
        let cause = format!("committing a checkpoint failed and is tried again: {reason}");
        self.set_failure(cause, now_ms);
    }

    /// The commit can never succeed.
    pub(super) fn refuse(&mut self, cause: String, now_ms: u64) {
        self.since_ms = None;
        self.is_refused = true;
        self.set_failure(cause, now_ms);
    }

    /// The last failure, if no commit has succeeded since, or why there is nothing to commit yet.
    pub(super) fn failure(&self) -> Option<&pb::FailureRecord> {
        self.failure.as_deref().or(self.unrecorded.as_deref())
    }

    /// Whether the last commit has failed, or the last record of a checkpoint that lists output was refused.
    /// `is_writing`: that record is being written again.
    pub(super) fn has_failed(&self, is_writing: bool) -> bool {
        self.failure.is_some() || self.unrecorded.is_some() && !is_writing
    }

    /// Whether the last commit can never succeed.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Whether a commit runs and is within its timeout.
    pub(super) fn is_running(&self, now_ms: u64) -> bool {
        let until_ms = self.timeout_at_ms();
        until_ms.is_some_and(|until_ms| now_ms < until_ms)
    }

    /// When the commit that runs exceeds its timeout.
    pub(super) fn timeout_at_ms(&self) -> Option<u64> {
        Some(self.since_ms?.saturating_add(COMMIT_TIMEOUT_MS))
    }

    /// A commit that exceeds its timeout counts as failed, although its outcome is unknown. No other commit begins
    /// meanwhile.
    pub(super) fn check_timeout(&mut self, now_ms: u64, out: &mut Output) {
        let Some(since_ms) = self.since_ms else {
            return;
        };
        let is_noted = self.failure.as_ref().is_some_and(|it| it.at_ms >= since_ms);
        if is_noted || self.is_running(now_ms) {
            return;
        }
        let cause = format!(
            "committing a checkpoint has had no answer for {COMMIT_TIMEOUT_MS} ms: the file system may hang"
        );
        out.log(LogLine::CommitUnanswered {
            cause: cause.clone(),
        });
        self.set_failure(cause, now_ms);
    }

    /// The reason why output is not visible yet.
    pub(super) fn blocked_reason(&self) -> Option<pb::BlockedReason> {
        let failure = self.failure()?;
        Some(pb::BlockedReason {
            kind: pb::BlockedReasonKind::Committing.into(),
            text: format!(
                "what its sinks wrote can't be made visible yet, and no checkpoint completes: {}",
                failure.cause
            ),
            since_ms: failure.at_ms,
            ..pb::BlockedReason::default()
        })
    }

    fn set_failure(&mut self, cause: String, at_ms: u64) {
        self.failure = Some(failure(cause, at_ms));
    }
}

fn failure(cause: String, at_ms: u64) -> Box<pb::FailureRecord> {
    Box::new(pb::FailureRecord {
        at_ms,
        cause,
        ..pb::FailureRecord::default()
    })
}
