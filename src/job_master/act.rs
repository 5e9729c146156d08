//! The part of the core that acts: writes the record, and does what the durable record says. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::core::{Commit, JobMasterCore, Write};
use super::deployment::{execution_id, task_deployment};
use super::event::{Connection, Effect, Milestone, Needs};
use super::execution::Cancellation;
use super::execution_graph::{RegionPhase, Task};
use super::settle::NEVER_SERVED_MS;

impl JobMasterCore {
    pub(super) fn write(&mut self, now_ms: u64) {
        let is_written = self.revision == self.written_revision;
        if self.writing.is_some() || is_written || self.refusal.is_some() {
            return;
        }
        self.forget_stale_ends();
        let mut milestones = Vec::new();
        let is_to_cancel = self.record.wanted() == pb::WantedStatus::Canceled;
        if is_to_cancel && self.written.wanted() != pb::WantedStatus::Canceled {
            milestones.push(Milestone::CancelDecided);
        }
        let is_to_stop = self.record.wanted() == pb::WantedStatus::Stopped;
        if is_to_stop && self.written.wanted() != pb::WantedStatus::Stopped {
            milestones.push(Milestone::StopDecided);
        }
        if !self.record.fatal_cause.is_empty() && self.written.fatal_cause.is_empty() {
            milestones.push(Milestone::FailureDecided);
        }
        let mut regions = self.record.regions.iter().zip(&self.written.regions);
        if regions.any(|(region, before)| !region.placements.is_empty() && region != before) {
            milestones.push(Milestone::GenerationPlaced);
        }
        if self.take_decided() {
            milestones.push(Milestone::CoordinatorDecided);
        }
        let has_finished = |task: &Task| {
            task.execution.state == ExecutionState::Finished && task.execution.is_recorded
        };
        if !is_to_cancel
            && self.execution.tasks.iter().all(has_finished)
            && !self.all_have_durably_finished()
        {
            milestones.push(Milestone::AllFinished);
        }
        self.record_statuses(now_ms);
        self.last_write += 1;
        let (number, revision, state) = (self.last_write, self.revision, self.record.clone());
        self.effects.push(Effect::Persist {
            number,
            state: state.clone(),
            milestones,
        });
        self.writing = Some(Write {
            number,
            revision,
            state,
        });
    }

    /// Deploys regions whose placement is durable and of this term.
    pub(super) fn deploy(&mut self) {
        if !self.execution.is_any(RegionPhase::Placed) {
            return;
        }
        for region in 0..self.execution.regions.len() {
            let durable = &self.written.regions[region];
            if self.execution.regions[region].phase != RegionPhase::Placed
                || *durable != self.record.regions[region]
                || durable.placements.is_empty()
                || durable.epoch != self.epoch.get()
            {
                continue;
            }
            let mut by_task_manager: BTreeMap<ResourceId, Vec<usize>> = BTreeMap::new();
            // The time that the record has: whoever leads next shows the same.
            let placed_at_ms = durable.placed_at_ms;
            for task in self.execution.regions[region].tasks.clone() {
                self.execution
                    .decide(task, ExecutionState::Deploying, placed_at_ms);
                let execution = &mut self.execution.tasks[task].execution;
                execution.started_at_ms = placed_at_ms;
                if let Some(place) = &execution.place {
                    by_task_manager
                        .entry(place.task_manager.clone())
                        .or_default()
                        .push(task);
                }
            }
            self.execution.set_phase(region, RegionPhase::Deployed);
            for (task_manager, tasks) in by_task_manager {
                let tasks = tasks
                    .iter()
                    .map(|task| task_deployment(&self.execution, *task));
                let tasks = tasks.collect();
                if let Some(connection) = self.connection(&task_manager) {
                    self.effects.push(Effect::Deploy { connection, tasks });
                }
            }
        }
    }

