//! Output of the core: effects for the actor, and lines for the log. Decides nothing.

use tanist_proto::id::JobId;

use super::effect::{Effect, TaskKey};
use super::executions::ExecutionKey;
use super::log_line::LogLine;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Output {
    effects: Vec<Effect>,
    log: Vec<LogLine>,
}

impl Output {
    /// Adds an effect.
    pub(super) fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Adds the cancellation of these executions.
    pub(super) fn cancel(&mut self, job: JobId, executions: Vec<ExecutionKey>) {
        let cancel = |execution| Effect::Cancel(TaskKey { job, execution });
        self.effects.extend(executions.into_iter().map(cancel));
    }

    /// Adds a line for the log.
    pub(super) fn log(&mut self, line: LogLine) {
        self.log.push(line);
    }

    /// Takes the effects.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Takes the lines for the log.
    pub(super) fn take_log(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.log)
    }
}
