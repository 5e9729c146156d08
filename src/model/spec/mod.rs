//! Specifications of operators with more than a few fields: each has its own checks and computes its output
//! columns for an input. [`crate::OperatorSpec`] has one variant for each.
//!
//! Specifications are persisted in job graphs: fields are only added, with a default, and omitted if they have
//! it.

mod aggregate;
mod columns;
mod connectors;
mod records;
mod watermarks;

pub use aggregate::{Aggregate, AggregateFunction, Aggregation, Trigger, Window};
pub use columns::{DeclaredColumn, OnError, Reading};
pub use connectors::{FollowFiles, SocketSink, SocketSource};
pub use records::{FlatMapRegex, FormatCsv, ParseCsv, ParseJson};
pub use watermarks::{EventTime, Watermarks};

pub use columns::value_in_type;
pub use records::line;
