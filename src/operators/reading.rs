//! Converts texts to values of their columns' types, with the step's declared rules for missing or wrong
//! values.
//!
//! A record is taken completely or not at all: all its values are read before the first one is kept.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use tanist_dataflow::record::{BATCH_BYTES, BATCH_ROWS, shorten};
use tanist_dataflow::{OperatorError, Output};
use tanist_model::operators::{DeclaredColumn, OnError, Reading};
use tanist_model::{ColumnType, timestamp};

use super::values::{ColumnBuilder, Value};

/// The values of a record as found, by column; `None` for a missing one.
pub(super) type Row<'a> = Vec<Option<Value<'a>>>;

/// Collects records that were read.
pub(super) struct RowReader {
    reading: Reading,
    output: SchemaRef,
    builders: Vec<ColumnBuilder>,
    rows: usize,
}

impl RowReader {
    pub(super) fn new(reading: Reading, output: SchemaRef) -> RowReader {
        let fields = output.fields().iter();
        let builders = fields.map(|f| ColumnBuilder::new(f.data_type())).collect();
        RowReader {
            reading,
            output,
            builders,
            rows: 0,
        }
    }

    pub(super) fn columns(&self) -> &[DeclaredColumn] {
        &self.reading.columns
    }

    /// Takes a record that was found in `text`, or the error of the text.
    pub(super) fn add(
        &mut self,
        found: Result<Row<'_>, String>,
        text: &str,
        output: &mut Output,
    ) -> Result<(), OperatorError> {
        let values: Result<Vec<Value<'_>>, String> = match (found, self.reading.on_error) {
            (Ok(found), on_error) => (self.reading.columns.iter())
                .zip(found)
                .map(|(column, found)| match self.value(column, found) {
                    Err(_) if on_error == OnError::Null => Ok(Value::Null),
                    value => value,
                })
                .collect(),
            (Err(_), OnError::Null) => Ok(vec![Value::Null; self.builders.len()]),
            (Err(problem), _) => Err(problem),
        };
        match (values, self.reading.on_error) {
            (Ok(values), _) => {
                for (builder, value) in self.builders.iter_mut().zip(&values) {
                    builder.append(value);
                }
                self.rows += 1;
                let bytes: usize = self.builders.iter().map(ColumnBuilder::text_bytes).sum();
                if self.rows >= BATCH_ROWS || bytes >= BATCH_BYTES {
                    self.flush(output)?;
                }
                Ok(())
            }
            (Err(_), OnError::Skip | OnError::Null) => {
                output.count_skipped(1);
                Ok(())
            }
            (Err(message), OnError::Fail) => Err(OperatorError::Record {
                message,
                record: shorten(text),
            }),
        }
    }

    /// Emits the collected records.
    pub(super) fn flush(&mut self, output: &mut Output) -> Result<(), OperatorError> {
        if self.rows > 0 {
            self.rows = 0;
            let columns = self
                .builders
                .iter_mut()
                .map(ColumnBuilder::finish)
                .collect();
            output.emit(RecordBatch::try_new(Arc::clone(&self.output), columns)?);
        }
        Ok(())
    }

    fn value<'a>(
        &self,
        column: &DeclaredColumn,
        found: Option<Value<'a>>,
    ) -> Result<Value<'a>, String> {
        let name = &column.name;
        match found {
            None | Some(Value::Null) => match &column.default {
                Some(default) => Ok(default_value(default)),
                None if column.nullable => Ok(Value::Null),
                None => Err(format!("column `{name}` has no value")),
            },
            Some(found) => {
                let format = self.reading.timestamp_format.as_deref();
                in_type(&found, column.column_type, format).ok_or_else(|| {
                    let (text, wanted) = (shorten(&text_of(found)), column.column_type);
                    format!("column `{name}`: {text:?} is no {wanted}")
                })
            }
        }
    }
}

/// A declared default, in the column's type.
fn default_value(default: &serde_json::Value) -> Value<'static> {
    match default {
        serde_json::Value::String(text) => Value::Text(Cow::Owned(text.clone())),
        serde_json::Value::Bool(truth) => Value::Bool(*truth),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(number) => Value::Int(number),
            None => number.as_f64().map_or(Value::Null, Value::Float),
        },
        serde_json::Value::Null | serde_json::Value::Array(_) | serde_json::Value::Object(_) => {
            Value::Null
        }
    }
}

/// Converts a value to a column's type; `None` if that is not possible.
fn in_type<'a>(found: &Value<'a>, wanted: ColumnType, format: Option<&str>) -> Option<Value<'a>> {
    Some(match (wanted, found) {
        (_, Value::Null) => return None,
        (ColumnType::String, Value::Text(text)) => Value::Text(text.clone()),
        (ColumnType::String, other) => Value::Text(text_of(other.clone())),
        (ColumnType::Int64, Value::Int(number)) => Value::Int(*number),
        (ColumnType::Int64, Value::Text(text)) => Value::Int(text.trim().parse().ok()?),
        (ColumnType::Float64, Value::Float(number)) => Value::Float(*number),
        (ColumnType::Float64, Value::Int(number)) => Value::Float(*number as f64),
        (ColumnType::Float64, Value::Text(text)) => Value::Float(text.trim().parse().ok()?),
        (ColumnType::Bool, Value::Bool(truth)) => Value::Bool(*truth),
        (ColumnType::Bool, Value::Text(text)) => Value::Bool(text.trim().parse().ok()?),
        (ColumnType::Timestamp, Value::Int(millis)) => Value::Int(timestamp::in_range(*millis)?),
        (ColumnType::Timestamp, Value::Text(text)) => Value::Int(timestamp::parse(text, format)?),
        (ColumnType::Int64, Value::Float(_) | Value::Bool(_))
        | (ColumnType::Float64, Value::Bool(_))
        | (ColumnType::Bool, Value::Int(_) | Value::Float(_))
        | (ColumnType::Timestamp, Value::Float(_) | Value::Bool(_)) => return None,
    })
}

fn text_of(value: Value<'_>) -> Cow<'_, str> {
    match value {
        Value::Null => Cow::Borrowed("null"),
        Value::Text(text) => text,
        Value::Int(number) => Cow::Owned(number.to_string()),
        Value::Float(number) => Cow::Owned(number.to_string()),
        Value::Bool(truth) => Cow::Borrowed(if truth { "true" } else { "false" }),
    }
}
