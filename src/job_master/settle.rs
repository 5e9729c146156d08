//! The part of the core that decides and acts, after each event and whenever time has passed: a function of the state
//! alone, so that nothing depends on which event came in which order.
//!
//! Decisions (restart, give up, cancel, place, record an end) go into `record`; acts follow from `written`.

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::core::{Commit, Failure, JobMasterCore};
use super::event::{CancelAnswer, Connection, Effect};
use super::execution::Cancellation;
use super::execution_graph::RegionPhase;
use super::failover::FailoverStrategy;

/// So long a region waits whose slots nobody could ever give: a restart strategy without delay must not go round and round.
pub(super) const NEVER_SERVED_MS: u64 = 1_000;
/// The first delay after a failed commit of the sinks.
const COMMIT_RETRY_MS: u64 = 100;

impl JobMasterCore {
    pub(super) fn settle(&mut self, now_ms: u64) {
        self.settled_at_ms = now_ms;
        if self.result.is_none() {
            self.judge(now_ms);
            self.give_up_overdue(now_ms);
            self.judge(now_ms);
        }
        self.decide_cancel();
        self.decide_stop();
        if self.result.is_some() {
            return;
        }
        self.stop_regions(now_ms);
        self.restart_regions(now_ms);
        self.schedule(now_ms);
        self.note_turns(now_ms);
        self.finish(now_ms);
        if self.result.is_none() {
            self.record_ends();
            self.decide_asked();
            self.write(now_ms);
            self.answer_asked();
            self.deploy();
            self.cancel_tasks(now_ms);
            self.tell_stop();
            self.release_outputs();
            self.acknowledge();
            self.profiles_needed = self.execution.profiles_needed();
            self.free_idle_slots(now_ms);
            self.declare();
        }
        self.note_status(now_ms);
    }

    fn judge(&mut self, now_ms: u64) {
        self.judge_failures(now_ms);
        self.restart_missed(now_ms);
        self.adopt_regions(now_ms);
        self.restart_lost(now_ms);
    }

    /// Gives up what took too long: tasks that don't stop, TaskManagers that don't come back, slots that don't come.
    fn give_up_overdue(&mut self, now_ms: u64) {
        let overdue =
            |since_ms: u64, timeout_ms: u64| now_ms >= since_ms.saturating_add(timeout_ms);
        let timeout_ms = self.options.task_cancellation_timeout_ms;
        let mut stuck: BTreeMap<ResourceId, String> = BTreeMap::new();
        let is_any_canceling = self.execution.count(ExecutionState::Canceling) > 0;
        let tasks = self.execution.tasks.iter().enumerate();
        for (task, at) in tasks.filter(|_| is_any_canceling) {
            let execution = &at.execution;
            if execution.state == ExecutionState::Canceling
                && overdue(execution.canceling_since_ms, timeout_ms)
                && let Some(place) = &execution.place
            {
                stuck.insert(place.task_manager.clone(), self.execution.task_name(task));
            }
        }
        for (id, known) in &self.task_managers {
            for ((task, _), stray) in &known.strays {
                let is_asked = stray.cancellation != Cancellation::NotAsked;
                if is_asked && overdue(stray.canceling_since_ms, timeout_ms) {
                    stuck.insert(id.clone(), self.execution.task_name(*task));
                }
            }
        }
        for (task_manager, task) in stuck {
            let cause = format!("{task} did not stop within {timeout_ms} ms");
            if let Some(known) = self.task_managers.get(&task_manager) {
                self.effects.push(Effect::Disconnect {
                    connection: Connection {
                        task_manager: task_manager.clone(),
                        registration: known.registration,
                    },
                    location: known.location.clone(),
                    cause: cause.clone(),
                });
            }
            self.lose_task_manager(&task_manager, &cause, now_ms);
            for task in self.execution.live_on(&task_manager) {
                self.doubt_end(task);
                self.note_gone(task, &cause, now_ms);
            }
        }
        self.miss_overdue(now_ms);
        if self.is_reconciling() {
            return;
        }
        if self.execution.is_any_waiting() {
            self.give_up_waiting(now_ms);
        }
    }

