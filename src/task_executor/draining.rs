//! How a TaskExecutor leaves without harm: it takes no slot any more, and goes when the last one is free and consumers have
//! taken all that its tasks have produced, or nobody will. Pure, a part of [`super::core`].
//!
//! The ResourceManager's heartbeats say that it is to drain. From then on it knows that itself, and says so wherever it
//! registers: a change of leader changes nothing about it.

use super::core::{Core, Effect};
use super::{Fatal, Presence};

impl Core {
    /// Takes no slots from here on.
    pub(super) fn drain(&mut self) {
        if !std::mem::replace(&mut self.is_draining, true) {
            tracing::info!("draining: no slot is given away any more");
        }
    }

    /// Whether it takes no slots any more.
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Whether it is led, and whether anybody would miss it.
    pub(super) fn presence(&self, kept_outputs: usize) -> Presence {
        Presence {
            is_registered: self.resource_manager.is_registered(),
            is_unused: self.is_unused(kept_outputs),
        }
    }

    fn is_unused(&self, kept_outputs: usize) -> bool {
        let is_unused = |known: &super::job::Job| known.executions.is_empty();
        kept_outputs == 0 && self.slots.is_free() && self.jobs.values().all(is_unused)
    }

    /// Leaves if it drains, no job has a slot here, every end is acknowledged, and no output is kept.
    pub fn review_draining(&mut self, kept_outputs: usize) {
        let may_leave = self.is_draining && !self.is_stopping && !self.has_left;
        if may_leave && self.is_unused(kept_outputs) {
            self.has_left = true;
            self.effects.push(Effect::Fatal(Fatal::Drained));
        }
    }
}
