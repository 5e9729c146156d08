//! Jobs as people describe them, and the graph that is executed.
pub mod operator;
pub use operator::{Comparison, Emit, OperatorSpec};