    /// Gives up regions that have waited for too long.
    fn give_up_waiting(&mut self, now_ms: u64) {
        let overdue =
            |since_ms: u64, timeout_ms: u64| now_ms >= since_ms.saturating_add(timeout_ms);
        let timeout_ms = self.options.slot_request_timeout_ms;
        let (mut without_slots, mut maybe_never) = (Vec::new(), Vec::new());
        let is_patient = self.is_patient();
        let mut lacking = None;
        for (region, at) in self.execution.regions.iter().enumerate() {
            let RegionPhase::Waiting { since_ms } = at.phase else {
                continue;
            };
            let from_ms = since_ms.max(self.patience.from_ms);
            if overdue(since_ms, timeout_ms) && self.is_preparing(region) {
                let cause = format!("what it reads could not be looked at within {timeout_ms} ms");
                without_slots.push((region, cause));
            } else if overdue(from_ms, timeout_ms) && !is_patient {
                let lacking = lacking.get_or_insert_with(|| self.lacking());
                let cause = format!(
                    "not enough slots within {timeout_ms} ms: {lacking}; start TaskManagers or lower the parallelism"
                );
                without_slots.push((region, cause));
            } else if overdue(since_ms, NEVER_SERVED_MS) {
                maybe_never.push(region);
            }
        }
        for (region, verdict) in self.never_served(&maybe_never) {
            let cause = format!("{verdict}; start a larger one or ask for less");
            without_slots.push((region, cause));
        }
        for (region, cause) in without_slots {
            self.failures.push(Failure::of_region(region, cause));
        }
    }

    /// A cancel is decided unless the job has durably finished. While a write is on its way, that is open.
    fn decide_cancel(&mut self) {
        if !self.cancel_is_requested {
            return;
        }
        let answer = if let Some(result) = &self.result {
            match result.status() {
                pb::JobStatus::Canceled => CancelAnswer::Decided,
                status => CancelAnswer::TooLate(format!("the job is {}", status_name(status))),
            }
        } else if self.written.wanted() == pb::WantedStatus::Canceled {
            CancelAnswer::Decided
        } else if self.writing.is_some() {
            return;
        } else if self.is_durable && self.all_have_durably_finished() {
            CancelAnswer::TooLate("all tasks of the job have finished".to_owned())
        } else if let Some(reason) = &self.refusal {
            CancelAnswer::Refused(reason.clone())
        } else {
            if self.record.wanted() != pb::WantedStatus::Canceled {
                Arc::make_mut(&mut self.record).set_wanted(pb::WantedStatus::Canceled);
                self.revision += 1;
                let (kind, text) = (pb::JobEventKind::Cancel, String::new());
                self.chronicle.tell(kind, text, self.settled_at_ms);
            }
            return;
        };
        self.cancel_is_requested = false;
        self.effects.push(Effect::AnswerCancels(answer));
    }

    /// Where executions are to end, those that no TaskManager has heard of have ended.
    fn stop_regions(&mut self, now_ms: u64) {
        let is_stopping = self.is_stopping();
        if !is_stopping && !self.execution.is_any_stopping() {
            return;
        }
        for region in 0..self.execution.regions.len() {
            if is_stopping {
                let phase = RegionPhase::Stopping {
                    restart_at_ms: None,
                };
                self.execution.set_phase(region, phase);
            }
            if !matches!(
                self.execution.regions[region].phase,
                RegionPhase::Stopping { .. }
            ) {
                continue;
            }
            for task in self.execution.regions[region].tasks.clone() {
                let execution = &self.execution.tasks[task].execution;
                if !execution.is_deployed() && !execution.is_ended() {
                    self.execution
                        .decide(task, ExecutionState::Canceled, now_ms);
                }
            }
        }
    }

    fn restart_regions(&mut self, now_ms: u64) {
        if !self.execution.is_any_stopping() {
            return;
        }
        let (mut may_start, mut given_up) = (Vec::new(), 0);
        for region in 0..self.execution.regions.len() {
            let RegionPhase::Stopping {
                restart_at_ms: Some(at_ms),
            } = self.execution.regions[region].phase
            else {
                continue;
            };
            given_up += 1;
            let is_durable =
                self.written.regions[region].generation == self.record.regions[region].generation;
            if !is_durable || self.is_held(region, now_ms) {
                continue;
            }
            if now_ms >= at_ms && self.execution.region_is_ended(region) {
                may_start.push(region);
            }
        }
        if self.options.failover_strategy == FailoverStrategy::Full && may_start.len() < given_up {
            // They begin together.
            return;
        }
        for region in may_start {
            for task in self.execution.regions[region].tasks.clone() {
                let key = self.execution.slot_key(task);
                if let Some(place) = self.execution.tasks[task].execution.place.take() {
                    self.pool
                        .remember(key, place.task_manager, place.allocation);
                }
            }
            self.renew_executions(region);
            let phase = RegionPhase::Waiting { since_ms: now_ms };
            self.execution.set_phase(region, phase);
        }
    }