    /// Cancels what the durable record does not want, wherever it is.
    pub(super) fn cancel_tasks(&mut self, now_ms: u64) {
        if !self.is_durable {
            return;
        }
        let is_over = self.written.wanted() == pb::WantedStatus::Canceled
            || !self.written.fatal_cause.is_empty();
        let mut cancellations: BTreeMap<ResourceId, Vec<pb::TaskCancellation>> = BTreeMap::new();
        // What is given up is to stop, whether it starts anew or not.
        let is_any_unwanted = is_over || self.execution.is_any_stopping();
        let regions = self.execution.regions.iter().zip(&self.written.regions);
        let unwanted: Vec<usize> = regions
            .filter(|_| is_any_unwanted)
            .filter(|(region, durable)| {
                // A region's executions have one generation.
                let first = region
                    .tasks
                    .first()
                    .map(|task| &self.execution.tasks[*task]);
                let generation = first.map(|task| task.execution.generation.get());
                is_over || generation.is_some_and(|generation| durable.generation > generation)
            })
            .flat_map(|(region, _)| region.tasks.iter().copied())
            .collect();
        for task in unwanted {
            let at = &self.execution.tasks[task];
            if !at.execution.is_deployed() {
                continue;
            }
            let generation = at.execution.generation.get();
            let Some(place) = at.execution.place.clone() else {
                continue;
            };
            let can_be_told = self.task_managers.contains_key(&place.task_manager);
            if !can_be_told || at.execution.cancellation != Cancellation::NotAsked {
                continue;
            }
            let id = execution_id(&self.execution, task, generation);
            cancellations
                .entry(place.task_manager)
                .or_default()
                .push(cancellation(id));
            if self.execution.tasks[task].execution.state != ExecutionState::Canceling {
                self.execution
                    .decide(task, ExecutionState::Canceling, now_ms);
            }
            self.execution.tasks[task].execution.cancellation = Cancellation::Asked;
        }
        for (task_manager, known) in &mut self.task_managers {
            for ((task, generation), stray) in &mut known.strays {
                let number = self.execution.tasks[*task].region;
                let region = &self.written.regions[number];
                let at = self.execution.regions[number].tasks.binary_search(task);
                let id = execution_id(&self.execution, *task, *generation);
                // A generation above the durable one is unheard of; nothing says that it is unwanted.
                let is_unwanted = *generation < region.generation
                    || *generation == region.generation
                        && (is_over || !is_placed_on(region, at.ok(), &id, &known.location));
                if stray.cancellation != Cancellation::NotAsked || !is_unwanted {
                    continue;
                }
                cancellations
                    .entry(task_manager.clone())
                    .or_default()
                    .push(cancellation(id));
                stray.cancellation = Cancellation::Asked;
                stray.canceling_since_ms = now_ms;
            }
        }
        for (task_manager, tasks) in cancellations {
            if let Some(connection) = self.connection(&task_manager) {
                self.effects.push(Effect::Cancel { connection, tasks });
            }
        }
    }

    /// Acknowledges ends that the durable record has, or whose generation it has replaced.
    pub(super) fn acknowledge(&mut self) {
        if !self.is_durable {
            return;
        }
        let mut acknowledged = Vec::new();
        for (task_manager, known) in &mut self.task_managers {
            let mut executions = Vec::new();
            known.unacknowledged.retain(|(task, generation)| {
                let durable = self.written.regions[self.execution.tasks[*task].region].generation;
                let is_recorded = durable == *generation && self.durable_ends.contains_key(task);
                let is_replaced = durable > *generation;
                if is_recorded || is_replaced {
                    executions.push(execution_id(&self.execution, *task, *generation));
                }
                !(is_recorded || is_replaced)
            });
            if !executions.is_empty() {
                let task_manager = task_manager.clone();
                let connection = Connection {
                    task_manager,
                    registration: known.registration,
                };
                acknowledged.push(Effect::Acknowledge {
                    connection,
                    executions,
                });
            }
        }
        self.effects.append(&mut acknowledged);
    }

    /// Gives back what idles and is more than the job needs. What a slot's tasks ended with is durable by then.
    pub(super) fn free_idle_slots(&mut self, now_ms: u64) {
        let worth_keeping = self.worth_keeping();
        if !self.pool.has_surplus(&worth_keeping)
            || self.is_stopping()
            || self.is_reconciling()
            || !self.is_durable
            || self.collecting_until_ms().is_some()
        {
            self.pool.forget_idle();
            return;
        }
        let mut used: BTreeSet<AllocationId> = self.taken_slots().into_values().collect();
        used.append(&mut self.blocked_slots());
        for (task, at) in self.execution.tasks.iter().enumerate() {
            if let Some(place) = &at.execution.place
                && !self.durable_ends.contains_key(&task)
            {
                used.insert(place.allocation);
            }
        }
        if self.has_more_slots() {
            self.pool.forget_idle();
        }
        let idle = self
            .pool
            .note_idle(&used, now_ms, self.options.slot_idle_timeout_ms);
        let idle = self.pool.surplus(idle, &worth_keeping);
        let mut freed: BTreeMap<ResourceId, Vec<AllocationId>> = BTreeMap::new();
        for allocation in idle {
            if let Some(slot) = self.pool.remove(&allocation) {
                freed.entry(slot.task_manager).or_default().push(allocation);
            }
        }
        for (task_manager, allocations) in freed {
            if let Some(connection) = self.connection(&task_manager) {
                let cause = "the job doesn't need it".to_owned();
                self.effects.push(Effect::FreeSlots {
                    connection,
                    allocations,
                    cause,
                });
            }
        }
    }

