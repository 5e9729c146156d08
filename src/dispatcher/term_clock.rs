//! The clock of a term, which measures deadlines of submissions: the wall clock of the leader's host when its
//! Dispatcher started, plus the time since then, including time in which the host was suspended.
//!
//! Its times are valid in its own epoch only. A client that sets a deadline first reads this clock, so no two
//! clocks are compared. A deadline of another term's clock is refused (ADR 29).

use std::time::Duration;

use tanist_ha::clock::{Clock, Moment, millis, wall_clock_ms};
use tanist_ha::election::LeaderSession;
use tanist_proto::v1 as pb;

use super::core::Times;

/// The clock of a term; see the module.
#[derive(Debug, Clone)]
pub(super) struct TermClock {
    epoch: u64,
    clock: Clock,
    started: Moment,
    started_ms: u64,
    longest_ms: u64,
}

impl TermClock {
    /// Starts it. A deadline may be at most half of `retention` ahead, so it has passed before the job's result
    /// is forgotten.
    pub(super) fn start(session: &LeaderSession, retention: Duration) -> TermClock {
        let clock = session.clock();
        TermClock {
            epoch: session.epoch().get(),
            clock,
            started: clock.now(),
            started_ms: wall_clock_ms(),
            longest_ms: millis(retention / 2),
        }
    }

    /// What it shows.
    pub(super) fn times(&self) -> Times {
        Times {
            epoch: self.epoch,
            term_ms: self.now_ms(),
            longest_ms: self.longest_ms,
        }
    }

    /// Returns the time for clients that are about to set a deadline.
    pub(super) fn tell(&self) -> pb::TermTime {
        pb::TermTime {
            epoch: self.epoch,
            now_ms: self.now_ms(),
            longest_ms: self.longest_ms,
        }
    }

    fn now_ms(&self) -> u64 {
        let passed = self.clock.now().since(self.started);
        self.started_ms.saturating_add(millis(passed))
    }
}
