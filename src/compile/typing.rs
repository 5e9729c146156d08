//! Types of operators: the declarations compute them, and the types of their SQL expressions come from here.
//!
//! Used both for a graph that is being compiled and for one that arrives compiled: a JobGraph is checked by the
//! same rules that created it.

use tanist_model::operators::ExpressionTypes;
use tanist_model::{ColumnType, NamedExpression, OperatorSpec, Schema};

use crate::expression;

/// Types SQL expressions by DataFusion, or without the feature not at all.
struct SqlTypes;

impl ExpressionTypes for SqlTypes {
    fn check_condition(&self, text: &str, input: &Schema) -> Result<(), Vec<String>> {
        expression::check_condition(text, input)
    }

    fn types_of(
        &self,
        columns: &[NamedExpression],
        input: &Schema,
    ) -> Result<Vec<ColumnType>, Vec<String>> {
        expression::types_of(columns, input)
    }
}

/// The schema that an operator emits for this input (empty for a source), or all problems of the input. An error
/// without problems means that a feature is missing, which is one of the problems of the operator's fields.
pub fn output(spec: &OperatorSpec, input: &Schema) -> Result<Schema, Vec<String>> {
    spec.output(input, &SqlTypes)
}
