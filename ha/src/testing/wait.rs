//! Bounded waiting for a condition. Tests wait for the condition that they mean, never for a fixed time.

use std::fmt::Debug;
use std::time::Duration;

/// Polling interval of a condition.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Polls until `look` returns a value; after `bound` returns the last error.
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

/// Polls until `look` returns a value. Panics after `bound`, naming `what` and the last error.
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
