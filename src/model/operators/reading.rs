//! Columns that an operator declares: how texts are converted to them, how unreadable ones are handled, and how they
//! are read from a job file.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::job_file::{Fields, Key, Node, Reader, Value as NodeValue};
use crate::problem::{MAX_PROBLEMS, instead};
use crate::timestamp;
use crate::{Column, ColumnType, Schema};

/// Maximum number of columns.
const MAX_COLUMNS: usize = 1_000;

/// A column that a step emits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclaredColumn {
    /// Its name, in the output and in the text that is read.
    pub name: String,
    /// The type to which it is converted.
    #[serde(rename = "type")]
    pub column_type: ColumnType,
    /// Whether a missing value becomes null; otherwise a record without a value can't be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nullable: bool,
    /// Value for records without one, in the column's type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
}

impl DeclaredColumn {
    /// A column without nulls.
    pub fn new(name: impl Into<String>, column_type: ColumnType) -> DeclaredColumn {
        DeclaredColumn {
            name: name.into(),
            column_type,
            nullable: false,
            default: None,
        }
    }

    /// Makes the column nullable.
    #[must_use]
    pub fn or_null(self) -> DeclaredColumn {
        DeclaredColumn {
            nullable: true,
            ..self
        }
    }

    /// Sets the value for records without one.
    #[must_use]
    pub fn or(self, default: impl Into<Value>) -> DeclaredColumn {
        let default = default.into();
        let in_type = value_in_type(&default, self.column_type);
        DeclaredColumn {
            default: Some(in_type.unwrap_or(default)),
            ..self
        }
    }
}

/// Handling of a record that can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnError {
    /// The job fails, and the message shows the record.
    #[default]
    Fail,
    /// The record is skipped and counted.
    Skip,
    /// The columns that can't be converted become null; all of them if the record as a whole can't be read.
    Null,
}

impl OnError {
    /// All of them, by their names in a job file.
    pub const ALL: [(&'static str, OnError); 3] = [
        ("fail", OnError::Fail),
        ("skip", OnError::Skip),
        ("null", OnError::Null),
    ];
}

/// How texts are converted to columns.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// The columns, in this order.
    pub columns: Vec<DeclaredColumn>,
    /// Handling of a record that can't be read.
    #[serde(default)]
    pub on_error: OnError,
    /// strftime format of timestamps; without it they are RFC 3339 or milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp_format: Option<String>,
}

impl Reading {
    /// Reads these columns; a record that can't be read fails the job.
    pub fn of(columns: impl IntoIterator<Item = DeclaredColumn>) -> Reading {
        Reading {
            columns: columns.into_iter().collect(),
            ..Reading::default()
        }
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.columns.is_empty() {
            problems
                .push("`columns` is empty: declare at least one, such as `user: string`".into());
        }
        if self.columns.len() > MAX_COLUMNS {
            problems.push(format!("it has more than {MAX_COLUMNS} columns"));
            return problems;
        }
        if let Some(format) = &self.timestamp_format
            && !timestamp::is_format(format)
        {
            problems.push(format!(
                "`timestamp-format` {format:?} is no format: write for example `%Y-%m-%d %H:%M:%S`"
            ));
        }
        let mut seen = HashSet::new();
        for column in &self.columns {
            let name = &column.name;
            if problems.len() >= MAX_PROBLEMS {
                break;
            }
            if let Some(problem) = crate::name_problem(name) {
                problems.push(format!("the name of a column {problem}"));
            } else if !seen.insert(name) {
                problems.push(format!(
                    "column `{name}` is declared twice: declare it once"
                ));
            }
            if let Some(default) = &column.default
                && value_in_type(default, column.column_type).as_ref() != Some(default)
            {
                problems.push(format!(
                    "the default of column `{name}` is {default}, which is no {}",
                    column.column_type
                ));
            }
        }
        problems
    }

    /// Returns the problem of a valid timestamp format by which no text can ever be read.
    pub(super) fn format_problem(&self) -> Option<String> {
        let format = self.timestamp_format.as_deref()?;
        let is_useless = timestamp::is_format(format) && !timestamp::says_a_time(format);
        is_useless.then(|| {
            format!(
                "`timestamp-format` {format:?} does not determine a time: write at least a date, optionally with a time of day to the minute, such as `%Y-%m-%d %H:%M`"
            )
        })
    }

    pub(super) fn schema(&self) -> Schema {
        let column = |column: &DeclaredColumn| Column {
            name: column.name.clone(),
            column_type: column.column_type,
            nullable: column.nullable || self.on_error == OnError::Null,
        };
        Schema::new(self.columns.iter().map(column).collect())
    }
}

