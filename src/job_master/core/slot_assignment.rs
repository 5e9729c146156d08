//! Assigns slots of a pool to the regions of a job, one region after the other. Pure: a [`SlotAssignment`] lives for
//! one step of the core and does not change the pool. Its creator places regions by it, or only asks if slots suffice.
//!
//! The pool is sorted once, for any number of regions. Invariants: a key has one slot, and an allocation one
//! key; a region gets all of its slots or nothing changes; no blocked slot is assigned.

use std::collections::{BTreeMap, BTreeSet};

use tanist_gateway::Leaving;
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::ResourceProfile;

use super::slot_pool::{SlotKey, SlotPool};

/// The slot of each key.
pub(super) type Assigned = BTreeMap<SlotKey, AllocationId>;

/// The free slots that serve one profile.
#[derive(Debug)]
struct Free {
    profile: ResourceProfile,
    /// By TaskManager: the free slots by their number there.
    slots: Vec<BTreeMap<u32, AllocationId>>,
    /// (slots in use, TaskManager) of the TaskManagers that have free slots.
    order: BTreeSet<(usize, usize)>,
}

/// An assignment, based on the pool at the time of its creation; see the module.
#[derive(Debug)]
pub(super) struct SlotAssignment {
    /// The slots that keys already have.
    taken: Assigned,
    /// Slots that must not be assigned, for example because an orphan execution runs there.
    blocked: BTreeSet<AllocationId>,
    /// Sorted. Other fields refer to them by index.
    task_managers: Vec<ResourceId>,
    /// Number of slots in use, by TaskManager.
    load: Vec<usize>,
    /// By allocation: index of the TaskManager, number of the slot there.
    places: BTreeMap<AllocationId, (usize, u32)>,
    /// One for each wanted profile, sorted by profile.
    free: Vec<Free>,
    /// Index in `free`, by slot sharing group.
    free_of_group: Vec<usize>,
    /// Whether nothing is placed there any more, by TaskManager.
    is_closed: Vec<bool>,
}

impl SlotAssignment {
    /// An assignment of a pool's slots. `taken` has the keys that already have a slot. Slots in `blocked` are not
    /// assigned, nor free ones of the TaskManagers in `closed`. `profiles` are the slot profiles by group.
    pub(super) fn new(
        pool: &SlotPool,
        profiles: &[ResourceProfile],
        taken: Assigned,
        blocked: BTreeSet<AllocationId>,
        closed: &Leaving,
    ) -> SlotAssignment {
        let kinds: BTreeSet<&ResourceProfile> = profiles.iter().collect();
        let kinds: Vec<&ResourceProfile> = kinds.into_iter().collect();
        let number = |profile| kinds.binary_search(&profile).unwrap_or_default();
        let free_of_group = profiles.iter().map(number).collect();
        let free = kinds.iter().map(|profile| Free {
            profile: (*profile).clone(),
            slots: Vec::new(),
            order: BTreeSet::new(),
        });
        let used: BTreeSet<AllocationId> = taken.values().copied().collect();
        let mut assignment = SlotAssignment {
            taken,
            blocked,
            task_managers: Vec::new(),
            load: Vec::new(),
            places: BTreeMap::new(),
            free: free.collect(),
            free_of_group,
            is_closed: Vec::new(),
        };
        for (task_manager, number, allocation) in pool.places() {
            let is_used = used.contains(&allocation);
            if assignment.task_managers.last() != Some(task_manager) {
                assignment.is_closed.push(closed.contains_key(task_manager));
            }
            assignment.add(pool, (task_manager, number, allocation), is_used);
        }
        for (at, load) in assignment.load.iter().enumerate() {
            for free in &mut assignment.free {
                if !free.slots[at].is_empty() {
                    free.order.insert((*load, at));
                }
            }
        }
        assignment
    }

