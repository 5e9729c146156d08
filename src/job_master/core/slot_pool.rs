//! The slots that a JobMaster holds. Pure.
//!
//! A job that states no resources takes any slot for any need. A job that states them is given slots of
//! exactly the requested profiles, and each slot serves only a need of its profile.
//!
//! The pool does not know which TaskManagers are registered nor which tasks run where. `slot_assignment.rs` chooses
//! which region gets which slot. Invariants: an allocation fills one slot; a slot of a TaskManager has one allocation;
//! an allocation that was released is not accepted again under the same registration of its TaskManager. Otherwise a
//! late request to free it would end tasks that were deployed into it later, or a late offer would bring back a slot
//! that its TaskManager has freed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use tanist_compact::SmallMap;
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::ResourceProfile;

use super::idle_slots::IdleSlots;

/// The need for one slot: subtask `index` of each vertex in slot sharing group `group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SlotKey {
    /// Index of the slot sharing group.
    pub group: usize,
    /// Number of the subtask.
    pub index: u32,
}

/// A held slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PoolSlot {
    /// The TaskManager that provides it.
    pub task_manager: ResourceId,
    /// Its number there.
    pub index: u32,
    /// Its resources.
    pub profile: Arc<ResourceProfile>,
    /// The step of the core in which it was accepted.
    pub accepted_in: u64,
}

/// The answer to an offered slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OfferAnswer {
    /// The slot is held.
    Accepted,
    /// The slot is held; the allocation that it had before is lost.
    AcceptedInsteadOf(AllocationId),
    /// The slot is not held: another slot fills this allocation.
    Rejected,
}

/// Number of released allocations that are remembered. Late messages are about fewer than this.
const REMEMBERED: usize = 4096;

/// The slots of one job.
#[derive(Debug, Clone, Default)]
pub(super) struct SlotPool {
    /// Boxed, because an insertion moves the entries behind it.
    slots: SmallMap<AllocationId, Box<PoolSlot>>,
    /// The same slots sorted by TaskManager and number. A list, as most jobs have few slots and there may be
    /// very many jobs.
    by_place: Vec<(ResourceId, u32, AllocationId)>,
    /// Number of slots by profile, without zeros. The profiles are shared with the slots.
    by_profile: Vec<(Arc<ResourceProfile>, u32)>,
    /// The slot of the last execution of each key.
    former: SmallMap<SlotKey, (ResourceId, AllocationId)>,
    idle: IdleSlots,
    /// Released allocations, the oldest first.
    released: VecDeque<(ResourceId, AllocationId)>,
}

