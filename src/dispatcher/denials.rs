//! Answers that a Dispatcher gives only after the store has confirmed its term: those for not knowing a job, and
//! consistent reads.
//!
//! A leader that was deposed and has not heard of it doesn't know the jobs that were acknowledged since. So what would be
//! denied waits for a linearizable read that begins after it was asked; all that wait share the next one. What is known of
//! a job rests on durable writes and needs no such read.

use std::sync::Arc;

use tanist_ha::store::{CoordinationStore, Fence};

use super::handle::Command;
use crate::gateway::GatewayError;

/// Requests that wait for the store's confirmation.
#[derive(Debug, Default)]
pub(super) struct Denials {
    /// Came before the read that is under way began.
    confirming: Vec<Command>,
    /// Came after it.
    waiting: Vec<Command>,
}

impl Denials {
    /// Takes a request. True: a read has to begin.
    pub(super) fn take(&mut self, command: Command) -> bool {
        self.waiting.push(command);
        self.begin()
    }

    /// Whether a read has to begin, for those that wait.
    pub(super) fn begin(&mut self) -> bool {
        let begins = self.confirming.is_empty() && !self.waiting.is_empty();
        if begins {
            self.confirming = std::mem::take(&mut self.waiting);
        }
        begins
    }

    /// The read has ended: those that it is for.
    pub(super) fn end(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.confirming)
    }
}

/// Asks the store whether the term of `fence` is the youngest one.
pub(super) async fn confirm(store: Arc<dyn CoordinationStore>, fence: Fence) -> Result<(), String> {
    let guard = store.guard().await.map_err(|error| error.to_string())?;
    let own = (fence.epoch, fence.token, fence.incarnation);
    if guard.epoch == Some(own) {
        Ok(())
    } else {
        Err("another JobManager leads".to_owned())
    }
}

/// The answer where the term could not be confirmed.
pub(super) fn not_confirmed(reason: &str) -> GatewayError {
    GatewayError::NotYet(format!(
        "this JobManager can't confirm that it leads: {reason}"
    ))
}
