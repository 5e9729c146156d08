//! The clock that bounds waste: when a process stops believing that its own lease is alive.
//!
//! Nothing here is a safety argument; safety comes from the epoch alone. The real clock is `CLOCK_BOOTTIME`, which goes
//! on while the host is suspended; tests on paused time use tokio's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970, by the wall clock: for people and for retention, never for safety.
pub fn wall_clock_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    millis(since)
}

/// Whole milliseconds, as messages and records carry durations: at most [`u64::MAX`].
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

    /// How long after `earlier` this is; zero if it is before.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// A source of [`Moment`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// `CLOCK_BOOTTIME`: what processes use.
    Boottime,
    /// Tokio's clock, which tests can pause and which a simulation owns.
    Tokio(tokio::time::Instant),
}

impl Clock {
    /// A clock that follows tokio's, starting now.
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
