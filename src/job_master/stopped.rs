//! The part of the core that stops a job: its sources end, what they have read is worked off, and the job finishes.
//!
//! *Decide in the store, then act*, as a cancellation: the record says that STOPPED is wanted, then it is acknowledged, then every
//! TaskManager hears it, with each heartbeat and each deployment, for as long as the job runs. So it needs no answer, and a
//! successor goes on with it. A cancellation that comes before or after wins.
//!
//! Without checkpoints a source that starts anew would begin at the beginning, and end there at once, as the job is being stopped: what
//! it had read would be missing from a job that has FINISHED. So a region whose sources have read is not restarted any more: the
//! job fails with that cause. One whose sources were not deployed is placed and deployed as always, and they end with nothing.

use std::sync::Arc;

use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::core::JobMasterCore;
use super::event::{CancelAnswer, Connection, Effect};
use super::execution_graph::RegionPhase;
use super::settle::status_name;

impl JobMasterCore {
    /// Whether it is durable that sources are to end.
    pub fn tells_to_stop(&self) -> bool {
        self.is_durable && self.written.wanted() == pb::WantedStatus::Stopped
    }

    /// A stop is decided unless the job ends otherwise. While a write is on its way, that is open.
    pub(super) fn decide_stop(&mut self) {
        if !self.stop_is_requested {
            return;
        }
        let answer = if let Some(result) = &self.result {
            match result.status() {
                pb::JobStatus::Finished => CancelAnswer::Decided,
                status => CancelAnswer::TooLate(format!("the job is {}", status_name(status))),
            }
        } else if self.writing.is_some() {
            return;
        } else if self.written.wanted() == pb::WantedStatus::Stopped {
            CancelAnswer::Decided
        } else if self.written.wanted() == pb::WantedStatus::Canceled {
            CancelAnswer::TooLate("the job is being cancelled".to_owned())
        } else if !self.written.fatal_cause.is_empty() {
            CancelAnswer::TooLate(format!("the job fails: {}", self.written.fatal_cause))
        } else if let Some(reason) = &self.refusal {
            CancelAnswer::Refused(reason.clone())
        } else if self.is_durable && self.all_have_durably_finished() {
            match &self.commit_failure {
                None => CancelAnswer::Decided,
                Some(failure) => CancelAnswer::TooLate(format!(
                    "all tasks have finished, and what they wrote can't be made visible: {}",
                    failure.cause
                )),
            }
        } else {
            // What is about to be written decides, if that is another end.
            if !self.is_stopping() && self.record.wanted() != pb::WantedStatus::Stopped {
                Arc::make_mut(&mut self.record).set_wanted(pb::WantedStatus::Stopped);
                self.revision += 1;
                let (kind, text) = (pb::JobEventKind::Stop, String::new());
                self.chronicle.tell(kind, text, self.settled_at_ms);
            }
            return;
        };
        self.stop_is_requested = false;
        self.effects.push(Effect::AnswerStops(answer));
    }

    /// Has those TaskManagers hear at once that sources are to end which have not heard it in their present registration.
    pub(super) fn tell_stop(&mut self) {
        let registrations = Some(self.registrations_version);
        if !self.tells_to_stop()
            || self.is_stopping()
            || self.looked_at.told_to_stop == registrations
        {
            return;
        }
        self.looked_at.told_to_stop = registrations;
        for (task_manager, known) in &mut self.task_managers {
            if !known.is_told_to_stop {
                known.is_told_to_stop = true;
                self.effects.push(Effect::AskReport(Connection {
                    task_manager: task_manager.clone(),
                    registration: known.registration,
                }));
            }
        }
    }

    /// Whether a restart of the region would leave out what its sources have read.
    pub(super) fn would_lose_input(&self, region: usize) -> bool {
        if self.record.wanted() != pb::WantedStatus::Stopped {
            return false;
        }
        // Whoever awaits what a former term had placed does not know how far it was.
        let is_awaited = self.execution.regions[region].phase == RegionPhase::Reconciling;
        let has_read = |task: &usize| {
            let at = &self.execution.tasks[*task];
            let is_source = !self
                .execution
                .edges
                .iter()
                .any(|edge| edge.target == at.vertex);
            let execution = &at.execution;
            // Once a deployment was sent it may have begun, whatever became of the answer and of its TaskManager since.
            let may_have = is_awaited
                || execution.started_at_ms > 0
                || execution.state == ExecutionState::Finished;
            is_source && may_have
        };
        self.execution.regions[region].tasks.iter().any(has_read)
    }

    /// The job fails for what was noted last.
    pub(super) fn give_up_stopped(&mut self) {
        if self.is_stopping() {
            return;
        }
        let last = self.record.failures.last();
        let cause = last.map_or_else(String::new, |last| {
            if last.task.is_empty() {
                format!("{}: ", last.cause)
            } else {
                format!("{}: {}: ", last.task, last.cause)
            }
        });
        Arc::make_mut(&mut self.record).fatal_cause = format!(
            "{cause}not restarted, as the job was being stopped, and without a checkpoint what its sources had read would be missing"
        );
        self.revision += 1;
    }

    /// That it is being stopped, and what has not ended yet.
    pub(super) fn winding_up(&self) -> Option<pb::Hindrance> {
        if !self.tells_to_stop() {
            return None;
        }
        let left = self.execution.tasks.iter();
        let left = left.filter(|task| task.execution.state != ExecutionState::Finished);
        let text = format!(
            "it is being stopped: its sources have been told to end, and {} tasks have not finished yet",
            left.count()
        );
        Some(pb::Hindrance {
            kind: pb::HindranceKind::Stopping.into(),
            text,
            ..pb::Hindrance::default()
        })
    }
}
