//! Answers that need a confirmation of the term by the store first: "no such job", and consistent reads.
//!
//! A leader that was deposed and does not know it yet does not know the jobs acknowledged since. So a denial
//! waits for a linearizable read that begins after the request arrived; all waiting requests share the next
//! read. What is known of a job rests on durable writes and needs no such read.

use std::sync::Arc;

use tanist_ha::store::{CoordinationStore, Fence};

use super::handle::Command;
use crate::gateway::GatewayError;

/// Requests that wait for the store's confirmation of the term.
#[derive(Debug, Default)]
pub(super) struct ReadBarrier {
    /// Arrived before the read in progress began.
    confirming: Vec<Command>,
    /// Arrived after it began.
    waiting: Vec<Command>,
}

impl ReadBarrier {
    /// Adds a request. Returns true if a read must be started.
    pub(super) fn take(&mut self, command: Command) -> bool {
        self.waiting.push(command);
        self.begin()
    }

    /// Whether a read must be started for the waiting requests.
    pub(super) fn begin(&mut self) -> bool {
        let begins = self.confirming.is_empty() && !self.waiting.is_empty();
        if begins {
            self.confirming = std::mem::take(&mut self.waiting);
        }
        begins
    }

    /// Ends the read. Returns the requests that it confirms.
    pub(super) fn end(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.confirming)
    }
}

/// Asks the store whether the term of `fence` is the latest one.
pub(super) async fn confirm(store: Arc<dyn CoordinationStore>, fence: Fence) -> Result<(), String> {
    let guard = store.guard().await.map_err(|error| error.to_string())?;
    let own = (fence.epoch, fence.token, fence.incarnation);
    if guard.epoch == Some(own) {
        Ok(())
    } else {
        Err("another JobManager leads".to_owned())
    }
}

/// Error for a request whose term could not be confirmed.
pub(super) fn not_confirmed(reason: &str) -> GatewayError {
    GatewayError::NotYet(format!(
        "this JobManager can't confirm that it leads: {reason}"
    ))
}
