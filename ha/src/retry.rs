//! Retry delays: exponential, with jitter, bounded. Only this module uses the crate `backoff` (unmaintained,
//! RUSTSEC-2025-0012), so that it can be replaced in one place.

use std::time::Duration;

use backoff::backoff::Backoff as _;

/// Retry delays that start at `initial`, grow by half each time up to `max`, and vary by 20 %. Never ends.
#[derive(Debug)]
pub struct Backoff {
    inner: backoff::ExponentialBackoff,
    max: Duration,
}

impl Backoff {
    /// Delays from `initial` to `max`.
    pub fn new(initial: Duration, max: Duration) -> Backoff {
        let inner = backoff::ExponentialBackoff {
            initial_interval: initial,
            current_interval: initial,
            max_interval: max,
            multiplier: 1.5,
            randomization_factor: 0.2,
            max_elapsed_time: None,
            ..backoff::ExponentialBackoff::default()
        };
        Backoff { inner, max }
    }

    /// The next delay.
    pub fn next_delay(&mut self) -> Duration {
        self.inner.next_backoff().unwrap_or(self.max)
    }

    /// Restarts at the initial delay; the caller calls this after a success.
    pub fn reset(&mut self) {
        self.inner.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_maximum_and_start_again_after_a_reset() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let first = backoff.next_delay();
        assert!(first <= Duration::from_millis(120), "{first:?}");
        let last = (0..20)
            .map(|_| backoff.next_delay())
            .last()
            .expect("20 delays");
        assert!(
            last >= Duration::from_millis(800) && last <= Duration::from_millis(1200),
            "{last:?}"
        );
        backoff.reset();
        assert!(backoff.next_delay() <= Duration::from_millis(120));
    }
}
