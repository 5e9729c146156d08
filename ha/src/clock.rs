//! Clocks. No safety argument depends on any of them; safety comes from the epoch alone.
//!
//! - [`Moment`] limits how long a process treats its own lease as valid, which bounds wasted work. It is of
//!   `CLOCK_BOOTTIME`, which also runs while the host is suspended; tests on paused time use tokio's clock.
//! - [`wall_clock_ms`] is for display and retention.
//! - [`Uptime`] measures durations of this process, and stands still while the host is suspended.

use std::ops::{Add, AddAssign, Sub};
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

/// Monotonic time since a component started. Decision cores take it as an argument; they read no clock.
///
/// It does not run while the host is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uptime(Duration);

impl Uptime {
    /// The start of the component.
    pub const START: Uptime = Uptime(Duration::ZERO);

    /// Time from `earlier` to this one; zero if this one is before `earlier`.
    pub fn saturating_duration_since(self, earlier: Uptime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Uptime {
    type Output = Uptime;

    fn add(self, later: Duration) -> Uptime {
        Uptime(self.0.saturating_add(later))
    }
}

impl AddAssign<Duration> for Uptime {
    fn add_assign(&mut self, later: Duration) {
        *self = *self + later;
    }
}

impl Sub<Duration> for Uptime {
    type Output = Uptime;

    /// Not before the start.
    fn sub(self, earlier: Duration) -> Uptime {
        Uptime(self.0.saturating_sub(earlier))
    }
}

impl Sub for Uptime {
    type Output = Duration;

    fn sub(self, earlier: Uptime) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// When a component started: the edge between tokio's clock and [`Uptime`].
#[derive(Debug, Clone, Copy)]
pub struct Started(tokio::time::Instant);

impl Started {
    /// A component that starts now.
    pub fn now() -> Started {
        Started(tokio::time::Instant::now())
    }

    /// Time since the start.
    pub fn uptime(self) -> Uptime {
        Uptime(self.0.elapsed())
    }

    /// Returns at this time; at once if it has passed. Never returns for `None`.
    pub async fn sleep_until(self, deadline: Option<Uptime>) {
        match deadline.map(|Uptime(since)| self.0.checked_add(since)) {
            Some(Some(deadline)) => tokio::time::sleep_until(deadline).await,
            // A time that no clock reaches is as good as none.
            Some(None) | None => std::future::pending().await,
        }
    }
}
