//! Why an operator failed, in words that the task runtime understands.
//!
//! Operators have further kinds of errors, which only they know: these are boxed, in [`OperatorError::Custom`] or
//! [`OperatorError::Unrecoverable`].

use std::io;
use std::path::PathBuf;

use arrow_schema::ArrowError;
use tanist_model::files::InputError;

use crate::key::NoKeyColumn;
use crate::state::{StateError, StateProblem};

/// Error of an operator. The caller adds which operator and subtask it was.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The specification doesn't fit the records, or asks for something impossible. Unrecoverable.
    #[error("{0}")]
    Specification(String),
    /// A resource is not available here, or not at this moment: another TaskManager or a later attempt may have
    /// it.
    #[error("{0}")]
    Unavailable(String),
    /// Its input can't be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// One record can't be processed.
    #[error("{message}, at record [{record}]")]
    Record {
        /// The error in the record.
        message: String,
        /// The record, shortened.
        record: String,
    },
    /// A file operation failed.
    #[error("can't {action} {path:?}: {source}")]
    Io {
        /// The failed action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A batch does not match its schema.
    #[error("malformed batch: {0}")]
    Arrow(#[from] ArrowError),
    /// A key column is missing.
    #[error(transparent)]
    Key(#[from] NoKeyColumn),
    /// Error of a kind that only the operator knows. The restart strategy applies.
    #[error(transparent)]
    Custom(Box<dyn std::error::Error + Send + Sync>),
    /// Error of a kind that only the operator knows, which a restart can't fix: the job fails at once.
    #[error(transparent)]
    Unrecoverable(Box<dyn std::error::Error + Send + Sync>),
    /// Its coordinator at the JobMaster does not answer its requests.
    #[error("its coordinator does not answer: {0}")]
    Coordinator(String),
}

impl OperatorError {
    /// The specification doesn't fit the records, or asks for something impossible.
    pub fn specification(message: impl Into<String>) -> OperatorError {
        OperatorError::Specification(message.into())
    }

    /// A resource is not available here, or not at this moment.
    pub fn unavailable(message: impl Into<String>) -> OperatorError {
        OperatorError::Unavailable(message.into())
    }

    /// Whether every further attempt would end the same way, so that the job fails at once. If that is not
    /// certain, it is false: a file may come back, a peer may accept connections, another TaskManager may run
    /// another version.
    pub fn is_unrecoverable(&self) -> bool {
        match self {
            OperatorError::Specification(_)
            | OperatorError::Key(_)
            | OperatorError::Unrecoverable(_) => true,
            OperatorError::Input(error) => error.is_unrecoverable(),
            OperatorError::Unavailable(_)
            | OperatorError::Record { .. }
            | OperatorError::Io { .. }
            | OperatorError::Arrow(_)
            | OperatorError::Custom(_)
            | OperatorError::Coordinator(_) => false,
        }
    }

    /// Whether its saved state is damaged or too new: no attempt of this version can restore it.
    pub fn is_damaged_state(&self) -> bool {
        let OperatorError::Custom(error) = self else {
            return false;
        };
        let error = error.downcast_ref::<StateError>();
        error.is_some_and(|error| match error.problem() {
            StateProblem::Damaged(_) | StateProblem::TooNew { .. } => true,
            StateProblem::Foreign { .. } | StateProblem::Several { .. } => false,
        })
    }

    /// A file operation failed.
    pub fn io(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> OperatorError {
        OperatorError::Io {
            action,
            path: path.into(),
            source,
        }
    }
}
