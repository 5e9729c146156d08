//! Records: Arrow batches of the five column types, their size, and the text form for people and files.
//!
//! A column has nulls only where its schema allows them; Arrow's schema check refuses other batches
//! from the wire. A timestamp is in milliseconds in UTC, without a time zone in its type. Batches
//! between operators have at most [`BATCH_ROWS`] rows and aim at [`BATCH_BYTES`] bytes.

use std::io::Write as _;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, TimestampMillisecondType};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray,
    TimestampMillisecondArray,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use tanist_model::timestamp;
use tanist_proto::v1::{Column, ColumnType};

/// Maximum number of rows that an operator puts into a batch.
pub const BATCH_ROWS: usize = 4096;

/// Target size of a batch in bytes of text. A single longer record is sent alone.
pub const BATCH_BYTES: usize = 256 * 1024;

/// Maximum number of characters of a record in an error message.
const SHOWN_CHARACTERS: usize = 120;

/// The Arrow type of timestamps.
const TIMESTAMP: DataType = DataType::Timestamp(TimeUnit::Millisecond, None);

/// Error: a column of the job graph has a type that this version doesn't know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column {column:?} has type number {number}, which this version doesn't know")]
pub struct UnknownColumnType {
    column: String,
    number: i32,
}

/// Converts a job graph's columns to an Arrow schema.
pub fn schema_of(columns: &[Column]) -> Result<SchemaRef, UnknownColumnType> {
    let fields = columns.iter().map(|column| {
        let unknown = || UnknownColumnType {
            column: column.name.clone(),
            number: column.r#type,
        };
        let data_type = match ColumnType::try_from(column.r#type).map_err(|_| unknown())? {
            ColumnType::String => DataType::Utf8,
            ColumnType::Int64 => DataType::Int64,
            ColumnType::Float64 => DataType::Float64,
            ColumnType::Bool => DataType::Boolean,
            ColumnType::Timestamp => TIMESTAMP,
            ColumnType::Unspecified => return Err(unknown()),
        };
        Ok(Field::new(&column.name, data_type, column.nullable))
    });
    Ok(Arc::new(Schema::new(
        fields.collect::<Result<Vec<_>, _>>()?,
    )))
}

/// Converts an Arrow schema to the schema type of the job checks. An Arrow type that no column can have
/// is an error.
pub fn job_schema(schema: &Schema) -> Result<tanist_model::Schema, ArrowError> {
    let columns = schema.fields().iter().map(|field| {
        let column_type = match field.data_type() {
            DataType::Utf8 => tanist_model::ColumnType::String,
            DataType::Int64 => tanist_model::ColumnType::Int64,
            DataType::Float64 => tanist_model::ColumnType::Float64,
            DataType::Boolean => tanist_model::ColumnType::Bool,
            other if *other == TIMESTAMP => tanist_model::ColumnType::Timestamp,
            other => {
                let message = format!("column {:?} is {other}", field.name());
                return Err(ArrowError::SchemaError(message));
            }
        };
        Ok(tanist_model::Column {
            nullable: field.is_nullable(),
            ..tanist_model::Column::new(field.name(), column_type)
        })
    });
    Ok(tanist_model::Schema::new(
        columns.collect::<Result<_, _>>()?,
    ))
}

/// Whether two schemas have the same columns in the same order.
pub(crate) fn same_columns(left: &Schema, right: &Schema) -> bool {
    let columns = |schema: &Schema| -> Vec<(String, DataType, bool)> {
        schema
            .fields()
            .iter()
            .map(|f| (f.name().clone(), f.data_type().clone(), f.is_nullable()))
            .collect()
    };
    columns(left) == columns(right)
}

/// Formats the columns of a schema for people: `word: string, count: int64`.
pub fn describe(schema: &Schema) -> String {
    let columns = schema.fields().iter();
    columns
        .map(|f| {
            let question = if f.is_nullable() { "?" } else { "" };
            format!("{}: {}{question}", f.name(), type_name(f.data_type()))
        })
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns a column type's name in job files.
pub fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 => "string".to_owned(),
        DataType::Int64 => "int64".to_owned(),
        DataType::Float64 => "float64".to_owned(),
        DataType::Boolean => "bool".to_owned(),
        other if *other == TIMESTAMP => "timestamp".to_owned(),
        other => other.to_string(),
    }
}

