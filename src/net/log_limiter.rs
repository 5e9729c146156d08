//! Limits the log of a frequent event to one message per minute, with the number of events.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

const PERIOD: Duration = Duration::from_secs(60);

/// Counter of a frequent event. Its owner logs a message when [`LogLimiter::note`] returns a count.
#[derive(Debug, Default)]
pub(super) struct LogLimiter {
    last: Mutex<LastLogged>,
}

#[derive(Debug, Default)]
struct LastLogged {
    at: Option<Instant>,
    /// Number of events since then.
    count: u64,
}

impl LogLimiter {
    /// Counts an event. If a message is due, returns the number of events since the last one.
    pub(super) fn note(&self) -> Option<u64> {
        let now = Instant::now();
        let mut last = self.last.lock();
        last.count += 1;
        if last.at.is_some_and(|at| now.duration_since(at) < PERIOD) {
            return None;
        }
        last.at = Some(now);
        Some(std::mem::take(&mut last.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_is_said_at_once_and_the_others_after_a_minute_with_their_count() {
        let limiter = LogLimiter::default();
        assert_eq!(limiter.note(), Some(1));
        for _ in 0..10 {
            assert_eq!(limiter.note(), None);
        }
        tokio::time::advance(PERIOD).await;
        assert_eq!(limiter.note(), Some(11));
        assert_eq!(limiter.note(), None);
    }
}
