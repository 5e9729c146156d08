//! The composition root: the only place that constructs components and wires them.

mod adoptions;
pub mod application;
mod attending;
pub mod careful;
#[cfg(test)]
mod careful_tests;
mod contender;
mod control_groups;
mod decoding;
pub mod demo;
mod dial;
mod file_work;
mod forwarding;
pub mod ha;
pub mod history;
mod job_records;
mod jobmanager;
mod launcher;
mod listen;
mod newer;
pub mod peers;
mod permissions;
mod recovering;
mod settings;
pub mod shutdown;
#[cfg(feature = "simulation")]
pub mod simulation;
mod sinks;
mod standby;
mod sweeping;
mod taskmanager;
mod tasks_runtime;
mod term;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod uploads;
pub mod view;
mod worker;
mod workers;
mod working_dir;

pub use application::ApplicationSetup;
pub use history::{HistoryRecord, Phases, TakeoverRecord};
pub use jobmanager::JobManager;
pub use listen::BindError;
pub use taskmanager::{StartError, TaskManager, TaskManagerFailure};
pub use view::{HaStatus, JobManagerView, Role, TermStanding, TermState};
pub use working_dir::{DirectoryError, WorkingDir};
