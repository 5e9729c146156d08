//! The clock that limits how long a process believes that its own lease is alive. It bounds wasted work.
//!
//! No safety argument depends on it; safety comes from the epoch alone. The real clock is `CLOCK_BOOTTIME`,
//! which also runs while the host is suspended; tests on paused time use tokio's clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 by the wall clock, for display and retention, never for safety.
pub fn wall_clock_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    millis(since)
}

/// Whole milliseconds of a duration, as messages and records store it; at most [`u64::MAX`].
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A point in time on a [`Clock`]: time since an arbitrary start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(Duration);

impl Moment {
    /// The moment `later` after this one.
    pub fn after(self, later: Duration) -> Moment {
        Moment(self.0.saturating_add(later))
    }

    /// Whole milliseconds since the clock's start.
    pub fn as_millis(self) -> u64 {
        millis(self.0)
    }

    /// Time from `earlier` to this moment; zero if this moment is before `earlier`.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// A source of [`Moment`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// `CLOCK_BOOTTIME`, used by real processes.
    Boottime,
    /// Tokio's clock, which tests can pause and a simulation controls.
    Tokio(tokio::time::Instant),
}

impl Clock {
    /// A clock that follows tokio's and starts now.
    pub fn tokio() -> Clock {
        Clock::Tokio(tokio::time::Instant::now())
    }

    /// The current moment.
    pub fn now(&self) -> Moment {
        match self {
            Clock::Boottime => {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
                let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
                Moment(Duration::new(seconds, nanos))
            }
            Clock::Tokio(start) => Moment(start.elapsed()),
        }
    }
}
