//! Moves regions off TaskManagers that are drained (`docs/adr/0051`): nothing is placed there, and running regions are
//! moved, if that is requested, as soon as the job has all the slots that they need elsewhere. A handler: `moves.rs`
//! owns the move.
//!
//! A *move* contains all regions that share a slot there: a slot is for one number of a slot sharing group,
//! so they have to go together. One move is under way at a time, the smallest first. It is a restart without
//! a failure: 1 slots are requested in addition to those in use; 2 they arrive; 3 the regions' next
//! generation is written; 4 the present one is cancelled; 5 the next one is placed and deployed. Only 3 is
//! persisted: the next leader begins with 1 again, or, after 3, finishes it as any restart.
//!
//! Invariants: until 3 the regions run unchanged; from 3 to 5 nothing else is placed in their new slots.

use std::collections::{BTreeMap, BTreeSet};

use tanist_gateway::Leave;
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

use super::LogLine;
use super::execution_graph::RegionPhase;
use super::moves::Moves;
use super::region_failover::RegionFailover;
use super::result_partitions::ResultPartition;
use super::slot_needs::SlotNeeds;
use super::slot_pool::SlotKey;
use super::stopped::would_lose_input;
use super::task_managers::TaskManagers;

/// Borrows what the decisions about moves need.
pub(super) struct Eviction<'a> {
    pub(super) moves: &'a mut Moves,
    pub(super) task_managers: &'a TaskManagers,
    pub(super) failover: RegionFailover<'a>,
}

