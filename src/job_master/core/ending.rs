//! Decides on cancellations and stops, when the sinks are committed, and when the job ends. `stopped.rs` has the
//! decision on a stop. A handler: `job_end.rs` owns the requests, the commit and the result.
//!
//! *Decide in the store, then act*: a request is acknowledged once its decision is durable; the sinks are committed
//! once it is durable that all tasks have finished; the job ends once its end follows from the durable record, or the
//! record can't be written any more.

use tanist_proto::v1 as pb;

use super::checkpoint_commit::{CheckpointCommit, CommitProgress};
use super::checkpointing::Checkpointing;
use super::durable_record::DurableRecord;
use super::execution_graph::ExecutionGraph;
use super::job_end::{Commit, JobEnd};
use super::job_events::JobEvents;
use super::output::Output;
use super::{CancelAnswer, Effect, LogLine};

/// Borrows what the decisions about the job's end need.
pub(super) struct Ending<'a> {
    pub(super) end: &'a mut JobEnd,
    pub(super) record: &'a mut DurableRecord,
    pub(super) graph: &'a ExecutionGraph,
    pub(super) checkpointing: &'a Checkpointing,
    pub(super) checkpoint_commit: &'a mut CheckpointCommit,
    pub(super) events: &'a mut JobEvents,
    pub(super) out: &'a mut Output,
    pub(super) now_ms: u64,
}

