//! What a job is: its steps, their schemas and resources, and the graph that is executed. No SQL, no records.
//!
//! These are values and functions of them: this crate owns no state. Only [`artifact`] and [`files`] do I/O, which
//! blocks.
//!
//! All layers share these types: the compiler creates a JobGraph ([`tanist_proto::v1::JobGraph`]), the Dispatcher
//! keeps it, the JobMaster schedules it, and TaskExecutors run it. An operator's specification ([`OperatorSpec`])
//! travels as JSON in the graph. [`operators`] declares each operator in a file of its own: its fields and their
//! rules, the types of its output, and how it is read from a job file. The types of expressions are the compiler's,
//! because they need SQL.

pub mod artifact;
mod commit_error;
mod endless;
mod exec;
mod expression;
pub mod files;
pub mod job_file;
mod job_graph;
mod named;
pub mod operators;
mod paths;
pub mod problem;
pub mod resources;
pub mod restart;
pub mod restore;
mod schema;
pub mod timestamp;
pub mod topology;
mod unnamed_steps;

pub use artifact::ArtifactSpec;
pub use commit_error::CommitError;
pub use endless::{commit_of, input_ends};
pub use exec::{ExecColumn, ExecFormat, ExecLimits, ExecSpec};
pub use expression::{NEEDS_SQL, NamedExpression};
pub use job_graph::{
    InvalidJobGraph, MAX_MESSAGE_LENGTH, MAX_NAME_LENGTH, MAX_PARALLELISM_LIMIT, MAX_STEPS,
    asks_for_commits, commits_at_the_end, file_source, has_expressions, name_problem, printable,
    shown, unsupported,
};
pub use operators::{
    Comparison, CustomRedistribution, CustomRole, CustomSpec, Emit, OperatorSpec, Transformation,
    check_keys,
};
pub use paths::{check_paths, is_relative, sink_directories};
pub use problem::{InvalidJob, Position, Problem};
pub use schema::{Column, ColumnType, Schema};
pub use topology::{
    MAX_REGIONS, blocking_edges_within_regions, count_regions, edges_into, edges_out_of,
    fed_subtasks, feeding_subtasks, regions, slots_needed, subtask_regions,
};
pub use unnamed_steps::unnamed_steps;
