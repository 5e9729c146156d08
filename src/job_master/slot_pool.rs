//! The slots that a JobMaster holds, and which of them a region gets. Pure.
//!
//! A job that states no resources takes any slot for any need; one that does is given slots of exactly the profiles that it asked
//! for, and each serves only such a need.
//!
//! Not here: who is registered, and what runs where; the core says which slots are taken. Invariants: an allocation
//! fills one slot; a slot of a TaskManager has one allocation; an allocation that was let go is not taken again under the same
//! registration of its TaskManager. Else a late request to free it would end what was deployed into it since, or a late offer
//! would bring back what its TaskManager has freed. Which region gets which slot is chosen in `slot_assignment.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::ResourceProfile;

use super::idle_slots::IdleSlots;
use crate::small_map::SmallMap;

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
    pub profile: Arc<ResourceProfile>,
    /// The turn in which it was accepted.
    pub accepted_in: u64,
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
    // Boxed: what is in order is moved when there is one more.
    slots: SmallMap<AllocationId, Box<PoolSlot>>,
    // The same by TaskManager and number there, in order. A list: most jobs have few, and there may be very many jobs.
    by_place: Vec<(ResourceId, u32, AllocationId)>,
    // How many there are of each profile; none is zero. Shared with the slots.
    by_profile: Vec<(Arc<ResourceProfile>, u32)>,
    former: SmallMap<SlotKey, (ResourceId, AllocationId)>,
    idle: IdleSlots,
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
        let place = self.place_of(task_manager, index);
        let before = place.ok().map(|at| self.by_place[at].2);
        if let Some(before) = before {
            self.remove(&before);
        }
        let at = place.unwrap_or_else(|at| at);
        let place = (task_manager.clone(), index, allocation);
        if self.by_place.is_empty() {
            self.by_place.reserve_exact(1);
        }
        self.by_place.insert(at, place);
        let task_manager = task_manager.clone();
        let slot = PoolSlot {
            task_manager,
            index,
            profile: self.count(profile),
            accepted_in: turn,
        };
        self.slots.insert(allocation, Box::new(slot));
        self.idle.add(allocation);
        before.map_or(OfferAnswer::Accepted, OfferAnswer::AcceptedInsteadOf)
    }

    /// Lets a slot go: it is not taken again, until its TaskManager registers anew.
    pub fn remove(&mut self, allocation: &AllocationId) -> Option<PoolSlot> {
        let slot = self.slots.remove(allocation)?;
        self.idle.remove(allocation);
        self.count_no_more(&slot.profile);
        if let Ok(at) = self.place_of(&slot.task_manager, slot.index) {
            self.by_place.remove(at);
        }
        self.let_go
            .push_back((slot.task_manager.clone(), *allocation));
        if self.let_go.len() > REMEMBERED {
            self.let_go.pop_front();
        }
        Some(*slot)
    }

    /// A TaskManager has registered anew: nothing comes late from before that.
    pub fn forgive(&mut self, task_manager: &ResourceId) {
        self.let_go.retain(|(of, _)| of != task_manager);
    }

    /// Lets all slots of a TaskManager go, with its registration.
    pub fn remove_all_of(&mut self, task_manager: &ResourceId) {
        self.forgive(task_manager);
        let there = self.range_of(task_manager);
        let gone: Vec<_> = self.by_place.drain(there).collect();
        for (_, _, allocation) in gone {
            if let Some(slot) = self.slots.remove(&allocation) {
                self.idle.remove(&allocation);
                self.count_no_more(&slot.profile);
            }
        }
    }

    /// One more of this profile.
    fn count(&mut self, profile: ResourceProfile) -> Arc<ResourceProfile> {
        let known = self.by_profile.iter_mut().find(|(it, _)| **it == profile);
        if let Some((profile, number)) = known {
            *number += 1;
            return profile.clone();
        }
        let profile = Arc::new(profile);
        self.by_profile.reserve_exact(1);
        self.by_profile.push((profile.clone(), 1));
        profile
    }

    fn count_no_more(&mut self, profile: &ResourceProfile) {
        let at = self.by_profile.iter().position(|(it, _)| **it == *profile);
        if let Some(at) = at {
            self.by_profile[at].1 -= 1;
            if self.by_profile[at].1 == 0 {
                self.by_profile.remove(at);
            }
        }
    }

    /// Where a place is in the list, or where it would be.
    fn place_of(&self, task_manager: &ResourceId, index: u32) -> Result<usize, usize> {
        self.by_place
            .binary_search_by(|(at, number, _)| (at, *number).cmp(&(task_manager, index)))
    }

    /// Where the places of a TaskManager are in the list.
    fn range_of(&self, task_manager: &ResourceId) -> Range<usize> {
        let first = self.by_place.partition_point(|(at, ..)| at < task_manager);
        let next = self.by_place.partition_point(|(at, ..)| at <= task_manager);
        first..next
    }

    /// The slot with this allocation.
    pub fn get(&self, allocation: &AllocationId) -> Option<&PoolSlot> {
        self.slots.get(allocation).map(Box::as_ref)
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
        let there = &self.by_place[self.range_of(task_manager)];
        there.iter().map(|(.., allocation)| *allocation).collect()
    }

    /// Forgets where these keys were: what is placed now is remembered when it is to be placed again.
    pub fn forget_former(&mut self, keys: &[SlotKey]) {
        for key in keys {
            self.former.remove(key);
        }
    }

    /// Remembers where a key was, so that it goes back there.
    pub fn remember(&mut self, key: SlotKey, task_manager: ResourceId, allocation: AllocationId) {
        self.former.insert(key, (task_manager, allocation));
    }

    /// All of them: on which TaskManager, its number there, and the allocation. In this order.
    pub fn places(&self) -> impl Iterator<Item = (&ResourceId, u32, AllocationId)> {
        let places = self.by_place.iter();
        places.map(|(at, number, allocation)| (at, *number, *allocation))
    }

    /// Where the last execution of a key was, as far as that is remembered.
    pub fn former(&self, key: &SlotKey) -> Option<&(ResourceId, AllocationId)> {
        self.former.get(key)
    }

    /// Slots for one region: see [`SlotAssignment::assign`].
    #[cfg(test)]
    pub fn assign(
        &self,
        wanted: &[SlotKey],
        profiles: &[ResourceProfile],
        taken: &BTreeMap<SlotKey, AllocationId>,
        blocked: &std::collections::BTreeSet<AllocationId>,
    ) -> Option<BTreeMap<SlotKey, AllocationId>> {
        let (taken, blocked) = (taken.clone(), blocked.clone());
        let mut assignment = super::slot_assignment::SlotAssignment::new(
            self,
            profiles,
            taken,
            blocked,
            &Default::default(),
        );
        assignment.assign(self, wanted)
    }

    /// How many slots there are for a need.
    pub fn count_for(&self, wanted: &ResourceProfile) -> u32 {
        let serving = self.by_profile.iter();
        let serving = serving.filter(|(profile, _)| profile.is_matching(wanted));
        serving.map(|(_, number)| *number).sum()
    }

    /// Of these slots those that are more than what is needed.
    pub fn surplus(
        &self,
        mut of: Vec<AllocationId>,
        needed: &[(ResourceProfile, u32)],
    ) -> Vec<AllocationId> {
        let mut more = self.more_than(needed);
        of.retain(|allocation| {
            let slot = self.slots.get(allocation);
            let left = slot.and_then(|slot| more.get_mut(kind_of(&slot.profile, needed)));
            left.is_some_and(|left| {
                let is_more = *left > 0;
                *left = left.saturating_sub(1);
                is_more
            })
        });
        of
    }

    /// Whether there are more slots than what is needed.
    pub fn has_surplus(&self, needed: &[(ResourceProfile, u32)]) -> bool {
        self.more_than(needed).values().any(|more| *more > 0)
    }

    /// How many slots there are beyond what is needed, of each kind.
    fn more_than(&self, needed: &[(ResourceProfile, u32)]) -> BTreeMap<&ResourceProfile, u32> {
        let mut more: BTreeMap<&ResourceProfile, u32> = BTreeMap::new();
        for (profile, number) in &self.by_profile {
            *more.entry(kind_of(profile, needed)).or_default() += number;
        }
        for (profile, number) in needed {
            if let Some(there) = more.get_mut(profile) {
                *there = there.saturating_sub(*number);
            }
        }
        more
    }

    /// An execution has a slot, or will: it does not idle.
    pub fn begin_use(&mut self, allocation: AllocationId) {
        self.idle.begin_use(allocation);
    }

    /// An execution does not have a slot any more.
    pub fn end_use(&mut self, allocation: AllocationId) {
        let is_held = self.slots.contains_key(&allocation);
        self.idle.end_use(allocation, is_held);
    }

    /// Whether no execution has a slot.
    pub fn is_unused(&self, allocation: &AllocationId) -> bool {
        self.idle.is_unused(allocation)
    }

    /// Notes the time; slots that nothing uses idle if there are more than what is needed. Gives those that have idled for `timeout_ms`.
    pub fn note_idle(
        &mut self,
        is_surplus: bool,
        now_ms: u64,
        timeout_ms: u64,
    ) -> Vec<AllocationId> {
        self.idle.note_time(now_ms, is_surplus);
        self.idle.overdue(now_ms, timeout_ms)
    }

    /// Since when the slot that idles longest does.
    pub fn idle_since_ms(&self) -> Option<u64> {
        self.idle.idle_since_ms()
    }

    /// Which slots executions have, and which nothing uses.
    #[cfg(test)]
    pub(super) fn idle_slots(&self) -> &IdleSlots {
        &self.idle
    }
}

/// As what a slot counts: where nothing is stated all are alike.
fn kind_of<'a>(
    profile: &'a ResourceProfile,
    needed: &[(ResourceProfile, u32)],
) -> &'a ResourceProfile {
    if needed.iter().any(|(profile, _)| profile.is_unknown()) {
        &ResourceProfile::Unknown
    } else {
        profile
    }
}
