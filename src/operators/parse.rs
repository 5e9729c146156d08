//! Parses JSON objects and CSV records in a text column, one record per text. `reading.rs` converts the values, and
//! applies the step's rule for texts that can't be read: fail, skip or null.

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use tanist_dataflow::{Built, Operator, OperatorError, Output};
use tanist_model::ColumnType;
use tanist_model::operators::{ParseCsv, ParseJson};

use super::factory::{Runtime, Setup, operator};
use super::reading::{Row, RowReader};
use super::schema::{column_of, texts_of};
use super::values::Value;
use super::{csv, json};

/// Written by some programs at the beginning of a text file. It belongs to no value.
pub(super) const BYTE_ORDER_MARK: char = '\u{feff}';

impl Runtime for ParseJson {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(json(setup.input()?, self, setup.output())?)
    }
}

impl Runtime for ParseCsv {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(csv(setup.input()?, self, setup.output())?)
    }
}

pub(super) struct Parse<F> {
    column: usize,
    format: F,
    rows: RowReader,
}

/// How a text is parsed.
pub(super) trait Format: Send {
    /// Returns the values of a record; `None` if it must be skipped.
    fn find<'t>(&self, text: &'t str, rows: &RowReader) -> Result<Option<Row<'t>>, String>;
}

/// Parses JSON.
pub(super) fn json(
    input: &Schema,
    spec: &ParseJson,
    output: SchemaRef,
) -> Result<Parse<impl Format + use<>>, OperatorError> {
    let columns = spec.reading.columns.iter().enumerate();
    let places = columns.map(|(index, column)| {
        let place = json::Place {
            column: index,
            is_text: column.column_type == ColumnType::String,
        };
        (column.name.clone(), place)
    });
    Ok(Parse {
        column: column_of(input, &spec.column)?.0,
        format: Json {
            places: places.collect(),
        },
        rows: RowReader::new(spec.reading.clone(), output),
    })
}

/// Parses CSV.
pub(super) fn csv(
    input: &Schema,
    spec: &ParseCsv,
    output: SchemaRef,
) -> Result<Parse<impl Format + use<>>, OperatorError> {
    Ok(Parse {
        column: column_of(input, &spec.column)?.0,
        format: Csv {
            separator: spec.separator,
            header: spec.header,
        },
        rows: RowReader::new(spec.reading.clone(), output),
    })
}

struct Json {
    places: json::Places,
}

impl Format for Json {
    fn find<'t>(&self, text: &'t str, _rows: &RowReader) -> Result<Option<Row<'t>>, String> {
        json::find(text, &self.places).map(Some)
    }
}

struct Csv {
    separator: char,
    header: bool,
}

impl Format for Csv {
    fn find<'t>(&self, text: &'t str, rows: &RowReader) -> Result<Option<Row<'t>>, String> {
        let fields = csv::split(text, self.separator)?;
        let columns = rows.columns();
        let names = || columns.iter().map(|column| column.name.as_str());
        if self.header && fields.iter().map(|(text, _)| text.trim()).eq(names()) {
            return Ok(None);
        }
        if fields.len() != columns.len() {
            let (found, declared) = (fields.len(), columns.len());
            return Err(format!(
                "it has {found} values where {declared} columns are declared"
            ));
        }
        let row = columns.iter().zip(fields).map(|(column, (text, quoted))| {
            let is_text = column.column_type == ColumnType::String && !column.nullable;
            let missing = text.is_empty() && !quoted && (!is_text || column.default.is_some());
            (!missing).then_some(Value::Text(text))
        });
        Ok(Some(row.collect()))
    }
}

impl<F: Format> Operator for Parse<F> {
    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        for text in texts_of(&batch, self.column) {
            let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
            let found = self.format.find(text, &self.rows).transpose();
            if let Some(found) = found {
                self.rows.add(found, text, output)?;
            }
        }
        self.rows.flush(output)
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
