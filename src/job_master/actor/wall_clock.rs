//! The wall clock of a JobMaster.

use std::time::Duration;

use tanist_ha::clock::{millis, wall_clock_ms};
use tokio::time::Instant;

/// Wall-clock time that never goes back: read once, then advanced by tokio's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct WallClock {
    start_ms: u64,
    start: Instant,
}

impl WallClock {
    pub(super) fn start() -> WallClock {
        WallClock {
            start_ms: wall_clock_ms(),
            start: Instant::now(),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.start_ms.saturating_add(millis(self.start.elapsed()))
    }

    pub(super) fn instant(&self, at_ms: u64) -> Instant {
        self.start + Duration::from_millis(at_ms.saturating_sub(self.start_ms))
    }
}
