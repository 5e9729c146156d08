//! The part of the core that decides and acts, after each event and each deadline. It is a function of the
//! state alone, so that no result depends on the order of events.
//!
//! Decisions (restart, give up, cancel, place, record a terminal state) go into `record`; acts follow from
//! `written`.

use std::collections::BTreeMap;

use tanist_proto::id::ResourceId;

use super::ending::Ending;
use super::eviction::Eviction;
use super::region_failover::RegionFailover;
use super::region_restart::RegionRestart;
use super::scheduling::Scheduler;
use super::slot_needs::SlotNeeds;
use super::{Effect, JobMasterCore};

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
        let mut scheduler = self.scheduler(now_ms);
        scheduler.schedule(has_written);
        scheduler.note_heads();
        self.finish(now_ms);
        if !self.end.has_ended() {
            self.record_ends();
            self.coordinators
                .decide_requests(&mut self.record, &self.graph, &mut self.out);
            self.write(now_ms);
            self.coordinators.answer_requests(
                self.dirty.has_written,
                &self.record,
                &self.graph,
                &mut self.out,
            );
            self.deploy();
            self.cancel_tasks(now_ms);
            self.send_stop();
            self.release_outputs();
            self.acknowledge();
            let is_reconciling = self.is_reconciling();
            let mut scheduler = self.scheduler(now_ms);
            scheduler.update_needed();
            scheduler.free_left_slots(is_reconciling);
            scheduler.free_idle_slots(is_reconciling);
            scheduler.declare(is_reconciling);
        }
        self.note_status(now_ms);
    }

    fn handle_failures(&mut self, now_ms: u64) {
        let mut failover = self.region_failover(now_ms);
        failover.decide_failures();
        failover.restart_missing();
        self.adopt_regions(now_ms);
        self.region_failover(now_ms).restart_lost();
        self.eviction(now_ms).move_regions();
    }

    /// Handles timeouts: tasks that don't stop, TaskManagers that don't come back, slots that don't arrive.
    fn give_up_overdue(&mut self, now_ms: u64) {
        let overdue =
            |since_ms: u64, timeout_ms: u64| now_ms >= since_ms.saturating_add(timeout_ms);
        let timeout_ms = self.options.task_cancellation_timeout_ms;
        let mut stuck: BTreeMap<ResourceId, String> = BTreeMap::new();
        let canceling = self.graph.indexes().canceling_since.iter();
        for (_, task) in canceling.take_while(|(since_ms, _)| overdue(*since_ms, timeout_ms)) {
            if let Some(place) = &self.graph.execution(*task).place {
                stuck.insert(place.task_manager.clone(), self.graph.task_name(*task));
            }
        }
        for (id, task, since_ms) in self.task_managers.orphans().canceling() {
            if overdue(since_ms, timeout_ms) {
                stuck.insert(id.clone(), self.graph.task_name(task));
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
            for task in self.graph.live_on(&task_manager) {
                self.graph.doubt_end(task);
                self.note_gone(task, &cause, now_ms);
            }
        }
        self.give_up_awaited_overdue(now_ms);
        if self.is_reconciling() {
            return;
        }
        self.scheduler(now_ms).give_up_waiting();
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
            graph: &self.graph,
            events: &mut self.job_events,
            out: &mut self.out,
            now_ms,
        }
    }

    pub(super) fn region_failover(&mut self, now_ms: u64) -> RegionFailover<'_> {
        self.eviction(now_ms).failover
    }

    pub(super) fn region_restart(&mut self, now_ms: u64) -> RegionRestart<'_> {
        RegionRestart {
            failover: &mut self.failover,
            graph: &mut self.graph,
            record: &self.record,
            slots: &mut self.slots,
            task_managers: &self.task_managers,
            out: &mut self.out,
            now_ms,
        }
    }

    pub(super) fn eviction(&mut self, now_ms: u64) -> Eviction<'_> {
        Eviction {
            moves: &mut self.moves,
            task_managers: &self.task_managers,
            failover: RegionFailover {
                failover: &mut self.failover,
                graph: &mut self.graph,
                record: &mut self.record,
                coordinators: &mut self.coordinators,
                slots: &mut self.slots,
                reconciliation: &mut self.reconciliation,
                events: &mut self.job_events,
                out: &mut self.out,
                turn: self.turn,
                now_ms,
            },
        }
    }

    fn scheduler(&mut self, now_ms: u64) -> Scheduler<'_> {
        Scheduler {
            graph: &mut self.graph,
            slots: &mut self.slots,
            record: &mut self.record,
            failover: &mut self.failover,
            coordinators: &mut self.coordinators,
            task_managers: &self.task_managers,
            moves: &self.moves,
            out: &mut self.out,
            now_ms,
        }
    }

    pub(super) fn slot_needs(&self) -> SlotNeeds<'_> {
        SlotNeeds {
            graph: &self.graph,
            slots: &self.slots,
            record: &self.record,
            coordinators: &self.coordinators,
            task_managers: &self.task_managers,
            moves: &self.moves,
            now_ms: self.decided_at_ms,
        }
    }
}
