//! Waits for a condition with a timeout; the error shows the last value.
//!
//! The timeout is checked between two checks of the condition: a check that does not return is not interrupted.

use std::fmt::Display;
use std::time::Duration;

/// Pause between two checks. Clusters are asked over REST, on machines that are busy with the clusters themselves.
const POLL_INTERVAL: Duration = Duration::from_millis(40);

/// Calls `poll` until it returns a value; the error names the condition and the last error of `poll`.
pub async fn wait_for<T, E: Display>(
    what: &str,
    bound: Duration,
    poll: impl AsyncFnMut() -> Result<T, E>,
) -> anyhow::Result<T> {
    wait_for_every(POLL_INTERVAL, what, bound, poll).await
}

/// The same with another pause between two checks.
pub async fn wait_for_every<T, E: Display>(
    interval: Duration,
    what: &str,
    bound: Duration,
    mut poll: impl AsyncFnMut() -> Result<T, E>,
) -> anyhow::Result<T> {
    let deadline = tokio::time::Instant::now() + bound;
    loop {
        match poll().await {
            Ok(value) => return Ok(value),
            Err(last) if tokio::time::Instant::now() >= deadline => {
                anyhow::bail!("waited {bound:?} for {what}; last seen: {last:#}")
            }
            Err(_) => tokio::time::sleep(interval).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_does_not_come_is_an_error_with_the_last_value_seen() {
        let mut looks = 0;
        let waited = wait_for("a miracle", Duration::from_secs(1), async || {
            looks += 1;
            Err::<(), _>(format!("look number {looks}"))
        });
        let error = waited.await.expect_err("it never comes").to_string();
        assert!(error.contains("a miracle"), "{error}");
        assert!(error.contains(&format!("look number {looks}")), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_late_is_waited_for() {
        let mut looks = 0;
        let waited = wait_for("the third look", Duration::from_secs(1), async || {
            looks += 1;
            if looks == 3 {
                Ok(looks)
            } else {
                Err("not yet")
            }
        });
        assert_eq!(waited.await.expect("it comes"), 3);
    }
}
