//! How much memory the records in all channels of a TaskManager may take together.
//!
//! A channel takes a batch beyond its first one only while there is room here, so that what waits in an exchange is bounded by
//! this budget and one batch a channel. Nobody waits for the budget itself: a channel in which something is has a consumer
//! that takes it out some day, and its producer looks again then. So channels can't block each other, however full it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct NetworkBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    total: u64,
    taken: AtomicU64,
}

impl Default for NetworkBudget {
    /// Without bound.
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

    /// Whether there is room for so much more. Who asks at the same time may be told the same: each is bounded by itself.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        self.taken().saturating_add(bytes as u64) <= self.0.total
    }

    pub(super) fn take(&self, bytes: usize) {
        self.0.taken.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn give_back(&self, bytes: usize) {
        self.0.taken.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn taken(&self) -> u64 {
        self.0.taken.load(Ordering::Relaxed)
    }
}
