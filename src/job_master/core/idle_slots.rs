//! The unused slots of a pool, and since when they are unused. Owned by the pool, and updated with each slot that is
//! added, removed or used. Pure.
//!
//! Slots idle only while there is a surplus: the idle time starts with the surplus or with the end of the
//! slot's last use, whichever is later. Invariants: a slot is unused if it is held and has no use; each
//! unused slot has one time, once [`IdleSlots::note_time`] was called.

use tanist_compact::{SmallMap, SmallSet};
use tanist_proto::id::AllocationId;

/// The unused slots of a pool; see the module.
#[derive(Debug, Clone, Default)]
pub(super) struct IdleSlots {
    /// Number of executions that have a slot, held or not.
    uses: SmallMap<AllocationId, u32>,
    /// Slots that became unused with this event.
    newly_unused: SmallSet<AllocationId>,
    unused: SmallSet<(u64, AllocationId)>,
    /// `unused` by slot.
    unused_since_ms: SmallMap<AllocationId, u64>,
    surplus_since_ms: Option<u64>,
}

impl IdleSlots {
    /// Adds a held slot.
    pub(super) fn add(&mut self, slot: AllocationId) {
        if !self.uses.contains_key(&slot) {
            self.newly_unused.insert(slot);
        }
    }

    /// Removes a slot that is not held any more.
    pub(super) fn remove(&mut self, slot: &AllocationId) {
        self.newly_unused.remove(slot);
        if let Some(since_ms) = self.unused_since_ms.remove(slot) {
            self.unused.remove(&(since_ms, *slot));
        }
    }

    /// Notes that an execution has a slot.
    pub(super) fn begin_use(&mut self, slot: AllocationId) {
        *self.uses.get_or_insert_with(slot, || 0) += 1;
        self.remove(&slot);
    }

    /// Notes that an execution does not have a slot any more, which may be held or not.
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

    /// Whether no execution has this slot.
    pub(super) fn is_unused(&self, slot: &AllocationId) -> bool {
        !self.uses.contains_key(slot)
    }

    /// Sets the time. `is_surplus`: whether unused slots idle.
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

    /// The slots that have idled for `timeout_ms`.
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

    /// Start of the longest idle time.
    pub(super) fn idle_since_ms(&self) -> Option<u64> {
        let (first, _) = self.unused.first()?;
        Some(self.surplus_since_ms?.max(*first))
    }

    /// Number of executions by slot, without zeros.
    #[cfg(test)]
    pub(super) fn uses(&self) -> &SmallMap<AllocationId, u32> {
        &self.uses
    }

    /// The unused slots, sorted.
    #[cfg(test)]
    pub(super) fn unused(&self) -> SmallSet<AllocationId> {
        let known = self.unused_since_ms.keys();
        known.chain(&self.newly_unused).copied().collect()
    }
}
