//! What runs inside a TaskManager: records, operators, the exchange between tasks, and the task itself.
//!
//! ```text
//! task ──▶ operator ──▶ record, key        how records are processed
//!   │
//!   ├────▶ partitioner ──▶ key             which target gets them
//!   ├────▶ exchange                        how they are transferred, with backpressure
//!   └────▶ exec                            programs that operators run
//! ```
//!
//! A [`TaskRuntime`] starts [`task`]s; those of one TaskManager share an [`Exchange`]. Not here:
//! deploying, restarting and reporting tasks, and making the output of [`sink`]s visible.

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

pub use coordination::{Asker, Asking, CoordinatorLine, CoordinatorRequest};
pub use exchange::{EpochGate, Exchange, ExchangeOptions, Refused};
pub use host::{Lingering, TaskHost, UploadSource};
pub use operator::{Look, matching_files};
pub use task::{RunningTask, TaskRuntime, TaskSpec, TaskStatus};
