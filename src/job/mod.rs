//! Jobs as people describe them, and the graph that is executed.
//!
//! ```text
//! job file (yaml) ──┐
//!                   ├─> StreamGraph ── validate ──> chain ──> JobGraph ── validate_job_graph (every receiver)
//! JobBuilder ───────┘
//! ```
//!
//! A [`StreamGraph`] has one node per step, as written; a JobGraph ([`tanist_proto::v1::JobGraph`]) has one
//! vertex per chain of operators, with all defaults filled in. Job files and the builder use the same validator
//! and the same chaining, so they produce equal graphs.
//!
//! Nothing here runs anything: `dataflow` implements the operators, the JobMaster schedules them.

pub mod artifact;
pub mod builder;
mod builder_operators;
mod chaining;
pub mod compile;
pub mod custom;
mod endless;
mod event_time;
pub mod exec;
pub mod expression;
pub mod job_graph;
pub mod operator;
mod paths;
pub mod plan;
pub mod problem;
pub mod resources;
pub mod restart;
pub mod schema;
pub mod spec;
pub mod stream_graph;
pub mod timestamp;
pub mod topology;
mod typing;
mod validate;
mod yaml;

pub use artifact::ArtifactSpec;
pub use builder::{JobBuilder, Steps};
pub use chaining::ChainingOptions;
pub use compile::{CompileOptions, JobFile, JobFileError, compile};
pub use custom::{CustomRole, CustomSpec};
pub(crate) use endless::input_ends;
pub use exec::{ExecColumn, ExecFormat, ExecLimits, ExecSpec};
pub use expression::NamedExpression;
pub use job_graph::{
    InvalidJobGraph, coordinated_spec, has_expressions, unsupported, validate_job_graph,
};
pub use operator::{Comparison, Emit, OperatorSpec};
pub use paths::check_paths;
pub use plan::Plan;
pub use problem::{InvalidJob, Position, Problem};
pub use schema::{Column, ColumnType, Schema};
pub use stream_graph::{Exchange, Partition, StreamGraph, StreamNode, Transformation, Windows};
pub use topology::{
    MAX_REGIONS, blocking_edges_within_regions, count_regions, edges_into, edges_out_of,
    fed_subtasks, feeding_subtasks, slots_needed, subtask_regions,
};

#[cfg(test)]
pub(crate) use topology::regions;

#[cfg(test)]
mod tests;
