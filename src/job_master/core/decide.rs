//! The part of the core that decides and acts, after each event and each deadline. It is a function of the
//! state alone, so that no result depends on the order of events.
//!
//! Decisions (restart, give up, cancel, place, record a terminal state) go into `record`; acts follow from
//! `written`.

use std::collections::BTreeMap;

use tanist_proto::id::ResourceId;
use tanist_proto::v1::ExecutionState;

use super::ending::Ending;
use super::execution_graph::RegionPhase;
use super::{Effect, Failure, JobMasterCore};

/// Time to wait for slots that no TaskManager could ever give. It keeps a restart strategy without delay from
/// looping.
pub(super) const NEVER_SERVED_MS: u64 = 1_000;

impl JobMasterCore {
    pub(super) fn decide(&mut self, now_ms: u64) {
        self.decided_at_ms = now_ms;
        if !self.end.has_ended() {
            self.judge(now_ms);
            self.give_up_overdue(now_ms);
            self.judge(now_ms);
        }
        self.end.check_commit_timeout(now_ms, &mut self.out);
        self.decide_end(now_ms);
        if self.end.has_ended() {
            return;
        }
        self.stop_regions(now_ms);
        self.restart_regions(now_ms);
        self.schedule(now_ms);
        self.note_rounds(now_ms);
        self.finish(now_ms);
        if !self.end.has_ended() {
            self.record_ends();
            self.coordinators
                .decide_requests(&mut self.record, &self.execution, &mut self.out);
            self.write(now_ms);
            self.coordinators.answer_requests(
                self.dirty.has_written,
                &self.record,
                &self.execution,
                &mut self.out,
            );
            self.deploy();
            self.cancel_tasks(now_ms);
            self.send_stop();
            self.release_outputs();
            self.acknowledge();
            self.profiles_needed = self.with_replacements(self.execution.profiles_needed());
            self.free_left_slots();
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
        self.move_regions(now_ms);
    }

    /// Handles timeouts: tasks that don't stop, TaskManagers that don't come back, slots that don't arrive.
    fn give_up_overdue(&mut self, now_ms: u64) {
        let overdue =
            |since_ms: u64, timeout_ms: u64| now_ms >= since_ms.saturating_add(timeout_ms);
        let timeout_ms = self.options.task_cancellation_timeout_ms;
        let mut stuck: BTreeMap<ResourceId, String> = BTreeMap::new();
        let canceling = self.execution.indexes.canceling_since.iter();
        for (_, task) in canceling.take_while(|(since_ms, _)| overdue(*since_ms, timeout_ms)) {
            if let Some(place) = &self.execution.tasks[*task].execution.place {
                stuck.insert(place.task_manager.clone(), self.execution.task_name(*task));
            }
        }
        for (id, task, since_ms) in self.task_managers.orphans().canceling() {
            if overdue(since_ms, timeout_ms) {
                stuck.insert(id.clone(), self.execution.task_name(task));
            }
        }
        for (task_manager, task) in stuck {
            let cause = format!("{task} did not stop within {timeout_ms} ms");
            let connection = self.task_managers.connection(&task_manager);
            let location = self.task_managers.location(&task_manager);
            if let Some((connection, location)) = connection.zip(location) {
                self.out.push(Effect::Disconnect {
                    connection,
                    location: location.clone(),
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
        self.give_up_waiting(now_ms);
    }

    /// Fails or marks regions that have waited for too long. They are sorted by waiting time, longest first,
    /// so the loop ends at the first one that has not waited long enough.
    fn give_up_waiting(&mut self, now_ms: u64) {
        let overdue =
            |since_ms: u64, timeout_ms: u64| now_ms >= since_ms.saturating_add(timeout_ms);
        let timeout_ms = self.options.slot_request_timeout_ms;
        let is_over = !self.will_free_slots() && overdue(self.slot_wait.from_ms, timeout_ms);
        let fails_from_ms = self.fails_from_ms();
        let fails = fails_from_ms.is_some_and(|from_ms| overdue(from_ms, timeout_ms));
        let is_any_preparing = self.coordinators.is_any_preparing();
        if !is_over && !is_any_preparing && self.unfulfillable.is_none() {
            return;
        }
        let (mut without_slots, mut maybe_never) = (Vec::new(), Vec::new());
        let mut lacking = None;
        let waiting = self.execution.indexes.waiting_since.iter();
        let bound_ms = match self.unfulfillable {
            Some(_) => timeout_ms.min(NEVER_SERVED_MS),
            None => timeout_ms,
        };
        let waiting = waiting.take_while(|(since_ms, _)| overdue(*since_ms, bound_ms));
        for (since_ms, region) in waiting.copied() {
            if overdue(since_ms, timeout_ms) && self.is_preparing(region) {
                let cause = format!("the files to read could not be listed within {timeout_ms} ms");
                without_slots.push((region, cause));
            } else if overdue(since_ms, timeout_ms) && is_over && !fails {
                // The cluster has room, or had it until recently, so the region goes on waiting, but it no
                // longer keeps slots from other jobs.
                self.slot_wait.starved.insert(region);
            } else if overdue(since_ms, timeout_ms) && is_over {
                let lacking = lacking.get_or_insert_with(|| self.lacking_with_advice());
                let cause = format!("not enough slots within {timeout_ms} ms: {lacking}");
                self.slot_wait.starved.insert(region);
                without_slots.push((region, cause));
            } else if overdue(since_ms, NEVER_SERVED_MS) {
                maybe_never.push(region);
            }
        }
        // Failures are reported in the order of regions.
        without_slots.sort_unstable_by_key(|(region, _)| *region);
        maybe_never.sort_unstable();
        let never_served = without_slots.len();
        for (region, verdict) in self.never_served(&maybe_never) {
            let cause = format!("{verdict}; start a larger one or ask for less");
            without_slots.push((region, cause));
        }
        let never_served = without_slots[never_served..].iter();
        let starved = &mut self.slot_wait.starved;
        starved.extend(never_served.map(|(region, _)| *region));
        for (region, cause) in without_slots {
            self.failures.push(Failure::of_region(region, cause));
        }
    }

    /// In regions that stop, marks executions CANCELED that were never deployed.
    fn stop_regions(&mut self, now_ms: u64) {
        if self.record.is_stopping()
            && self.execution.in_phase(RegionPhase::STOPPING).len() < self.execution.regions.len()
        {
            for region in 0..self.execution.regions.len() {
                self.execution.set_phase(region, RegionPhase::STOPPING);
            }
        }
        for region in std::mem::take(&mut self.execution.news.stopping) {
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
                        .decide(task, ExecutionState::Canceled, now_ms, &mut self.out);
                }
            }
        }
    }

    /// Restarts regions that were given up. Three conditions must hold: the give-up is durable, all
    /// executions have ended, and the backoff is over. The last one to be met triggers the check.
    fn restart_regions(&mut self, now_ms: u64) {
        let mut may_restart = std::mem::take(&mut self.execution.news.stopped);
        if self.dirty.has_written {
            may_restart.extend(self.execution.restarting().iter().copied());
        }
        let due = self.restarts_due_by(now_ms);
        may_restart.extend(due);
        let begin_together = self.begins_together();
        if begin_together && !may_restart.is_empty() {
            may_restart.clone_from(self.execution.restarting());
        }
        let mut may_start = Vec::new();
        for region in may_restart {
            let RegionPhase::Stopping {
                restart_at_ms: Some(at_ms),
            } = self.execution.regions[region].phase
            else {
                continue;
            };
            if !self.record.is_generation_durable(region) || self.is_held(region, now_ms) {
                continue;
            }
            if now_ms >= at_ms && self.execution.region_is_ended(region) {
                may_start.push(region);
            }
        }
        if begin_together && may_start.len() < self.execution.restarting().len() {
            return;
        }
        for region in may_start {
            self.renew_executions(region);
            let phase = RegionPhase::Waiting { since_ms: now_ms };
            self.execution.set_phase(region, phase);
        }
    }

    /// The regions whose backoff or hold has ended since the last call.
    fn restarts_due_by(&mut self, now_ms: u64) -> Vec<usize> {
        let before_ms = std::mem::replace(&mut self.looked_at.restarts_ms, now_ms);
        let (after, until) = ((before_ms, usize::MAX), (now_ms, usize::MAX));
        let mut due = Vec::new();
        if before_ms < now_ms {
            let over = self.execution.indexes.restarting_at.range(after..=until);
            due.extend(over.map(|(_, region)| *region));
        }
        let held = self.held_until.split_off(&(now_ms.saturating_add(1), 0));
        let released = std::mem::replace(&mut self.held_until, held);
        due.extend(released.into_iter().map(|(_, region)| region));
        due
    }

    /// Ends the job or commits its sinks, if the durable record says so.
    fn finish(&mut self, now_ms: u64) {
        if let Some((status, cause)) = self.ending(now_ms).finish() {
            self.note_status(now_ms);
            let result = self.result_of(status, cause, now_ms);
            self.out.push(Effect::End(result.clone()));
            self.end.end(result);
            self.coordinators.close(&mut self.out);
            self.decide_end(now_ms);
        }
    }

    /// Decides on requests to cancel or to stop the job.
    fn decide_end(&mut self, now_ms: u64) {
        let mut ending = self.ending(now_ms);
        ending.decide_cancel();
        ending.decide_stop();
    }

    pub(super) fn ending(&mut self, now_ms: u64) -> Ending<'_> {
        Ending {
            end: &mut self.end,
            record: &mut self.record,
            graph: &self.execution,
            events: &mut self.job_events,
            out: &mut self.out,
            now_ms,
        }
    }
}
