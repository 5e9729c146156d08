//! Applies what TaskManagers report about executions and slots.
//!
//! An execution that is deployed according to this state and missing in a full report has failed. One that is
//! reported and not wanted becomes an *orphan*; it is cancelled up to its generation once the record says
//! that it is not wanted. A full report may be older than the state it is compared with: it counts against an
//! execution or a slot only if it was requested after the TaskManager was known to have it.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::checkpointing::task_end;
use super::coordinator::Coordinators;
use super::dirty::Dirty;
use super::durable_record::DurableRecord;
use super::execution_graph::execution::is_terminal;
use super::execution_graph::{ExecutionGraph, RegionPhase};
use super::failover::{Failover, Failure};
use super::moves::Moves;
use super::output::Output;
use super::reconciling::Reconciliation;
use super::slots::Slots;
use super::task_managers::TaskManagers;
use super::{CoreOptions, Effect, LogLine, checkpoints};

/// Borrows what the reports of TaskManagers change.
pub(super) struct Reports<'a> {
    pub(super) options: &'a CoreOptions,
    pub(super) graph: &'a mut ExecutionGraph,
    pub(super) record: &'a mut DurableRecord,
    pub(super) task_managers: &'a mut TaskManagers,
    pub(super) slots: &'a mut Slots,
    pub(super) coordinators: &'a mut Coordinators,
    pub(super) failover: &'a mut Failover,
    pub(super) reconciliation: &'a mut Reconciliation,
    pub(super) dirty: &'a mut Dirty,
    pub(super) moves: &'a Moves,
    pub(super) out: &'a mut Output,
    /// Whether the job has ended.
    pub(super) has_ended: bool,
    /// The step of the core.
    pub(super) turn: u64,
    pub(super) now_ms: u64,
}

