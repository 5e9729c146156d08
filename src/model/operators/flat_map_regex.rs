//! `flat-map-regex`: a record for each match in a text column.

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use super::reading::{self, DeclaredColumn, OnError, Reading};
use super::{Declaration, ExpressionTypes, Section, StateUse, Step, Transformation, text_column};
use crate::job_file::{Fields, Reader};
use crate::problem::instead;
use crate::{ColumnType, Schema};

/// Maximum size of a compiled pattern in bytes.
const LARGEST_PATTERN: usize = 1 << 20;

/// Emits a record for each match of a regular expression in a text column; its columns are the named groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlatMapRegex {
    /// The column that is searched.
    pub column: String,
    /// The expression, with at least one named group.
    pub pattern: String,
    /// The groups that are not texts; a group that is not listed is a `string`.
    pub reading: Reading,
}

impl FlatMapRegex {
    /// Creates a pattern whose groups are texts; a record that can't be read fails the job.
    pub fn new(column: impl Into<String>, pattern: impl Into<String>) -> FlatMapRegex {
        FlatMapRegex {
            column: column.into(),
            pattern: pattern.into(),
            reading: Reading {
                on_error: OnError::Fail,
                ..Reading::default()
            },
        }
    }

    /// Returns the compiled expression, or why it is invalid.
    pub fn regex(&self) -> Result<Regex, String> {
        RegexBuilder::new(&self.pattern)
            .size_limit(LARGEST_PATTERN)
            .dfa_size_limit(4 * LARGEST_PATTERN)
            .build()
            .map_err(|error| match error {
                regex::Error::Syntax(message) => {
                    let last = message.lines().last().unwrap_or_default().trim();
                    format!("`pattern` is no regular expression: {last}")
                }
                error => format!("`pattern` can't be used: {error}"),
            })
    }

    /// All columns in the order of their groups.
    pub fn full_reading(&self, regex: &Regex) -> Reading {
        let columns = regex.capture_names().flatten().map(|name| {
            let declared = &self.reading.columns;
            let declared = declared.iter().find(|column| column.name == name);
            declared
                .cloned()
                .unwrap_or_else(|| DeclaredColumn::new(name, ColumnType::String))
        });
        Reading {
            columns: columns.collect(),
            ..self.reading.clone()
        }
    }
}

impl Declaration for FlatMapRegex {
    fn kind(&self) -> &'static str {
        "flat-map-regex"
    }

    fn state(&self) -> StateUse {
        StateUse::None
    }

    fn problems(&self) -> Vec<String> {
        let regex = match self.regex() {
            Ok(regex) => regex,
            Err(problem) => return vec![problem],
        };
        let groups: Vec<&str> = regex.capture_names().flatten().collect();
        if groups.is_empty() {
            return vec![
                "`pattern` has no named group: write `(?<name>...)` around what is to be a column"
                    .into(),
            ];
        }
        let mut problems = self.full_reading(&regex).problems();
        for column in &self.reading.columns {
            if !groups.contains(&column.name.as_str()) {
                problems.push(format!(
                    "`pattern` has no group `{}`; {}",
                    column.name,
                    instead(&column.name, groups.iter().copied())
                ));
            }
        }
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
        // An invalid pattern is reported as a problem of its field.
        let regex = self.regex().map_err(|_| Vec::new())?;
        Ok(self.full_reading(&regex).schema())
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "flat-map-regex",
    section: Section::Transformations,
    text: "\
Emits a record for each match of a regular expression in a text column. Emits its named groups, in their order.

A group is a `string`, or has the type that `columns` declares, also as `bytes: { type: int64, default: 0 }`. A value is
missing if the group did not take part in the match. The record then has the default, or no value if the type ends in
`?`; otherwise it can't be parsed.",
    fields: &[
        reading::COLUMN,
        &[
            "`pattern` | a regular expression | required | the expression, with groups such as `(?<user>\\w+)`; no look-around, no back references",
            "`columns` | a map from groups to types | all groups are `string` | the groups that are not `string`: `{ bytes: int64 }`",
        ],
        reading::FIELDS,
    ],
    example: "\
- file-source: { paths: [\"logs/*.log\"] }
- flat-map-regex:
    column: line
    pattern: '(?<name>\\w+)=(?<value>\\d+)'
    columns: { value: int64 }
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let column = fields.required("column", "line", reader, Reader::text);
    let pattern = fields.required("pattern", "'(?<word>\\w+)'", reader, Reader::text);
    let columns = fields.optional("columns", reader, reading::columns);
    let reading = reading::read(fields, reader, Some(columns.unwrap_or_default()));
    let spec = FlatMapRegex {
        column: column?,
        pattern: pattern?,
        reading: reading?,
    };
    Some(spec.into())
}
