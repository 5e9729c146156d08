//! The slots that a JobMaster holds, and which of them a region gets. Pure.
//!
//! A job that states no resources takes any slot for any need; one that does is given slots of exactly the profiles that it asked
//! for, and each serves only such a need.
//!
//! Not here: who is registered, and what runs where; the core says which slots are taken. Invariants: an allocation
//! fills one slot; a slot of a TaskManager has one allocation; [`SlotPool::assign`] gives each key a slot of its own,
//! and the same answer to the same question; an allocation that was let go is not taken again under the same registration of
//! its TaskManager. Else a late request to free it would end what was deployed into it since, or a late offer would bring
//! back what its TaskManager has freed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::ResourceProfile;

/// What one slot is needed for: subtask `index` of each vertex in slot sharing group `group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotKey {
    /// Index of the slot sharing group.
    pub group: usize,
    /// Number of the subtask.
    pub index: u32,
}

/// A slot that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSlot {
    /// On which TaskManager.
    pub task_manager: ResourceId,
    /// Its number there.
    pub index: u32,
    /// What it has.
    pub profile: ResourceProfile,
    /// The turn in which it was accepted.
    pub accepted_in: u64,
    /// Since when nothing needs it; `None`: something does, or that was not looked at yet.
    pub idle_since_ms: Option<u64>,
}

/// What became of an offered slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfferAnswer {
    /// It is held.
    Accepted,
    /// It is held; the allocation that the slot had before is lost.
    AcceptedInsteadOf(AllocationId),
    /// It is not: another slot fills this allocation.
    Rejected,
}

/// Allocations that were let go and are remembered: more than there can be late messages about.
const REMEMBERED: usize = 4096;

/// The slots of one job.
#[derive(Debug, Clone, Default)]
pub struct SlotPool {
    slots: BTreeMap<AllocationId, PoolSlot>,
    former: BTreeMap<SlotKey, (ResourceId, AllocationId)>,
    // In the order in which they were let go.
    let_go: VecDeque<(ResourceId, AllocationId)>,
}

impl SlotPool {
    /// Takes an offered slot, or doesn't. The TaskManager is registered: that is the caller's to check. A slot that
    /// nobody asked for, or whose request was cancelled meanwhile, is kept too: it serves another need, or idles.
    pub fn offer(
        &mut self,
        task_manager: &ResourceId,
        allocation: AllocationId,
        index: u32,
        profile: ResourceProfile,
        turn: u64,
    ) -> OfferAnswer {
        if let Some(held) = self.slots.get(&allocation) {
            let same = held.task_manager == *task_manager && held.index == index;
            return if same {
                OfferAnswer::Accepted
            } else {
                OfferAnswer::Rejected
            };
        }
        let is_it =
            |(of, gone): &(ResourceId, AllocationId)| *gone == allocation && of == task_manager;
        if self.let_go.iter().any(is_it) {
            return OfferAnswer::Rejected;
        }
        let before = self
            .slots
            .iter()
            .find(|(_, slot)| slot.task_manager == *task_manager && slot.index == index)
            .map(|(allocation, _)| *allocation);
        if let Some(before) = before {
            self.remove(&before);
        }
        let task_manager = task_manager.clone();
        let slot = PoolSlot {
            task_manager,
            index,
            profile,
            accepted_in: turn,
            idle_since_ms: None,
        };
        self.slots.insert(allocation, slot);
        before.map_or(OfferAnswer::Accepted, OfferAnswer::AcceptedInsteadOf)
    }

    /// Lets a slot go: it is not taken again, until its TaskManager registers anew.
    pub fn remove(&mut self, allocation: &AllocationId) -> Option<PoolSlot> {
        let slot = self.slots.remove(allocation)?;
        self.let_go
            .push_back((slot.task_manager.clone(), *allocation));
        if self.let_go.len() > REMEMBERED {
            self.let_go.pop_front();
        }
        Some(slot)
    }

    /// A TaskManager has registered anew: nothing comes late from before that.
    pub fn forgive(&mut self, task_manager: &ResourceId) {
        self.let_go.retain(|(of, _)| of != task_manager);
    }

    /// Lets all slots of a TaskManager go, with its registration.
    pub fn remove_all_of(&mut self, task_manager: &ResourceId) {
        self.forgive(task_manager);
        self.slots
            .retain(|_, slot| slot.task_manager != *task_manager);
    }