impl SlotPool {
    /// Accepts or rejects an offered slot. The caller has checked that the TaskManager is registered. A slot
    /// that was never requested, or whose request was cancelled meanwhile, is accepted too: it serves another
    /// need, or idles.
    pub(super) fn offer(
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
        if self.released.iter().any(is_it) {
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

    /// Releases a slot. It is not accepted again until its TaskManager registers again.
    pub(super) fn remove(&mut self, allocation: &AllocationId) -> Option<PoolSlot> {
        let slot = self.slots.remove(allocation)?;
        self.idle.remove(allocation);
        self.count_no_more(&slot.profile);
        if let Ok(at) = self.place_of(&slot.task_manager, slot.index) {
            self.by_place.remove(at);
        }
        self.released
            .push_back((slot.task_manager.clone(), *allocation));
        if self.released.len() > REMEMBERED {
            self.released.pop_front();
        }
        Some(*slot)
    }

    /// Forgets the released allocations of a TaskManager that has registered again: no late message of its
    /// earlier registration is accepted.
    pub(super) fn forget_released(&mut self, task_manager: &ResourceId) {
        self.released.retain(|(of, _)| of != task_manager);
    }

    /// Releases all slots of a TaskManager whose registration has ended.
    pub(super) fn remove_all_of(&mut self, task_manager: &ResourceId) {
        self.forget_released(task_manager);
        let there = self.range_of(task_manager);
        let gone: Vec<_> = self.by_place.drain(there).collect();
        for (_, _, allocation) in gone {
            if let Some(slot) = self.slots.remove(&allocation) {
                self.idle.remove(&allocation);
                self.count_no_more(&slot.profile);
            }
        }
    }

    /// Counts one more slot of this profile.
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

    /// The index of a place in the list: `Ok` if it is there, `Err` with the index to insert it at.
    fn place_of(&self, task_manager: &ResourceId, index: u32) -> Result<usize, usize> {
        self.by_place
            .binary_search_by(|(at, number, _)| (at, *number).cmp(&(task_manager, index)))
    }

    /// The range of a TaskManager's places in the list.
    fn range_of(&self, task_manager: &ResourceId) -> Range<usize> {
        let first = self.by_place.partition_point(|(at, ..)| at < task_manager);
        let next = self.by_place.partition_point(|(at, ..)| at <= task_manager);
        first..next
    }

    /// The slot with this allocation.
    pub(super) fn get(&self, allocation: &AllocationId) -> Option<&PoolSlot> {
        self.slots.get(allocation).map(Box::as_ref)
    }

    /// Number of held slots.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// All slots of a TaskManager.
    pub(super) fn slots_of(&self, task_manager: &ResourceId) -> Vec<AllocationId> {
        let there = &self.by_place[self.range_of(task_manager)];
        there.iter().map(|(.., allocation)| *allocation).collect()
    }

    /// Forgets the former slots of these keys, which are placed. They are remembered again before the next
    /// placement.
    pub(super) fn forget_former(&mut self, keys: &[SlotKey]) {
        for key in keys {
            self.former.remove(key);
        }
    }

    /// Remembers the slot of a key, so that its next execution goes back there.
    pub(super) fn remember(
        &mut self,
        key: SlotKey,
        task_manager: ResourceId,
        allocation: AllocationId,
    ) {
        self.former.insert(key, (task_manager, allocation));
    }

    /// All slots: TaskManager, number there, allocation. Sorted in this order.
    pub(super) fn places(&self) -> impl Iterator<Item = (&ResourceId, u32, AllocationId)> {
        let places = self.by_place.iter();
        places.map(|(at, number, allocation)| (at, *number, *allocation))
    }

    /// The slot of the last execution of a key, if it is remembered.
    pub(super) fn former(&self, key: &SlotKey) -> Option<&(ResourceId, AllocationId)> {
        self.former.get(key)
    }

    /// Slots for one region: see [`SlotAssignment::assign`].
    #[cfg(test)]
    pub(super) fn assign(
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

    /// Number of slots that serve a need.
    pub(super) fn count_for(&self, wanted: &ResourceProfile) -> u32 {
        let serving = self.by_profile.iter();
        let serving = serving.filter(|(profile, _)| profile.is_matching(wanted));
        serving.map(|(_, number)| *number).sum()
    }

    /// The slots among `of` that exceed the need.
    pub(super) fn surplus(
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

    /// Whether there are more slots than needed.
    pub(super) fn has_surplus(&self, needed: &[(ResourceProfile, u32)]) -> bool {
        self.more_than(needed).values().any(|more| *more > 0)
    }

    /// Number of slots beyond the need, by kind.
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

    /// Notes that an execution has this slot or will have it. The slot does not idle.
    pub(super) fn begin_use(&mut self, allocation: AllocationId) {
        self.idle.begin_use(allocation);
    }

    /// Notes that an execution does not have this slot any more.
    pub(super) fn end_use(&mut self, allocation: AllocationId) {
        let is_held = self.slots.contains_key(&allocation);
        self.idle.end_use(allocation, is_held);
    }

    /// Whether no execution has this slot.
    pub(super) fn is_unused(&self, allocation: &AllocationId) -> bool {
        self.idle.is_unused(allocation)
    }

    /// Notes the time. Unused slots idle if there is a surplus. Returns those that have idled for
    /// `timeout_ms`.
    pub(super) fn note_idle(
        &mut self,
        is_surplus: bool,
        now_ms: u64,
        timeout_ms: u64,
    ) -> Vec<AllocationId> {
        self.idle.note_time(now_ms, is_surplus);
        self.idle.overdue(now_ms, timeout_ms)
    }

    /// Start of the longest idle time.
    pub(super) fn idle_since_ms(&self) -> Option<u64> {
        self.idle.idle_since_ms()
    }

    /// The index of used and unused slots.
    #[cfg(test)]
    pub(super) fn idle_slots(&self) -> &IdleSlots {
        &self.idle
    }
}

/// The kind that a slot counts as. If the job states no resources, all slots are of one kind.
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
