//! The part of the core that decides and acts, after each event and each deadline. It is a function of the
//! state alone, so that no result depends on the order of events.
//!
//! Decisions (restart, give up, cancel, place, record a terminal state) go into `record`; acts follow from
//! `written`.

use std::collections::BTreeMap;

use tanist_proto::id::ResourceId;

use super::ending::Ending;
use super::region_failover::RegionFailover;
use super::region_restart::RegionRestart;
use super::{Effect, Failure, JobMasterCore};

/// Time to wait for slots that no TaskManager could ever give. It keeps a restart strategy without delay from
/// looping.
pub(super) const NEVER_SERVED_MS: u64 = 1_000;

impl JobMasterCore {
    pub(super) fn decide(&mut self, now_ms: u64) {
        self.decided_at_ms = now_ms;
        if !self.end.has_ended() {
            self.handle_failures(now_ms);
            self.give_up_overdue(now_ms);
            self.handle_failures(now_ms);
        }
        self.end.check_commit_timeout(now_ms, &mut self.out);
        self.decide_end(now_ms);
        if self.end.has_ended() {
            return;
        }
        let has_written = self.dirty.has_written;
        let mut restart = self.region_restart(now_ms);
        restart.stop_regions();
        restart.restart_regions(has_written);
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

    fn handle_failures(&mut self, now_ms: u64) {
        let mut failover = self.region_failover(now_ms);
        failover.decide_failures();
        failover.restart_missing();
        self.adopt_regions(now_ms);
        self.region_failover(now_ms).restart_lost();
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
                self.execution.doubt_end(task);
                self.note_gone(task, &cause, now_ms);
            }
        }
        self.give_up_awaited_overdue(now_ms);
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
            self.failover.report(Failure::of_region(region, cause));
        }
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

    pub(super) fn region_failover(&mut self, now_ms: u64) -> RegionFailover<'_> {
        RegionFailover {
            failover: &mut self.failover,
            graph: &mut self.execution,
            record: &mut self.record,
            coordinators: &mut self.coordinators,
            adopted_slots: &mut self.adopted_slots,
            reconciliation: &mut self.reconciliation,
            events: &mut self.job_events,
            out: &mut self.out,
            turn: self.turn,
            now_ms,
        }
    }

    pub(super) fn region_restart(&mut self, now_ms: u64) -> RegionRestart<'_> {
        RegionRestart {
            failover: &mut self.failover,
            graph: &mut self.execution,
            record: &self.record,
            pool: &mut self.pool,
            task_managers: &self.task_managers,
            out: &mut self.out,
            now_ms,
        }
    }
}
