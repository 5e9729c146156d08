//! Encodes what a task has frozen for checkpoints, outside its loop: one snapshot at a time.
//!
//! A task that finishes waits for it. One that fails or is cancelled drops it: what is being encoded ends at its next
//! page, and the end of the task is published after that.

use std::sync::Arc;

use parking_lot::Mutex as Lock;
use tokio::sync::Mutex;
use tokio::task::{self, JoinSet};

use super::checkpoint_control::CheckpointControl;
use crate::end_guard::EndGuard;
use crate::state::UnencodedSnapshot;

/// The encodings of one task that run or wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    running: Lock<JoinSet<()>>,
    turn: Arc<Mutex<()>>,
}

impl Encoder {
    /// Starts to encode the snapshot of this number, whose barrier was sent.
    pub(super) fn begin(
        &self,
        number: u64,
        snapshot: Box<UnencodedSnapshot>,
        control: &Arc<CheckpointControl>,
        guard: &EndGuard,
    ) {
        let turn = Arc::clone(&self.turn);
        let (control, guard) = (Arc::clone(control), guard.clone());
        let mut running = self.running.lock();
        while running.try_join_next().is_some() {}
        running.spawn(async move {
            let _turn = turn.lock().await;
            encode(number, snapshot, control, guard).await;
        });
    }

    /// Waits until all is encoded.
    pub(super) async fn finish(&self) {
        let mut running = std::mem::take(&mut *self.running.lock());
        while running.join_next().await.is_some() {}
    }
}

async fn encode(
    number: u64,
    snapshot: Box<UnencodedSnapshot>,
    control: Arc<CheckpointControl>,
    guard: EndGuard,
) {
    let asked = Arc::clone(&control);
    let encoding = task::spawn_blocking(move || {
        let ending = guard.ending();
        let encoded = snapshot.encode(&|| asked.is_wanted(number) && !ending.has_begun());
        drop(guard);
        encoded
    });
    match encoding.await {
        Ok(Ok(Some(snapshot))) => control.save(number, snapshot),
        // It was aborted, or the task ends.
        Ok(Ok(None)) => {}
        Ok(Err(error)) => control.decline(number, error.to_string()),
        Err(error) => control.decline(number, format!("its state can't be encoded: {error}")),
    }
}
