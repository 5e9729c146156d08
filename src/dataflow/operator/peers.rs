//! Unreachable peers of a task's operators. They are reported with the task's counters, so that people see why
//! no record flows. Nothing is decided from them.

use std::sync::Arc;

use parking_lot::Mutex;
use tanist_ha::clock::wall_clock_ms;

/// The unreachable peers of one task. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Peers {
    /// Since when each peer is unreachable, in milliseconds since 1970.
    away: Arc<Mutex<Vec<u64>>>,
}

/// Marks a peer as unreachable until it is dropped.
#[derive(Debug)]
pub struct Away {
    peers: Peers,
    since_ms: u64,
}

impl Peers {
    /// Marks a peer as unreachable.
    #[must_use]
    pub fn away(&self) -> Away {
        let since_ms = wall_clock_ms();
        self.away.lock().push(since_ms);
        Away {
            peers: self.clone(),
            since_ms,
        }
    }

    /// Since when the longest unreachable peer is unreachable, in milliseconds since 1970; 0 if none is.
    pub fn away_since_ms(&self) -> u64 {
        self.away.lock().iter().copied().min().unwrap_or_default()
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        let mut away = self.peers.away.lock();
        if let Some(index) = away.iter().position(|since_ms| *since_ms == self.since_ms) {
            away.swap_remove(index);
        }
    }
}
