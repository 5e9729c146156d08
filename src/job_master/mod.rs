//! The JobMaster: one job, from its JobGraph to its result.
//!
//! It turns the graph into an ExecutionGraph, declares the slots that it needs, takes offered ones into its pool,
//! places and deploys pipelined regions, restarts regions that fail, and ends the job. It owns the record
//! `states/<job>`. The Dispatcher is responsible for results, cleanup and other jobs, the ResourceManager for workers.
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
//! Those that are there are adopted unchanged (`reconciling.rs`). A region that an earlier term gave up and did not
//! place again starts Waiting under the generation after that. Reported executions that are not the record's are
//! cancelled.

mod actor;
#[cfg(test)]
mod actor_tests;
mod admission;
mod adopted_slots;
#[cfg(test)]
mod adoption_actor_tests;
#[cfg(test)]
mod adoption_tests;
mod answers;
mod blocked_reasons;
#[cfg(test)]
mod blocked_reasons_tests;
mod blocking;
mod building;
mod calls;
#[cfg(test)]
mod commit_tests;
#[cfg(test)]
mod consistency;
mod coordinator;
pub mod core;
mod deadlines;
mod decide;
mod deployment;
mod details;
mod dirty;
mod effects;
pub mod event;
mod exceptions;
#[cfg(test)]
mod exceptions_tests;
pub mod execution;
pub mod execution_graph;
mod failed_job;
pub mod failover;
#[cfg(test)]
mod failover_tests;
mod handle;
mod idle_slots;
mod indexes;
mod isolation;
#[cfg(test)]
mod isolation_tests;
mod job_events;
#[cfg(test)]
mod job_events_tests;
mod kept_graph;
#[cfg(test)]
mod lost_task_managers_tests;
#[cfg(test)]
mod many_regions_tests;
mod moving;
#[cfg(test)]
mod moving_late_news_tests;
#[cfg(test)]
mod moving_rounds_tests;
#[cfg(test)]
mod moving_tests;
mod options;
mod orphan_executions;
mod outputs;
#[cfg(test)]
mod outputs_tests;
mod profiles;
#[cfg(test)]
mod profiles_tests;
mod reconciling;
#[cfg(test)]
mod recovered;
mod recovery;
#[cfg(test)]
mod refused_writes_tests;
#[cfg(test)]
mod regions_tests;
mod registering;
#[cfg(test)]
mod registering_tests;
mod reports;
mod requests;
mod requirements;
pub mod restart;
mod scheduling;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod simulation;
mod slot_assignment;
pub mod slot_pool;
#[cfg(test)]
mod slot_pool_model_tests;
#[cfg(test)]
mod slot_pool_tests;
mod slot_uses;
mod slot_wait;
#[cfg(test)]
mod slot_wait_tests;
mod start_limiter;
#[cfg(test)]
mod start_limiter_tests;
mod status;
mod stopped;
#[cfg(test)]
mod stopped_tests;
mod terminal_states;
#[cfg(test)]
mod testing;
mod transitions;
mod waiting_list;
mod watch;

pub use actor::JobMaster;
pub use failover::FailoverStrategy;
pub use handle::JobMasterHandle;
pub use options::{CommitError, JobMasterContext, JobMasterOptions, SinkCommitter, StopFirst};
pub use restart::RestartStrategy;
pub use start_limiter::StartLimiter;
