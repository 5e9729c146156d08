//! Why the saved state of an operator can't be restored, or its present state not be saved.

use super::sealed::FORMAT;
use crate::operator::OperatorError;

/// A state, and its problem. The caller adds which operator and subtask it was. At a restore, what is damaged or too
/// new quarantines the job; the restart strategy applies to a state that belongs to something else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the state `{state}` {problem}")]
pub struct StateError {
    state: String,
    problem: StateProblem,
}

/// What is wrong with a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateProblem {
    /// The bytes are not those that were saved; the reason.
    #[error("is damaged: {0}")]
    Damaged(String),
    /// A later version saved it. Nothing is wrong with it.
    #[error(
        "has format {found}, and this version reads formats up to {FORMAT}: use a later version"
    )]
    TooNew {
        /// Its format.
        found: u16,
    },
    /// It is the state of something else.
    #[error("is that of {found}, and the operator needs that of {expected}")]
    Foreign {
        /// What the state is of.
        found: String,
        /// What it should be of.
        expected: String,
    },
    /// Several subtasks saved it, and the operator takes that of one.
    #[error(
        "was saved by {found} subtasks, and the operator takes that of one: keep its parallelism"
    )]
    Several {
        /// How many.
        found: usize,
    },
}

impl StateProblem {
    /// The bytes are not those that were saved.
    pub(super) fn damaged(reason: impl Into<String>) -> StateProblem {
        StateProblem::Damaged(reason.into())
    }

    /// Says in which object the bytes are, if they are in one.
    pub(super) fn in_object(self, object: &str) -> StateProblem {
        match self {
            StateProblem::Damaged(reason) if !object.is_empty() => {
                StateProblem::Damaged(format!("in object {object}: {reason}"))
            }
            problem => problem,
        }
    }

    /// The problem of this state.
    pub(super) fn of(self, state: &str) -> StateError {
        StateError {
            state: state.to_owned(),
            problem: self,
        }
    }
}

impl StateError {
    /// What is wrong with the state.
    pub fn problem(&self) -> &StateProblem {
        &self.problem
    }
}

impl From<StateError> for OperatorError {
    fn from(error: StateError) -> OperatorError {
        OperatorError::Custom(Box::new(error))
    }
}