    fn add(
        &mut self,
        pool: &SlotPool,
        (task_manager, number, allocation): (&ResourceId, u32, AllocationId),
        is_used: bool,
    ) {
        if self.task_managers.last() != Some(task_manager) {
            self.task_managers.push(task_manager.clone());
            self.load.push(0);
            for free in &mut self.free {
                free.slots.push(BTreeMap::new());
            }
        }
        let at = self.task_managers.len() - 1;
        self.places.insert(allocation, (at, number));
        if is_used {
            self.load[at] += 1;
        } else if !self.blocked.contains(&allocation) && !self.is_closed[at] {
            let slot = pool.get(&allocation);
            for free in &mut self.free {
                if slot.is_some_and(|slot| slot.profile.is_matching(&free.profile)) {
                    free.slots[at].insert(number, allocation);
                }
            }
        }
    }

    /// Returns slots for all of `wanted`, or None if there are not enough. In this order: slots that keys
    /// have, slots of their last execution, slots on the TaskManager of the last execution, other slots on
    /// the TaskManagers with the fewest slots in use.
    pub(super) fn assign(&mut self, pool: &SlotPool, wanted: &[SlotKey]) -> Option<Assigned> {
        let mut assigned = Assigned::new();
        let mut open = Vec::new();
        for key in wanted {
            match self.taken.get(key) {
                // An orphan execution is in it: no other one is deployed there before that has stopped.
                Some(allocation) if self.blocked.contains(allocation) => return None,
                Some(allocation) => {
                    assigned.insert(*key, *allocation);
                }
                None => open.push(*key),
            }
        }
        let mut given = Vec::with_capacity(open.len());
        let mut give = |this: &mut SlotAssignment, key: &SlotKey, allocation: AllocationId| {
            this.take(allocation);
            given.push((*key, allocation));
        };
        open.retain(|key| match pool.former(key) {
            Some((_, allocation)) if self.is_free(*allocation, key) => {
                give(self, key, *allocation);
                false
            }
            Some(_) | None => true,
        });
        open.retain(|key| {
            let near = pool.former(key).and_then(|(task_manager, _)| {
                let at = self.task_managers.binary_search(task_manager).ok()?;
                let free = &self.free[self.free_of_group[key.group]];
                free.slots[at].first_key_value().map(|(_, id)| *id)
            });
            if let Some(allocation) = near {
                give(self, key, allocation);
            }
            near.is_none()
        });
        open.sort_by_key(|key| self.free_of_group[key.group]);
        let is_enough = open.iter().all(|key| {
            let allocation = self.least_loaded(key);
            if let Some(allocation) = allocation {
                give(self, key, allocation);
            }
            allocation.is_some()
        });
        if !is_enough {
            for (_, allocation) in given {
                self.give_back(pool, allocation);
            }
            return None;
        }
        self.taken.extend(given.iter().copied());
        assigned.extend(given);
        Some(assigned)
    }

    fn is_free(&self, allocation: AllocationId, key: &SlotKey) -> bool {
        let free = &self.free[self.free_of_group[key.group]];
        let place = self.places.get(&allocation);
        place.is_some_and(|(at, number)| free.slots[*at].contains_key(number))
    }

    fn least_loaded(&self, key: &SlotKey) -> Option<AllocationId> {
        let free = &self.free[self.free_of_group[key.group]];
        let (_, at) = free.order.first()?;
        free.slots[*at].first_key_value().map(|(_, id)| *id)
    }

    fn take(&mut self, allocation: AllocationId) {
        if let Some((at, number)) = self.places.get(&allocation).copied() {
            let load = self.load[at];
            self.load[at] += 1;
            for free in &mut self.free {
                free.order.remove(&(load, at));
                free.slots[at].remove(&number);
                if !free.slots[at].is_empty() {
                    free.order.insert((load + 1, at));
                }
            }
        }
    }

    fn give_back(&mut self, pool: &SlotPool, allocation: AllocationId) {
        let slot = pool.get(&allocation);
        if let Some((at, number)) = self.places.get(&allocation).copied() {
            let load = self.load[at];
            self.load[at] -= 1;
            for free in &mut self.free {
                free.order.remove(&(load, at));
                if slot.is_some_and(|slot| slot.profile.is_matching(&free.profile)) {
                    free.slots[at].insert(number, allocation);
                }
                if !free.slots[at].is_empty() {
                    free.order.insert((load - 1, at));
                }
            }
        }
    }
}