    /// The slot with this allocation.
    pub fn get(&self, allocation: &AllocationId) -> Option<&PoolSlot> {
        self.slots.get(allocation)
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// All slots of a TaskManager.
    pub fn slots_of(&self, task_manager: &ResourceId) -> Vec<AllocationId> {
        let is_there = |slot: &PoolSlot| slot.task_manager == *task_manager;
        self.slots
            .iter()
            .filter(|(_, slot)| is_there(slot))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Remembers where a key was, so that it goes back there.
    pub fn remember(&mut self, key: SlotKey, task_manager: ResourceId, allocation: AllocationId) {
        self.former.insert(key, (task_manager, allocation));
    }

    /// A slot for each wanted key, of the profile that it has to have, or `None` if there are not enough. A key that is in `taken` has its slot; no other
    /// one of those slots is given away, and none of `blocked`. Preferred are the former slot, then the former
    /// TaskManager, then the TaskManager with the fewest taken slots.
    pub fn assign(
        &self,
        wanted: &BTreeMap<SlotKey, &ResourceProfile>,
        taken: &BTreeMap<SlotKey, AllocationId>,
        blocked: &BTreeSet<AllocationId>,
    ) -> Option<BTreeMap<SlotKey, AllocationId>> {
        let mut assigned = BTreeMap::new();
        let mut used: BTreeSet<AllocationId> = taken.values().copied().collect();
        let mut open = Vec::new();
        for (key, profile) in wanted {
            match taken.get(key) {
                Some(allocation) if blocked.contains(allocation) => return None,
                Some(allocation) => {
                    assigned.insert(*key, *allocation);
                }
                None => open.push((*key, *profile)),
            }
        }
        let is_free =
            |id: &AllocationId, wanted: &ResourceProfile, used: &BTreeSet<AllocationId>| {
                let slot = self.slots.get(id);
                let serves = slot.is_some_and(|slot| slot.profile.is_matching(wanted));
                serves && !used.contains(id) && !blocked.contains(id)
            };
        open.retain(|(key, profile)| match self.former.get(key) {
            Some((_, allocation)) if is_free(allocation, profile, &used) => {
                used.insert(*allocation);
                assigned.insert(*key, *allocation);
                false
            }
            Some(_) | None => true,
        });
        open.retain(|(key, profile)| {
            let Some((task_manager, _)) = self.former.get(key) else {
                return true;
            };
            let near = self
                .slots_of(task_manager)
                .into_iter()
                .find(|id| is_free(id, profile, &used));
            let Some(allocation) = near else {
                return true;
            };
            used.insert(allocation);
            assigned.insert(*key, allocation);
            false
        });
        for (key, profile) in open {
            let mut load: BTreeMap<&ResourceId, usize> = BTreeMap::new();
            for allocation in &used {
                if let Some(slot) = self.slots.get(allocation) {
                    *load.entry(&slot.task_manager).or_default() += 1;
                }
            }
            let (allocation, _) = self
                .slots
                .iter()
                .filter(|(id, _)| is_free(id, profile, &used))
                .min_by_key(|(_, slot)| {
                    let taken = load.get(&slot.task_manager).copied().unwrap_or_default();
                    (taken, &slot.task_manager, slot.index)
                })?;
            let allocation = *allocation;
            used.insert(allocation);
            assigned.insert(key, allocation);
        }
        Some(assigned)
    }

    /// How many slots there are for a need.
    pub fn count_for(&self, wanted: &ResourceProfile) -> u32 {
        let serving = self.slots.values();
        let serving = serving.filter(|slot| slot.profile.is_matching(wanted));
        u32::try_from(serving.count()).unwrap_or(u32::MAX)
    }

    /// Of these slots those that are more than what is needed.
    pub fn surplus(
        &self,
        mut of: Vec<AllocationId>,
        needed: &BTreeMap<ResourceProfile, u32>,
    ) -> Vec<AllocationId> {
        let mut more: BTreeMap<Option<&ResourceProfile>, u32> = BTreeMap::new();
        // Without profiles all slots are alike.
        let is_any = needed.keys().any(ResourceProfile::is_unknown);
        let kind_of = |slot: &'_ PoolSlot| needed.get_key_value(&slot.profile).map(|(it, _)| it);
        for slot in self.slots.values() {
            let kind = if is_any { None } else { kind_of(slot) };
            *more.entry(kind).or_default() += 1;
        }
        for (profile, number) in needed {
            let kind = (!is_any).then_some(profile);
            let there = more.entry(kind).or_default();
            *there = there.saturating_sub(*number);
        }
        of.retain(|allocation| {
            let slot = self.slots.get(allocation);
            let kind = slot.filter(|_| !is_any).and_then(kind_of);
            let left = more.entry(kind).or_default();
            let is_more = *left > 0;
            *left = left.saturating_sub(1);
            is_more
        });
        of
    }

    /// Whether there are more slots than what is needed.
    pub fn has_surplus(&self, needed: &BTreeMap<ResourceProfile, u32>) -> bool {
        let all = self.slots.keys().copied().collect();
        !self.surplus(all, needed).is_empty()
    }

    /// Notes which slots nothing needs; gives those that have idled for `timeout_ms`.
    pub fn note_idle(
        &mut self,
        needed: &BTreeSet<AllocationId>,
        now_ms: u64,
        timeout_ms: u64,
    ) -> Vec<AllocationId> {
        let mut overdue = Vec::new();
        for (allocation, slot) in &mut self.slots {
            if needed.contains(allocation) {
                slot.idle_since_ms = None;
                continue;
            }
            let since_ms = *slot.idle_since_ms.get_or_insert(now_ms);
            if now_ms.saturating_sub(since_ms) >= timeout_ms {
                overdue.push(*allocation);
            }
        }
        overdue
    }

    /// No slot is more than what is needed.
    pub fn forget_idle(&mut self) {
        for slot in self.slots.values_mut() {
            slot.idle_since_ms = None;
        }
    }

    /// Since when the slot that idles longest does.
    pub fn idle_since_ms(&self) -> Option<u64> {
        self.slots
            .values()
            .filter_map(|slot| slot.idle_since_ms)
            .min()
    }
}
