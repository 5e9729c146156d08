//! Which of a pool's slots nothing uses, and since when: kept up to date with each slot that comes, goes, or is used. Pure.
//!
//! Slots idle only while there are more than what is needed: the time begins with the surplus, or when the slot's last use has ended,
//! whichever is later. Invariants: a slot is unused if it is held and has no use; each that is unused has one time, once
//! [`IdleSlots::note_time`] was called.

use tanist_proto::id::AllocationId;

use crate::small_map::SmallMap;
use crate::small_set::SmallSet;

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct IdleSlots {
    /// How many executions have which slot, held or not.
    uses: SmallMap<AllocationId, u32>,
    /// Unused since this event.
    newly_unused: SmallSet<AllocationId>,
    unused: SmallSet<(u64, AllocationId)>,
    /// The same by slot.
    unused_since_ms: SmallMap<AllocationId, u64>,
    surplus_since_ms: Option<u64>,
}

impl IdleSlots {
    /// A slot is held.
    pub(super) fn add(&mut self, slot: AllocationId) {
        if !self.uses.contains_key(&slot) {
            self.newly_unused.insert(slot);
        }
    }

    /// A slot is not held any more.
    pub(super) fn remove(&mut self, slot: &AllocationId) {
        self.newly_unused.remove(slot);
        if let Some(since_ms) = self.unused_since_ms.remove(slot) {
            self.unused.remove(&(since_ms, *slot));
        }
    }

    /// An execution has a slot.
    pub(super) fn begin_use(&mut self, slot: AllocationId) {
        *self.uses.get_or_insert_with(slot, || 0) += 1;
        self.remove(&slot);
    }

    /// An execution does not have a slot any more, which is held or not.
    pub(super) fn end_use(&mut self, slot: AllocationId, is_held: bool) {
        let Some(uses) = self.uses.get_mut(&slot) else {
            return;
        };
        *uses -= 1;
        if *uses == 0 {
            self.uses.remove(&slot);
            if is_held {
                self.newly_unused.insert(slot);
            }
        }
    }

    /// Whether no execution has a slot.
    pub(super) fn is_unused(&self, slot: &AllocationId) -> bool {
        !self.uses.contains_key(slot)
    }

    /// It is so late. Whether slots idle that are unused.
    pub(super) fn note_time(&mut self, now_ms: u64, is_surplus: bool) {
        for slot in std::mem::take(&mut self.newly_unused) {
            self.unused.insert((now_ms, slot));
            self.unused_since_ms.insert(slot, now_ms);
        }
        self.surplus_since_ms = match is_surplus {
            true => self.surplus_since_ms.or(Some(now_ms)),
            false => None,
        };
    }

    /// The slots that have idled for so long.
    pub(super) fn overdue(&self, now_ms: u64, timeout_ms: u64) -> Vec<AllocationId> {
        let since_ms = now_ms.checked_sub(timeout_ms);
        let surplus = self.surplus_since_ms.zip(since_ms);
        let Some((_, since_ms)) = surplus.filter(|(surplus, since)| surplus <= since) else {
            return Vec::new();
        };
        let last = (since_ms, AllocationId::from_bits(u128::MAX));
        let mut overdue: Vec<AllocationId> =
            self.unused.range(..=last).map(|(_, slot)| *slot).collect();
        overdue.sort_unstable();
        overdue
    }

    /// Since when the slot that idles longest does.
    pub(super) fn idle_since_ms(&self) -> Option<u64> {
        let (first, _) = self.unused.first()?;
        Some(self.surplus_since_ms?.max(*first))
    }

    /// How many executions have each slot that any has.
    #[cfg(test)]
    pub(super) fn uses(&self) -> &SmallMap<AllocationId, u32> {
        &self.uses
    }

    /// The slots that nothing uses, in order.
    #[cfg(test)]
    pub(super) fn unused(&self) -> SmallSet<AllocationId> {
        let known = self.unused_since_ms.keys();
        known.chain(&self.newly_unused).copied().collect()
    }
}
