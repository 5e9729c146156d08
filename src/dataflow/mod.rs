//! What runs inside a TaskManager: records, operators, the exchange between tasks, and the task itself.
//!
//! ```text
//! task ──▶ operator ──▶ record, key        what is done to records
//!   │
//!   ├────▶ partitioner ──▶ key             which target gets them
//!   ├────▶ exchange                        how they get there, no faster than they are taken
//!   └────▶ exec                            programs that operators run
//! ```
//!
//! A [`TaskRuntime`] starts [`task`]s; those of one TaskManager share an [`Exchange`]. Who deploys, restarts and reports
//! tasks is not here, nor is who makes the output of [`sink`]s visible.

mod coordination;
pub mod exchange;
pub mod exec;
mod host;
pub mod key;
pub mod operator;
mod partitioner;
pub mod record;
pub mod sink;
pub mod task;
#[cfg(test)]
mod testing;
pub mod time;

pub use coordination::{Asker, Asking, CoordinatorLine, Question};
pub use exchange::{EpochGate, Exchange, ExchangeOptions, Refused};
pub use host::{Lingering, TaskHost, UploadSource};
pub use operator::{Look, matching_files};
pub use task::{RunningTask, TaskRuntime, TaskSpec, TaskStatus};
