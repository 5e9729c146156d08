//! The output of one event: the effects for the actor and the lines for the log, each in the order in which they
//! were added. Data only.

use super::{Effect, LogLine};

/// Effects and log lines; see the module.
#[derive(Debug, Default)]
pub(super) struct Output {
    effects: Vec<Effect>,
    log: Vec<LogLine>,
}

impl Output {
    /// Adds an effect.
    pub(super) fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Adds a line for the log.
    pub(super) fn log(&mut self, line: LogLine) {
        self.log.push(line);
    }

    /// Removes and returns the effects.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Removes and returns the log lines.
    pub(super) fn take_log(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.log)
    }
}
