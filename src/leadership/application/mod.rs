//! A cluster that ends with its jobs: the program that submits them runs in the leading JobManager, and the
//! cluster ends when they have ended. `docs/adr/0014-application-clusters.md` says what is
//! persisted when.
//!
//! Not here: the jobs themselves, which the Dispatcher keeps as in a session; how a program's graphs are
//! compiled, and its parameters, which the process adds; the command line of an application.

mod bootstrap;
mod cancellations;
mod commits;
mod end;
mod job;
mod program_run;
mod record;
mod setup;
mod submissions;
mod submitted;

pub use job::{ApplicationJob, JobOutcome};
pub use program_run::{ApplicationError, ProgramRun, job_id_of};
pub use record::{ApplicationRecord, ApplicationStatus, diagnosis_of, left_by, read};
pub use setup::{Application, ProgramError};
pub use submitted::SubmittedJobs;

pub(super) use bootstrap::{ApplicationTerm, attend, final_message};
pub(super) use record::{FoundApplication, find_application};
