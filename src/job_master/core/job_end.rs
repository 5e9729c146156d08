//! The end of a job: the requests for it, the commit of the sinks, and the result.
//!
//! `ending.rs` and `stopped.rs` decide when the job ends and how. Invariants: one commit is in progress; a result
//! never changes; each request gets one answer.

use tanist_proto::v1 as pb;

use super::LogLine;
use super::output::Output;

/// Delay before the first retry of a failed commit of the sinks, in ms.
const COMMIT_RETRY_MS: u64 = 100;
/// Longest delay before a retry, in ms.
const COMMIT_RETRY_MAX_MS: u64 = 10_000;
/// Timeout of a commit of the sinks in ms; then it counts as failed. A file system that hangs returns no error.
pub(super) const COMMIT_TIMEOUT_MS: u64 = 60_000;

/// Progress of the sinks' commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Commit {
    NotYet,
    Running { since_ms: u64, retry_delay_ms: u64 },
    RetryAt { at_ms: u64, retry_delay_ms: u64 },
    Done,
}

/// The end of one job; see the module.
#[derive(Debug)]
pub(super) struct JobEnd {
    cancel_is_requested: bool,
    stop_is_requested: bool,
    commit: Commit,
    commit_failure: Option<Box<pb::FailureRecord>>,
    result: Option<Box<pb::JobResult>>,
}

impl Default for JobEnd {
    /// A job that runs.
    fn default() -> JobEnd {
        JobEnd {
            cancel_is_requested: false,
            stop_is_requested: false,
            commit: Commit::NotYet,
            commit_failure: None,
            result: None,
        }
    }
}

impl JobEnd {
    /// A client requests cancellation.
    pub(super) fn request_cancel(&mut self) {
        self.cancel_is_requested = true;
    }

    /// Whether a cancellation was requested and has no answer.
    pub(super) fn is_cancel_requested(&self) -> bool {
        self.cancel_is_requested
    }

    /// All requests for cancellation have their answer.
    pub(super) fn cancel_answered(&mut self) {
        self.cancel_is_requested = false;
    }

    /// A client requests a stop.
    pub(super) fn request_stop(&mut self) {
        self.stop_is_requested = true;
    }

    /// Whether a stop was requested and has no answer.
    pub(super) fn is_stop_requested(&self) -> bool {
        self.stop_is_requested
    }

    /// All requests for a stop have their answer.
    pub(super) fn stop_answered(&mut self) {
        self.stop_is_requested = false;
    }

    /// The result, once the job has ended.
    pub(super) fn result(&self) -> Option<&pb::JobResult> {
        self.result.as_deref()
    }

    /// Whether the job has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.result.is_some()
    }

    /// The job has ended with this result.
    pub(super) fn end(&mut self, result: Box<pb::JobResult>) {
        self.result = Some(result);
    }

    /// Progress of the commit.
    pub(super) fn commit(&self) -> Commit {
        self.commit
    }

    /// The last failure of the commit.
    pub(super) fn commit_failure(&self) -> Option<&pb::FailureRecord> {
        self.commit_failure.as_deref()
    }

    /// Whether a commit is in progress and within its timeout.
    pub(super) fn is_committing(&self, now_ms: u64) -> bool {
        matches!(self.commit, Commit::Running { since_ms, .. }
            if now_ms < since_ms.saturating_add(COMMIT_TIMEOUT_MS))
    }

    /// When the commit is due: a retry, or its timeout.
    pub(super) fn commit_due_ms(&self) -> Option<u64> {
        match self.commit {
            Commit::RetryAt { at_ms, .. } => Some(at_ms),
            Commit::Running { since_ms, .. } => Some(since_ms.saturating_add(COMMIT_TIMEOUT_MS)),
            Commit::NotYet | Commit::Done => None,
        }
    }

    /// Begins a commit if none is in progress and no retry is pending. Returns whether it does.
    pub(super) fn begin_commit(&mut self, now_ms: u64) -> bool {
        let retry_delay_ms = match self.commit {
            Commit::NotYet => COMMIT_RETRY_MS,
            Commit::RetryAt {
                at_ms,
                retry_delay_ms,
            } if at_ms <= now_ms => retry_delay_ms,
            Commit::Running { .. } | Commit::RetryAt { .. } | Commit::Done => return false,
        };
        self.commit = Commit::Running {
            since_ms: now_ms,
            retry_delay_ms,
        };
        true
    }

    /// All sinks are committed.
    pub(super) fn commit_done(&mut self) {
        self.commit = Commit::Done;
    }

    /// The commit failed, and a retry may succeed.
    pub(super) fn commit_failed(&mut self, reason: &str, now_ms: u64) {
        let Commit::Running { retry_delay_ms, .. } = self.commit else {
            return;
        };
        self.commit = Commit::RetryAt {
            at_ms: now_ms.saturating_add(retry_delay_ms),
            retry_delay_ms: (retry_delay_ms * 2).min(COMMIT_RETRY_MAX_MS),
        };
        let cause = format!("committing the sinks failed and is tried again: {reason}");
        self.set_commit_failure(cause, now_ms);
    }

    /// The commit failed and can never succeed. Returns false if no commit is in progress: then it is a late answer.
    pub(super) fn commit_refused(&mut self) -> bool {
        let is_answer = matches!(self.commit, Commit::Running { .. });
        if is_answer {
            self.commit = Commit::NotYet;
            self.commit_failure = None;
        }
        is_answer
    }

    /// A commit that exceeds its timeout counts as failed, although its outcome is unknown. No other commit starts
    /// meanwhile.
    pub(super) fn check_commit_timeout(&mut self, now_ms: u64, out: &mut Output) {
        let Commit::Running { since_ms, .. } = self.commit else {
            return;
        };
        let failure = self.commit_failure.as_ref();
        let is_noted = failure.is_some_and(|failure| failure.at_ms >= since_ms);
        if is_noted || self.is_committing(now_ms) || self.has_ended() {
            return;
        }
        let cause = format!(
            "committing the sinks has had no answer for {COMMIT_TIMEOUT_MS} ms: the file system may hang"
        );
        out.log(LogLine::CommitUnanswered {
            cause: cause.clone(),
        });
        self.set_commit_failure(cause, now_ms);
    }

    fn set_commit_failure(&mut self, cause: String, at_ms: u64) {
        self.commit_failure = Some(Box::new(pb::FailureRecord {
            at_ms,
            cause,
            ..pb::FailureRecord::default()
        }));
    }
}
