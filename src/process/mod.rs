//! The composition root: the only place that constructs components and wires them.

mod adoptions;
pub mod application;
mod application_term;
mod contender;
mod control_groups;
pub mod crash_loop;
#[cfg(test)]
mod crash_loop_tests;
pub mod demo;
mod dial;
mod file_work;
mod forwarding_dispatcher;
pub mod ha;
pub mod history;
mod job_records;
mod jobmanager;
mod launcher;
mod listen;
mod orphan_gc;
pub mod peers;
mod permissions;
mod record_recovery;
mod recovery_phases;
mod settings;
pub mod shutdown;
#[cfg(feature = "simulation")]
pub mod simulation;
mod sinks;
mod standby;
mod taskmanager;
mod tasks_runtime;
mod term;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod uploads;
mod version_handover;
pub mod view;
mod worker;
mod workers;
mod working_dir;

pub use application::ApplicationSetup;
pub use history::{HistoryRecord, Phases, TakeoverRecord};
pub use jobmanager::JobManager;
pub use listen::BindError;
pub use taskmanager::{StartError, TaskManager, TaskManagerFailure};
pub use view::{HaStatus, JobManagerView, Role, TermState, TermStatus};
pub use working_dir::{DirectoryError, WorkingDir};
