//! The part of the core that schedules: chooses slots for regions that wait, in topological order, and places them.
//!
//! Each write says all of the job again. Where very many regions are placed slot by slot, they are placed in batches that grow with what
//! is placed already, so that the job is not written as often as it has regions.

use std::collections::BTreeSet;
use std::sync::Arc;

use tanist_proto::id::{AllocationId, Generation};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::blocking::OfVertices;
use super::core::JobMasterCore;
use super::execution::Place;
use super::execution_graph::RegionPhase;
use super::slot_assignment::Assigned;
use super::slot_pool::SlotKey;

/// As long as not more regions than these are placed, each is when it can be.
const FEW: usize = 64;
/// Then a batch is at least a quarter of them,
const SHARE: usize = 4;
/// or what came in this time.
const COLLECT_MS: u64 = 20;

impl JobMasterCore {
    /// Chooses slots for regions that wait and whose inputs are complete, in topological order.
    pub(super) fn schedule(&mut self, now_ms: u64) {
        let is_any_waiting =
            self.execution.is_any_waiting() || self.execution.is_any(RegionPhase::AwaitingInput);
        if !is_any_waiting || !self.is_durable || self.is_stopping() || self.refusal.is_some() {
            self.collecting_since_ms = None;
            return;
        }
        let ready = self.ready(now_ms);
        if !self.is_batch(&ready, now_ms) {
            return;
        }
        let mut assignment = self.slot_assignment();
        for region in ready {
            let wanted = &self.execution.regions[region].slots;
            if let Some(assigned) = assignment.assign(&self.pool, wanted) {
                self.place(region, &assigned, now_ms);
            }
        }
    }

    /// The regions that wait for nothing but slots.
    fn ready(&mut self, now_ms: u64) -> Vec<usize> {
        let mut ready = Vec::new();
        let (mut known, mut looks) = (OfVertices::default(), OfVertices::default());
        for region in 0..self.execution.regions.len() {
            let is_waiting = match self.execution.regions[region].phase {
                RegionPhase::AwaitingInput => false,
                RegionPhase::Waiting { .. } => true,
                RegionPhase::Reconciling
                | RegionPhase::Placed
                | RegionPhase::Deployed
                | RegionPhase::Stopping { .. } => continue,
            };
            if !self.is_consumable(region, &mut known) {
                self.execution.set_phase(region, RegionPhase::AwaitingInput);
                continue;
            }
            if !is_waiting {
                self.prefer_inputs(region);
                let phase = RegionPhase::Waiting { since_ms: now_ms };
                self.execution.set_phase(region, phase);
            }
            if self.execution.count(ExecutionState::Created) > 0 {
                for task in self.execution.regions[region].tasks.clone() {
                    if self.execution.tasks[task].execution.state == ExecutionState::Created {
                        self.execution
                            .decide(task, ExecutionState::Scheduled, now_ms);
                    }
                }
            }
            if self.is_prepared(region, &mut looks) && !self.stands_back(region, now_ms) {
                ready.push(region);
            }
        }
        ready
    }

    /// Whether enough of what is ready finds slots. Slots come one by one, and each is an event: nothing is looked for that can't be
    /// there.
    fn is_batch(&mut self, ready: &[usize], now_ms: u64) -> bool {
        let mut taken = self.execution.no_keys();
        let mut free = self.pool.len();
        for at in &self.execution.tasks {
            if at.execution.place.is_some() && !at.execution.is_ended() {
                let group = self.execution.vertices[at.vertex].group;
                let key = SlotKey {
                    group,
                    index: at.subtask,
                };
                free = free.saturating_sub(usize::from(taken.insert(key)));
            }
        }
        let mut number = 0;
        for region in ready {
            let slots = self.execution.regions[*region].slots.iter();
            let open = slots.filter(|key| !taken.contains(**key)).count();
            if open <= free {
                number += 1;
                free -= open;
            }
        }
        if number == 0 {
            return false;
        }
        let placed = self.execution.count_placed();
        let is_small = placed > FEW && number < ready.len() && number < placed / SHARE;
        if is_small {
            let since_ms = *self.collecting_since_ms.get_or_insert(now_ms);
            if now_ms < since_ms.saturating_add(COLLECT_MS) {
                return false;
            }
        }
        self.collecting_since_ms = None;
        true
    }

    /// Until when slots are collected for a batch of regions.
    pub(super) fn collecting_until_ms(&self) -> Option<u64> {
        let since_ms = self.collecting_since_ms?;
        Some(since_ms.saturating_add(COLLECT_MS))
    }

    fn place(&mut self, region: usize, assigned: &Assigned, now_ms: u64) {
        let generation = self.record.regions[region].generation.max(1);
        let tasks = self.execution.regions[region].tasks.clone();
        let mut placements = Vec::with_capacity(tasks.len());
        for task in tasks {
            let allocation = assigned[&self.execution.slot_key(task)];
            let slot = self.pool.get(&allocation);
            let Some((slot, known)) = slot.and_then(|slot| {
                self.task_managers
                    .get(&slot.task_manager)
                    .map(|known| (slot, known))
            }) else {
                // Slots go with their TaskManager, so this can't be; an unplaced region just goes on waiting.
                return;
            };
            placements.push(pb::Placement {
                vertex_id: self.execution.vertex_of(task).id.to_string(),
                subtask: self.execution.tasks[task].subtask,
                allocation_id: allocation.to_string(),
                location: Some((*known.location).clone()),
            });
            let place = Place {
                task_manager: slot.task_manager.clone(),
                allocation,
                location: known.location.clone(),
            };
            let execution = &mut self.execution.tasks[task].execution;
            execution.generation = Generation::new(generation);
            execution.place = Some(place);
        }
        let epoch = self.epoch.get();
        let first = self.execution.regions[region].tasks.first();
        let first = first.map(|task| &self.execution.tasks[*task].execution);
        let entered = |state| first.map_or(0, |execution| execution.entered_at_ms(state));
        let (created_at_ms, scheduled_at_ms) = (
            entered(ExecutionState::Created),
            entered(ExecutionState::Scheduled),
        );
        Arc::make_mut(&mut self.record).regions[region] = pb::RegionState {
            generation,
            epoch,
            placements,
            placed_at_ms: now_ms,
            created_at_ms,
            scheduled_at_ms,
        };
        self.fix_rule();
        self.record_prepared(region);
        self.revision += 1;
        self.execution.set_phase(region, RegionPhase::Placed);
    }

    /// The slots in which something of the job is, or will be.
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

    /// The slots in which a stray is.
    pub(super) fn blocked_slots(&self) -> BTreeSet<AllocationId> {
        let strays = self
            .task_managers
            .values()
            .flat_map(|known| known.strays.values());
        strays.filter_map(|stray| stray.allocation).collect()
    }
}
