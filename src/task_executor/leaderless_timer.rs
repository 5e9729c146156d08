//! Measures how long a TaskExecutor has been without ResourceManager, so that it can log it. Changes nothing else.

use std::time::Duration;

use tokio::time::Instant;

/// See the module.
#[derive(Debug)]
pub(super) struct LeaderlessTimer {
    /// Interval of the report.
    timeout: Duration,
    /// Since when there is none, and when that is reported next. `None`: there is one, or it is never reported.
    lasts: Option<(Instant, Option<Instant>)>,
}

impl LeaderlessTimer {
    /// Starts without ResourceManager.
    pub(super) fn new(timeout: Duration, now: Instant) -> LeaderlessTimer {
        LeaderlessTimer {
            timeout,
            lasts: Some((now, now.checked_add(timeout))),
        }
    }

    /// Updates the state. Returns how long there has been no ResourceManager, if that must be reported.
    pub(super) fn review(&mut self, now: Instant, is_registered: bool) -> Option<Duration> {
        if is_registered {
            self.lasts = None;
            return None;
        }
        let timeout = self.timeout;
        let (since, due) = self.lasts.get_or_insert((now, now.checked_add(timeout)));
        if due.is_none_or(|due| now < due) {
            return None;
        }
        *due = now.checked_add(timeout);
        Some(now.duration_since(*since))
    }

    /// When it must be reviewed again at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.lasts.and_then(|(_, due)| due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn it_is_said_once_in_each_period_without_a_resource_manager() {
        let start = Instant::now();
        let mut timer = LeaderlessTimer::new(TIMEOUT, start);
        assert_eq!(timer.review(start + TIMEOUT / 2, false), None);
        assert_eq!(timer.deadline(), Some(start + TIMEOUT));
        assert_eq!(timer.review(start + TIMEOUT, false), Some(TIMEOUT));
        assert_eq!(timer.review(start + TIMEOUT, false), None);
        assert_eq!(timer.review(start + TIMEOUT * 2, false), Some(TIMEOUT * 2));
        assert_eq!(timer.review(start + TIMEOUT * 4, true), None);
        assert_eq!(timer.deadline(), None);
        assert_eq!(timer.review(start + TIMEOUT * 5, false), None);
        assert_eq!(timer.review(start + TIMEOUT * 6, false), Some(TIMEOUT));
    }
}
