//! Limits the log of a frequent event to one message per minute, with the number of events.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

const PERIOD: Duration = Duration::from_secs(60);

/// Counter of a frequent event; see the module.
#[derive(Debug, Default)]
pub(super) struct Minutely {
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    at: Option<Instant>,
    /// Number of events since then.
    count: u64,
}

impl Minutely {
    /// Counts an event. If a message is due, returns the number of events since the last one.
    pub(super) fn note(&self) -> Option<u64> {
        let now = Instant::now();
        let mut said = self.said.lock();
        said.count += 1;
        if said.at.is_some_and(|at| now.duration_since(at) < PERIOD) {
            return None;
        }
        said.at = Some(now);
        Some(std::mem::take(&mut said.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_is_said_at_once_and_the_others_after_a_minute_with_their_count() {
        let minutely = Minutely::default();
        assert_eq!(minutely.note(), Some(1));
        for _ in 0..10 {
            assert_eq!(minutely.note(), None);
        }
        tokio::time::advance(PERIOD).await;
        assert_eq!(minutely.note(), Some(11));
        assert_eq!(minutely.note(), None);
    }
}
