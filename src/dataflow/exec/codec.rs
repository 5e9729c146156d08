//! Records in a program's pipes: lines or frames, texts or JSON objects.

use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, Float64Builder, Int64Builder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use bytes::{Buf as _, BytesMut};
use serde_json::{Map, Value};

use super::program::ProgramError;
use crate::dataflow::operator::OperatorError;
use crate::dataflow::record::{self, BATCH_BYTES, BATCH_ROWS, ColumnView};
use crate::job::{ExecFormat, timestamp};

/// The largest record that is taken from a program, in bytes.
const LARGEST_RECORD: usize = 16 << 20;
/// The bytes of a frame's length.
const PREFIX: usize = 4;

/// Appends records as a program reads them.
pub(crate) fn encode(
    format: ExecFormat,
    batch: &RecordBatch,
    into: &mut BytesMut,
) -> Result<(), OperatorError> {
    let schema = batch.schema();
    let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
    let columns: Vec<_> = batch.columns().iter().filter_map(ColumnView::of).collect();
    let mut text = Vec::new();
    for row in 0..batch.num_rows() {
        text.clear();
        if format.is_json() {
            let object = names.iter().zip(&columns);
            let object: Map<String, Value> = object
                .map(|(name, column)| ((*name).to_owned(), json(column, row)))
                .collect();
            serde_json::to_writer(&mut text, &object).expect("values always serialize");
        } else {
            for (index, column) in columns.iter().enumerate() {
                if index > 0 {
                    text.push(b' ');
                }
                column.write_text(row, &mut text);
            }
        }
        let refused = |message: &str| OperatorError::Record {
            message: message.to_owned(),
            record: record::show_record(batch, row),
        };
        match format {
            ExecFormat::Lines | ExecFormat::JsonLines => {
                if text.contains(&b'\n') {
                    return Err(refused(
                        "it has a line break, so it is no line: use the format `frames` or `json-lines`",
                    ));
                }
                into.extend_from_slice(&text);
                into.extend_from_slice(b"\n");
            }
            ExecFormat::Frames | ExecFormat::JsonFrames => {
                let length = u32::try_from(text.len());
                let length = length.map_err(|_| refused("it is too long for a frame"))?;
                into.extend_from_slice(&length.to_be_bytes());
                into.extend_from_slice(&text);
            }
        }
    }
    Ok(())
}

fn json(column: &ColumnView<'_>, row: usize) -> Value {
    if column.is_null(row) {
        return Value::Null;
    }
    match column {
        ColumnView::Text(array) => Value::from(array.value(row)),
        ColumnView::Int64(array) => Value::from(array.value(row)),
        // What JSON has no number for is null.
        ColumnView::Float64(array) => Value::from(array.value(row)),
        ColumnView::Bool(array) => Value::from(array.value(row)),
        ColumnView::Timestamp(array) => Value::from(timestamp::format(array.value(row))),
    }
}

/// Makes batches of what a program writes.
#[derive(Debug)]
pub(crate) struct Decoder {
    format: ExecFormat,
    schema: SchemaRef,
    /// What was read and is no whole record yet, or one for a later batch.
    read: BytesMut,
    /// How much of `read` is known to have no line break.
    searched: usize,
    has_ended: bool,
}

impl Decoder {
    /// Of records with these columns.
    pub(crate) fn new(format: ExecFormat, schema: SchemaRef) -> Decoder {
        Decoder {
            format,
            schema,
            read: BytesMut::new(),
            searched: 0,
            has_ended: false,
        }
    }

