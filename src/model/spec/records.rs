//! Specifications of operators that convert texts to typed columns and back.

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use super::columns::{DeclaredColumn, OnError, Reading};
use crate::text_column;
use crate::{ColumnType, Schema};

/// Maximum size of a compiled pattern in bytes.
const LARGEST_PATTERN: usize = 1 << 20;

/// Parses a JSON object in a text column. Emits the declared columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParseJson {
    /// The column that is read.
    pub column: String,
    /// The columns to read.
    pub reading: Reading,
}

impl ParseJson {
    pub(crate) fn problems(&self) -> Vec<String> {
        self.reading.problems()
    }

    /// The columns that it emits for this input, or its problems.
    pub fn output(&self, input: &Schema) -> Result<Schema, Vec<String>> {
        text_column(input, &self.column)?;
        Ok(self.reading.schema())
    }
}

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

impl ParseCsv {
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = self.reading.problems();
        problems.extend(separator_problem(self.separator));
        problems
    }

    /// The columns that it emits for this input, or its problems.
    pub fn output(&self, input: &Schema) -> Result<Schema, Vec<String>> {
        text_column(input, &self.column)?;
        Ok(self.reading.schema())
    }
}

/// Formats a record as a CSV line. Emits `line: string`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormatCsv {
    /// Separator of the values.
    pub separator: char,
}

impl FormatCsv {
    pub(crate) fn problems(&self) -> Vec<String> {
        separator_problem(self.separator).into_iter().collect()
    }
}

fn separator_problem(separator: char) -> Option<String> {
    let usable = separator == '\t' || separator.is_ascii_graphic() || separator == ' ';
    let usable = usable && separator != '"' && !separator.is_ascii_alphanumeric();
    (!usable).then(|| {
        format!(
            "`separator` is {separator:?}: write a punctuation mark such as `,` or `;`, or a tab"
        )
    })
}

/// Schema of text lines.
pub fn line() -> Schema {
    Schema::of([("line", ColumnType::String)])
}

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

    pub(crate) fn problems(&self) -> Vec<String> {
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
                    crate::problem::instead(&column.name, groups.iter().copied())
                ));
            }
        }
        problems
    }

    /// The columns that it emits for this input, or its problems.
    pub fn output(&self, input: &Schema) -> Result<Schema, Vec<String>> {
        text_column(input, &self.column)?;
        // An invalid pattern is reported as a problem of its field.
        let regex = self.regex().map_err(|_| Vec::new())?;
        Ok(self.full_reading(&regex).schema())
    }

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
}
