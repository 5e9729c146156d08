//! The composition root: the only place that constructs components and wires them.
//!
//! It owns the resources of the process: servers and their ports, directories, signals, the runtime of tasks and the
//! file work of sinks. It also compiles the jobs of an application's program. The decisions of a JobManager are in
//! [`tanist_leadership`], those of a TaskManager in [`tanist_task_executor`].
//!
//! Who may call: the CLI, the test cluster of users, and benchmarks (`simulation`).

mod application;
mod cluster_watch;
mod control_groups;
mod file_work;
mod graph_checks;
mod job_records;
mod jobmanager;
mod listen;
mod settings;
pub mod shutdown;
#[cfg(feature = "simulation")]
pub mod simulation;
mod sinks;
mod taskmanager;
mod tasks_runtime;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod uploads;
mod worker;
mod working_dir;

pub use application::{ApplicationContext, ApplicationSetup};
pub use jobmanager::JobManager;
pub use listen::BindError;
pub use tanist_net::grow_descriptor_table;
pub use taskmanager::{StartError, TaskManager, TaskManagerFailure};
pub use working_dir::WorkingDir;
