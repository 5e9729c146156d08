//! Why a task fails, and the status that follows from it.

use arrow_schema::ArrowError;
use tokio::task::JoinError;

use super::panic_message;
use super::plan::PlanError;
use super::status::TaskStatus;
use crate::exchange::InputError;
use crate::operator::OperatorError;

/// Why a task failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TaskError {
    /// The deployment can't be run.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An operator failed.
    #[error("operator {operator:?} ({number}/{parallelism}): {source}")]
    Operator {
        /// The operator's name in the job file.
        operator: String,
        /// The subtask, counted from one.
        number: u32,
        /// Number of subtasks.
        parallelism: u32,
        /// Error of the operator.
        source: Box<OperatorError>,
    },
    /// The state that it is restored from can't be used by any attempt.
    #[error("checkpoint {number} can't be restored: {source}")]
    DamagedState {
        /// The checkpoint.
        number: u64,
        /// The operator and its state.
        source: Box<TaskError>,
    },
    /// A producer ended before it had sent everything.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The result partition was closed from outside.
    #[error("its result partition was closed: {0}")]
    Output(String),
    /// Its output could not be kept.
    #[error("can't keep its output: {0}")]
    Keep(String),
    /// A batch could not be distributed to the targets.
    #[error("can't partition a batch: {0}")]
    Partition(#[from] ArrowError),
    /// An artifact of the job is not available.
    #[error("{0}")]
    Artifact(String),
    /// Blocking work panicked or the runtime ends.
    #[error("{0}")]
    Aborted(String),
}

impl From<JoinError> for TaskError {
    fn from(error: JoinError) -> TaskError {
        TaskError::Aborted(match error.try_into_panic() {
            Ok(panic) => format!("panicked: {}", panic_message(&*panic)),
            Err(error) => format!("its runtime ends: {error}"),
        })
    }
}

impl TaskError {
    /// Whether every further attempt would end the same way. Errors that depend on the version of this program
    /// are not such: another TaskManager may succeed.
    pub(super) fn is_unrecoverable(&self) -> bool {
        match self {
            TaskError::Operator { source, .. } => source.is_unrecoverable(),
            TaskError::Plan(PlanError::Operator { source, .. }) => source.is_unrecoverable(),
            TaskError::Plan(PlanError::Key(_)) => true,
            // The job is not failed for it, but quarantined.
            TaskError::DamagedState { .. } => false,
            TaskError::Plan(
                PlanError::Id(_)
                | PlanError::Column(_)
                | PlanError::Specification { .. }
                | PlanError::Mismatch(_),
            )
            | TaskError::Input(_)
            | TaskError::Output(_)
            | TaskError::Keep(_)
            | TaskError::Partition(_)
            | TaskError::Artifact(_)
            | TaskError::Aborted(_) => false,
        }
    }

    /// Whether the task only lost a producer or a consumer, which may have failed before it.
    fn has_lost_peer(&self) -> bool {
        match self {
            TaskError::Input(InputError { kept, .. }) => kept.is_none(),
            TaskError::Output(_) => true,
            TaskError::Plan(_)
            | TaskError::Operator { .. }
            | TaskError::DamagedState { .. }
            | TaskError::Keep(_)
            | TaskError::Partition(_)
            | TaskError::Artifact(_)
            | TaskError::Aborted(_) => false,
        }
    }

    /// The error of a task that is restored from this checkpoint.
    pub(super) fn of_restore(self, number: u64) -> TaskError {
        match self {
            TaskError::Operator { ref source, .. } if source.is_damaged_state() => {
                TaskError::DamagedState {
                    number,
                    source: Box::new(self),
                }
            }
            other => other,
        }
    }

    /// The final status of the task.
    pub(super) fn into_status(self) -> TaskStatus {
        let cause = self.to_string();
        let unrecoverable = self.is_unrecoverable();
        let has_damaged_state = matches!(self, TaskError::DamagedState { .. });
        let lost_peer = self.has_lost_peer();
        let unreadable = match self {
            TaskError::Input(InputError { kept, .. }) => kept,
            _ => None,
        };
        TaskStatus::Failed {
            cause,
            unreadable,
            unrecoverable,
            has_damaged_state,
            lost_peer,
        }
    }
}
