//! Single values, and builders of columns from them. Each step owns its builders.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::{
    BooleanBuilder, Float64Builder, Int64Builder, StringBuilder, TimestampMillisecondBuilder,
};
use arrow_schema::DataType;

/// A value of any column type; a timestamp is an integer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value<'a> {
    Null,
    Text(Cow<'a, str>),
    Int(i64),
    Float(f64),
    Bool(bool),
}

/// Collects the values of one column.
#[derive(Debug)]
pub(super) enum ColumnBuilder {
    Text(StringBuilder),
    Int64(Int64Builder),
    Float64(Float64Builder),
    Bool(BooleanBuilder),
    Timestamp(TimestampMillisecondBuilder),
}

impl ColumnBuilder {
    pub(super) fn new(data_type: &DataType) -> ColumnBuilder {
        match data_type {
            DataType::Int64 => ColumnBuilder::Int64(Int64Builder::new()),
            DataType::Float64 => ColumnBuilder::Float64(Float64Builder::new()),
            DataType::Boolean => ColumnBuilder::Bool(BooleanBuilder::new()),
            DataType::Timestamp(..) => ColumnBuilder::Timestamp(TimestampMillisecondBuilder::new()),
            _ => ColumnBuilder::Text(StringBuilder::new()),
        }
    }

    /// Appends a value of the column's type. Any other value becomes a null, and then the batch is refused if
    /// the column is not nullable.
    pub(super) fn append(&mut self, value: &Value<'_>) {
        match (self, value) {
            (ColumnBuilder::Text(builder), Value::Text(text)) => builder.append_value(text),
            (ColumnBuilder::Int64(builder), Value::Int(number)) => builder.append_value(*number),
            (ColumnBuilder::Float64(builder), Value::Float(number)) => {
                builder.append_value(*number);
            }
            (ColumnBuilder::Bool(builder), Value::Bool(truth)) => builder.append_value(*truth),
            (ColumnBuilder::Timestamp(builder), Value::Int(millis)) => {
                builder.append_value(*millis);
            }
            (ColumnBuilder::Text(builder), _) => builder.append_null(),
            (ColumnBuilder::Int64(builder), _) => builder.append_null(),
            (ColumnBuilder::Float64(builder), _) => builder.append_null(),
            (ColumnBuilder::Bool(builder), _) => builder.append_null(),
            (ColumnBuilder::Timestamp(builder), _) => builder.append_null(),
        }
    }

    /// Bytes of text so far.
    pub(super) fn text_bytes(&self) -> usize {
        match self {
            ColumnBuilder::Text(builder) => builder.values_slice().len(),
            _ => 0,
        }
    }

    /// Returns the column and resets the builder.
    pub(super) fn finish(&mut self) -> ArrayRef {
        match self {
            ColumnBuilder::Text(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Int64(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Float64(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Bool(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Timestamp(builder) => Arc::new(builder.finish()),
        }
    }
}
