//! Limits the rate of failing worker starts: too many failures within a minute pause all starts. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use tanist_ha::clock::Uptime;

/// Time window in which failures are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub(super) struct StartRateLimit {
    /// Number of failures within a minute that causes a pause.
    max_failures: f64,
    /// Length of the pause.
    retry_interval: Duration,
    failures: VecDeque<Uptime>,
    until: Option<Uptime>,
}

impl StartRateLimit {
    /// Without failures.
    pub(super) fn new(max_failures: f64, retry_interval: Duration) -> StartRateLimit {
        StartRateLimit {
            max_failures,
            retry_interval,
            failures: VecDeque::new(),
            until: None,
        }
    }

    /// Records that the start of a worker failed.
    pub(super) fn failed(&mut self, now: Uptime) {
        self.failures.push_back(now);
        while self.failures.front().is_some_and(|at| *at + WINDOW <= now) {
            self.failures.pop_front();
        }
        if self.failures.len() as f64 >= self.max_failures {
            self.until = Some(now + self.retry_interval);
        }
    }

    /// End of the present pause, if any.
    pub(super) fn until(&self, now: Uptime) -> Option<Uptime> {
        self.until.filter(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_failures_within_a_minute_are_followed_by_a_pause() {
        let start = Uptime::START;
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut start_rate_limit = StartRateLimit::new(2.0, Duration::from_secs(3));
        start_rate_limit.failed(at(0));
        assert_eq!(start_rate_limit.until(at(0)), None);
        start_rate_limit.failed(at(59));
        assert_eq!(start_rate_limit.until(at(60)), Some(at(62)));
        assert_eq!(start_rate_limit.until(at(62)), None, "it is over");
        start_rate_limit.failed(at(62));
        assert_eq!(
            start_rate_limit.until(at(62)),
            Some(at(65)),
            "they still fail"
        );
        start_rate_limit.failed(at(122));
        assert_eq!(
            start_rate_limit.until(at(122)),
            None,
            "the others are long ago"
        );
    }
}