impl Reports<'_> {
    /// Gives up TaskManagers on which tasks don't stop within their timeout.
    pub(super) fn give_up_stuck(&mut self) {
        let overdue =
            |since_ms: u64, timeout_ms: u64| self.now_ms >= since_ms.saturating_add(timeout_ms);
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
            self.lose_task_manager(&task_manager, &cause);
            for task in self.graph.live_on(&task_manager) {
                self.graph.doubt_end(task);
                self.note_gone(task, &cause);
            }
        }
    }

    /// Applies reports of changed executions.
    pub(super) fn apply_reports(
        &mut self,
        task_manager: &ResourceId,
        reports: &[pb::ExecutionReport],
    ) {
        for report in reports {
            let Some(task) = self.graph.find(&report.vertex_id, report.subtask) else {
                self.out.log(LogLine::UnknownTask {
                    task_manager: task_manager.clone(),
                    vertex: report.vertex_id.clone(),
                });
                continue;
            };
            let execution = self.graph.execution(task);
            // An execution that was given up with its TaskManager and is still alive is an orphan.
            let is_given_up = execution.is_ended() && execution.state != ExecutionState::Finished;
            let is_present = execution.generation.get() == report.generation
                && execution.is_on(task_manager)
                && !is_given_up;
            let key = (task, report.generation);
            if is_terminal(report.state()) && self.task_managers.report_end(task_manager, key) {
                self.dirty
                    .report_end(task_manager.clone(), task, report.generation);
            }
            if is_present {
                self.apply_report(task, report);
            } else {
                self.apply_orphan_report(task_manager, key, report);
            }
        }
    }

    fn apply_report(&mut self, task: usize, report: &pb::ExecutionReport) {
        let execution = self.graph.execution(task);
        if execution.is_ended() || !execution.is_deployed() {
            return;
        }
        let is_awaited = execution.state == ExecutionState::Reconciling;
        if self.graph.note_report(task, report, self.turn, self.now_ms) {
            self.dirty.recheck_cancellation(task);
        }
        match report.state() {
            ExecutionState::Finished => {
                if self.graph.finish(task, report, self.now_ms) {
                    self.tell_ended(task, report);
                    self.note_output(task);
                }
            }
            // The state that it is restored from is damaged: no attempt can restore it, and an older checkpoint would
            // make output visible twice. So the job is quarantined, and its record stays as it is. An awaited execution
            // may have failed before an operator repaired the state: it is restarted, and fails again if the state is
            // still damaged.
            ExecutionState::Failed if !report.damaged_state.is_empty() && !is_awaited => {
                let (task, damage) = (self.graph.task_name(task), &report.damaged_state);
                self.out
                    .push(Effect::Quarantine(format!("{task}: {damage}")));
            }
            ExecutionState::Failed => {
                if let Some(unreadable) = &report.unreadable {
                    self.graph.note_unreadable(unreadable, &report.cause);
                }
                let cause = if report.cause.is_empty() {
                    "it failed"
                } else {
                    &report.cause
                };
                if !self.is_to_stop(task) {
                    let region = self.graph.task(task).region;
                    self.coordinators.note_failed_by_itself(region, self.graph);
                }
                if report.unrecoverable {
                    self.fail_for_good(task, cause);
                } else {
                    self.fail_task(task, cause, report.lost_peer);
                }
            }
            ExecutionState::Canceled => {
                let cause = if report.cause.is_empty() {
                    "its TaskManager cancelled it"
                } else {
                    &report.cause
                };
                self.note_gone(task, cause);
            }
            state @ (ExecutionState::Deploying
            | ExecutionState::Initializing
            | ExecutionState::Running) => {
                self.graph.advance(task, state, self.now_ms);
            }
            ExecutionState::Canceling => {
                // Its TaskManager decided that while there was no leader: it is not adopted.
                if is_awaited {
                    self.graph
                        .advance(task, ExecutionState::Canceling, self.now_ms);
                    self.reconciliation.report_missing(
                        self.graph,
                        task,
                        "its TaskManager is cancelling it",
                    );
                }
            }
            ExecutionState::Created | ExecutionState::Scheduled | ExecutionState::Reconciling => {}
        }
    }

    fn apply_orphan_report(
        &mut self,
        task_manager: &ResourceId,
        key: (usize, u64),
        report: &pb::ExecutionReport,
    ) {
        if is_terminal(report.state()) {
            self.task_managers.end_orphan(task_manager, key);
        } else {
            self.task_managers
                .report_orphan(task_manager, key, report, self.turn, self.now_ms);
        }
    }

    /// Applies the full report in the answer to a heartbeat that was sent in step `requested_in`.
    pub(super) fn reconcile(
        &mut self,
        task_manager: &ResourceId,
        requested_in: u64,
        reports: &[pb::ExecutionReport],
    ) {
        self.apply_reports(task_manager, reports);
        let reported = self.reported(reports);
        for task in self.graph.live_on(task_manager) {
            if self.graph.retry_cancellation(task) {
                self.dirty.recheck_cancellation(task);
            }
            let execution = self.graph.execution(task);
            let generation = execution.generation.get();
            let is_missing = execution.is_deployed() && !reported.contains(&(task, generation));
            if is_missing
                && execution
                    .known_since
                    .is_some_and(|since| since <= requested_in)
            {
                self.note_gone(task, "its TaskManager doesn't have it any more");
            }
        }
        self.task_managers
            .retain_orphans(task_manager, &reported, requested_in);
    }

    /// Applies the full report of a registration. Executions that are not in it are gone: the TaskManager
    /// refuses earlier messages.
    pub(super) fn reconcile_all(
        &mut self,
        task_manager: &ResourceId,
        reports: &[pb::ExecutionReport],
    ) {
        let incarnation = self
            .task_managers
            .location(task_manager)
            .map(|it| it.incarnation.clone());
        for task in self.graph.live_on(task_manager) {
            let execution = self.graph.execution(task);
            let place = execution.place.as_ref();
            let is_here = place.map(|place| &place.location.incarnation) == incarnation.as_ref();
            if execution.is_deployed() && !is_here {
                self.graph.doubt_end(task);
                self.note_gone(task, "its TaskManager was restarted");
            }
        }
        self.apply_reports(task_manager, reports);
        let reported = self.reported(reports);
        for task in self.graph.live_on(task_manager) {
            if !self.graph.execution(task).is_deployed() {
                continue;
            }
            // A cancellation that was sent under the former registration may have been refused.
            if self.graph.resend_cancellation(task) {
                self.dirty.recheck_cancellation(task);
            }
            let execution = self.graph.execution(task);
            if reported.contains(&(task, execution.generation.get())) {
                continue;
            }
            let cause = "its TaskManager connected again without it";
            match (execution.known_since, execution.state) {
                (None, ExecutionState::Deploying) => self.note_never_started(task, cause),
                _ => self.note_gone(task, cause),
            }
        }
        self.task_managers.register_orphans(task_manager, &reported);
    }

    fn reported(&self, reports: &[pb::ExecutionReport]) -> BTreeSet<(usize, u64)> {
        let find = |report: &pb::ExecutionReport| {
            let task = self.graph.find(&report.vertex_id, report.subtask)?;
            Some((task, report.generation))
        };
        reports.iter().filter_map(find).collect()
    }

    /// Applies the list of slots that a TaskManager holds for the job: held slots that are not in it are
    /// lost.
    pub(super) fn reconcile_slots(
        &mut self,
        task_manager: &ResourceId,
        requested_in: u64,
        allocations: &[AllocationId],
    ) {
        for allocation in self.slots.pool().slots_of(task_manager) {
            let held = self.slots.pool().get(&allocation);
            let is_older = held.is_some_and(|slot| slot.accepted_in <= requested_in);
            if is_older && !allocations.contains(&allocation) {
                self.lose_slot(&allocation, "its TaskManager freed it");
            }
        }
    }

    /// Removes a slot that its TaskManager lost.
    pub(super) fn fail_offered_slot(
        &mut self,
        task_manager: &ResourceId,
        allocation: &AllocationId,
        cause: &str,
    ) {
        let held = self.slots.pool().get(allocation);
        if held.is_some_and(|slot| slot.task_manager == *task_manager) {
            self.lose_slot(allocation, cause);
        }
    }

    pub(super) fn lose_slot(&mut self, allocation: &AllocationId, cause: &str) {
        if let Some(slot) = self.slots.remove(allocation) {
            self.fail_slot(&slot.task_manager, allocation, cause);
        }
    }

    /// Fails the executions in a slot that is lost.
    pub(super) fn fail_slot(
        &mut self,
        task_manager: &ResourceId,
        allocation: &AllocationId,
        cause: &str,
    ) {
        for task in self.graph.live_on(task_manager) {
            let execution = self.graph.execution(task);
            let is_in_it = execution
                .place
                .as_ref()
                .is_some_and(|place| place.allocation == *allocation);
            if !is_in_it {
                continue;
            }
            let cause = format!("slot {allocation} was lost: {cause}");
            match execution.is_deployed() {
                true => {
                    self.graph.doubt_end(task);
                    self.note_gone(task, &cause);
                }
                false => self.note_never_started(task, &cause),
            }
        }
    }

    /// Removes a TaskManager: its slots are lost, and its executions have failed but may still run.
    pub(super) fn lose_task_manager(&mut self, task_manager: &ResourceId, cause: &str) {
        if self.task_managers.is_registered(task_manager) {
            for task in self.graph.live_on(task_manager) {
                self.graph.doubt_end(task);
            }
        }
        self.let_task_manager_go(task_manager, cause);
    }

    /// Removes a TaskManager on which nothing of the job runs any more.
    pub(super) fn let_task_manager_go(&mut self, task_manager: &ResourceId, cause: &str) {
        let Some(location) = self.task_managers.remove(task_manager) else {
            return;
        };
        self.out.log(LogLine::TaskManagerLost {
            task_manager: task_manager.clone(),
            cause: cause.to_owned(),
        });
        self.slots.remove_all_of(task_manager);
        let address = &location.rpc_address;
        let cause = format!("TaskManager {task_manager} ({address}) was lost: {cause}");
        let lost = self.graph.live_on(task_manager);
        self.note_lost_tasks(&lost, &cause);
        for task in lost {
            self.note_gone(task, &cause);
        }
        let there = self.graph.tasks_on(task_manager);
        self.graph.lose_outputs(there, |_| true, &cause);
    }

    /// Whether an execution is supposed to end.
    fn is_to_stop(&self, task: usize) -> bool {
        let region = self.graph.region(self.graph.task(task).region);
        self.record.is_stopping() || matches!(region.phase, RegionPhase::Stopping { .. })
    }

    /// Notes that an execution does not run any more, or is assumed not to: it is canceled if it was to stop,
    /// else failed. If it was awaited, it failed while there was no leader, and the restart strategy does not
    /// count that.
    pub(super) fn note_gone(&mut self, task: usize, cause: &str) {
        if self.is_to_stop(task) {
            self.graph
                .advance(task, ExecutionState::Canceled, self.now_ms);
        } else if self.graph.execution(task).state == ExecutionState::Reconciling {
            self.graph.fail(task, cause, self.now_ms);
            self.reconciliation.report_missing(self.graph, task, cause);
        } else {
            self.fail_task(task, cause, false);
        }
    }

    /// Notes that an execution never started and never will: it was not sent to its TaskManager, or only under a
    /// registration that was over. Nothing has failed: its region is placed again, and the restart strategy does not
    /// count that.
    fn note_never_started(&mut self, task: usize, cause: &str) {
        self.graph.forget_start(task);
        if self.is_to_stop(task) {
            self.graph
                .advance(task, ExecutionState::Canceled, self.now_ms);
        } else if self.graph.fail(task, cause, self.now_ms) {
            let failure = Failure {
                is_counted: false,
                ..Failure::of_task(self.graph, task, format!("it was never started: {cause}"))
            };
            self.failover.report(failure);
        }
    }

    /// Notes that an execution has failed. `is_consequence`: it only lost another one.
    fn fail_task(&mut self, task: usize, cause: &str, is_consequence: bool) {
        let is_to_stop = self.is_to_stop(task);
        if self.graph.fail(task, cause, self.now_ms) {
            let failure = Failure {
                is_consequence,
                ..Failure::of_task(self.graph, task, cause.to_owned())
            };
            if is_to_stop {
                self.record.note_concurrent(failure, self.now_ms);
            } else {
                self.failover.report(failure);
            }
        }
    }

    /// Records the loss of a TaskManager as the cause of restarts that are under way: other tasks of these regions have
    /// lost their connections to its tasks, and their reports arrived first.
    fn note_lost_tasks(&mut self, lost: &[usize], cause: &str) {
        for task in lost {
            let phase = self.graph.region(self.graph.task(*task).region).phase;
            let restarts = matches!(phase, RegionPhase::Stopping { restart_at_ms: Some(at_ms) }
                if !self.moves.is_of_move(at_ms));
            if restarts && !self.record.is_stopping() {
                let failure = Failure::of_task(self.graph, *task, cause.to_owned());
                self.record.note_cause(failure, self.now_ms);
            }
        }
    }

    /// Notes that an execution has failed for a reason that no restart can fix. That counts even if its
    /// region is about to restart: other tasks fail because of this one, and their reports may arrive first.
    fn fail_for_good(&mut self, task: usize, cause: &str) {
        if self.graph.fail(task, cause, self.now_ms) && !self.record.is_stopping() {
            let failure = Failure {
                is_unrecoverable: true,
                ..Failure::of_task(self.graph, task, cause.to_owned())
            };
            self.failover.report(failure);
        }
    }

    /// Tells the checkpoints that a task has finished.
    fn tell_ended(&mut self, task: usize, report: &pb::ExecutionReport) {
        let place = self.graph.execution(task).place.as_ref();
        let connection = place.and_then(|place| self.task_managers.connection(&place.task_manager));
        if let Some(connection) = connection {
            self.out.tell(checkpoints::Event::TaskEnded {
                connection,
                task,
                generation: report.generation,
                end: task_end(
                    report.highest_checkpoint,
                    &report.checkpoint_committables,
                    &report.committables,
                ),
            });
        }
    }

    /// Notes that a region has failed: more of its checkpoints failed than are tolerated.
    pub(super) fn fail_region(&mut self, region: usize, cause: String) {
        let runs = self.graph.region(region).phase == RegionPhase::Deployed;
        if runs && !self.record.is_stopping() && !self.graph.region_is_ended(region) {
            self.failover.report(Failure::of_region(region, cause));
        }
    }

    /// Notes that the region of a task has failed because of that task.
    pub(super) fn fail_region_of(&mut self, task: usize, cause: String) {
        if self.is_to_stop(task) {
            return;
        }
        let failure = Failure::of_task(self.graph, task, cause);
        self.failover.report(failure);
    }
}
