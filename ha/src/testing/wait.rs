//! Bounded waiting for a condition. Tests wait for the condition that they mean, never for a fixed time.

use std::fmt::Debug;
use std::time::Duration;

/// Polling interval of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Polls until `poll` returns a value; after `bound` returns the last error.
pub async fn try_until<T, E>(
    bound: Duration,
    mut poll: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, E> {
    let deadline = tokio::time::Instant::now() + bound;
    loop {
        match poll().await {
            Ok(value) => return Ok(value),
            Err(last) if tokio::time::Instant::now() >= deadline => return Err(last),
            Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

/// Polls until `poll` returns a value. Panics after `bound`, naming `what` and the last error.
pub async fn wait_until<T, E: Debug>(
    what: &str,
    bound: Duration,
    poll: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    match try_until(bound, poll).await {
        Ok(value) => value,
        Err(last) => panic!("waited {bound:?} for {what}; last seen: {last:?}"),
    }
}
