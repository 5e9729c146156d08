//! `parse-json`: columns of the JSON objects in a text column.

use serde::{Deserialize, Serialize};

use super::reading::{self, Reading};
use super::{Declaration, ExpressionTypes, Section, StateUse, Step, Transformation, text_column};
use crate::Schema;
use crate::job_file::{Fields, Reader};

/// Parses a JSON object in a text column. Emits the declared columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParseJson {
    /// The column that is read.
    pub column: String,
    /// The columns to read.
    pub reading: Reading,
}

impl Declaration for ParseJson {
    fn kind(&self) -> &'static str {
        "parse-json"
    }

    fn state(&self) -> StateUse {
        StateUse::None
    }

    fn problems(&self) -> Vec<String> {
        self.reading.problems()
    }

    fn reading(&self) -> Option<&Reading> {
        Some(&self.reading)
    }

    fn reading_mut(&mut self) -> Option<&mut Reading> {
        Some(&mut self.reading)
    }

    fn output(&self, input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        text_column(input, &self.column)?;
        Ok(self.reading.schema())
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "parse-json",
    section: Section::Transformations,
    text: "\
Parses a JSON object from a text column. Emits the declared columns. Values are found by name.

A column is declared by its type, or as `bytes: { type: int64, default: 0 }`. A value is missing if there is no such
field, or it is `null`. The record then has the default, or no value if the type ends in `?`; otherwise it can't be
parsed. A byte order mark at the beginning is not part of a record. A `string` column takes any JSON value as it is
written: numbers with all their digits, arrays and objects in their order. Escapes in texts are resolved.",
    fields: &[reading::COLUMN, reading::COLUMNS, reading::FIELDS],
    example: "\
- file-source: { paths: [\"logs/*.json\"] }
- parse-json:
    column: line
    columns: { user: string, bytes: { type: int64, default: 0 }, note: \"string?\" }
    on-error: skip
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let column = fields.required("column", "line", reader, Reader::text);
    let columns = fields.required("columns", "{ user: string }", reader, reading::columns);
    let reading = reading::read(fields, reader, columns);
    let spec = ParseJson {
        column: column?,
        reading: reading?,
    };
    Some(spec.into())
}
