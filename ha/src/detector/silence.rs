//! Measures how long a leader has been silent, on a process that may itself be slow.
//!
//! Owned by `DetectorCore`. Silence is counted in this process's own ticks, each for at most one and a half
//! intervals: time in which this process did not run proves nothing about others. Late ticks and late heartbeats
//! widen the bound for some seconds (the idea is Lifeguard's: Dadgar, Phillips, Currey, 2018), so that a process on
//! a machine with all cores busy suspects no other process.

use std::time::Duration;

use crate::clock::Moment;

/// Maximum slack, as a multiple of the bound.
const MAX_SLACK: u32 = 3;
/// Each tick removes this fraction (1/16) of the slack.
const SLACK_DECAY: u32 = 16;

/// Counts silence; see the module documentation. Pure.
#[derive(Debug, Clone)]
pub struct Silence {
    interval: Duration,
    bound: Duration,
    last_tick: Option<Moment>,
    /// Silence since the last heartbeat, as counted by ticks.
    silent: Duration,
    /// What recent delays add to the bound.
    slack: Duration,
}

impl Silence {
    /// No heartbeat yet. Ticks come every `interval`; silence of `bound` is suspicious.
    pub fn new(interval: Duration, bound: Duration) -> Silence {
        Silence {
            interval,
            bound,
            last_tick: None,
            silent: Duration::ZERO,
            slack: Duration::ZERO,
        }
    }

    /// Handles a tick of the process's timer.
    pub fn tick(&mut self, now: Moment) {
        let elapsed = self
            .last_tick
            .map_or(Duration::ZERO, |before| now.since(before));
        self.last_tick = Some(now);
        self.silent += elapsed.min(self.interval * 3 / 2);
        let lateness = elapsed.saturating_sub(self.interval);
        self.slack -= self.slack / SLACK_DECAY;
        if lateness > self.interval / 2 {
            self.widen(self.slack + lateness);
        }
    }

    /// Handles a heartbeat.
    pub fn heartbeat(&mut self) {
        let late = self.silent.saturating_sub(self.interval);
        if late > self.interval {
            self.widen(self.slack.max(late));
        }
        self.silent = Duration::ZERO;
    }

    /// Restarts the count for another leader.
    pub fn restart(&mut self) {
        self.silent = Duration::ZERO;
    }

    /// Whether the silence exceeds the bound, which recent false alarms double `doublings` times.
    pub fn is_suspicious(&self, doublings: u32) -> bool {
        self.silent >= self.bound() * 2u32.saturating_pow(doublings)
    }

    /// The current bound, including the slack.
    pub fn bound(&self) -> Duration {
        self.bound + self.slack
    }

    /// Whether this process itself was recently delayed: its statements about others are unreliable.
    pub fn is_unsure(&self) -> bool {
        self.slack >= self.interval
    }

    fn widen(&mut self, slack: Duration) {
        self.slack = slack.min(self.bound * MAX_SLACK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(100);
    const BOUND: Duration = Duration::from_millis(800);

    fn at(ms: u64) -> Moment {
        Moment::default().after(Duration::from_millis(ms))
    }

    #[test]
    fn silence_is_suspicious_at_the_bound() {
        let mut silence = Silence::new(INTERVAL, BOUND);
        for tick in 0..8 {
            silence.tick(at(tick * 100));
        }
        assert!(!silence.is_suspicious(0));
        silence.tick(at(800));
        assert!(silence.is_suspicious(0));
        assert!(!silence.is_suspicious(1), "a false alarm doubles the wait");
        silence.heartbeat();
        assert!(!silence.is_suspicious(0));
    }

    #[test]
    fn a_process_that_stood_still_does_not_count_that_time() {
        let mut silence = Silence::new(INTERVAL, BOUND);
        silence.tick(at(0));
        silence.tick(at(60_000));
        assert!(!silence.is_suspicious(0));
        assert!(silence.is_unsure());
    }

    #[test]
    fn late_ticks_widen_the_bound_for_a_while() {
        let mut silence = Silence::new(INTERVAL, BOUND);
        silence.tick(at(0));
        silence.tick(at(500));
        assert_eq!(silence.bound(), Duration::from_millis(1200));
        for tick in 1..=60 {
            silence.tick(at(500 + tick * 100));
            silence.heartbeat();
        }
        assert!(silence.bound() < Duration::from_millis(820), "{silence:?}");
    }

    #[test]
    fn late_heartbeats_widen_it_too() {
        let mut silence = Silence::new(INTERVAL, BOUND);
        for tick in 0..=6 {
            silence.tick(at(tick * 100));
        }
        silence.heartbeat();
        assert_eq!(silence.bound(), Duration::from_millis(1300));
    }
}
