//! `parse-csv`: columns of the CSV records in a text column.

use serde::{Deserialize, Serialize};

use super::format_csv::{SEPARATOR, read_separator, separator_problem};
use super::reading::{self, Reading};
use super::{Declaration, ExpressionTypes, Section, StateUse, Step, Transformation, text_column};
use crate::Schema;
use crate::job_file::{Fields, Reader};

/// Parses a CSV record in a text column: one line, values quoted by `"` where needed. Emits the declared
/// columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParseCsv {
    /// The column that is read.
    pub column: String,
    /// The columns to read, by their position.
    pub reading: Reading,
    /// Separator of the values.
    pub separator: char,
    /// Whether a record that consists of the columns' names is skipped.
    #[serde(default)]
    pub header: bool,
}

impl Declaration for ParseCsv {
    fn kind(&self) -> &'static str {
        "parse-csv"
    }

    fn state(&self) -> StateUse {
        StateUse::None
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = self.reading.problems();
        problems.extend(separator_problem(self.separator));
        problems
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
    name: "parse-csv",
    section: Section::Transformations,
    text: "\
Parses a CSV record (one line, values in double quotes where needed) from a text column. Emits the declared columns.
Values are found by position.

A column is declared by its type, or as `bytes: { type: int64, default: 0 }`. A value is missing if there is no text.
The record then has the default, or no value if the type ends in `?`; otherwise it can't be parsed. An empty text is a
value for a `string` without `?` and default. A quote in a value that does not begin with a quote makes the record
unreadable. A byte order mark at the beginning is not part of a record.",
    fields: &[
        reading::COLUMN,
        reading::COLUMNS,
        reading::FIELDS,
        SEPARATOR,
        &["`header` | `true`, `false` | `false` | whether records that consist of the column names are skipped"],
    ],
    example: "\
- file-source: { paths: [\"sales/*.csv\"] }
- parse-csv:
    column: line
    columns: { shop: string, amount: float64, day: timestamp }
    timestamp-format: \"%Y-%m-%d\"
    separator: ;
    header: true
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let column = fields.required("column", "line", reader, Reader::text);
    let columns = fields.required("columns", "{ user: string }", reader, reading::columns);
    let reading = reading::read(fields, reader, columns);
    let separator = read_separator(fields, reader);
    let header = fields.optional_value("header", reader, Reader::bool);
    let spec = ParseCsv {
        column: column?,
        reading: reading?,
        separator: separator?,
        header: header.unwrap_or(false),
    };
    Some(spec.into())
}
