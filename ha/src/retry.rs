//! How long to wait before trying again: exponential, with jitter, bounded. The only module that names the crate
//! `backoff` (unmaintained, RUSTSEC-2025-0012), so that it can be replaced here alone.

use std::time::Duration;

use backoff::backoff::Backoff as _;

/// Delays that grow from `initial` by half each time, up to `max`, each varied by a fifth. Never ends.
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

    /// Starts again at the initial delay: something worked.
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
