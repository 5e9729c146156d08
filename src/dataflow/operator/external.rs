//! Operators that also work outside of their task's calls, such as one that runs a program: whether they accept
//! another batch, and what they emit without input.

use std::task::Context;

use super::{OperatorError, Output};

/// Status of an external operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExternalStatus {
    /// It accepts another batch.
    Room,
    /// It should get no more at present; if it does, it buffers it.
    Full,
    /// Its input has ended, and it will emit nothing more.
    Done,
}

/// The part of an operator that works without a call of the task.
pub trait External {
    /// Does all that is possible without waiting: moves its input on, and emits available output if `may_emit`. If
    /// it has emitted nothing, it wakes the task by `cx` when more can be done; otherwise the task polls it again.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        may_emit: bool,
        output: &mut Output,
    ) -> Result<ExternalStatus, OperatorError>;
}
