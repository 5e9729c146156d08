//! Schedules: chooses slots for waiting regions, in topological order, and places them in the decided record. A region
//! is deployed once that is durable (`durable_effects.rs`).
//!
//! Each write contains the whole job. So when very many regions are placed slot by slot, they are placed in
//! batches that grow with the number of placed regions; otherwise the job would be written as many times as
//! it has regions.

use std::collections::BTreeSet;

use tanist_proto::id::Generation;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::checkpointing::Checkpointing;
use super::coordinator::Coordinators;
use super::durable_record::DurableRecord;
use super::execution_graph::blocking::OfVertices;
use super::execution_graph::execution::Place;
use super::execution_graph::waiting_list::Need;
use super::execution_graph::{ExecutionGraph, RegionPhase};
use super::failover::Failover;
use super::moves::Moves;
use super::output::Output;
use super::result_partitions::is_consumable;
use super::slot_assignment::Assigned;
use super::slot_needs::SlotNeeds;
use super::slots::Slots;
use super::task_managers::TaskManagers;

/// Number of placed regions up to which each region is placed as soon as possible.
const FEW: usize = 64;
/// Above it, a batch has at least 1/4 of the number of placed regions, or else the regions that became ready while
/// slots were collected.
const SHARE: usize = 4;

/// Borrows what the decisions about slots need. `slot_requests.rs` and `slot_timeouts.rs` have more of them.
pub(super) struct Scheduler<'a> {
    pub(super) graph: &'a mut ExecutionGraph,
    pub(super) slots: &'a mut Slots,
    pub(super) record: &'a mut DurableRecord,
    pub(super) failover: &'a mut Failover,
    pub(super) coordinators: &'a mut Coordinators,
    pub(super) checkpointing: &'a Checkpointing,
    pub(super) task_managers: &'a TaskManagers,
    pub(super) moves: &'a Moves,
    pub(super) out: &'a mut Output,
    pub(super) now_ms: u64,
}

