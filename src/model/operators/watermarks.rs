//! `watermarks`: the column with the event time. ADR 0008 has the rules.

use serde::{Deserialize, Serialize};
use tanist_ha::clock::millis;

use super::event_time::{EventTime, time_column};
use super::{
    Declaration, ExpressionTypes, Redistribution, Section, StateUse, Step, Transformation,
};
use crate::Schema;
use crate::job_file::{Fields, Reader};
use crate::timestamp::FARTHEST;

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

impl Declaration for Watermarks {
    fn kind(&self) -> &'static str {
        "watermarks"
    }

    fn state(&self) -> StateUse {
        StateUse::Saved
    }

    fn redistribution(&self) -> Redistribution {
        Redistribution::Union
    }

    fn problems(&self) -> Vec<String> {
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

    fn event_time(&self, _input: Option<&EventTime>) -> Option<EventTime> {
        Some(EventTime {
            column: self.column.clone(),
            span_ms: 0,
        })
    }

    fn output(&self, input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        time_column(input, &self.column)?;
        Ok(input.clone())
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "watermarks",
    section: Section::Transformations,
    text: "\
Sets the column that is the time of a record, for the windows after it. Emits the columns that it reads. See
[Event time](../guides/windows.md).",
    fields: &[&[
        "`column` | a column, `timestamp` or `int64` | required | time of the record; an integer is in milliseconds since 1970",
        "`out-of-orderness` | a duration | `0 s` | how late a record may arrive after one with a later time",
        "`idle-timeout` | a duration | they always wait | time without a record after which readers no longer wait for this subtask",
    ]],
    checkpoints: "The event time of the subtask is saved, and emitted again after a restore.",
    example: "\
- datagen: { rate: 100 }
- watermarks: { column: seq, out-of-orderness: 2 s, idle-timeout: 1 min }
- key-by: { columns: [key] }
- count: { window: { tumbling: { size: 10 s } } }
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let column = fields.required("column", "time", reader, Reader::text);
    let late = fields.optional_value("out-of-orderness", reader, Reader::duration);
    let idle = fields.optional_value("idle-timeout", reader, Reader::duration);
    let spec = Watermarks {
        column: column?,
        out_of_orderness_ms: late.map_or(0, millis),
        idle_timeout_ms: idle.map(millis),
    };
    Some(spec.into())
}
