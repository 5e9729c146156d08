//! Output columns of each operator, from its specification and its input's columns.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray as _;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use tanist_dataflow::{KeyColumns, OperatorError, record};
use tanist_model::OperatorSpec;

/// Returns the columns that an operator emits; `None` for sinks.
pub(super) fn output_schema(
    spec: &OperatorSpec,
    input: Option<&SchemaRef>,
) -> Result<Option<SchemaRef>, OperatorError> {
    let input_of = || input.ok_or_else(|| OperatorError::specification("it has no input"));
    Ok(match spec {
        OperatorSpec::Custom(custom) => {
            let columns = custom.schema();
            let columns = columns.map_err(|it| OperatorError::specification(it.join(", ")))?;
            let emits = !columns.columns().is_empty();
            let columns = record::schema_of(&columns.to_proto());
            let columns = columns.map_err(|it| OperatorError::specification(it.to_string()))?;
            emits.then_some(columns)
        }
        OperatorSpec::FileSource { .. } => Some(schema([("line", DataType::Utf8)])),
        OperatorSpec::Datagen { .. } => Some(schema(
            ["seq", "key", "value"].map(|name| (name, DataType::Int64)),
        )),
        OperatorSpec::SplitWords { .. } => Some(schema([("word", DataType::Utf8)])),
        OperatorSpec::Filter { .. } | OperatorSpec::Where { .. } => Some(Arc::clone(input_of()?)),
        OperatorSpec::Count { keys, .. } => {
            Some(aggregated(input_of()?, keys, "count", DataType::Int64)?)
        }
        OperatorSpec::Sum { keys, column, .. } => {
            let input = input_of()?;
            let (_, field) = column_of(input, column)?;
            Some(aggregated(input, keys, "sum", field.data_type().clone())?)
        }
        OperatorSpec::Exec(exec) | OperatorSpec::ExecSource(exec) => {
            let columns = record::schema_of(&exec.schema().to_proto());
            Some(columns.map_err(|error| OperatorError::specification(error.to_string()))?)
        }
        other => emitted(other, input)?,
    })
}

/// Returns the columns that the check of the job computes.
fn emitted(
    spec: &OperatorSpec,
    input: Option<&SchemaRef>,
) -> Result<Option<SchemaRef>, OperatorError> {
    let input = match input {
        Some(input) => record::job_schema(input)?,
        None if spec.is_source() => tanist_model::Schema::default(),
        None => return Err(OperatorError::specification("it has no input")),
    };
    let output = tanist_compile::emits(spec, &input)
        .map_err(|problems| OperatorError::specification(problems.join("; ")))?;
    if spec.is_sink() {
        return Ok(None);
    }
    let output = record::schema_of(&output.to_proto());
    output
        .map(Some)
        .map_err(|error| OperatorError::specification(error.to_string()))
}

/// Index and field of a column.
pub(super) fn column_of<'s>(
    schema: &'s Schema,
    column: &str,
) -> Result<(usize, &'s Field), OperatorError> {
    schema.column_with_name(column).ok_or_else(|| {
        let columns = record::describe(schema);
        OperatorError::specification(format!("there is no column {column:?} among ({columns})"))
    })
}

/// The texts of a text column, without nulls.
pub(super) fn texts_of(batch: &RecordBatch, column: usize) -> impl Iterator<Item = &str> {
    batch.column(column).as_string::<i32>().iter().flatten()
}

fn schema<const N: usize>(columns: [(&str, DataType); N]) -> SchemaRef {
    let fields: Vec<_> = columns
        .into_iter()
        .map(|(name, data_type)| Field::new(name, data_type, false))
        .collect();
    Arc::new(Schema::new(fields))
}

fn aggregated(
    input: &Schema,
    keys: &[String],
    result: &str,
    data_type: DataType,
) -> Result<SchemaRef, OperatorError> {
    let keys = KeyColumns::resolve(input, keys)?;
    let mut fields: Vec<Field> = keys.fields().cloned().collect();
    fields.push(Field::new(result, data_type, false));
    Ok(Arc::new(Schema::new(fields)))
}
