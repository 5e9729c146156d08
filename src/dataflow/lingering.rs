//! A guard for the parts of a task that may outlive its future.

use tokio::sync::mpsc;

/// Guard held by everything that belongs to a task and may outlive its future. The task counts as ended
/// when all clones are dropped.
#[derive(Debug, Clone)]
pub struct Lingering {
    _held: mpsc::Sender<()>,
}

/// Waits until all [`Lingering`] guards of a task are dropped.
#[derive(Debug)]
pub(super) struct AllGone(mpsc::Receiver<()>);

impl Lingering {
    pub(super) fn new() -> (Lingering, AllGone) {
        let (held, released) = mpsc::channel(1);
        (Lingering { _held: held }, AllGone(released))
    }
}

impl AllGone {
    pub(super) async fn wait(mut self) {
        let _nothing_is_ever_sent = self.0.recv().await;
    }
}
