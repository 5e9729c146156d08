//! How late this process wakes up: whether it stood still, because it was stopped or its host gave it no CPU time.
//! Pure.
//!
//! - The process is late from the armed deadline until it wakes up. This is measured at each wake-up, before the event
//!   is handled, and again before the next deadline is armed: the event may remove the deadline that was missed.
//! - No time counts twice. Lateness adds up until a deadline is armed that is still in the future.

use std::time::Duration;

use tanist_ha::clock::Uptime;

/// See the module.
#[derive(Debug)]
pub(super) struct Lateness {
    armed: Option<Uptime>,
    measured_at: Uptime,
    late: Duration,
}

impl Lateness {
    /// No deadline is armed.
    pub(super) fn new(now: Uptime) -> Lateness {
        Lateness {
            armed: None,
            measured_at: now,
            late: Duration::ZERO,
        }
    }

    /// Records the deadline at which the process is to wake up, at the latest.
    pub(super) fn arm(&mut self, now: Uptime, deadline: Option<Uptime>) {
        self.measure(now);
        self.armed = deadline;
        if deadline.is_none_or(|deadline| deadline > now) {
            self.late = Duration::ZERO;
        }
    }

    /// Takes the lateness, if it is at least this long.
    pub(super) fn take(&mut self, now: Uptime, at_least: Duration) -> Option<Duration> {
        self.measure(now);
        (self.late >= at_least).then(|| std::mem::take(&mut self.late))
    }

    fn measure(&mut self, now: Uptime) {
        if let Some(armed) = self.armed {
            self.late += now.saturating_duration_since(armed.max(self.measured_at));
        }
        self.measured_at = now;
    }
}
