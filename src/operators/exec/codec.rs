//! Encodes and decodes the records in a program's pipes: lines or frames, texts or JSON objects. The operator owns both
//! buffers. A record that can't be encoded or decoded is an error that shows it; the restart strategy applies.

use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, Float64Builder, Int64Builder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use bytes::{Buf as _, BytesMut};
use serde_json::{Map, Value};
use tanist_dataflow::OperatorError;
use tanist_dataflow::record::{self, BATCH_BYTES, BATCH_ROWS, ColumnView};
use tanist_model::{ExecFormat, timestamp};

use super::program::ProgramError;

/// The largest record that is accepted from a program, in bytes.
const LARGEST_RECORD: usize = 16 << 20;
/// Bytes of a frame's length prefix.
const PREFIX: usize = 4;

/// Appends records in the format that the program reads.
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
        // NaN and infinities have no JSON number: they become null.
        ColumnView::Float64(array) => Value::from(array.value(row)),
        ColumnView::Bool(array) => Value::from(array.value(row)),
        ColumnView::Timestamp(array) => Value::from(timestamp::format(array.value(row))),
    }
}

/// Decodes a program's output into batches.
#[derive(Debug)]
pub(crate) struct Decoder {
    format: ExecFormat,
    schema: SchemaRef,
    /// Bytes that were read and are an incomplete record, or records for a later batch.
    read: BytesMut,
    /// Number of bytes of `read` that are known to contain no line break.
    searched: usize,
    has_ended: bool,
}

impl Decoder {
    /// Creates a decoder for records with the columns of `schema`.
    pub(crate) fn new(format: ExecFormat, schema: SchemaRef) -> Decoder {
        Decoder {
            format,
            schema,
            read: BytesMut::new(),
            searched: 0,
            has_ended: false,
        }
    }

    /// Buffer for the bytes that were read; call [`Decoder::next_batch`] afterwards.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.read
    }

    /// Whether all bytes that were read have been decoded.
    pub(crate) fn is_empty(&self) -> bool {
        self.read.is_empty()
    }

    /// Marks the end of the output: the remaining bytes are a record.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    /// Returns the complete records, at most one batch of them.
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

    /// Returns the next complete record.
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
                        // The last byte may be the first half of a line break.
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
                .map_err(|_| refused("it is not UTF-8, which a string must be".to_owned()))?;
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

    /// Appends a value. Returns false if the value has another type.
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
