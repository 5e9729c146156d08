//! Peers that a task's operators connect to and can't reach: told with what the task has counted, so that people see why no record
//! flows. Decides nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tanist_ha::clock::wall_clock_ms;

/// Of one task. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Peers {
    /// Since when each is away: milliseconds since 1970.
    away: Arc<Mutex<Vec<u64>>>,
}

/// A peer that is away until this is dropped.
#[derive(Debug)]
pub struct Away {
    peers: Peers,
    since_ms: u64,
}

impl Peers {
    /// A peer can't be reached.
    #[must_use]
    pub fn away(&self) -> Away {
        let since_ms = wall_clock_ms();
        self.lock().push(since_ms);
        Away {
            peers: self.clone(),
            since_ms,
        }
    }

    /// Since when the one is away that has been so for longest: milliseconds since 1970; 0: none is.
    pub fn away_since_ms(&self) -> u64 {
        self.lock().iter().copied().min().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        let mut away = self.peers.lock();
        if let Some(index) = away.iter().position(|since_ms| *since_ms == self.since_ms) {
            away.swap_remove(index);
        }
    }
}