    pub(super) fn all_have_durably_finished(&self) -> bool {
        let finished =
            |task| self.durable_ends.get(&task).copied() == Some(ExecutionState::Finished);
        (0..self.execution.tasks.len()).all(finished)
    }

    /// Ends the job, or makes visible what it wrote, where the durable record says so.
    fn finish(&mut self, now_ms: u64) {
        if self.writing.is_some() {
            return;
        }
        let is_canceled = self.written.wanted() == pb::WantedStatus::Canceled;
        let is_to_cancel = self.record.wanted() == pb::WantedStatus::Canceled;
        let all_have_ended = self.execution.count_ended() == self.execution.tasks.len();
        if self.is_durable && is_canceled {
            if all_have_ended || self.refusal.is_some() {
                self.end(pb::JobStatus::Canceled, String::new(), now_ms);
            }
        } else if self.is_durable
            && self.all_have_durably_finished()
            && self.record.fatal_cause.is_empty()
        {
            self.commit_sinks(now_ms);
        } else if let Some(reason) = self.refusal.clone() {
            let cause = format!("the job's state can't be persisted: {reason}");
            self.note_job_failure(cause.clone(), now_ms);
            self.end(pb::JobStatus::Failed, cause, now_ms);
        } else if self.is_durable
            && !is_to_cancel
            && !self.written.fatal_cause.is_empty()
            && all_have_ended
        {
            let cause = self.written.fatal_cause.clone();
            self.end(pb::JobStatus::Failed, cause, now_ms);
        }
    }

    fn commit_sinks(&mut self, now_ms: u64) {
        let retry_delay_ms = match self.commit {
            Commit::NotYet => COMMIT_RETRY_MS,
            Commit::RetryAt {
                at_ms,
                retry_delay_ms,
            } if at_ms <= now_ms => retry_delay_ms,
            Commit::Running { .. } | Commit::RetryAt { .. } => return,
            Commit::Done => return self.end(pb::JobStatus::Finished, String::new(), now_ms),
        };
        self.commit = Commit::Running { retry_delay_ms };
        let ends = self.written.terminal.iter();
        let committables = ends
            .flat_map(|end| end.committables.iter().cloned())
            .collect();
        self.effects.push(Effect::CommitSinks(committables));
    }

    fn end(&mut self, status: pb::JobStatus, cause: String, now_ms: u64) {
        self.note_status(now_ms);
        let result = self.result_of(status, cause, now_ms);
        self.effects.push(Effect::End(result.clone()));
        self.result = Some(result);
        self.refuse_asked();
        self.decide_cancel();
        self.decide_stop();
    }

    /// Ends of executions that the record does not have. Where only a restart follows, it never gets them.
    fn record_ends(&mut self) {
        if self.execution.count_ended() == 0 {
            return;
        }
        let is_stopping = self.is_stopping();
        for task in 0..self.execution.tasks.len() {
            let at = &self.execution.tasks[task];
            let execution = &at.execution;
            let is_of_record =
                self.record.regions[at.region].generation == execution.generation.get();
            let counts = is_stopping || execution.state == ExecutionState::Finished;
            if !execution.is_ended() || execution.is_recorded || !is_of_record || !counts {
                continue;
            }
            let end = pb::TerminalExecution {
                vertex_id: self.execution.vertex_of(task).id.to_string(),
                subtask: at.subtask,
                generation: execution.generation.get(),
                state: execution.state.into(),
                cause: execution.cause.clone(),
                committables: execution.committables.clone(),
                ended_at_ms: execution.ended_at_ms,
                initializing_at_ms: execution.entered_at_ms(ExecutionState::Initializing),
                running_at_ms: execution.entered_at_ms(ExecutionState::Running),
                canceling_at_ms: execution.entered_at_ms(ExecutionState::Canceling),
            };
            Arc::make_mut(&mut self.record).terminal.push(end);
            self.execution.tasks[task].execution.is_recorded = true;
            self.revision += 1;
        }
        self.forget_finished_coordinators();
    }
}

pub(super) fn status_name(status: pb::JobStatus) -> &'static str {
    status.as_str_name().trim_start_matches("JOB_STATUS_")
}
