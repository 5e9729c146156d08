//! A guard for the parts of a task that may outlive its future.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Guard held by everything that belongs to a task and may outlive its future. The task counts as ended
/// when all clones are dropped.
#[derive(Debug, Clone)]
pub struct EndGuard {
    _sender: mpsc::Sender<()>,
    ending: CancellationToken,
}

/// Waits until all [`EndGuard`] guards of a task are dropped.
#[derive(Debug)]
pub(super) struct EndWaiter {
    released: mpsc::Receiver<()>,
    ending: CancellationToken,
}

/// Says whether a task ends. It does not keep the task from ending.
#[derive(Debug, Clone)]
pub struct TaskEnding(CancellationToken);

impl TaskEnding {
    /// Whether the task's future is gone: what works for it has to stop.
    pub fn has_begun(&self) -> bool {
        self.0.is_cancelled()
    }
}

impl EndGuard {
    pub(super) fn new() -> (EndGuard, EndWaiter) {
        let (sender, released) = mpsc::channel(1);
        let ending = CancellationToken::new();
        let waiter = EndWaiter {
            released,
            ending: ending.clone(),
        };
        let guard = EndGuard {
            _sender: sender,
            ending,
        };
        (guard, waiter)
    }

    /// Says whether the task ends.
    pub fn ending(&self) -> TaskEnding {
        TaskEnding(self.ending.clone())
    }
}

impl EndWaiter {
    pub(super) async fn wait(mut self) {
        self.ending.cancel();
        let _nothing_is_ever_sent = self.released.recv().await;
    }
}