    /// Where what was read is put; then [`Decoder::next_batch`] is asked.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.read
    }

    /// Whether nothing that was read is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.read.is_empty()
    }

    /// There is no more to read: what is left is a record.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    /// The records that are whole, as many as a batch takes.
    pub(crate) fn next_batch(&mut self) -> Result<Option<RecordBatch>, OperatorError> {
        let mut columns: Vec<Builder> = self
            .schema
            .fields()
            .iter()
            .map(|field| Builder::of(field.data_type()))
            .collect();
        let (mut rows, mut bytes) = (0, 0);
        while rows < BATCH_ROWS && bytes < BATCH_BYTES {
            let Some(record) = self.next_record()? else {
                break;
            };
            bytes += record.len();
            self.add(&record, &mut columns)?;
            rows += 1;
        }
        if rows == 0 {
            return Ok(None);
        }
        let columns = columns.into_iter().map(Builder::finish).collect();
        Ok(Some(RecordBatch::try_new(self.schema.clone(), columns)?))
    }

    /// The next whole record.
    fn next_record(&mut self) -> Result<Option<BytesMut>, ProgramError> {
        let too_long = |length: usize| {
            ProgramError::Output(format!(
                "a record of {length} bytes or more is longer than the {LARGEST_RECORD} that are taken"
            ))
        };
        match self.format {
            ExecFormat::Lines | ExecFormat::JsonLines => {
                let found = self.read[self.searched..].iter().position(|b| *b == b'\n');
                let mut line = match found {
                    Some(at) => {
                        let mut line = self.read.split_to(self.searched + at + 1);
                        line.truncate(line.len() - 1);
                        line
                    }
                    None if self.has_ended && !self.read.is_empty() => self.read.split(),
                    None => {
                        self.searched = self.read.len();
                        // It may be the first half of a line break.
                        let half = usize::from(self.read.last() == Some(&b'\r'));
                        if self.searched > LARGEST_RECORD + half {
                            return Err(too_long(self.searched));
                        }
                        return Ok(None);
                    }
                };
                self.searched = 0;
                if line.last() == Some(&b'\r') {
                    line.truncate(line.len() - 1);
                }
                if line.len() > LARGEST_RECORD {
                    return Err(too_long(line.len()));
                }
                Ok(Some(line))
            }
            ExecFormat::Frames | ExecFormat::JsonFrames => {
                let length = match self.read.first_chunk::<PREFIX>() {
                    Some(length) => u32::from_be_bytes(*length) as usize,
                    None => return self.nothing_more(),
                };
                if length > LARGEST_RECORD {
                    return Err(too_long(length));
                }
                if self.read.len() < PREFIX + length {
                    return self.nothing_more();
                }
                self.read.advance(PREFIX);
                Ok(Some(self.read.split_to(length)))
            }
        }
    }

    fn nothing_more(&self) -> Result<Option<BytesMut>, ProgramError> {
        if self.has_ended && !self.read.is_empty() {
            let left = self.read.len();
            let message = format!("it ends within a frame, {left} bytes after the last whole one");
            return Err(ProgramError::Output(message));
        }
        Ok(None)
    }

    fn add(&self, record: &[u8], columns: &mut [Builder]) -> Result<(), OperatorError> {
        let refused = |message: String| OperatorError::Record {
            message: format!("the program's output can't be read: {message}"),
            record: record::shorten(&String::from_utf8_lossy(record)),
        };
        if !self.format.is_json() {
            let text = std::str::from_utf8(record)
                .map_err(|_| refused("it is no UTF-8, which a string is".to_owned()))?;
            if let [Builder::Text(builder)] = columns {
                builder.append_value(text);
                return Ok(());
            }
            let message = "a record of one text needs one column of type string".to_owned();
            return Err(OperatorError::Specification(message));
        }
        let object: Map<String, Value> =
            serde_json::from_slice(record).map_err(|e| refused(format!("no JSON object: {e}")))?;
        for (field, builder) in self.schema.fields().iter().zip(columns) {
            let name = field.name();
            let Some(value) = object.get(name) else {
                return Err(refused(format!("`{name}` is missing")));
            };
            if !builder.append(value) {
                let wanted = record::type_name(field.data_type());
                return Err(refused(format!("`{name}` is no {wanted}")));
            }
        }
        Ok(())
    }
}

enum Builder {
    Text(StringBuilder),
    Int64(Int64Builder),
    Float64(Float64Builder),
    Bool(BooleanBuilder),
}

impl Builder {
    fn of(data_type: &DataType) -> Builder {
        match data_type {
            DataType::Int64 => Builder::Int64(Int64Builder::new()),
            DataType::Float64 => Builder::Float64(Float64Builder::new()),
            DataType::Boolean => Builder::Bool(BooleanBuilder::new()),
            _ => Builder::Text(StringBuilder::new()),
        }
    }

    /// False: the value has another type.
    fn append(&mut self, value: &Value) -> bool {
        match (self, value) {
            (Builder::Text(builder), Value::String(text)) => builder.append_value(text),
            (Builder::Int64(builder), Value::Number(number)) => match number.as_i64() {
                Some(number) => builder.append_value(number),
                None => return false,
            },
            (Builder::Float64(builder), Value::Number(number)) => match number.as_f64() {
                Some(number) => builder.append_value(number),
                None => return false,
            },
            (Builder::Bool(builder), Value::Bool(truth)) => builder.append_value(*truth),
            _ => return false,
        }
        true
    }

    fn finish(self) -> ArrayRef {
        match self {
            Builder::Text(mut builder) => Arc::new(builder.finish()),
            Builder::Int64(mut builder) => Arc::new(builder.finish()),
            Builder::Float64(mut builder) => Arc::new(builder.finish()),
            Builder::Bool(mut builder) => Arc::new(builder.finish()),
        }
    }
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