/// Typed view of a column.
#[derive(Debug, Clone, Copy)]
pub enum ColumnView<'a> {
    /// `string`
    Text(&'a StringArray),
    /// `int64`
    Int64(&'a Int64Array),
    /// `float64`
    Float64(&'a Float64Array),
    /// `bool`
    Bool(&'a BooleanArray),
    /// `timestamp`
    Timestamp(&'a TimestampMillisecondArray),
}

impl<'a> ColumnView<'a> {
    /// Returns the typed view of an array; `None` for a type that no column can have.
    pub fn of(array: &'a ArrayRef) -> Option<ColumnView<'a>> {
        match array.data_type() {
            DataType::Utf8 => array.as_string_opt().map(ColumnView::Text),
            DataType::Int64 => array.as_primitive_opt::<Int64Type>().map(ColumnView::Int64),
            DataType::Float64 => array
                .as_primitive_opt::<Float64Type>()
                .map(ColumnView::Float64),
            DataType::Boolean => array.as_boolean_opt().map(ColumnView::Bool),
            DataType::Timestamp(TimeUnit::Millisecond, None) => array
                .as_primitive_opt::<TimestampMillisecondType>()
                .map(ColumnView::Timestamp),
            _ => None,
        }
    }

    /// Whether the value of a row is null.
    pub fn is_null(&self, row: usize) -> bool {
        match self {
            ColumnView::Text(array) => array.is_null(row),
            ColumnView::Int64(array) => array.is_null(row),
            ColumnView::Float64(array) => array.is_null(row),
            ColumnView::Bool(array) => array.is_null(row),
            ColumnView::Timestamp(array) => array.is_null(row),
        }
    }

    /// Appends the value of a row as text.
    pub fn write_text(&self, row: usize, text: &mut Vec<u8>) {
        if self.is_null(row) {
            text.extend_from_slice(b"null");
            return;
        }
        let written = match self {
            ColumnView::Text(array) => {
                text.extend_from_slice(array.value(row).as_bytes());
                Ok(())
            }
            ColumnView::Int64(array) => write!(text, "{}", array.value(row)),
            ColumnView::Float64(array) => write!(text, "{:?}", array.value(row)),
            ColumnView::Bool(array) => write!(text, "{}", array.value(row)),
            ColumnView::Timestamp(array) => {
                text.extend_from_slice(timestamp::format(array.value(row)).as_bytes());
                Ok(())
            }
        };
        written.expect("writing to memory doesn't fail");
    }
}

/// Appends each record as a line: `prefix`, then the columns separated by a space.
pub fn write_lines(batch: &RecordBatch, prefix: &str, lines: &mut Vec<u8>) {
    let columns: Vec<_> = batch.columns().iter().filter_map(ColumnView::of).collect();
    for row in 0..batch.num_rows() {
        lines.extend_from_slice(prefix.as_bytes());
        write_record(&columns, row, lines);
        lines.push(b'\n');
    }
}

fn write_record(columns: &[ColumnView<'_>], row: usize, text: &mut Vec<u8>) {
    for (index, column) in columns.iter().enumerate() {
        if index > 0 {
            text.push(b' ');
        }
        column.write_text(row, text);
    }
}

/// Finds the first record of a batch with a line break in one of its texts: written as a line it would
/// become several.
pub fn find_line_break(batch: &RecordBatch) -> Option<usize> {
    let columns = batch.columns().iter().filter_map(ColumnView::of);
    let found = columns.filter_map(|column| match column {
        ColumnView::Text(array) => {
            // The texts are contiguous in memory: usually one search over all of them is enough.
            let offsets = array.value_offsets();
            let place = |offset: i32| usize::try_from(offset).unwrap_or(0);
            let all = place(offsets[0])..place(offsets[array.len()]);
            let is_possible = array.value_data()[all].contains(&b'\n');
            let has_one = |row: &usize| array.is_valid(*row) && array.value(*row).contains('\n');
            is_possible.then(|| (0..array.len()).find(has_one))?
        }
        ColumnView::Int64(_)
        | ColumnView::Float64(_)
        | ColumnView::Bool(_)
        | ColumnView::Timestamp(_) => None,
    });
    found.min()
}

/// Formats one record for an error message: on one line, shortened.
pub fn show_record(batch: &RecordBatch, row: usize) -> String {
    let columns: Vec<_> = batch.columns().iter().filter_map(ColumnView::of).collect();
    let mut text = Vec::new();
    write_record(&columns, row, &mut text);
    shorten(&String::from_utf8_lossy(&text).replace('\n', "\\n"))
}

/// Shortens a text for an error message.
pub fn shorten(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Bytes of a batch's own rows, excluding the rest of buffers that it shares with others.
pub fn size_of(batch: &RecordBatch) -> usize {
    let sizes = batch
        .columns()
        .iter()
        .map(|column| match ColumnView::of(column) {
            Some(ColumnView::Text(array)) => {
                let offsets = array.value_offsets();
                let text = offsets[array.len()] - offsets[0];
                usize::try_from(text).unwrap_or(0) + 4 * array.len()
            }
            Some(ColumnView::Bool(array)) => array.len().div_ceil(8),
            Some(ColumnView::Int64(_) | ColumnView::Float64(_) | ColumnView::Timestamp(_))
            | None => 8 * column.len(),
        });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> RecordBatch {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("word", Arc::new(StringArray::from(vec!["a", "bc"]))),
            ("count", Arc::new(Int64Array::from(vec![1, -2]))),
            ("share", Arc::new(Float64Array::from(vec![1.0, 0.25]))),
            ("seen", Arc::new(BooleanArray::from(vec![true, false]))),
        ];
        RecordBatch::try_from_iter(columns).expect("columns of one length")
    }

    #[test]
    fn a_record_is_a_line_of_its_columns() {
        let mut lines = Vec::new();
        write_lines(&batch(), "> ", &mut lines);
        assert_eq!(
            String::from_utf8_lossy(&lines),
            "> a 1 1.0 true\n> bc -2 0.25 false\n"
        );
    }

    #[test]
    fn the_first_record_with_a_line_break_is_found_among_those_of_the_batch() {
        let texts = |values: Vec<Option<&str>>| -> ArrayRef { Arc::new(StringArray::from(values)) };
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("a", texts(vec![Some("x\ny"), Some("b"), None, Some("\n")])),
            ("b", texts(vec![Some(""), Some("c"), Some("d\n"), None])),
        ];
        let batch = RecordBatch::try_from_iter(columns).expect("columns of one length");
        assert_eq!(find_line_break(&batch), Some(0));
        assert_eq!(find_line_break(&batch.slice(1, 3)), Some(1));
        assert_eq!(find_line_break(&batch.slice(1, 1)), None);
        assert_eq!(find_line_break(&batch.slice(0, 0)), None);
        assert_eq!(show_record(&batch, 0), "x\\ny ");
    }

    #[test]
    fn a_long_record_is_shortened_at_a_character() {
        assert_eq!(shorten("abc"), "abc");
        let long = "ä".repeat(SHOWN_CHARACTERS + 1);
        assert_eq!(
            shorten(&long),
            format!("{}...", "ä".repeat(SHOWN_CHARACTERS))
        );
    }

    #[test]
    fn a_slice_is_as_large_as_its_own_rows() {
        let whole = batch();
        assert_eq!(size_of(&whole), (3 + 8) + 16 + 16 + 1);
        assert_eq!(size_of(&whole.slice(0, 1)), (1 + 4) + 8 + 8 + 1);
        assert_eq!(size_of(&whole.slice(0, 0)), 0);
    }
}
