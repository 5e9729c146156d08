//! Guards that delay the end of a task until everything that belongs to it is gone: programs, blocking work, files.
//!
//! The task's supervision owns the [`EndWaiter`], and waits with it when the task's future is gone. Each part that may
//! outlive the future holds an [`EndGuard`]. A guard that is never dropped keeps the task from ending, and with it its
//! slot: work that takes long looks at [`TaskEnding`] and stops.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Delays the end of a task: the task counts as ended when all clones are dropped.
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

/// Says whether a task is ending. Unlike a guard it does not delay the end.
#[derive(Debug, Clone)]
pub struct TaskEnding(CancellationToken);

impl TaskEnding {
    /// Whether the task's future is gone: work for the task has to stop.
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

    /// Returns a handle that says whether the task is ending.
    pub fn ending(&self) -> TaskEnding {
        TaskEnding(self.ending.clone())
    }
}

impl EndWaiter {
    /// Says to all parts that the task is ending, and waits until they have dropped their guards.
    pub(super) async fn wait(mut self) {
        self.ending.cancel();
        let _nothing_is_ever_sent = self.released.recv().await;
    }
}
