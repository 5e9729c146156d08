//! Event time: the column that says when a record happened, and its watermarks. ADR 0008 has the rules.

use serde::{Deserialize, Serialize};

use crate::timestamp::FARTHEST;
use crate::{ColumnType, Schema};
use crate::{plain_column, wrong_type};

/// Generates watermarks from a column. Passes its input on unchanged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watermarks {
    /// Event time of a record: a timestamp, or milliseconds since 1970.
    pub column: String,
    /// Maximum delay of a record relative to records with a later event time.
    pub out_of_orderness_ms: u64,
    /// Time without a record after which this subtask no longer holds event time back; absent: it always does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
}

impl Watermarks {
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.out_of_orderness_ms > FARTHEST.unsigned_abs() {
            problems.push("`out-of-orderness` is too long".into());
        }
        if self.idle_timeout_ms == Some(0) {
            problems.push(
                "`idle-timeout` is 0: write a time, or leave it out to wait for every subtask"
                    .into(),
            );
        }
        problems
    }

    /// The columns that it emits for this input, or its problems.
    pub fn output(&self, input: &Schema) -> Result<Schema, Vec<String>> {
        time_column(input, &self.column)?;
        Ok(input.clone())
    }
}

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