impl Scheduler<'_> {
    /// What the need for slots depends on.
    pub(super) fn needs(&self) -> SlotNeeds<'_> {
        SlotNeeds {
            graph: self.graph,
            slots: self.slots,
            record: self.record,
            coordinators: self.coordinators,
            task_managers: self.task_managers,
            moves: self.moves,
            now_ms: self.now_ms,
        }
    }

    /// Chooses slots for waiting regions whose inputs are complete, in topological order. Iterates over
    /// single regions only if some of them will be placed. `has_written`: a write has become durable in this step.
    pub(super) fn schedule(&mut self, has_written: bool) {
        let awaits_input = self.graph.in_phase(RegionPhase::AwaitingInput);
        let is_any_waiting = !self.graph.waiting().is_empty() || !awaits_input.is_empty();
        if !is_any_waiting
            || !self.record.is_durable()
            || self.record.is_stopping()
            || self.record.refusal().is_some()
        {
            self.slots.stop_collecting();
            return;
        }
        self.check_inputs(has_written);
        self.schedule_executions();
        if self.meets_former_attempts() || !self.is_batch() {
            return;
        }
        let ready = self.ready();
        let mut assignment = self.needs().slot_assignment();
        for region in ready {
            let wanted = &self.graph.region(region).slots;
            if let Some(assigned) = assignment.assign(self.slots.pool(), wanted) {
                self.place_region(region, &assigned);
            }
        }
    }

    /// Notes which regions are first in the queues for slots. To be called after all possible placements.
    pub(super) fn note_heads(&mut self) {
        let (short, waiting) = self.needs().heads();
        self.slots.set_heads(short, waiting, self.now_ms);
    }

    /// Whether executions of given-up attempts still run although the job's regions start together: the new
    /// attempt would meet them. The former leader knew where they ran; this one knows once their TaskManager
    /// has registered.
    fn meets_former_attempts(&self) -> bool {
        let is_unplaced = |task: usize| {
            let region = self.graph.task(task).region;
            !self.graph.region(region).phase.is_placed()
        };
        let mut orphans = self.task_managers.orphans().iter();
        self.failover.restarts_together() && orphans.any(|(_, (task, _))| is_unplaced(task))
    }

    /// Moves regions with blocking inputs between AwaitingInput and Waiting: they wait for slots while all
    /// their input is available.
    fn check_inputs(&mut self, has_written: bool) {
        let has_changed = self.slots.take_new_reads(self.graph) || has_written;
        if !self.graph.has_blocking_edges() || !has_changed {
            return;
        }
        let mut known = OfVertices::default();
        let open = [RegionPhase::AwaitingInput, RegionPhase::WAITING];
        let open = open.map(|phase| self.graph.in_phase(phase).iter().copied());
        let mut open: Vec<usize> = open.into_iter().flatten().collect();
        open.sort_unstable();
        for region in open {
            let is_awaiting = self.graph.region(region).phase == RegionPhase::AwaitingInput;
            let is_consumable = is_consumable(self.graph, self.record, region, &mut known);
            if is_consumable && is_awaiting {
                self.prefer_inputs(region);
                let phase = RegionPhase::Waiting {
                    since_ms: self.now_ms,
                };
                self.graph.set_phase(region, phase);
            } else if !is_consumable {
                self.graph.set_phase(region, RegionPhase::AwaitingInput);
            }
        }
    }

    /// Marks the executions of waiting regions SCHEDULED.
    fn schedule_executions(&mut self) {
        for region in self.graph.take_newly_waiting() {
            if !self.graph.waiting().contains(&region) {
                continue;
            }
            for task in self.graph.region(region).tasks.clone() {
                if self.graph.execution(task).state == ExecutionState::Created {
                    self.graph
                        .decide(task, ExecutionState::Scheduled, self.now_ms, self.out);
                }
            }
        }
    }

    /// The regions that wait only for slots, in topological order; those of a move first, as slots were
    /// requested for them.
    fn ready(&mut self) -> Vec<usize> {
        let waiting: Vec<usize> = self.graph.waiting().iter().copied().collect();
        let (mut groups, left) = (OfVertices::default(), self.needs().left_to_moves());
        let is_ready = |region: &usize| {
            let group = self.graph.region(*region).coordinator_group;
            // Regions of a move have stopped because there were slots for them: no other region has priority over them.
            self.is_prepared(group, &mut groups)
                && !self.checkpointing.holds(*region)
                && (self.moves.is_moved(*region) || !self.needs().yields_slots(*region))
                && !self.needs().leaves_slots(*region, &left)
        };
        let mut ready: Vec<usize> = waiting.into_iter().filter(is_ready).collect();
        ready.sort_by_key(|region| !self.moves.is_moved(*region));
        ready
    }

    /// Whether the coordinators of this group are prepared. If not, requests that.
    fn is_prepared(&mut self, group: Option<usize>, known: &mut OfVertices) -> bool {
        self.coordinators
            .is_prepared(group, known, self.record, self.out)
    }

    /// Whether enough ready regions find slots. Slots arrive one by one, each as an event: counting avoids a
    /// search that can't succeed.
    fn is_batch(&mut self) -> bool {
        let waiting = self.graph.indexes().waiting.iter();
        let groups: BTreeSet<Option<usize>> =
            waiting.map(|(need, _)| need.coordinator_group).collect();
        let (mut groups, mut known) = (Vec::from_iter(groups), OfVertices::default());
        groups.retain(|group| self.is_prepared(*group, &mut known));
        let (mut number, mut all) = (0, 0);
        let mut free = Free::of(&self.needs());
        for (need, regions) in self.graph.indexes().waiting.iter() {
            if groups.contains(&need.coordinator_group) {
                all += regions.len();
                number += free.take(need, regions.len());
            }
        }
        if number > 0 && self.needs().served_first().is_some() {
            // Not all of them may take the free slots.
            (number, all) = (0, 0);
            free = Free::of(&self.needs());
            for region in self.ready() {
                all += 1;
                number += free.take(&self.graph.indexes().regions[region].need, 1);
            }
        }
        if number == 0 {
            return false;
        }
        let placed = self.graph.count_placed();
        let is_small = placed > FEW && number < all && number < placed / SHARE;
        if is_small && !self.slots.collect(self.now_ms) {
            return false;
        }
        self.slots.stop_collecting();
        true
    }

    fn place_region(&mut self, region: usize, assigned: &Assigned) {
        let mut places = Vec::new();
        let tasks = self.graph.region(region).tasks.clone();
        let mut placements = Vec::with_capacity(tasks.len());
        for task in tasks {
            let allocation = assigned[&self.graph.slot_key(task)];
            let slot = self.slots.pool().get(&allocation);
            let Some((slot, location)) = slot.and_then(|slot| {
                let location = self.task_managers.location(&slot.task_manager)?;
                Some((slot, location.clone()))
            }) else {
                // Can't happen, as slots are removed with their TaskManager. The region would continue to wait.
                return;
            };
            placements.push(pb::Placement {
                vertex_id: self.graph.vertex_of(task).id.to_string(),
                subtask: self.graph.task(task).subtask,
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
        self.graph.set_phase(region, RegionPhase::Placed);
        self.slots.serve(region);
        let generation = self.record.decided().regions[region].generation.max(1);
        let generation = Generation::new(generation);
        for (task, place) in places {
            self.slots.begin_use(place.allocation);
            self.graph.place(task, generation, place);
        }
        let first = self.graph.region(region).tasks.first();
        let first = first.map(|task| self.graph.execution(*task));
        let entered = |state| first.map_or(0, |execution| execution.entered_at_ms(state));
        let (created_at_ms, scheduled_at_ms) = (
            entered(ExecutionState::Created),
            entered(ExecutionState::Scheduled),
        );
        let placement = pb::RegionState {
            placements,
            placed_at_ms: self.now_ms,
            created_at_ms,
            scheduled_at_ms,
            restored_from: self.checkpointing.restored_from(region),
            ..pb::RegionState::default()
        };
        let coordinators = self
            .coordinators
            .take_prepared(region, self.record, self.graph);
        self.record.place(region, placement, coordinators);
    }

    /// Prefers slots near the input: a subtask that reads the output of one other subtask is placed best
    /// where that output is.
    fn prefer_inputs(&mut self, region: usize) {
        for (task, producer) in self.graph.read_one_to_one(region) {
            if let Some(place) = &self.graph.execution(producer).place {
                let key = self.graph.slot_key(task);
                self.slots
                    .remember(key, place.task_manager.clone(), place.allocation);
            }
        }
    }
}

/// Number of free slots of each kind.
struct Free {
    of_kinds: Vec<u32>,
}

impl Free {
    fn of(needs: &SlotNeeds<'_>) -> Free {
        Free {
            of_kinds: needs.unused_slots(),
        }
    }

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
