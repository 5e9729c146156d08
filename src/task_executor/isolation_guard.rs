//! The time by which tasks of isolated jobs must have ended. The actor sets it after each event, the process's
//! watchdog reads it on a thread of its own, and kills the process when the time has passed: also if nothing else in
//! the process runs. Decides nothing: [`super::core`] computes the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tanist_ha::clock::{Clock, Moment};

/// Time by which isolated tasks must have ended, for a watchdog that ends a hanging process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct IsolationGuard {
    clock: Clock,
    /// Milliseconds of the clock. [`NEVER`]: no isolated task runs.
    ended_by_ms: Arc<AtomicU64>,
}

const NEVER: u64 = u64::MAX;

impl IsolationGuard {
    /// Without running tasks.
    pub fn new(clock: Clock) -> IsolationGuard {
        IsolationGuard {
            clock,
            ended_by_ms: Arc::new(AtomicU64::new(NEVER)),
        }
    }

    /// Whether tasks run that should have ended.
    pub fn is_overdue(&self) -> bool {
        self.clock.now().as_millis() > self.ended_by_ms.load(Ordering::SeqCst)
    }

    /// The present, by the clock of isolated jobs.
    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    pub(super) fn set(&self, ended_by: Option<Moment>) {
        let ended_by_ms = ended_by.map_or(NEVER, Moment::as_millis);
        self.ended_by_ms.store(ended_by_ms, Ordering::SeqCst);
    }
}

impl Default for IsolationGuard {
    fn default() -> IsolationGuard {
        IsolationGuard::new(Clock::Boottime)
    }
}
