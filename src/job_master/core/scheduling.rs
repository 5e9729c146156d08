//! The part of the core that schedules: it chooses slots for waiting regions, in topological order, and
//! places them.
//!
//! Each write contains the whole job. So when very many regions are placed slot by slot, they are placed in
//! batches that grow with the number of placed regions; otherwise the job would be written as many times as
//! it has regions.

use std::collections::BTreeSet;

use tanist_proto::id::{AllocationId, Generation};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::JobMasterCore;
use super::blocking::OfVertices;
use super::execution::Place;
use super::execution_graph::RegionPhase;
use super::slot_assignment::{Assigned, SlotAssignment};
use super::waiting_list::Need;

/// Number of placed regions up to which each region is placed as soon as possible.
const FEW: usize = 64;
/// Above it, a batch has at least this fraction (1/4) of the placed regions,
const SHARE: usize = 4;
/// or those that became ready within this time, in ms.
const COLLECT_MS: u64 = 20;

impl JobMasterCore {
    /// Chooses slots for waiting regions whose inputs are complete, in topological order. Iterates over
    /// single regions only if some of them will be placed.
    pub(super) fn schedule(&mut self, now_ms: u64) {
        let awaits_input = self.execution.in_phase(RegionPhase::AwaitingInput);
        let is_any_waiting = !self.execution.waiting().is_empty() || !awaits_input.is_empty();
        if !is_any_waiting
            || !self.record.is_durable()
            || self.record.is_stopping()
            || self.record.refusal().is_some()
        {
            self.collecting_since_ms = None;
            return;
        }
        self.look_at_inputs(now_ms);
        self.schedule_executions(now_ms);
        if self.meets_former_attempts() || !self.is_batch(now_ms) {
            return;
        }
        let ready = self.ready(now_ms);
        let mut assignment = self.slot_assignment();
        for region in ready {
            let wanted = &self.execution.regions[region].slots;
            if let Some(assigned) = assignment.assign(&self.pool, wanted) {
                self.place_region(region, &assigned, now_ms);
            }
        }
    }

    /// Whether executions of given-up attempts still run although the job's regions start together: the new
    /// attempt would meet them. The former leader knew where they ran; this one knows once their TaskManager
    /// has registered.
    fn meets_former_attempts(&self) -> bool {
        let is_unplaced = |task: usize| {
            let region = self.execution.tasks[task].region;
            !self.execution.regions[region].phase.is_placed()
        };
        let mut orphans = self.task_managers.orphans().iter();
        self.failover.restarts_together() && orphans.any(|(_, (task, _))| is_unplaced(task))
    }

    /// Moves regions with blocking inputs between AwaitingInput and Waiting: they wait for slots while all
    /// their input is available.
    fn look_at_inputs(&mut self, now_ms: u64) {
        let reads = self.execution.news.reads;
        let has_changed = std::mem::replace(&mut self.looked_at.inputs, reads) != reads;
        if !self.execution.has_blocking_edges() || !(has_changed || self.dirty.has_written) {
            return;
        }
        let mut known = OfVertices::default();
        let open = [RegionPhase::AwaitingInput, RegionPhase::WAITING];
        let open = open.map(|phase| self.execution.in_phase(phase).iter().copied());
        let mut open: Vec<usize> = open.into_iter().flatten().collect();
        open.sort_unstable();
        for region in open {
            let is_awaiting = self.execution.regions[region].phase == RegionPhase::AwaitingInput;
            let is_consumable = self.is_consumable(region, &mut known);
            if is_consumable && is_awaiting {
                self.prefer_inputs(region);
                let phase = RegionPhase::Waiting { since_ms: now_ms };
                self.execution.set_phase(region, phase);
            } else if !is_consumable {
                self.execution.set_phase(region, RegionPhase::AwaitingInput);
            }
        }
    }

    /// Marks the executions of waiting regions SCHEDULED.
    fn schedule_executions(&mut self, now_ms: u64) {
        for region in std::mem::take(&mut self.execution.news.waiting) {
            if !self.execution.waiting().contains(&region) {
                continue;
            }
            for task in self.execution.regions[region].tasks.clone() {
                if self.execution.tasks[task].execution.state == ExecutionState::Created {
                    self.execution
                        .decide(task, ExecutionState::Scheduled, now_ms, &mut self.out);
                }
            }
        }
    }

    /// The regions that wait only for slots, in topological order; those of a move first, as slots were
    /// requested for them.
    fn ready(&mut self, now_ms: u64) -> Vec<usize> {
        let waiting: Vec<usize> = self.execution.waiting().iter().copied().collect();
        let (mut looks, left) = (OfVertices::default(), self.left_to_moves(now_ms));
        let is_ready = |region: &usize| {
            let look = self.execution.regions[*region].look;
            // Regions of a move ran, and stopped for slots that are there: no other region has priority over
            // them.
            self.is_prepared(look, &mut looks)
                && (self.is_moved(*region) || !self.yields_slots(*region, now_ms))
                && !self.leaves_slots(*region, &left)
        };
        let mut ready: Vec<usize> = waiting.into_iter().filter(is_ready).collect();
        ready.sort_by_key(|region| !self.is_moved(*region));
        ready
    }

    /// Whether the coordinators of this group are prepared. If not, requests that.
    fn is_prepared(&mut self, look: Option<usize>, known: &mut OfVertices) -> bool {
        self.coordinators
            .is_prepared(look, known, &self.record, &self.execution, &mut self.out)
    }

