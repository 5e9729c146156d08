//! Limit on the number of recovered JobMasters that start at the same time. A leader may recover ten thousand
//! jobs, and a starting JobMaster holds its record twice, and once more in the write in flight. The peak of
//! memory that all of them need together is never returned to the operating system.
//!
//! A JobMaster with a permit builds its ExecutionGraph and writes that it has taken the job over. Then, or
//! after a timeout, the next one gets the permit. Submitted jobs do not wait here. Invariant: a JobMaster
//! that can't write delays the others by at most the timeout.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Number of permits. Keeps the store busy: a few of its round trips' worth. With 256 a takeover on ZooKeeper
/// takes nearly twice as long.
const AT_ONCE: usize = 1024;

/// Time after which the permit is returned. A write takes milliseconds; a longer one waits for a store with
/// trouble or for a blob.
const PERMIT_TIMEOUT: Duration = Duration::from_millis(500);

/// The permits of one term. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StartLimiter {
    permits: Arc<Semaphore>,
}

impl Default for StartLimiter {
    fn default() -> StartLimiter {
        StartLimiter::at_once(AT_ONCE)
    }
}

impl StartLimiter {
    pub(super) fn at_once(number: usize) -> StartLimiter {
        let permits = Arc::new(Semaphore::new(number));
        StartLimiter { permits }
    }

    /// Waits for a permit; first come, first served.
    pub(super) async fn acquire(&self) -> StartPermit {
        let permit = self.permits.clone().acquire_owned().await;
        StartPermit {
            _permit: permit.expect("it is never closed"),
            until: Instant::now() + PERMIT_TIMEOUT,
        }
    }
}

/// A permit. Returned when it is dropped.
#[derive(Debug)]
pub(super) struct StartPermit {
    _permit: OwnedSemaphorePermit,
    /// The holder drops it by then.
    pub(super) until: Instant,
}
