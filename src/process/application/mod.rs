//! A cluster that ends with its jobs: the program that submits them runs in the leading JobManager, and the
//! cluster ends when they have ended. `docs/adr/0014-a-cluster-that-ends-with-its-jobs.md` says what is
//! persisted when.
//!
//! Not here: the jobs themselves, which the Dispatcher keeps as in a session, and the command line of an
//! application.

mod bootstrap;
mod cancellations;
mod commits;
mod context;
mod end;
mod job;
mod record;
mod setup;
mod submissions;
mod submitted;
mod watch;

pub use context::{ApplicationContext, ApplicationError, job_id_of};
pub use job::{ApplicationJob, JobOutcome};
pub use record::{ApplicationRecord, ApplicationStatus};
pub use setup::{ApplicationSetup, ProgramError};
pub use submitted::SubmittedJobs;

pub(super) use bootstrap::{ApplicationTerm, attend, last_words};
pub(super) use record::{FoundApplication, find_application};
pub(crate) use record::{diagnosis_of, left_by};
pub(crate) use setup::Ending;
pub(super) use watch::until_over;
