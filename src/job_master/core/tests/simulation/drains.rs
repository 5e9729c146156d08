//! Drains in the simulation: which TaskManagers are drained, when the JobMaster receives that, and the
//! invariants of moves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tanist_gateway::{Leave, Leaving};
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::v1 as pb;

use super::task_manager::{TaskKey, TaskManager};
use super::world::World;
use crate::core::execution_graph::RegionPhase;
use crate::core::execution_graph::execution::is_terminal;
use crate::core::{Event, JobMasterCore};

#[derive(Debug, Default)]
pub(super) struct Drains {
    /// The drains that the ResourceManager knows. It gives no slots there.
    drained: Leaving,
    /// The drains that the present term received last.
    told: Arc<Leaving>,
    /// Whether nothing fails, so that regions restart only for moves.
    pub(super) is_all_that_happens: bool,
}

impl Drains {
    pub(super) fn is_drained(&self, id: &ResourceId) -> bool {
        self.drained.contains_key(id)
    }

    /// A new term begins, which has received no drains.
    pub(super) fn forget_told(&mut self) {
        self.told = Arc::default();
    }
}

/// The state of each region before an event.
#[derive(Debug)]
pub(super) struct RegionsBefore {
    regions: Vec<Before>,
}

#[derive(Debug)]
struct Before {
    generation: u64,
    is_placed: bool,
    /// The places of its executions that have not ended.
    places: BTreeSet<(ResourceId, AllocationId)>,
}

fn live_places(core: &JobMasterCore, region: usize) -> BTreeSet<(ResourceId, AllocationId)> {
    let tasks = core.graph.region(region).tasks.iter();
    let executions = tasks.map(|task| core.graph.execution(*task));
    let live = executions.filter(|it| !it.is_ended());
    let places = live.filter_map(|it| it.place.as_ref());
    places
        .map(|it| (it.task_manager.clone(), it.allocation))
        .collect()
}

impl RegionsBefore {
    pub(super) fn of(core: &JobMasterCore) -> RegionsBefore {
        let regions = core.graph.regions().iter().enumerate();
        let regions = regions.map(|(region, at)| Before {
            generation: core.record.decided().regions[region].generation,
            is_placed: at.phase.is_placed(),
            places: live_places(core, region),
        });
        RegionsBefore {
            regions: regions.collect(),
        }
    }

    /// Asserts that nothing is placed on TaskManagers to leave, except in slots that are still in use, and
    /// that a move finds all of its slots elsewhere. Returns the number of regions that were moved.
    pub(super) fn assert_moves(&self, core: &JobMasterCore, is_all_that_happens: bool) -> u32 {
        let leaving = core.moves.leaving();
        let used = self.regions.iter().flat_map(|it| &it.places);
        let used: BTreeSet<&(ResourceId, AllocationId)> = used.collect();
        let mut moved = 0;
        let mut left: BTreeSet<&AllocationId> = BTreeSet::new();
        for (region, before) in self.regions.iter().enumerate() {
            if core.graph.region(region).phase == RegionPhase::Placed && !before.is_placed {
                for place in live_places(core, region) {
                    let is_open = !leaving.contains_key(&place.0) || used.contains(&place);
                    assert!(
                        is_open,
                        "region {region} begins where it is to leave: {place:?}"
                    );
                }
            }
            let is_given_up = before.generation < core.record.decided().regions[region].generation;
            // One that never started, because its TaskManager has registered again without it, runs again at once.
            let never_started = match core.graph.region(region).phase {
                RegionPhase::Stopping { restart_at_ms } => {
                    restart_at_ms.is_some_and(|at_ms| !core.moves.is_of_move(at_ms))
                }
                _ => false,
            };
            let is_moved = core.moves.is_moved(region) && !never_started;
            if before.is_placed && is_given_up && is_moved {
                moved += 1;
                let there = before.places.iter();
                let there = there.filter(|(id, _)| leaving.get(id) == Some(&Leave::Moved));
                left.extend(there.map(|(_, allocation)| allocation));
            }
        }
        if is_all_that_happens {
            assert_eq!(core.record.decided().fatal_cause, "");
            let slots = core.slots.pool().places();
            let slots = slots.filter(|(id, ..)| !leaving.contains_key(*id));
            let unused = slots.filter(|(.., allocation)| core.slots.pool().is_unused(allocation));
            let unused = unused.count();
            assert!(
                left.len() <= unused,
                "{left:?} are left, and {unused} slots are there for that"
            );
        }
        moved
    }
}

