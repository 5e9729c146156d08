//! The Dispatcher accepts jobs, recovers them, runs one JobMaster per job, writes their results, and cleans up
//! after them.
//!
//! It owns `graphs/`, `results/` and `descriptions/`. `states/<job>` belongs to the job's JobMaster once the
//! submission has written it, and so does `checkpoints/<job>` until the job's result is written. A term has one
//! Dispatcher, which requests of clients and the term itself reach by [`DispatcherHandle`].
//!
//! The core decides (`core`): what is written when, and what follows from it. `actor` is the loop, `calls` and
//! `answers` run the effects, and `job_store` and the files about records read and write the store.
//!
//! ```text
//!   submit --> Persisting --> Running --> Ending --> Dirty --> Ended --> (forgotten after the retention time)
//!                 |             ^  job is terminal  |  result  ^ cleanup
//!                 '- refused    |                   |  written | finished
//!   recovery -------------------+-------------------|----------'
//!                 |             '---- Rebuilding (its JobMaster broke; after several, Quarantined)
//!                 |---> Rebuilding (start delayed as a crash suspect, or a blob is unreadable for now)
//!                 |                   -- turn comes --> Running, cancel --> Ending
//!                 '---> Quarantined (can't be read or led; affects no other job)
//!                                     -- retry --> Running, delete --> Ending
//! ```
//!
//! What a crash leaves behind, step by step:
//! - before the submission's transaction: nothing; the client's retry with the same id and token is a first
//!   submission;
//! - between the copy of the checkpoint that a job begins from and the transaction: objects of checkpoints of a job
//!   without a record; the sweep of orphans removes them;
//! - between the chunks of a large graph and the transaction: chunks that no graph points to; the next term
//!   removes them;
//! - between transaction and acknowledgement: the job is stored and runs; the retry gets the same answer;
//! - while running: graph and state; the next term recovers the job;
//! - before the result's transaction: graph and state, which say that all tasks are finished or canceled; the
//!   next term ends the job the same way. For a large description also a blob or chunks that nothing points to,
//!   which are swept;
//! - between result and cleanup: a dirty result that names what to remove; the next term resumes the cleanup
//!   and never runs the job;
//! - after cleanup, before the result is marked clean: the cleanup runs again and finds nothing to do;
//! - after the last check of what an ended job left, before its result is removed: the next term checks again.
//!   A leader that is stopped in between and deposed removes nothing when it continues, because another run
//!   under the same id may exist.

mod actor;
mod answers;
mod broken_job_masters;
mod calls;
mod cleanup;
mod core;
mod descriptions;
mod graph_checks;
mod handle;
mod job_store;
mod kept_results;
mod log;
mod options;
mod read_barrier;
mod recovery;
mod term_clock;
#[cfg(test)]
mod tests;
mod uploads;

pub use self::actor::{Dispatcher, DispatcherContext};
pub use self::cleanup::{Cleaner, HiddenOutput, SinkCleaner};
pub use self::graph_checks::GraphChecks;
pub use self::handle::DispatcherHandle;
pub use self::job_store::{JobStore, JobStoreError, StateRecord, StorageUser};
pub use self::options::DispatcherOptions;
pub use self::recovery::{Caution, RecoveredJob, RecoveredJobs};
