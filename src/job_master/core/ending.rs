//! Decides on cancellations and stops, when the sinks are committed, and when the job ends. `stopped.rs` has the
//! decision on a stop.
//!
//! *Decide in the store, then act*: a request is acknowledged once its decision is durable; the sinks are committed
//! once it is durable that all tasks have finished; the job ends once its end follows from the durable record, or the
//! record can't be written any more.

use tanist_proto::v1 as pb;

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
    pub(super) events: &'a mut JobEvents,
    pub(super) out: &'a mut Output,
    pub(super) now_ms: u64,
}

impl Ending<'_> {
    /// Decides a cancellation unless the job has durably finished. That is not known while a write is in
    /// flight.
    pub(super) fn decide_cancel(&mut self) {
        if !self.end.is_cancel_requested() {
            return;
        }
        let has_finished = self.record.is_durable() && self.record.all_have_durably_finished();
        let failure = self.end.commit_failure();
        let answer = if let Some(result) = self.end.result() {
            match result.status() {
                pb::JobStatus::Canceled => CancelAnswer::Decided,
                status => CancelAnswer::TooLate(format!("the job is {}", status_name(status))),
            }
        } else if self.record.durable().wanted() == pb::WantedStatus::Canceled {
            CancelAnswer::Decided
        } else if self.record.is_writing() {
            return;
        } else if has_finished && (failure.is_none() || self.end.commit() == Commit::Done) {
            CancelAnswer::TooLate("all tasks of the job have finished".to_owned())
        } else if has_finished && self.end.is_committing(self.now_ms) {
            // The outcome of the commit is not known yet.
            return;
        } else if let Some(reason) = self.record.refusal() {
            CancelAnswer::Refused(reason.to_owned())
        } else {
            if self.record.decided().wanted() != pb::WantedStatus::Canceled {
                self.record.want(pb::WantedStatus::Canceled);
                let given_up = failure
                    .filter(|_| has_finished)
                    .map(|failure| format!("what its sinks wrote is given up: {}", failure.cause));
                let (kind, text) = (pb::JobEventKind::Cancel, given_up.unwrap_or_default());
                self.events.add(kind, text, self.now_ms);
            }
            return;
        };
        self.end.cancel_answered();
        self.out.push(Effect::AnswerCancels(answer));
    }

    /// Has the job fail, once the record says so: the sinks can never be committed.
    pub(super) fn refuse_commit(&mut self, reason: &str) {
        if self.end.commit_refused() {
            let cause = format!("the sinks can't be committed: {reason}");
            self.record.note_job_failure(cause.clone(), self.now_ms);
            self.record.fail(cause);
        }
    }

    /// Commits the sinks, or returns the status and the cause with which the job ends, if the durable record says so.
    pub(super) fn finish(&mut self) -> Option<(pb::JobStatus, String)> {
        if self.record.is_writing() {
            return None;
        }
        let is_canceled = self.record.durable().wanted() == pb::WantedStatus::Canceled;
        let is_to_cancel = self.record.decided().wanted() == pb::WantedStatus::Canceled;
        let all_have_ended = self.graph.count_ended() == self.graph.tasks().len();
        let is_durable = self.record.is_durable();
        let refusal = self.record.refusal();
        // A durable record is valid even if this term can't write another one.
        if is_canceled && (is_durable || refusal.is_some()) {
            let is_over = all_have_ended || refusal.is_some();
            is_over.then(|| (pb::JobStatus::Canceled, String::new()))
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
