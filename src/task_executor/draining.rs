//! How a TaskExecutor leaves without harm: it takes no slot any more, and goes when the last one is free. Pure, a part of
//! [`super::core`].
//!
//! The ResourceManager's heartbeats say that it is to drain. From then on it knows that itself, and says so wherever it
//! registers: a change of leader changes nothing about it.

use super::Fatal;
use super::core::{Core, Effect};

impl Core {
    /// Takes no slots from here on.
    pub(super) fn drain(&mut self) {
        if !std::mem::replace(&mut self.is_draining, true) {
            tracing::info!("draining: no slot is given away any more");
        }
    }

    /// Leaves if it drains, no job has a slot here, and every end is acknowledged.
    pub fn review_draining(&mut self) {
        let is_unused = |known: &super::job::Job| known.executions.is_empty();
        let may_leave = self.is_draining && !self.is_stopping && !self.has_left;
        if may_leave && self.slots.is_free() && self.jobs.values().all(is_unused) {
            self.has_left = true;
            self.effects.push(Effect::Fatal(Fatal::Drained));
        }
    }
}
