//! The JobMaster: one job, from its JobGraph to its result.
//!
//! It turns the graph into an ExecutionGraph, declares the slots that it needs, takes offered ones into its pool,
//! places and deploys pipelined regions, restarts regions that fail, and ends the job. It owns the records
//! `states/<job>` and `checkpoints/<job>`. The Dispatcher is responsible for results, cleanup and other jobs, the
//! ResourceManager for workers.
//!
//! A JobMaster ends in one of four ways: with the job's result; with its term, without a word to any process; because
//! it broke (a bug), and the Dispatcher starts another one; or because it is *unfit*: the records of the job or the
//! state of a region are damaged, and the Dispatcher quarantines the job.
//!
//! A region goes through these phases; *written* means durable in the record, by this term:
//!
//! ```text
//!                                     recovered, placed
//!                                             |
//!                                             v       all executions are there
//!                                        Reconciling ---------------------------+
//!                                             | one is not                      |
//!            slots are there                  |       placement written         v
//!  Waiting ------------------> Placed --------|----------------------------> Deployed --> all executions FINISHED
//!     ^                          |            v                                 |
//!     |                          +----------- a failure ------------------------+
//!     | next generation written, v
//!     | executions ended,     Stopping --------------------> the job is canceled or fails: its result
//!     +-- backoff over ----------+     no restart: that is written
//! ```
//!
//! After a recovery a region that has finished stays so, and one that is placed is Reconciling: its executions are
//! awaited on the TaskManagers in the record, until `heartbeat.timeout` or until their TaskManager is known to be gone.
//! Those that are there are adopted unchanged (`core/reconciling.rs`). A region that an earlier term gave up and did
//! not place again starts Waiting under the generation after that. Reported executions that are not the record's are
//! cancelled.
//!
//! `core` decides (owners of state, handlers, one order: `core/mod.rs`), `actor.rs` feeds it events and runs its
//! effects, `checkpointing/` carries what the cores of the job and of its checkpoints report to each other, `handle.rs`
//! is what the Dispatcher and TaskManagers call.

mod actor;
mod admission;
mod calls;
mod checkpointing;
mod coordinator_preparation;
mod core;
mod failed_job;
mod graph_blob;
mod handle;
mod log;
mod options;
mod requests;
mod requirements;
mod start_limiter;
#[cfg(test)]
mod tests;
mod watch;

pub use self::actor::JobMaster;
pub use self::core::checkpoints;
pub use self::core::{
    CommitProgress, Connection, CoreOptions, Effect, Event, FailoverStrategy, JobMasterCore,
    Registration, RestartStrategy, SubmitOutcome,
};
pub use self::handle::JobMasterHandle;
pub use self::options::{
    CheckpointDefaults, JobMasterContext, JobMasterOptions, SinkCommitter, StopFirst, Superseded,
};
pub use self::start_limiter::StartLimiter;
