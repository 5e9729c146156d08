//! Waiting for a condition, bounded. Tests wait on what they mean, never on the clock.

use std::fmt::Debug;
use std::time::Duration;

/// How often a condition is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Looks until `look` gives a value; `Err` carries what it said last when `bound` has passed.
pub async fn try_until<T, E>(
    bound: Duration,
    mut look: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, E> {
    let deadline = tokio::time::Instant::now() + bound;
    loop {
        match look().await {
            Ok(value) => return Ok(value),
            Err(last) if tokio::time::Instant::now() >= deadline => return Err(last),
            Err(_) => tokio::time::sleep(LOOK_INTERVAL).await,
        }
    }
}

/// Looks until `look` gives a value and returns it. Panics after `bound`, with what was waited for and the last value
/// seen.
pub async fn wait_until<T, E: Debug>(
    what: &str,
    bound: Duration,
    look: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    match try_until(bound, look).await {
        Ok(value) => value,
        Err(last) => panic!("waited {bound:?} for {what}; last seen: {last:?}"),
    }
}
