//! A guard for the parts of a task that may outlive its future.

use tokio::sync::mpsc;

/// Guard held by everything that belongs to a task and may outlive its future. The task counts as ended
/// when all clones are dropped.
#[derive(Debug, Clone)]
pub struct EndGuard {
    _sender: mpsc::Sender<()>,
}

/// Waits until all [`EndGuard`] guards of a task are dropped.
#[derive(Debug)]
pub(super) struct EndWaiter(mpsc::Receiver<()>);

impl EndGuard {
    pub(super) fn new() -> (EndGuard, EndWaiter) {
        let (sender, released) = mpsc::channel(1);
        (EndGuard { _sender: sender }, EndWaiter(released))
    }
}

impl EndWaiter {
    pub(super) async fn wait(mut self) {
        let _nothing_is_ever_sent = self.0.recv().await;
    }
}
