//! Columns of batches: what an operator emits, and where a column is.

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray as _;
use arrow_schema::{Field, Schema, SchemaRef};
use tanist_dataflow::{OperatorError, record};
use tanist_model::OperatorSpec;

/// Returns the columns that an operator emits, as its declaration computes them; `None` for sinks. A feature that this
/// program was built without is unavailable here, and another TaskManager may have it.
pub(super) fn output_schema(
    spec: &OperatorSpec,
    input: Option<&SchemaRef>,
) -> Result<Option<SchemaRef>, OperatorError> {
    if let Some(missing) = spec.missing_feature() {
        return Err(OperatorError::unavailable(missing));
    }
    // The JobManager that checked the graph may be of another version.
    let problems = spec.field_problems();
    if !problems.is_empty() {
        return Err(OperatorError::specification(problems.join("; ")));
    }
    let input = match input {
        Some(input) => record::job_schema(input)?,
        None if spec.is_source() => tanist_model::Schema::default(),
        None => return Err(OperatorError::specification("it has no input")),
    };
    let output = tanist_compile::output(spec, &input)
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

#[cfg(test)]
mod tests {
    use tanist_model::operators::Sample;

    use super::*;
    use crate::testing::texts;

    #[test]
    fn a_specification_that_can_not_be_run_is_refused_with_its_problem() {
        let input = texts("word", &[]).schema();
        let spec = Sample {
            fraction: 2.0,
            seed: 0,
        };
        let error = output_schema(&spec.into(), Some(&input)).expect_err("above 1");
        assert!(error.is_unrecoverable(), "{error}");
        assert!(error.to_string().contains("`fraction` is 2"), "{error}");
    }
}
