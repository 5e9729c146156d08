//! The output of one event: the effects for the actor, in the order in which they were decided. Data only.

use super::Effect;

/// Effects that are not run yet; see the module.
#[derive(Debug, Default)]
pub(super) struct Output(Vec<Effect>);

impl Output {
    /// Adds an effect.
    pub(super) fn push(&mut self, effect: Effect) {
        self.0.push(effect);
    }

    /// Removes and returns the effects.
    pub(super) fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.0)
    }
}
