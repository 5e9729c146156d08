//! Memory budget for the records in all channels of a TaskManager.
//!
//! A channel takes a batch beyond its first one only while the budget has room, so an exchange buffers at most
//! this budget plus one batch per channel. No producer waits for the budget itself: a channel that has a batch
//! has a consumer that eventually takes it, and then its producer checks again. So channels can't block each
//! other, however full the budget is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The memory budget; see the module. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct NetworkBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    total: u64,
    taken: AtomicU64,
}

impl Default for NetworkBudget {
    /// Unlimited.
    fn default() -> NetworkBudget {
        NetworkBudget::new(u64::MAX)
    }
}

impl NetworkBudget {
    pub(super) fn new(total: u64) -> NetworkBudget {
        NetworkBudget(Arc::new(Inner {
            total,
            taken: AtomicU64::new(0),
        }))
    }

    /// Whether there is room for `bytes` more. Concurrent callers may get the same answer: each channel has its
    /// own limit.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        self.taken().saturating_add(bytes as u64) <= self.0.total
    }

    pub(super) fn take(&self, bytes: usize) {
        self.0.taken.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn release(&self, bytes: usize) {
        self.0.taken.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn taken(&self) -> u64 {
        self.0.taken.load(Ordering::Relaxed)
    }
}
