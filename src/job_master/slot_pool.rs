//! The slots that a JobMaster holds, and which of them a region gets. Pure.
//!
//! Not here: who is registered, and what runs where; the core says which slots are taken. Invariants: an allocation
//! fills one slot; a slot of a TaskManager has one allocation; [`SlotPool::assign`] gives each key a slot of its own,
//! and the same answer to the same question; an allocation that was let go is not taken again under the same registration of
//! its TaskManager. Else a late request to free it would end what was deployed into it since, or a late offer would bring
//! back what its TaskManager has freed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tanist_proto::id::{AllocationId, ResourceId};

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
    // The same by TaskManager and number there. No map of a TaskManager is empty.
    by_place: BTreeMap<ResourceId, BTreeMap<u32, AllocationId>>,
    former: BTreeMap<SlotKey, (ResourceId, AllocationId)>,
    // Whether any is noted to idle.
    is_any_idle: bool,
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
        let there = self.by_place.get(task_manager);
        let before = there.and_then(|there| there.get(&index)).copied();
        if let Some(before) = before {
            self.remove(&before);
        }
        let there = self.by_place.entry(task_manager.clone()).or_default();
        there.insert(index, allocation);
        let task_manager = task_manager.clone();
        let slot = PoolSlot {
            task_manager,
            index,
            accepted_in: turn,
            idle_since_ms: None,
        };
        self.slots.insert(allocation, slot);
        before.map_or(OfferAnswer::Accepted, OfferAnswer::AcceptedInsteadOf)
    }

    /// Lets a slot go: it is not taken again, until its TaskManager registers anew.
    pub fn remove(&mut self, allocation: &AllocationId) -> Option<PoolSlot> {
        let slot = self.slots.remove(allocation)?;
        if let Some(there) = self.by_place.get_mut(&slot.task_manager) {
            there.remove(&slot.index);
            if there.is_empty() {
                self.by_place.remove(&slot.task_manager);
            }
        }
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
        for allocation in self
            .by_place
            .remove(task_manager)
            .unwrap_or_default()
            .values()
        {
            self.slots.remove(allocation);
        }
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
        let there = self.by_place.get(task_manager);
        there
            .into_iter()
            .flat_map(BTreeMap::values)
            .copied()
            .collect()
    }

    /// Remembers where a key was, so that it goes back there.
    pub fn remember(&mut self, key: SlotKey, task_manager: ResourceId, allocation: AllocationId) {
        self.former.insert(key, (task_manager, allocation));
    }

    /// A slot for each wanted key, or `None` if there are not enough. A key that is in `taken` has its slot; no other
    /// one of those slots is given away, and none of `blocked`. Preferred are the former slot, then the former
    /// TaskManager, then the TaskManager with the fewest taken slots.
    pub fn assign(
        &self,
        wanted: &[SlotKey],
        taken: &BTreeMap<SlotKey, AllocationId>,
        blocked: &BTreeSet<AllocationId>,
    ) -> Option<BTreeMap<SlotKey, AllocationId>> {
        let mut assigned = BTreeMap::new();
        let mut used: BTreeSet<AllocationId> = taken.values().copied().collect();
        let mut open = Vec::new();
        for key in wanted {
            match taken.get(key) {
                Some(allocation) if blocked.contains(allocation) => return None,
                Some(allocation) => {
                    assigned.insert(*key, *allocation);
                }
                None => open.push(*key),
            }
        }
        let is_free = |id: &AllocationId, used: &BTreeSet<AllocationId>| {
            self.slots.contains_key(id) && !used.contains(id) && !blocked.contains(id)
        };
        open.retain(|key| match self.former.get(key) {
            Some((_, allocation)) if is_free(allocation, &used) => {
                used.insert(*allocation);
                assigned.insert(*key, *allocation);
                false
            }
            Some(_) | None => true,
        });
        open.retain(|key| {
            let Some((task_manager, _)) = self.former.get(key) else {
                return true;
            };
            let near = self
                .slots_of(task_manager)
                .into_iter()
                .find(|id| is_free(id, &used));
            let Some(allocation) = near else {
                return true;
            };
            used.insert(allocation);
            assigned.insert(*key, allocation);
            false
        });
        self.spread(open, &mut used, blocked, &mut assigned)?;
        Some(assigned)
    }

    /// Gives each key the lowest free slot of the TaskManager with the fewest used ones.
    fn spread(
        &self,
        open: Vec<SlotKey>,
        used: &mut BTreeSet<AllocationId>,
        blocked: &BTreeSet<AllocationId>,
        assigned: &mut BTreeMap<SlotKey, AllocationId>,
    ) -> Option<()> {
        let mut free: BTreeMap<&ResourceId, VecDeque<AllocationId>> = BTreeMap::new();
        let mut order: BTreeSet<(usize, &ResourceId)> = BTreeSet::new();
        for (task_manager, there) in &self.by_place {
            let load = there.values().filter(|id| used.contains(id)).count();
            let left = there.values().copied();
            let left: VecDeque<_> = left
                .filter(|id| !used.contains(id) && !blocked.contains(id))
                .collect();
            if !left.is_empty() {
                order.insert((load, task_manager));
                free.insert(task_manager, left);
            }
        }
        for key in open {
            let (load, task_manager) = order.pop_first()?;
            let left = free.get_mut(task_manager)?;
            let allocation = left.pop_front()?;
            if !left.is_empty() {
                order.insert((load + 1, task_manager));
            }
            used.insert(allocation);
            assigned.insert(key, allocation);
        }
        Some(())
    }

    /// Notes which slots nothing needs; gives those that have idled for `timeout_ms`.
    pub fn note_idle(
        &mut self,
        needed: &BTreeSet<AllocationId>,
        now_ms: u64,
        timeout_ms: u64,
    ) -> Vec<AllocationId> {
        let mut overdue = Vec::new();
        self.is_any_idle = true;
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
        if std::mem::take(&mut self.is_any_idle) {
            for slot in self.slots.values_mut() {
                slot.idle_since_ms = None;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn tm(name: &str) -> ResourceId {
        name.parse().expect("a resource id")
    }

    fn slot(number: u128) -> AllocationId {
        AllocationId::from_bits(number)
    }

    fn keys(count: u32) -> Vec<SlotKey> {
        (0..count)
            .map(|index| SlotKey { group: 0, index })
            .collect()
    }

    fn pool(offers: &[(&str, u128, u32)]) -> SlotPool {
        let mut pool = SlotPool::default();
        for (task_manager, allocation, index) in offers {
            pool.offer(&tm(task_manager), slot(*allocation), *index, 0);
        }
        pool
    }

    #[test]
    fn the_same_offer_again_is_accepted() {
        let mut pool = pool(&[("a", 1, 0)]);
        assert_eq!(pool.offer(&tm("a"), slot(1), 0, 1), OfferAnswer::Accepted);
        assert_eq!(pool.len(), 1);
    }

    #[test]
    fn another_slot_for_an_allocation_that_is_filled_is_rejected() {
        let mut pool = pool(&[("a", 1, 0)]);
        assert_eq!(pool.offer(&tm("a"), slot(1), 1, 1), OfferAnswer::Rejected);
        assert_eq!(pool.offer(&tm("b"), slot(1), 0, 1), OfferAnswer::Rejected);
    }

    #[test]
    fn a_slot_with_a_new_allocation_has_lost_the_old_one() {
        let mut pool = pool(&[("a", 1, 0)]);
        let answer = pool.offer(&tm("a"), slot(2), 0, 1);
        assert_eq!(answer, OfferAnswer::AcceptedInsteadOf(slot(1)));
        assert_eq!(pool.get(&slot(1)), None);
    }

    #[test]
    fn a_slot_that_nobody_asked_for_is_kept_and_given_back_when_it_idles_too_long() {
        let mut pool = pool(&[("a", 1, 0), ("a", 2, 1)]);
        let needed = BTreeSet::from([slot(1)]);
        assert!(pool.note_idle(&needed, 1_000, 500).is_empty());
        assert!(pool.note_idle(&needed, 1_499, 500).is_empty());
        assert_eq!(pool.note_idle(&needed, 1_500, 500), [slot(2)]);
    }

    #[test]
    fn an_idle_slot_serves_a_need_that_comes_later() {
        let mut pool = pool(&[("a", 1, 0)]);
        pool.note_idle(&BTreeSet::new(), 0, 500);
        let assigned = pool.assign(&keys(1), &BTreeMap::new(), &BTreeSet::new());
        assert_eq!(assigned.expect("enough").len(), 1);
    }

    #[test]
    fn slots_are_spread_evenly_over_the_task_managers() {
        let pool = pool(&[("a", 1, 0), ("a", 2, 1), ("b", 3, 0), ("b", 4, 1)]);
        let assigned = pool
            .assign(&keys(2), &BTreeMap::new(), &BTreeSet::new())
            .expect("enough");
        let used: Vec<AllocationId> = assigned.into_values().collect();
        assert_eq!(used, [slot(1), slot(3)]);
    }

    #[test]
    fn a_key_goes_back_to_its_former_slot_or_else_to_its_former_task_manager() {
        let mut pool = pool(&[("a", 1, 0), ("b", 2, 0), ("b", 3, 1)]);
        pool.remember(SlotKey { group: 0, index: 0 }, tm("b"), slot(9));
        pool.remember(SlotKey { group: 0, index: 1 }, tm("b"), slot(2));
        let assigned = pool
            .assign(&keys(2), &BTreeMap::new(), &BTreeSet::new())
            .expect("enough");
        let used: Vec<AllocationId> = assigned.into_values().collect();
        assert_eq!(used, [slot(3), slot(2)]);
    }

    #[test]
    fn what_is_taken_or_blocked_is_given_to_nobody_else() {
        let pool = pool(&[("a", 1, 0), ("a", 2, 1), ("a", 3, 2)]);
        let taken = BTreeMap::from([(SlotKey { group: 1, index: 0 }, slot(1))]);
        let blocked = BTreeSet::from([slot(2)]);
        let assigned = pool.assign(&keys(1), &taken, &blocked).expect("enough");
        assert_eq!(assigned.into_values().collect::<Vec<_>>(), [slot(3)]);
        assert_eq!(pool.assign(&keys(2), &taken, &blocked), None);
    }

    #[test]
    fn what_was_let_go_is_not_taken_again_before_its_task_manager_registers_anew() {
        let mut pool = pool(&[("a", 1, 0), ("b", 2, 0)]);
        pool.remove(&slot(1));
        assert_eq!(pool.offer(&tm("a"), slot(1), 0, 2), OfferAnswer::Rejected);
        pool.forgive(&tm("b"));
        assert_eq!(pool.offer(&tm("a"), slot(1), 0, 2), OfferAnswer::Rejected);
        pool.forgive(&tm("a"));
        assert_eq!(pool.offer(&tm("a"), slot(1), 0, 2), OfferAnswer::Accepted);
        // So is one whose slot was allocated anew.
        let instead = OfferAnswer::AcceptedInsteadOf(slot(1));
        assert_eq!(pool.offer(&tm("a"), slot(3), 0, 3), instead);
        assert_eq!(pool.offer(&tm("a"), slot(1), 0, 4), OfferAnswer::Rejected);
    }
}
