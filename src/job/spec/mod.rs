//! The specifications of operators that have more to say than a few fields: each with what is wrong with it by itself and
//! what it emits for an input. [`super::OperatorSpec`] has one variant for each.
//!
//! Specifications are persisted in job graphs: fields are only ever added, with a default, and left out where they have it.

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

pub(super) use columns::value_in_type;
pub(super) use records::line;
