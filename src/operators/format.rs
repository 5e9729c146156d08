//! Formats records as JSON objects or CSV lines. The parsing operators read them back to the same values.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Schema, SchemaRef};
use tanist_dataflow::record::{BATCH_BYTES, ColumnView};
use tanist_dataflow::{Built, Operator, OperatorError, Output};
use tanist_model::{operators, timestamp};

use super::csv;
use super::factory::{Runtime, Setup, operator};

impl Runtime for operators::FormatJson {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(json(setup.input()?, setup.output()))
    }
}

impl Runtime for operators::FormatCsv {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(csv(self.separator, setup.output()))
    }
}

pub(super) struct Format {
    syntax: Syntax,
    output: SchemaRef,
}

enum Syntax {
    /// Names encoded as JSON, with their colons.
    Json(Vec<String>),
    Csv(char),
}

/// Creates a JSON format.
pub(super) fn json(input: &Schema, output: SchemaRef) -> Format {
    let names = input.fields().iter();
    let names = names.map(|field| format!("{}:", serde_json::Value::from(field.name().as_str())));
    Format {
        syntax: Syntax::Json(names.collect()),
        output,
    }
}

/// Creates a CSV format.
pub(super) fn csv(separator: char, output: SchemaRef) -> Format {
    Format {
        syntax: Syntax::Csv(separator),
        output,
    }
}

impl Format {
    fn write(&self, columns: &[ColumnView<'_>], row: usize, line: &mut String) {
        match &self.syntax {
            Syntax::Json(names) => {
                line.push('{');
                for (index, (column, name)) in columns.iter().zip(names).enumerate() {
                    if index > 0 {
                        line.push(',');
                    }
                    line.push_str(name);
                    write_json(column, row, line);
                }
                line.push('}');
            }
            Syntax::Csv(separator) => {
                for (index, column) in columns.iter().enumerate() {
                    if index > 0 {
                        line.push(*separator);
                    }
                    write_csv(column, row, *separator, line);
                }
            }
        }
    }
}

fn write_json(column: &ColumnView<'_>, row: usize, line: &mut String) {
    if column.is_null(row) {
        line.push_str("null");
        return;
    }
    let value = match column {
        ColumnView::Text(array) => serde_json::Value::from(array.value(row)),
        ColumnView::Int64(array) => serde_json::Value::from(array.value(row)),
        ColumnView::Float64(array) => json_number(array.value(row)),
        ColumnView::Bool(array) => serde_json::Value::from(array.value(row)),
        ColumnView::Timestamp(array) => {
            serde_json::Value::from(timestamp::format(array.value(row)))
        }
    };
    write!(line, "{value}").expect("writing to memory doesn't fail");
}

/// NaN and infinities have no JSON number: they become the texts that other programs use too; parsing such a
/// text as a number restores it.
fn json_number(number: f64) -> serde_json::Value {
    serde_json::Value::from(if number.is_nan() {
        "NaN"
    } else if number == f64::INFINITY {
        "Infinity"
    } else if number == f64::NEG_INFINITY {
        "-Infinity"
    } else {
        return serde_json::Value::from(number);
    })
}

fn write_csv(column: &ColumnView<'_>, row: usize, separator: char, line: &mut String) {
    if column.is_null(row) {
        return;
    }
    let text = match column {
        ColumnView::Text(array) => return csv::write(array.value(row), separator, line),
        ColumnView::Int64(array) => array.value(row).to_string(),
        ColumnView::Float64(array) => format!("{:?}", array.value(row)),
        ColumnView::Bool(array) => array.value(row).to_string(),
        ColumnView::Timestamp(array) => timestamp::format(array.value(row)),
    };
    // A number contains the separator if that is a point or a minus sign.
    csv::write(&text, separator, line);
}

impl Operator for Format {
    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let columns: Vec<_> = batch.columns().iter().filter_map(ColumnView::of).collect();
        let mut lines = StringBuilder::new();
        let mut line = String::new();
        for row in 0..batch.num_rows() {
            line.clear();
            self.write(&columns, row, &mut line);
            lines.append_value(&line);
            if lines.values_slice().len() >= BATCH_BYTES || row + 1 == batch.num_rows() {
                let column: ArrayRef = Arc::new(lines.finish());
                output.emit(RecordBatch::try_new(
                    Arc::clone(&self.output),
                    vec![column],
                )?);
            }
        }
        Ok(())
    }
}
