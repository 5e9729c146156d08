//! The JobMaster: one job, from its JobGraph to its result.
//!
//! It turns the graph into an ExecutionGraph, declares the slots that it needs, takes offered ones into its pool, places
//! and deploys pipelined regions, restarts what fails, and ends the job. It owns the record `states/<job>`; results,
//! cleanup and other jobs are the Dispatcher's, workers the ResourceManager's.
//!
//! A region goes through these phases; *written* means durable in the record, by this term:
//!
//! ```text
//!            slots are there             placement written
//!  Waiting ------------------> Placed ----------------------> Deployed --> all executions FINISHED
//!     ^                          |                                |
//!     |                          +---------- a failure -----------+
//!     | next generation written, v
//!     | executions ended,     Stopping --------------------> the job is canceled or fails: its result
//!     +-- backoff over ----------+     no restart: that is written
//! ```
//!
//! After a recovery each region that has not finished starts Waiting under a new generation; what the former term's
//! tasks still run is cancelled when their TaskManagers register.

mod act;
mod actor;
#[cfg(test)]
mod actor_tests;
mod admission;
mod calls;
pub mod core;
mod deployment;
mod details;
pub mod event;
pub mod execution_graph;
mod failed_job;
mod handle;
#[cfg(test)]
mod invariants;
mod options;
mod reconciling;
mod recovery;
mod reports;
pub mod restart;
#[cfg(test)]
mod scripted;
mod settle;
#[cfg(test)]
mod simulated_task_manager;
#[cfg(test)]
mod simulation;
pub mod slot_pool;
#[cfg(test)]
mod testing;

pub use actor::JobMaster;
pub use handle::JobMasterHandle;
pub use options::{CommitError, JobMasterContext, JobMasterOptions, OnHigherEpoch, SinkCommitter};
pub use restart::RestartStrategy;
