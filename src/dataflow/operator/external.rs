//! Operators that also work outside of their task's calls, such as one that runs a program: when they take another batch,
//! and what they emit by themselves.

use std::task::Context;

use super::{OperatorError, Output};

/// How an external operator stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It takes another batch.
    Room,
    /// It should get no more at present; if it does, it keeps it.
    Full,
    /// Its input has ended, and it will emit nothing any more.
    Done,
}

/// The side of an operator that works by itself.
pub trait External {
    /// Does what can be done without waiting: moves what it was given, and emits what has come if it may. Unless it has emitted
    /// something, the task is woken when more can be done.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        may_emit: bool,
        output: &mut Output,
    ) -> Result<Standing, OperatorError>;
}
