//! The part of the core that hears what became of what it sent: deployments, cancellations, commits of sinks.
//!
//! No answer, and a refusal too, proves nothing about what runs: what they leave open is cancelled, and asked for.

use std::sync::Arc;

use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

use super::core::{Commit, JobMasterCore};
use super::event::{Connection, Effect, SubmitOutcome};
use super::execution::Cancellation;
use super::settle::COMMIT_PATIENCE_MS;

impl JobMasterCore {
    pub(super) fn note_submitted(
        &mut self,
        task_manager: &ResourceId,
        tasks: &[pb::ExecutionId],
        outcome: SubmitOutcome,
    ) {
        for id in tasks {
            let Some(task) = self.execution.find(&id.vertex_id, id.subtask) else {
                continue;
            };
            let turn = self.turn;
            let execution = &mut self.execution.tasks[task].execution;
            let is_present =
                execution.generation.get() == id.generation && execution.is_on(task_manager);
            if !is_present || execution.known_since.is_some() || !execution.is_deployed() {
                continue;
            }
            // Neither a refusal nor silence proves that it does not run (an earlier copy of the message may have been
            // taken), so it is cancelled rather than taken for gone.
            let cause = match &outcome {
                SubmitOutcome::Answered(refused) => {
                    let is_it = |refused: &&pb::TaskRefusal| {
                        refused.vertex_id == id.vertex_id && refused.subtask == id.subtask
                    };
                    let Some(refusal) = refused.iter().find(is_it) else {
                        execution.known_since = Some(turn);
                        continue;
                    };
                    format!("the deployment was refused: {}", refusal.reason)
                }
                // Its next registration says what is there, or its heartbeats that it is gone.
                SubmitOutcome::Outdated => continue,
                SubmitOutcome::Unknown(reason) => {
                    format!("the deployment has an unknown outcome: {reason}")
                }
            };
            self.fail_region_of(task, cause);
        }
    }

    pub(super) fn note_cancelled(
        &mut self,
        connection: &Connection,
        tasks: &[pb::TaskCancellation],
        is_confirmed: bool,
    ) {
        let answer = if is_confirmed {
            Cancellation::Confirmed
        } else {
            Cancellation::Failed
        };
        let mut is_unsure = false;
        for cancelled in tasks {
            let Some(task) = self.execution.find(&cancelled.vertex_id, cancelled.subtask) else {
                continue;
            };
            let turn = self.turn;
            let execution = &mut self.execution.tasks[task].execution;
            if execution.is_on(&connection.task_manager)
                && execution.generation.get() <= cancelled.up_to_generation
                && execution.cancellation == Cancellation::Asked
            {
                execution.cancellation = answer;
                if is_confirmed && execution.known_since.is_none() {
                    execution.known_since = Some(turn);
                    is_unsure |= !execution.is_ended();
                }
            }
            for ((stray, generation), at) in self.strays.of_mut(&connection.task_manager) {
                let is_meant = stray == task && generation <= cancelled.up_to_generation;
                if is_meant && at.cancellation == Cancellation::Asked {
                    at.cancellation = answer;
                }
            }
        }
        if is_unsure {
            self.effects.push(Effect::AskReport(connection.clone()));
        }
    }

    pub(super) fn note_commit_failure(&mut self, reason: String, now_ms: u64) {
        let Commit::Running { retry_delay_ms, .. } = self.commit else {
            return;
        };
        let at_ms = now_ms.saturating_add(retry_delay_ms);
        self.commit = Commit::RetryAt {
            at_ms,
            retry_delay_ms: (retry_delay_ms * 2).min(10_000),
        };
        self.commit_failure = Some(Box::new(pb::FailureRecord {
            at_ms: now_ms,
            cause: format!("committing the sinks failed and is tried again: {reason}"),
            ..pb::FailureRecord::default()
        }));
    }

    /// One that has been under way for too long counts as failed, though nobody knows how far it gets. No other one is begun meanwhile.
    pub(super) fn doubt_commit(&mut self, now_ms: u64) {
        let Commit::Running { since_ms, .. } = self.commit else {
            return;
        };
        let is_told = self.commit_failure.as_ref();
        let is_told = is_told.is_some_and(|failure| failure.at_ms >= since_ms);
        if is_told || self.commit_is_awaited() || self.result.is_some() {
            return;
        }
        let cause = format!(
            "committing the sinks has had no answer for {COMMIT_PATIENCE_MS} ms: the file system may hang"
        );
        tracing::warn!(job = self.record.job_id, cause);
        self.commit_failure = Some(Box::new(pb::FailureRecord {
            at_ms: now_ms,
            cause,
            ..pb::FailureRecord::default()
        }));
    }

    /// Whether a commit is under way that may still be answered in time.
    pub(super) fn commit_is_awaited(&self) -> bool {
        matches!(self.commit, Commit::Running { since_ms, .. }
            if self.settled_at_ms < since_ms.saturating_add(COMMIT_PATIENCE_MS))
    }

    /// What the sinks wrote can't be made visible: the job fails, once the record says so. No commit follows.
    pub(super) fn give_up_commit(&mut self, reason: &str, now_ms: u64) {
        if !matches!(self.commit, Commit::Running { .. }) {
            return;
        }
        // It has its answer.
        self.commit = Commit::NotYet;
        let cause = format!("the sinks can't be committed: {reason}");
        self.note_job_failure(cause.clone(), now_ms);
        Arc::make_mut(&mut self.record).fatal_cause = cause;
        self.commit_failure = None;
        self.revision += 1;
    }
}
