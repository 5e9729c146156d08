//! Timeout of each use of the storage of checkpoints: a file system may hang without an error.
//!
//! After the timeout the use continues as a task of its own, and may still succeed. That harms nothing: each attempt to
//! put a manifest has another object name, so a late one is an object that nothing names; a removed object is garbage
//! at any time; a listing changes nothing. Uses that hang are limited in number, since each may hold a thread of the
//! process.

use std::sync::LazyLock;
use std::time::Duration;

use tanist_ha::blob::CheckpointStorage;
use tanist_ha::error::Error;
use tokio::sync::Semaphore;

/// Timeout of one use.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of uses at a time, of all jobs of the process. Others wait for a permit, within their timeout.
static PERMITS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(64));

/// The outcome of `work`, which uses the storage; an error names the storage if it gives no answer.
pub(super) async fn answered<T: Send + 'static>(
    storage: &CheckpointStorage,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, String> {
    let place = storage.local_directory();
    let place = place.map_or_else(
        || "the object store of checkpoints".to_owned(),
        |directory| directory.display().to_string(),
    );
    answered_by(&PERMITS, &place, work).await
}

async fn answered_by<T: Send + 'static>(
    permits: &'static Semaphore,
    place: &str,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, String> {
    let working = async {
        let permit = permits.acquire().await.map_err(|error| error.to_string())?;
        let working = tokio::spawn(async move {
            let done = work.await;
            drop(permit);
            done
        });
        let done = working.await.map_err(|error| error.to_string())?;
        done.map_err(|error| error.to_string())
    };
    let done = tokio::time::timeout(TIMEOUT, working).await;
    done.unwrap_or_else(|_elapsed| {
        Err(format!(
            "{place} has given no answer for {TIMEOUT:?}: look whether its file system hangs, or set another \
             `execution.checkpointing.dir` or `high-availability.storageDir`"
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use tokio::sync::Notify;

    use super::*;

    fn permits(number: usize) -> &'static Semaphore {
        Box::leak(Box::new(Semaphore::new(number)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_storage_that_hangs_is_an_error_that_names_it_and_the_options() {
        let permits = permits(1);
        let hung = answered_by(permits, "/mnt/state", pending::<Result<(), Error>>()).await;
        let reason = hung.expect_err("it never answers");
        assert!(
            reason.starts_with("/mnt/state has given no answer"),
            "{reason}"
        );
        assert!(reason.contains("`execution.checkpointing.dir`"), "{reason}");
        // No further thread is held while it hangs.
        let next = answered_by(permits, "/mnt/state", async { Ok(()) }).await;
        next.expect_err("there is no permit");
    }

    #[tokio::test(start_paused = true)]
    async fn what_had_no_answer_in_time_goes_on_and_gives_its_permit_back() {
        let (permits, comes_back) = (permits(1), Arc::new(Notify::new()));
        let waiting = Arc::clone(&comes_back);
        let work = async move {
            waiting.notified().await;
            Ok(())
        };
        let hung = answered_by(permits, "/mnt/state", work).await;
        hung.expect_err("it hangs");
        comes_back.notify_one();
        let next = answered_by(permits, "/mnt/state", async { Ok(7) }).await;
        assert_eq!(next, Ok(7));
    }
}
