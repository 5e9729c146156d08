//! Draining: a TaskExecutor accepts no more slots, and leaves without harm when the last one is free and consumers
//! have taken all outputs of its tasks, or never will. Pure, a part of [`super`].
//!
//! The ResourceManager's heartbeats say whether it must drain: that is in the store, and may be undone. It leaves
//! when it is unused, unless it was draining from its first registration on: then it was restarted meanwhile,
//! perhaps by a supervisor that restarts it whenever it ends, and stays, unused, until the drain is undone.

use super::{Core, Effect, LogLine};
use crate::{Fatal, Presence};

impl Core {
    /// Starts or ends draining. `is_releasing`: it must leave in any case.
    pub(super) fn drain(&mut self, is_draining: bool, is_releasing: bool) {
        let was_draining = std::mem::replace(&mut self.is_draining, is_draining);
        self.is_releasing = is_releasing;
        self.may_leave |= !is_draining;
        match (was_draining, is_draining) {
            (false, true) => self.output.log(LogLine::Draining),
            (true, false) => self.output.log(LogLine::DrainingEnded),
            (true, true) | (false, false) => {}
        }
    }

    /// Whether it accepts no more slots.
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Number of outputs that may still be read here: `untaken`, those that consumers have not read to their end,
    /// known to the exchange, plus those of blocking edges, which stay until they are released.
    pub(super) fn kept_outputs(&self, untaken: usize) -> usize {
        let of_blocking = |known: &super::job::Job| known.executions.output_count();
        untaken + self.jobs.values().map(of_blocking).sum::<usize>()
    }

    /// Whether it is registered, and whether it is in use.
    pub fn presence(&self, untaken: usize) -> Presence {
        Presence {
            is_registered: self.resource_manager.is_registered(),
            is_unused: self.is_unused(untaken),
        }
    }

    fn is_unused(&self, untaken: usize) -> bool {
        let has_ended = |known: &super::job::Job| known.executions.is_empty();
        self.kept_outputs(untaken) == 0 && self.slots.is_free() && self.jobs.values().all(has_ended)
    }

    /// Leaves if it drains, no job has a slot here, every end is acknowledged, and no output is kept.
    pub fn review_draining(&mut self, untaken: usize) {
        let may_leave = self.is_draining
            && (self.may_leave || self.is_releasing)
            && !self.is_stopping
            && !self.has_left;
        if may_leave && self.is_unused(untaken) {
            self.has_left = true;
            self.output.effect(Effect::Fatal(Fatal::Drained));
        }
    }
}