impl World {
    /// From now on nothing fails. Executions of an isolated job stop before it is placed again, under any
    /// leader.
    pub(super) fn with_nothing_but_drains(mut self, isolation: pb::Isolation) -> World {
        self.drains.is_all_that_happens = true;
        let options = self.graph.options.get_or_insert_default();
        options.set_isolation(isolation);
        self.begin_term();
        self
    }

    /// A TaskManager is drained, or a drain is cancelled, or the JobMaster receives the drains.
    pub(super) fn step_of_drains(&mut self, kind: u8, pick: usize) {
        let id = self.task_managers[pick % self.task_managers.len()]
            .id
            .clone();
        match kind {
            0..3 => {
                let all = [Leave::ByItself, Leave::Moved, Leave::Moved, Leave::AtOnce];
                self.drains.drained.insert(id, all[pick / 3 % all.len()]);
            }
            3..5 => {
                self.drains.drained.remove(&id);
            }
            _ => self.tell_leaving(),
        }
    }

    /// The same, but there is always room elsewhere for the whole job, and no region is stopped without room
    /// for it.
    pub(super) fn step_of_gentle_drains(&mut self, kind: u8, pick: usize) {
        let id = self.task_managers[pick % self.task_managers.len()]
            .id
            .clone();
        match kind {
            0..91 => self.step_of_leaders(kind, pick),
            91..96 => self.go_on(pick % self.task_managers.len()),
            96..101 => self.allocate(pick),
            101..104 if self.drains.drained.remove(&id).is_some() => {}
            101..104 if self.drains.drained.len() + 1 < self.task_managers.len() => {
                let all = [Leave::ByItself, Leave::Moved, Leave::Moved];
                self.drains.drained.insert(id, all[pick / 3 % all.len()]);
            }
            104..108 => self.tell_leaving(),
            _ => {}
        }
    }

    /// The ResourceManager sends the drained TaskManagers on which the job has slots.
    pub(super) fn tell_leaving(&mut self) {
        let has_slots = |id: &ResourceId| {
            let mut known = self.task_managers.iter();
            known.any(|it| it.id == *id && it.slots.iter().any(Option::is_some))
        };
        let drained = self.drains.drained.iter();
        let leaving = drained.filter(|(id, _)| has_slots(id));
        let leaving: Leaving = leaving.map(|(id, leave)| (id.clone(), *leave)).collect();
        if self.core.is_none() || *self.drains.told == leaving {
            return;
        }
        if leaving.values().any(|leave| *leave > Leave::ByItself) {
            // Regions there are restarted although nothing of them was lost, and so are those that share
            // slots with them.
            self.healthy.clear();
        }
        self.drains.told = Arc::new(leaving);
        self.hear(Event::Leaving(self.drains.told.clone()));
    }

    pub(super) fn undrain_all(&mut self) {
        self.drains.drained.clear();
    }

    /// Asserts that no task of an isolated job runs twice at the same time.
    pub(super) fn assert_nothing_runs_twice(&self) {
        let isolation = self.graph.options.as_ref().map(|it| it.isolation());
        if isolation != Some(pb::Isolation::StopFirst) {
            return;
        }
        let mut running: BTreeMap<&TaskKey, usize> = BTreeMap::new();
        for (key, executions) in self.task_managers.iter().flat_map(|it| &it.running) {
            let live = executions.iter().filter(|it| !is_terminal(it.state));
            *running.entry(key).or_default() += live.count();
        }
        let twice: Vec<_> = running.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "{twice:?}");
    }

    /// Runs without faults and without ends of tasks until the TaskManagers to leave are empty.
    pub(super) fn come_to_leave(&mut self) {
        for _ in 0..400 {
            let to_leave = self.task_managers.iter().filter(|it| {
                let leave = self.drains.drained.get(&it.id);
                leave.is_some_and(|leave| *leave > Leave::ByItself)
            });
            let is_empty = |it: &TaskManager| {
                let mut running = it.running.values().flatten();
                let is_idle = running.all(|it| is_terminal(it.state));
                is_idle && it.slots.iter().all(Option::is_none)
            };
            if to_leave.clone().all(is_empty) && self.runs_whole() && self.all_that_may_run_does() {
                return;
            }
            self.round(false);
            self.assert_nothing_runs_twice();
        }
        panic!("what is drained is not left: {self:#?}");
    }
}
