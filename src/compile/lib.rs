//! From a job as people describe it to the graph that is executed: YAML, the builder, SQL expressions, validation.
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
//! Nothing here knows the operators: `tanist_model::operators` declares them. Nothing here runs anything: `operators`
//! implements the steps, the JobMaster schedules them.

mod builder;
mod builder_operators;
mod chaining;
mod checkpoints;
mod compile;
#[cfg(feature = "sql")]
pub mod expression;
#[cfg(not(feature = "sql"))]
mod expression;
mod job_graph;
mod paths;
mod plan;
mod stream_graph;
mod typing;
mod validate;
mod yaml;

#[cfg(test)]
mod tests;

pub use builder::{JobBuilder, Steps};
pub use chaining::ChainingOptions;
pub use checkpoints::{Checkpoints, warnings};
pub use compile::{CompileOptions, JobFile, JobFileError, compile};
pub use job_graph::{MAX_CHANNELS, MAX_SUBTASKS, validate_job_graph};
pub use plan::Plan;
pub use stream_graph::{DEFAULT_SLOT_SHARING_GROUP, Exchange, Partition, StreamGraph, StreamNode};
pub use typing::output;
