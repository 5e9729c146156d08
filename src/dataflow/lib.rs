//! What runs tasks inside a TaskManager: records, the exchange between tasks, the task itself, and the interface
//! of its operators.
//!
//! ```text
//! task ──▶ operator (interface) ──▶ record, time    how records are processed
//!   │
//!   ├────▶ partitioner ──▶ key                      which target gets them
//!   ├────▶ exchange                                 how they are transferred, with backpressure
//!   └────▶ coordination                             requests to coordinators at the JobMaster
//! ```
//!
//! A [`TaskRuntime`] starts tasks; those of one TaskManager share an [`Exchange`]. It owns both, and the state of
//! each task. Who creates it passes an [`OperatorFactory`]: no operator is known here. Callers: the TaskExecutor,
//! which starts and ends tasks; the crate of the built-in operators and applications with their own, which
//! implement [`Operator`] and [`Source`]; the process, which creates the runtime.
//!
//! Not here: the operators; deploying, restarting and reporting tasks; making output visible.

mod coordination;
mod end_guard;
mod exchange;
mod key;
mod operator;
mod partitioner;
pub mod record;
mod state;
mod task;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod time;

pub use coordination::{CoordinatorLine, CoordinatorRequest, PendingAnswer, Requester};
pub use end_guard::{EndGuard, TaskEnding};
pub use exchange::{Exchange, ExchangeOptions};
pub use key::{KeyColumns, Keys, NoKeyColumn};
pub use operator::{
    Away, Built, EndOfInput, External, ExternalStatus, Notices, Operator, OperatorContext,
    OperatorError, OperatorFactory, Output, Peers, PrepareCommit, ReleasedFiles, SinkOutput,
    Source, SourceState, Stopped,
};
pub use state::{
    BroadcastState, EntryKey, EventTimers, KeyGroups, KeyedState, KeyedStates, ListState, MapState,
    NamespaceMut, OperatorList, ProcessingTimers, Restored, SavedEntry, Snapshot, StateError,
    StateKey, StateProblem, StateTable, StateValue, TakenEntries, ValueState, opened_state,
};
pub use task::{
    CheckpointProgress, CheckpointStatus, RunningTask, TaskRuntime, TaskSpec, TaskStatus,
};
pub use time::{Element, TimeSignal};
