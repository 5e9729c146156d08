//! The clock of a term, by which deadlines of submissions are measured: the wall clock of the leader's host when its Dispatcher
//! started, and what has passed since, the time in which the host was suspended included.
//!
//! Its times mean something in its own epoch only. Whoever names a deadline was told the time by this very clock, so that no two
//! clocks are compared, and a deadline that another term's clock measured is refused (ADR 29).

use std::time::Duration;

use tanist_ha::clock::{Clock, Moment, millis, wall_clock_ms};
use tanist_ha::election::LeaderSession;
use tanist_proto::v1 as pb;

use super::core::Times;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct TermClock {
    epoch: u64,
    clock: Clock,
    started: Moment,
    started_ms: u64,
    longest_ms: u64,
}

impl TermClock {
    /// Starts it. Results are kept for `retention`: a deadline that is at most half of that ahead is over when one is forgotten.
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

    /// What those are told who are about to name a deadline.
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