    /// Whether enough ready regions find slots. Slots arrive one by one, each as an event: counting avoids a
    /// search that can't succeed.
    fn is_batch(&mut self, now_ms: u64) -> bool {
        let waiting = self.execution.indexes.waiting.iter();
        let looks: BTreeSet<Option<usize>> = waiting.map(|(need, _)| need.look).collect();
        let (mut looks, mut known) = (Vec::from_iter(looks), OfVertices::default());
        looks.retain(|look| self.is_prepared(*look, &mut known));
        let (mut number, mut all) = (0, 0);
        let mut free = self.free_slots();
        for (need, regions) in self.execution.indexes.waiting.iter() {
            if looks.contains(&need.look) {
                all += regions.len();
                number += free.take(need, regions.len());
            }
        }
        if number > 0 && self.served_first(now_ms).is_some() {
            // Not all of them may take the free slots.
            (number, all) = (0, 0);
            free = self.free_slots();
            for region in self.ready(now_ms) {
                all += 1;
                number += free.take(&self.execution.indexes.regions[region].need, 1);
            }
        }
        if number == 0 {
            return false;
        }
        let placed = self.execution.count_placed();
        let is_small = placed > FEW && number < all && number < placed / SHARE;
        if is_small {
            let since_ms = *self.collecting_since_ms.get_or_insert(now_ms);
            if now_ms < since_ms.saturating_add(COLLECT_MS) {
                return false;
            }
        }
        self.collecting_since_ms = None;
        true
    }

    /// Number of unused slots of each kind.
    pub(super) fn unused_slots(&self) -> Vec<u32> {
        let there = |profile: &ResourceProfile| self.pool.count_for(profile);
        let taken = |kind| self.execution.indexes.slots.taken(kind);
        self.execution.kinds.left(there, taken)
    }

    fn free_slots(&self) -> Free {
        Free {
            of_kinds: self.unused_slots(),
        }
    }

    /// Until when slots are collected to place a batch of regions.
    pub(super) fn collecting_until_ms(&self) -> Option<u64> {
        let since_ms = self.collecting_since_ms?;
        Some(since_ms.saturating_add(COLLECT_MS))
    }

    fn place_region(&mut self, region: usize, assigned: &Assigned, now_ms: u64) {
        let mut places = Vec::new();
        let tasks = self.execution.regions[region].tasks.clone();
        let mut placements = Vec::with_capacity(tasks.len());
        for task in tasks {
            let allocation = assigned[&self.execution.slot_key(task)];
            let slot = self.pool.get(&allocation);
            let Some((slot, location)) = slot.and_then(|slot| {
                let location = self.task_managers.location(&slot.task_manager)?;
                Some((slot, location.clone()))
            }) else {
                // Can't happen, as slots are removed with their TaskManager. An unplaced region just goes on
                // waiting.
                return;
            };
            placements.push(pb::Placement {
                vertex_id: self.execution.vertex_of(task).id.to_string(),
                subtask: self.execution.tasks[task].subtask,
                allocation_id: allocation.to_string(),
                location: Some((*location).clone()),
            });
            let place = Place {
                task_manager: slot.task_manager.clone(),
                allocation,
                location,
            };
            places.push((task, place));
        }
        // The phase changes first: the need of a region that does not wait is not tracked.
        self.execution.set_phase(region, RegionPhase::Placed);
        self.slot_wait.starved.remove(&region);
        let generation = self.record.decided().regions[region].generation.max(1);
        let generation = Generation::new(generation);
        for (task, place) in places {
            self.pool.begin_use(place.allocation);
            self.execution.place(task, generation, place);
        }
        let first = self.execution.regions[region].tasks.first();
        let first = first.map(|task| &self.execution.tasks[*task].execution);
        let entered = |state| first.map_or(0, |execution| execution.entered_at_ms(state));
        let (created_at_ms, scheduled_at_ms) = (
            entered(ExecutionState::Created),
            entered(ExecutionState::Scheduled),
        );
        let placement = pb::RegionState {
            placements,
            placed_at_ms: now_ms,
            created_at_ms,
            scheduled_at_ms,
            ..pb::RegionState::default()
        };
        let coordinators = self
            .coordinators
            .take_prepared(region, &self.record, &self.execution);
        self.record.place(region, placement, coordinators);
    }

    /// The slots in which executions of the job are or will be.
    pub(super) fn taken_slots(&self) -> Assigned {
        let mut taken = Assigned::new();
        for (task, at) in self.execution.tasks.iter().enumerate() {
            if let Some(place) = at
                .execution
                .place
                .as_ref()
                .filter(|_| !at.execution.is_ended())
            {
                taken.insert(self.execution.slot_key(task), place.allocation);
            }
        }
        taken
    }

    /// The slots in which orphan executions are.
    pub(super) fn blocked_slots(&self) -> BTreeSet<AllocationId> {
        self.task_managers.orphans().slots().collect()
    }

    /// The assignment from which regions get slots, made from the pool and the running executions.
    pub(super) fn slot_assignment(&self) -> SlotAssignment {
        let (taken, mut blocked) = (self.taken_slots(), self.blocked_slots());
        blocked.extend(self.slots_being_left());
        let (profiles, closed) = (&self.execution.profiles, &self.moves.leaving);
        SlotAssignment::new(&self.pool, profiles, taken, blocked, closed)
    }
}

/// Number of free slots of each kind.
struct Free {
    of_kinds: Vec<u32>,
}

impl Free {
    /// Takes slots for up to `regions` regions with the same need. Returns the number of regions that fit.
    fn take(&mut self, need: &Need, regions: usize) -> usize {
        let number = need
            .fits(&self.of_kinds)
            .map_or(regions, |fit| fit.min(regions));
        for (left, wanted) in self.of_kinds.iter_mut().zip(&need.of_kinds) {
            let taken = wanted.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
            *left = left.saturating_sub(taken);
        }
        number
    }
}
