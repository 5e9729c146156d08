//! Columns that a step declares: as what a text is read, and what becomes of one that can't be.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::problem::MAX_PROBLEMS;
use super::super::schema::{Column, ColumnType, Schema};
use super::super::timestamp;

/// More columns than this are refused.
const MAX_COLUMNS: usize = 1_000;

/// A column of what a step emits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclaredColumn {
    /// Its name, there and in what is read.
    pub name: String,
    /// As what it is read.
    #[serde(rename = "type")]
    pub column_type: ColumnType,
    /// Whether a record without a value has none here; otherwise it can't be read.
    #[serde(default, skip_serializing_if = "is_false")]
    pub nullable: bool,
    /// What a record without a value has here, in the column's type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
}

fn is_false(truth: &bool) -> bool {
    !truth
}

impl DeclaredColumn {
    /// A column in which each record has a value.
    pub fn new(name: impl Into<String>, column_type: ColumnType) -> DeclaredColumn {
        DeclaredColumn {
            name: name.into(),
            column_type,
            nullable: false,
            default: None,
        }
    }

    /// The same, where a record may have no value.
    #[must_use]
    pub fn or_null(self) -> DeclaredColumn {
        DeclaredColumn {
            nullable: true,
            ..self
        }
    }

    /// The same, with what a record without a value has.
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

/// What becomes of a record that can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnError {
    /// The job fails, and the message shows the record.
    #[default]
    Fail,
    /// It is left out and counted.
    Skip,
    /// The columns that can't be read have no value.
    Null,
}

impl OnError {
    /// By their names in a job file.
    pub const ALL: [(&'static str, OnError); 3] = [
        ("fail", OnError::Fail),
        ("skip", OnError::Skip),
        ("null", OnError::Null),
    ];
}

/// How texts become columns.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// What is read, in this order.
    pub columns: Vec<DeclaredColumn>,
    /// What becomes of a record that can't be read.
    #[serde(default)]
    pub on_error: OnError,
    /// How times are written, by strftime; otherwise as RFC 3339 or as milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp_format: Option<String>,
}

impl Reading {
    /// Of these columns; a record that can't be read fails the job.
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
            if let Some(problem) = super::super::validate::name_problem(name) {
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

    /// What is wrong with the format of times, if there is one and it can be understood: it may be one by which none is ever read.
    pub(in crate::job) fn format_problem(&self) -> Option<String> {
        let format = self.timestamp_format.as_deref()?;
        let is_useless = timestamp::is_format(format) && !timestamp::says_a_time(format);
        is_useless.then(|| {
            format!(
                "`timestamp-format` {format:?} does not say a time: write a date at least, with a time of day to the minute or none, such as `%Y-%m-%d %H:%M`"
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

/// A value in a column's type: texts are read, so that a job file need not say types. A time is its milliseconds.
pub(in crate::job) fn value_in_type(value: &Value, column_type: ColumnType) -> Option<Value> {
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
