//! Event time: the column that says when a record happened. ADR 0008 has the rules.

use super::{plain_column, wrong_type};
use crate::{ColumnType, Schema};

/// Checks that a column can be an event time.
pub(super) fn time_column(input: &Schema, column: &str) -> Result<(), Vec<String>> {
    let is_time = |found| matches!(found, ColumnType::Timestamp | ColumnType::Int64);
    let found = plain_column(input, column)?;
    if is_time(found) {
        return Ok(());
    }
    Err(vec![wrong_type(
        input,
        column,
        found,
        "timestamp or int64 (milliseconds)",
        is_time,
    )])
}

/// What is known about the event time of a step's records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTime {
    /// The column that contains it.
    pub column: String,
    /// For results of windows: their length; otherwise 0. A window over them must consist of whole ones.
    pub span_ms: u64,
}

impl EventTime {
    /// The event time that all inputs have in common.
    pub fn of_all<'a>(
        mut inputs: impl Iterator<Item = Option<&'a EventTime>>,
    ) -> Option<EventTime> {
        let first = inputs.next()??;
        inputs
            .all(|other| other == Some(first))
            .then(|| first.clone())
    }
}