/// Converts a value to a column's type. Texts are parsed, so that a job file need not state types. A timestamp
/// becomes its milliseconds.
pub fn value_in_type(value: &Value, column_type: ColumnType) -> Option<Value> {
    match (column_type, value) {
        (ColumnType::String, Value::String(_)) => Some(value.clone()),
        (ColumnType::String, Value::Number(number)) => Some(Value::String(number.to_string())),
        (ColumnType::String, Value::Bool(truth)) => Some(Value::String(truth.to_string())),
        (ColumnType::Int64, Value::Number(number)) => number.as_i64().map(Value::from),
        (ColumnType::Int64, Value::String(text)) => {
            text.trim().parse::<i64>().ok().map(Value::from)
        }
        (ColumnType::Float64, Value::Number(number)) => number.as_f64().map(Value::from),
        (ColumnType::Float64, Value::String(text)) => text
            .trim()
            .parse::<f64>()
            .ok()
            .and_then(serde_json::Number::from_f64)
            .map(Value::Number),
        (ColumnType::Bool, Value::Bool(_)) => Some(value.clone()),
        (ColumnType::Bool, Value::String(text)) => {
            text.trim().parse::<bool>().ok().map(Value::Bool)
        }
        (ColumnType::Timestamp, Value::Number(number)) => number
            .as_i64()
            .and_then(timestamp::in_range)
            .map(Value::from),
        (ColumnType::Timestamp, Value::String(text)) => {
            timestamp::parse(text, None).map(Value::from)
        }
        (_, Value::Null | Value::Array(_) | Value::Object(_))
        | (ColumnType::Int64 | ColumnType::Float64 | ColumnType::Timestamp, Value::Bool(_))
        | (ColumnType::Bool, Value::Number(_)) => None,
    }
}

/// The field with the column that is read.
pub(super) const COLUMN: &[&str] =
    &["`column` | a column, `string` | required | the column to read"];

/// The field with the declared columns.
pub(super) const COLUMNS: &[&str] = &[
    "`columns` | a map from names to types | required | the columns: `{ user: string, bytes: int64 }`",
];

/// The other fields.
pub(super) const FIELDS: &[&str] = &[
    "`on-error` | `fail`, `skip`, `null` | `fail` | for a record that can't be read: fail the job, skip and count it, or leave those columns without a value that can't be converted, and all of them if the record as a whole can't be read; with `null` every column may lack a value",
    "`timestamp-format` | a format as in strftime | RFC 3339 (UTC if without zone) or milliseconds since 1970 | format of times: `%d/%b/%Y:%H:%M:%S %z`; a date without time of day means midnight",
];

/// Reads the fields that all operators that convert texts share. The caller has read the columns.
pub(super) fn read(
    fields: &mut Fields<'_>,
    reader: &mut Reader,
    columns: Option<Vec<DeclaredColumn>>,
) -> Option<Reading> {
    let on_error = fields.optional_value("on-error", reader, |reader, field, node| {
        reader.one_of(field, node, &OnError::ALL)
    });
    // YAML parses `null` as an empty value.
    let on_error = match fields.is_null("on-error") {
        true => Some(OnError::Null),
        false => on_error,
    };
    let timestamp_format = fields.optional("timestamp-format", reader, Reader::text);
    Some(Reading {
        columns: columns?,
        on_error: on_error.unwrap_or_default(),
        timestamp_format,
    })
}

/// Reads columns by name: a type, with a `?` if it is nullable; or `type` and `default`.
pub(super) fn columns(
    reader: &mut Reader,
    field: &str,
    node: &Node,
) -> Option<Vec<DeclaredColumn>> {
    let wanted = "a map of names and types, such as `{ user: string, bytes: int64 }`";
    let declared = reader.map(field, node, wanted)?;
    let columns: Vec<_> = declared
        .iter()
        .map(|(key, node)| column(key, node, reader))
        .collect();
    columns.into_iter().collect()
}

fn column(key: &Key, node: &Node, reader: &mut Reader) -> Option<DeclaredColumn> {
    let NodeValue::Map(_) = &node.value else {
        let (column_type, nullable) = column_type(reader, &key.text, node)?;
        let column = DeclaredColumn::new(&key.text, column_type);
        return Some(if nullable { column.or_null() } else { column });
    };
    let mut fields = Fields::of(node, reader);
    let declared = fields.required("type", "int64", reader, column_type);
    let default = fields.optional("default", reader, Reader::text);
    fields.finish("a column", reader);
    let (column_type, nullable) = declared?;
    let mut column = DeclaredColumn::new(&key.text, column_type);
    column.nullable = nullable;
    Some(match default {
        Some(default) => column.or(default),
        None => column,
    })
}

fn column_type(reader: &mut Reader, field: &str, node: &Node) -> Option<(ColumnType, bool)> {
    let text = reader.text(field, node)?;
    let text = text.trim();
    let (name, nullable) = match text.strip_suffix('?') {
        Some(name) => (name, true),
        None => (text, false),
    };
    let found = ColumnType::ALL
        .into_iter()
        .find(|known| known.name() == name);
    if found.is_none() {
        let instead = instead(name, ColumnType::ALL.map(ColumnType::name));
        let message = format!("`{field}` has no type {}; {instead}", node.describe());
        reader.problem(Some(node.position), message);
    }
    found.map(|found| (found, nullable))
}
