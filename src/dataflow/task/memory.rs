//! Memory of the keyed state of tasks, counted against the managed memory of their slots.
//!
//! It is counted, not enforced: if the state of a slot's tasks exceeds its share, one of them gives a notice that names
//! the options, and all go on. A slot without a share (0 bytes) gives no notice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::status::Counters;

/// Time between two measurements of a task.
const INTERVAL: Duration = Duration::from_secs(1);

/// The slots of this process that have tasks, by allocation.
#[derive(Debug, Clone, Default)]
pub(super) struct SlotMemories(Arc<Mutex<BTreeMap<String, Weak<SlotMemory>>>>);

impl SlotMemories {
    /// The memory of a slot. `share` is its managed memory, in bytes.
    pub(super) fn of(&self, allocation: &str, share: u64) -> Arc<SlotMemory> {
        let mut slots = self.0.lock();
        slots.retain(|_, slot| slot.strong_count() > 0);
        if let Some(slot) = slots.get(allocation).and_then(Weak::upgrade) {
            return slot;
        }
        let slot = Arc::new(SlotMemory {
            share,
            used: AtomicU64::new(0),
            is_reported: AtomicBool::new(false),
        });
        slots.insert(allocation.to_owned(), Arc::downgrade(&slot));
        slot
    }
}

/// The managed memory of a slot, and what its tasks use.
#[derive(Debug)]
pub(super) struct SlotMemory {
    /// In bytes; 0: it has none.
    share: u64,
    /// What its tasks use, in bytes, as each has counted last.
    used: AtomicU64,
    /// Whether a task has reported that the share is used up.
    is_reported: AtomicBool,
}

/// The memory that one task uses, as it was counted last.
pub(super) struct TaskMemory {
    slot: Arc<SlotMemory>,
    counters: Arc<Counters>,
    counted: u64,
    /// When the state is measured next; `None`: at once.
    next: Option<Instant>,
}

impl TaskMemory {
    pub(super) fn new(slot: Arc<SlotMemory>, counters: Arc<Counters>) -> TaskMemory {
        TaskMemory {
            slot,
            counters,
            counted: 0,
            next: None,
        }
    }

    /// When the state is measured next. `None`: at once.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Counts the state, which has this many bytes at `now`.
    pub(super) fn measure(&mut self, now: Instant, bytes: u64) {
        self.next = Some(now + INTERVAL);
        let slot = &self.slot;
        slot.used.fetch_add(bytes, Ordering::Relaxed);
        slot.used.fetch_sub(self.counted, Ordering::Relaxed);
        self.counted = bytes;
        self.counters.set_state_bytes(bytes);
        let (used, share) = (slot.used.load(Ordering::Relaxed), slot.share);
        if share == 0 || used <= share || slot.is_reported.swap(true, Ordering::Relaxed) {
            return;
        }
        let notice = format!(
            "the state of the tasks in its slot takes {}, more than the managed memory of the slot, which is {}: the job goes on, and \
             the process takes the rest from memory for other purposes; give slots more by `taskmanager.memory.managed.fraction`, \
             `taskmanager.memory.managed.size` or `managed-memory` of the job's `resources`, or use more slots",
            megabytes(used),
            megabytes(share)
        );
        tracing::warn!(
            used,
            share,
            "state takes more than the managed memory of its slot"
        );
        self.counters.notices().say(notice);
    }
}

impl Drop for TaskMemory {
    fn drop(&mut self) {
        self.slot.used.fetch_sub(self.counted, Ordering::Relaxed);
        self.counters.set_state_bytes(0);
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} mb", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(slots: &SlotMemories, allocation: &str, share: u64) -> (TaskMemory, Arc<Counters>) {
        let counters = Arc::new(Counters::default());
        let slot = slots.of(allocation, share);
        (TaskMemory::new(slot, Arc::clone(&counters)), counters)
    }

    fn notices(counters: &Counters) -> Vec<String> {
        counters.notices().watch().borrow().clone()
    }

    #[tokio::test]
    async fn tasks_of_one_slot_share_its_managed_memory_and_one_of_them_says_that_it_is_used_up() {
        let (slots, now) = (SlotMemories::default(), Instant::now());
        let (mut first, of_first) = task(&slots, "a", 10 << 20);
        let (mut second, of_second) = task(&slots, "a", 10 << 20);
        let (mut other, of_other) = task(&slots, "b", 10 << 20);
        first.measure(now, 6 << 20);
        other.measure(now, 9 << 20);
        second.measure(now, 4 << 20);
        assert_eq!(of_first.snapshot().state_bytes, 6 << 20);
        for counters in [&of_first, &of_second, &of_other] {
            assert_eq!(notices(counters), Vec::<String>::new());
        }
        second.measure(now, 5 << 20);
        second.measure(now, 7 << 20);
        first.measure(now, 7 << 20);
        let said = notices(&of_second);
        assert_eq!(said.len(), 1, "once: {said:?}");
        assert!(said[0].contains("takes 11.0 mb"), "{said:?}");
        assert!(said[0].contains("which is 10.0 mb"), "{said:?}");
        assert!(
            said[0].contains("`taskmanager.memory.managed.fraction`"),
            "{said:?}"
        );
        assert_eq!(notices(&of_first), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_task_that_has_ended_counts_no_more_and_a_slot_without_a_share_says_nothing() {
        let (slots, now) = (SlotMemories::default(), Instant::now());
        let (mut first, of_first) = task(&slots, "a", 10);
        let (mut second, of_second) = task(&slots, "a", 10);
        first.measure(now, 10);
        drop(first);
        assert_eq!(of_first.snapshot().state_bytes, 0);
        second.measure(now, 10);
        assert_eq!(notices(&of_second), Vec::<String>::new());
        let (mut without, of_without) = task(&slots, "b", 0);
        without.measure(now, 1 << 30);
        assert_eq!(notices(&of_without), Vec::<String>::new());
    }
}