impl Eviction<'_> {
    fn needs(&self) -> SlotNeeds<'_> {
        SlotNeeds {
            graph: self.failover.graph,
            slots: self.failover.slots,
            record: self.failover.record,
            coordinators: self.failover.coordinators,
            task_managers: self.task_managers,
            moves: self.moves,
            now_ms: self.failover.now_ms,
        }
    }

    /// Starts, extends or completes a move, where that is possible.
    pub(super) fn move_regions(&mut self) {
        let (graph, record) = (&*self.failover.graph, &*self.failover.record);
        let is_open = record.is_durable()
            && !record.is_stopping()
            && !self.failover.reconciliation.is_under_way(graph, record)
            && record.decided().wanted() == pb::WantedStatus::Running;
        if !self.moves.is_any_evicted() || !is_open {
            self.moves.clear();
            return;
        }
        self.leave_at_once();
        let needs = self.needs();
        let unused = needs.unused_slots();
        let is_open =
            |it: &usize| needs.is_under_way(*it) && !needs.is_short_of_slots(*it, &unused);
        if self.moves.regions().iter().any(is_open) {
            self.join_move();
        } else {
            self.begin_move();
        }
        let replaced = self.needs().slots_to_leave(self.moves.regions());
        self.moves.set_replaced(replaced);
        let needs = self.needs();
        let runs = |region: &usize| needs.graph.region(*region).phase.is_placed();
        let are_here = self.moves.regions().iter().all(runs)
            && needs.may_take_replacements()
            && needs.has_replacements();
        if !self.moves.regions().is_empty() && are_here {
            let regions: Vec<usize> = self.moves.regions().iter().copied().collect();
            self.restart_moved(&regions);
        }
    }

    /// Restarts regions that have to leave at once, whether there are slots elsewhere or not. Outputs kept there are
    /// lost.
    fn leave_at_once(&mut self) {
        let at_once = |leave: Leave| leave == Leave::AtOnce;
        let regions = self.needs().regions_to_leave(at_once);
        let regions: Vec<usize> = regions.into_iter().collect();
        let there = self.moves.leaving().iter().filter(|(_, it)| at_once(**it));
        let there: Vec<ResourceId> = there.map(|(id, _)| id.clone()).collect();
        for id in there {
            let tasks = self.failover.graph.tasks_on(&id);
            let cause = "its TaskManager is drained, and the time for that is over";
            let is_kept =
                |partition: &ResultPartition| matches!(partition, ResultPartition::Kept { .. });
            self.failover.graph.lose_outputs(tasks, is_kept, cause);
        }
        if regions.is_empty() {
            return;
        }
        self.restart_moved(&regions);
        let needs = self.needs();
        let stopped = regions.into_iter().filter(|it| needs.is_stopped(*it));
        let stopped: BTreeSet<usize> = stopped.collect();
        if !stopped.is_empty() {
            // Regions that still run and wait for slots begin their move again, behind these.
            let mut moved = self.moves.regions().clone();
            moved.retain(|region| !needs.graph.region(*region).phase.is_placed());
            moved.extend(stopped);
            self.moves.begin(moved, self.failover.now_ms);
        }
    }

    /// Chooses the next move: the one that needs the fewest slots. If there is none, moved regions that wait
    /// without finding slots keep their place in line.
    fn begin_move(&mut self) {
        let needs = self.needs();
        let graph = needs.graph;
        let mut open = needs.regions_to_leave(|leave| leave > Leave::ByItself);
        let by_slot = needs.regions_by_slot_to_leave();
        let mut by_region: BTreeMap<usize, BTreeSet<SlotKey>> = BTreeMap::new();
        for task in needs.tasks_to_leave() {
            let slots = by_region.entry(graph.task(task).region);
            slots.or_default().insert(graph.slot_key(task));
        }
        let mut next: Option<(usize, BTreeSet<usize>)> = None;
        while let Some(region) = open.first().copied() {
            let together = self.regions_with_slots_of(region, &by_slot);
            open.retain(|it| !together.contains(it));
            let slots = together.iter().filter_map(|it| by_region.get(it));
            let slots = slots.flatten().collect::<BTreeSet<&SlotKey>>().len();
            if next.as_ref().is_none_or(|(fewest, _)| slots < *fewest) {
                next = Some((slots, together));
            }
        }
        match next {
            Some((_, regions)) => self.moves.begin(regions, self.failover.now_ms),
            None => {
                let mut regions = self.moves.regions().clone();
                regions.retain(|it| graph.waiting().contains(it));
                self.moves.set_regions(regions);
            }
        }
    }

    /// Adds regions to the move that were placed in its slots while it waited for slots, and takes out those that have
    /// nothing to move any more.
    fn join_move(&mut self) {
        let graph = &*self.failover.graph;
        let is_gone = |region: &usize| {
            let phase = graph.region(*region).phase;
            matches!(
                phase,
                RegionPhase::Stopping { .. } | RegionPhase::Waiting { .. }
            )
        };
        if self.moves.regions().iter().any(is_gone) {
            return;
        }
        let by_slot = self.needs().regions_by_slot_to_leave();
        let still_there: BTreeSet<usize> = by_slot.values().flatten().copied().collect();
        let mut together = BTreeSet::new();
        for region in self.moves.regions() {
            // One whose tasks there have ended meanwhile has nothing to move, and must not run again.
            if !together.contains(region) && still_there.contains(region) {
                together.extend(self.regions_with_slots_of(*region, &by_slot));
            }
        }
        self.moves.set_regions(together);
    }

    /// A region and all that share slots with it on TaskManagers to leave; all running regions if the job's
    /// regions restart together.
    fn regions_with_slots_of(
        &self,
        region: usize,
        by_slot: &BTreeMap<SlotKey, BTreeSet<usize>>,
    ) -> BTreeSet<usize> {
        let graph = &*self.failover.graph;
        if self.failover.failover.restarts_together() {
            let phases = graph.regions().iter().enumerate();
            let running = phases.filter(|(_, at)| at.phase.is_placed());
            return running.map(|(region, _)| region).collect();
        }
        let (mut together, mut open) = (BTreeSet::new(), vec![region]);
        while let Some(region) = open.pop() {
            if together.insert(region) {
                let tasks = &graph.region(region).tasks;
                let keys = tasks.iter().map(|task| graph.slot_key(*task));
                open.extend(keys.filter_map(|key| by_slot.get(&key)).flatten());
            }
        }
        together
    }

    /// Restarts these regions, to be placed elsewhere. Nothing has failed, so the restart strategy does not
    /// count it.
    fn restart_moved(&mut self, regions: &[usize]) {
        let RegionFailover {
            graph,
            record,
            events,
            out,
            now_ms,
            checkpointing,
            ..
        } = &mut self.failover;
        let loses = |region: &usize| {
            !checkpointing.goes_on(*region) && would_lose_input(record, graph, *region)
        };
        if regions.iter().any(loses) {
            return;
        }
        let cause = format!("moved off {}", self.moves.describe());
        out.log(LogLine::RegionsMoved {
            regions: u32::try_from(regions.len()).unwrap_or(u32::MAX),
            cause: cause.clone(),
        });
        self.moves.note_restart(*now_ms);
        events.add_move(cause, *now_ms);
        let at_ms = *now_ms;
        self.failover.restart(regions, at_ms);
    }
}
