//! Timeout for reading the blobs of many records: only the first blob without an answer waits for the
//! timeout; all later reads fail at once. Each call that decodes many records has its own, so that a blob store
//! without an answer delays a recovery once, and not for each record.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};

/// Timeout for one blob read.
const BLOB_TIMEOUT: Duration = Duration::from_secs(10);

/// The shared timeout; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct BlobTimeout {
    has_expired: AtomicBool,
}

impl BlobTimeout {
    /// Awaits `reading` within the timeout. Returns `Unavailable` if there is no answer, or was none before.
    pub(super) async fn wait_for<T>(&self, reading: impl Future<Output = Result<T>>) -> Result<T> {
        let no_answer = || Error::Unavailable {
            store: "the blob store",
            reason: format!("it has given no answer for {BLOB_TIMEOUT:?}"),
        };
        if self.has_expired.load(Ordering::Relaxed) {
            return Err(no_answer());
        }
        match tokio::time::timeout(BLOB_TIMEOUT, reading).await {
            Ok(read) => read,
            Err(_elapsed) => {
                self.has_expired.store(true, Ordering::Relaxed);
                Err(no_answer())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Outcome;

    #[tokio::test(start_paused = true)]
    async fn all_together_wait_only_for_the_first_that_gives_no_answer() {
        let blob_timeout = BlobTimeout::default();
        let asked = tokio::time::Instant::now();
        assert_eq!(
            blob_timeout.wait_for(async { Ok(1) }).await.expect("read"),
            1
        );
        for _ in 0..100 {
            let answer = blob_timeout
                .wait_for(std::future::pending::<Result<()>>())
                .await;
            let error = answer.expect_err("no answer");
            assert_eq!(error.outcome(), Outcome::Transient);
        }
        assert_eq!(asked.elapsed(), BLOB_TIMEOUT);
    }
}