impl Ending<'_> {
    /// Decides a cancellation unless the job has durably finished. That is not known while a write is in flight. The
    /// first case that applies decides; the order matters: from ends that are durable to those that are only possible.
    pub(super) fn decide_cancel(&mut self) {
        if !self.end.is_cancel_requested() {
            return;
        }
        let has_finished = self.record.is_durable() && self.record.all_have_durably_finished();
        let of_checkpoint = self.checkpoint_commit.failure();
        let failure = self.end.commit_failure().or(of_checkpoint);
        let is_committing =
            self.end.is_committing(self.now_ms) || self.checkpoint_commit.is_running(self.now_ms);
        let stopped_with = self.record.durable().stopped_with.as_str();
        let answer = if let Some(result) = self.end.result() {
            match result.status() {
                pb::JobStatus::Canceled => CancelAnswer::Decided,
                status => CancelAnswer::TooLate(format!("the job is {}", status_name(status))),
            }
        } else if self.record.durable().wanted() == pb::WantedStatus::Canceled
            && stopped_with.is_empty()
        {
            CancelAnswer::Decided
        } else if self.record.is_writing() {
            return;
        } else if !stopped_with.is_empty() && failure.is_none() {
            CancelAnswer::TooLate(format!("the job stops with the savepoint {stopped_with}"))
        } else if has_finished
            && (failure.is_none() || self.end.commit() == Commit::Done && of_checkpoint.is_none())
        {
            CancelAnswer::TooLate("all tasks of the job have finished".to_owned())
        } else if (has_finished || !stopped_with.is_empty()) && is_committing {
            // The outcome of the commit is not known yet.
            return;
        } else if let Some(reason) = self.record.refusal() {
            CancelAnswer::Refused(reason.to_owned())
        } else {
            let decided = self.record.decided();
            if decided.wanted() != pb::WantedStatus::Canceled || !decided.stopped_with.is_empty() {
                let given_up = failure
                    .filter(|_| has_finished || of_checkpoint.is_some())
                    .map(|failure| format!("what its sinks wrote is given up: {}", failure.cause));
                self.record.want(pb::WantedStatus::Canceled);
                let (kind, text) = (pb::JobEventKind::Cancel, given_up.unwrap_or_default());
                self.events.add(kind, text, self.now_ms);
            }
            return;
        };
        self.end.cancel_answered();
        self.out.push(Effect::AnswerCancels(answer));
    }

    /// Fails the job, because the sinks can never be committed.
    pub(super) fn refuse_commit(&mut self, reason: &str) {
        if self.end.commit_refused() {
            let cause = format!("the sinks can't be committed: {reason}");
            self.record.note_job_failure(cause.clone(), self.now_ms);
            self.record.fail(cause);
        }
    }

    /// Notes the progress of the commit of a checkpoint. One that can never succeed fails the job, unless it ends
    /// without finishing anyway.
    pub(super) fn commit_checkpoint(&mut self, progress: CommitProgress) {
        let now_ms = self.now_ms;
        match progress {
            CommitProgress::Began => self.checkpoint_commit.begin(now_ms),
            CommitProgress::Done => self.checkpoint_commit.finish(),
            CommitProgress::Failed(reason) => self.checkpoint_commit.fail(&reason, now_ms),
            CommitProgress::Unrecorded(reason) => {
                self.checkpoint_commit.fail_record(&reason, now_ms);
            }
            CommitProgress::Recorded => self.checkpoint_commit.note_recorded(),
            CommitProgress::Refused(reason) => {
                let cause = format!("the sinks can't be committed: {reason}");
                self.checkpoint_commit.refuse(cause.clone(), now_ms);
                let is_stopped = !self.record.decided().stopped_with.is_empty();
                if is_stopped || !self.record.is_stopping() {
                    self.record.note_job_failure(cause.clone(), now_ms);
                    self.record.fail(cause);
                }
            }
        }
    }

    /// Whether the result waits for output that a checkpoint names. It does not wait for output that can never be
    /// committed, nor, in a job that was canceled, for output whose last commit failed.
    pub(super) fn waits_for_commit(&self) -> bool {
        let (record, commit) = (&self.record, &self.checkpoint_commit);
        let durable = record.durable();
        let is_canceled = record.is_durable()
            && durable.wanted() == pb::WantedStatus::Canceled
            && durable.stopped_with.is_empty();
        // The checkpoint that is being written may be durable in a moment: then the result waits for its commit.
        let is_writing = self.checkpointing.is_writing();
        let has_failed = commit.has_failed(is_writing) && !commit.is_running(self.now_ms);
        let is_given_up = commit.is_refused() || is_canceled && has_failed;
        // While a write of the checkpoints is under way, the store has not refused the job's state for good.
        self.checkpointing.has_uncommitted() && record.refusal().is_none() && !is_given_up
    }

    /// Commits the sinks, or returns the status and the cause with which the job ends, if the durable record says so.
    /// The first case that applies decides: a durable cancellation before a durable finish, a refusal before a failure.
    pub(super) fn finish(&mut self) -> Option<(pb::JobStatus, String)> {
        if self.record.is_writing() {
            return None;
        }
        let is_canceled = self.record.durable().wanted() == pb::WantedStatus::Canceled;
        let is_to_cancel = self.record.decided().wanted() == pb::WantedStatus::Canceled;
        let all_have_ended = self.graph.count_ended() == self.graph.tasks().len();
        let is_durable = self.record.is_durable();
        let refusal = self.record.refusal();
        // A stop with a savepoint counts no more once it became a cancellation or a failure.
        let stopped_with = &self.record.durable().stopped_with;
        let is_withdrawn = self.record.decided().stopped_with != *stopped_with;
        // A durable cancellation is valid even if this term can't write another record.
        if is_canceled && !is_withdrawn && (is_durable || refusal.is_some()) {
            let is_over = all_have_ended || refusal.is_some();
            let status = match self.record.durable().stopped_with.as_str() {
                "" => pb::JobStatus::Canceled,
                _ => pb::JobStatus::Finished,
            };
            is_over.then(|| (status, String::new()))
        } else if is_durable
            && self.record.all_have_durably_finished()
            && self.record.decided().fatal_cause.is_empty()
            && !is_to_cancel
        {
            self.commit_sinks()
        } else if let Some(reason) = refusal.map(str::to_owned) {
            self.end_refused(reason)
        } else if is_durable
            && !is_to_cancel
            && !self.record.durable().fatal_cause.is_empty()
            && all_have_ended
        {
            let cause = self.record.durable().fatal_cause.clone();
            Some((pb::JobStatus::Failed, cause))
        } else {
            None
        }
    }

    fn commit_sinks(&mut self) -> Option<(pb::JobStatus, String)> {
        if self.end.commit() == Commit::Done {
            return Some((pb::JobStatus::Finished, String::new()));
        }
        if self.end.begin_commit(self.now_ms) {
            let ends = self.record.durable().terminal.iter();
            let committables = ends.flat_map(|end| end.committables.iter().cloned());
            self.out.push(Effect::CommitSinks(committables.collect()));
        }
        None
    }

    /// The store refused the record: the job fails, unless a shorter record may be taken.
    fn end_refused(&mut self, reason: String) -> Option<(pb::JobStatus, String)> {
        if self.record.shorten() {
            self.events.forget_foreseen();
            self.out.log(LogLine::RecordRefused { reason });
            return None;
        }
        let cause = format!("the job's state can't be persisted: {reason}");
        self.record.note_job_failure(cause.clone(), self.now_ms);
        Some((pb::JobStatus::Failed, cause))
    }
}

/// The name of a job's status for clients.
pub(super) fn status_name(status: pb::JobStatus) -> &'static str {
    status.as_str_name().trim_start_matches("JOB_STATUS_")
}
