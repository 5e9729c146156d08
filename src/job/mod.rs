//! Jobs as people describe them, and the graph that is executed.
pub mod operator;
pub use operator::{Comparison, Emit, OperatorSpec};

/// Stands in until the validation of graphs is merged.
pub fn validate_job_graph(_graph: &tanist_proto::v1::JobGraph) -> Result<(), std::fmt::Error> {
    Ok(())
}