    /// States what is needed when that has changed. A job that stops keeps what it has until its result is written; one
    /// that reconciles does not know yet what it has.
    pub(super) fn declare(&mut self) {
        if self.is_reconciling() {
            return;
        }
        let (slots, at_once) = if self.is_stopping() {
            let declared = self.declared.as_ref();
            let mut slots = declared.map(|it| it.slots.clone()).unwrap_or_default();
            for (profile, number) in &mut slots {
                *number = self.pool.count_for(profile).min(*number);
            }
            slots.retain(|(_, number)| *number > 0);
            (slots.clone(), slots)
        } else {
            (self.profiles_needed.clone(), self.needed_at_once())
        };
        let held = Arc::new(self.adopted_slots());
        let needs = Needs {
            slots,
            at_once,
            held,
        };
        if self.declared.as_deref() != Some(&needs) {
            let needs = Arc::new(needs);
            self.declared = Some(needs.clone());
            self.effects.push(Effect::Declare(needs));
        }
    }

    fn connection(&self, task_manager: &ResourceId) -> Option<Connection> {
        let registration = self.task_managers.get(task_manager)?.registration;
        Some(Connection {
            task_manager: task_manager.clone(),
            registration,
        })
    }

    /// When [`super::event::Event::TimePassed`] may have something to change, in milliseconds since 1970. What was due
    /// at the last event and is still open waits for another event, not for time.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        if self.result.is_some() {
            return None;
        }
        let options = &self.options;
        let is_reconciling = self.is_reconciling();
        let mut deadlines = Vec::new();
        let is_patient = self.is_patient();
        let is_any_due = self.execution.is_any_waiting() || self.execution.is_any_stopping();
        let regions = self.execution.regions.iter().enumerate();
        for (number, region) in regions.filter(|_| is_any_due) {
            match region.phase {
                RegionPhase::Waiting { since_ms } if !is_reconciling => {
                    if !is_patient {
                        let since_ms = since_ms.max(self.patience.from_ms);
                        deadlines.push(since_ms.saturating_add(options.slot_request_timeout_ms));
                    }
                    if self.unfulfillable.is_some() {
                        deadlines.push(since_ms.saturating_add(NEVER_SERVED_MS));
                    }
                }
                RegionPhase::Stopping { restart_at_ms } => {
                    deadlines.extend(restart_at_ms);
                    deadlines.extend(restart_at_ms.and_then(|_| self.held_until_ms(number)));
                }
                RegionPhase::AwaitingInput
                | RegionPhase::Waiting { .. }
                | RegionPhase::Reconciling
                | RegionPhase::Placed
                | RegionPhase::Deployed => {}
            }
        }
        if !is_reconciling {
            deadlines.extend(self.next_turn_ms());
        }
        let is_any_due = self.execution.count(ExecutionState::Canceling) > 0
            || self.execution.count(ExecutionState::Reconciling) > 0;
        for task in self.execution.tasks.iter().filter(|_| is_any_due) {
            let execution = &task.execution;
            if execution.state == ExecutionState::Canceling {
                let since_ms = execution.canceling_since_ms;
                deadlines.push(since_ms.saturating_add(options.task_cancellation_timeout_ms));
            } else if execution.state == ExecutionState::Reconciling {
                deadlines.extend(self.reconciliation_deadline_ms());
            }
        }
        if self.awaits_outputs() {
            deadlines.extend(self.reconciliation_deadline_ms());
        }
        for stray in self
            .task_managers
            .values()
            .flat_map(|known| known.strays.values())
        {
            if stray.cancellation != Cancellation::NotAsked {
                let since_ms = stray.canceling_since_ms;
                deadlines.push(since_ms.saturating_add(options.task_cancellation_timeout_ms));
            }
        }
        deadlines.extend(self.collecting_until_ms());
        if let Commit::RetryAt { at_ms, .. } = self.commit {
            deadlines.push(at_ms);
        }
        let has_surplus = || self.pool.has_surplus(&self.worth_keeping());
        if !self.is_stopping() && !is_reconciling && has_surplus() {
            let idle = self.pool.idle_since_ms();
            deadlines.extend(idle.map(|since| since.saturating_add(options.slot_idle_timeout_ms)));
        }
        deadlines
            .into_iter()
            .filter(|at_ms| *at_ms > self.settled_at_ms)
            .min()
    }
}

/// Whether the record places an execution there; most likely at this place among its region's.
fn is_placed_on(
    region: &pb::RegionState,
    at: Option<usize>,
    id: &pb::ExecutionId,
    location: &pb::TaskManagerLocation,
) -> bool {
    let likely = at.and_then(|at| region.placements.get(at));
    likely
        .into_iter()
        .chain(&region.placements)
        .any(|placement| {
            placement.vertex_id == id.vertex_id
                && placement.subtask == id.subtask
                && placement.location.as_ref().is_some_and(|placed| {
                    placed.resource_id == location.resource_id
                        && placed.incarnation == location.incarnation
                })
        })
}

pub(super) fn cancellation(id: pb::ExecutionId) -> pb::TaskCancellation {
    pb::TaskCancellation {
        vertex_id: id.vertex_id,
        subtask: id.subtask,
        up_to_generation: id.generation,
    }
}
