//! An expression made ready for batches: physical, checked arithmetic, constants evaluated and folded.
//!
//! Integers that overflow are errors, never wrapped: `sum` and the expressions of a job agree on that. So are times that no column may
//! hold, and what a function panics for.

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::TimestampMillisecondType;
use arrow_array::{Array as _, ArrayRef, RecordBatch};
use arrow_schema::{Schema, SchemaRef};
use datafusion_common::tree_node::{Transformed, TransformedResult as _, TreeNode as _};
use datafusion_common::{DataFusionError, Result, ScalarValue};
use datafusion_expr::Operator;
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_physical_expr::expressions::{BinaryExpr, Literal, NegativeExpr};
use datafusion_physical_expr::simplifier::PhysicalExprSimplifier;
use datafusion_physical_expr::{PhysicalExpr, create_physical_expr};

use crate::dataflow::record;
use crate::job::expression::{Typed, column, condition, explain, on_deep_stack};
use crate::job::timestamp;
use crate::telemetry::catch_panic;

use super::{OperatorError, constants};

/// An expression over the records of one input.
#[derive(Debug)]
pub(super) struct Expression {
    physical: Arc<dyn PhysicalExpr>,
    /// As it was written.
    text: String,
}

impl Expression {
    /// The expression of a column; `what` it is for stands in errors. Evaluates its constants, so it may take its time.
    pub(super) fn column(
        text: &str,
        input: &SchemaRef,
        what: &str,
    ) -> Result<Expression, OperatorError> {
        let (expression, value) = Expression::compile(text, input, what, column)?;
        let problem = value.and_then(|value| match value.is_null() {
            true => Some(expression.is_null()),
            false => expression.check_times(&value.to_array().ok()?).err(),
        });
        match problem {
            Some(problem) => Err(OperatorError::specification(format!("{what}: {problem}"))),
            None => Ok(expression),
        }
    }

    /// The condition of a filter.
    pub(super) fn condition(
        text: &str,
        input: &SchemaRef,
        what: &str,
    ) -> Result<Expression, OperatorError> {
        let (expression, _) = Expression::compile(text, input, what, condition)?;
        Ok(expression)
    }

    /// With its value, where that is the same for all records.
    fn compile(
        text: &str,
        input: &SchemaRef,
        what: &str,
        typed: fn(&str, &crate::job::Schema) -> Result<Typed, String>,
    ) -> Result<(Expression, Option<ScalarValue>), OperatorError> {
        let columns = record::job_schema(input)?;
        let compiled = on_deep_stack(|| {
            let typed = typed(text, &columns)?;
            physical(&typed, input).map_err(|error| format!("`{text}`: {}", explain(&error)))
        });
        let (physical, value) = compiled
            .and_then(|compiled| compiled)
            .map_err(|problem| OperatorError::specification(format!("{what}: {problem}")))?;
        let expression = Expression {
            physical,
            text: text.to_owned(),
        };
        Ok((expression, value))
    }

    /// Its values for the rows of a batch; an error is a message with the expression.
    pub(super) fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, String> {
        let evaluate = || {
            let value = self.physical.evaluate(batch)?;
            value.into_array(batch.num_rows())
        };
        let values = match catch_panic(evaluate) {
            Ok(evaluated) => evaluated.map_err(|error| explain(&error)),
            Err(panic) => Err(format!("DataFusion panicked: {panic}")),
        };
        let values = values.map_err(|problem| format!("`{}`: {problem}", self.text))?;
        self.check_times(&values)?;
        Ok(values)
    }

    /// Times are those that a column may hold, whoever reads it.
    fn check_times(&self, values: &ArrayRef) -> Result<(), String> {
        let Some(times) = values.as_primitive_opt::<TimestampMillisecondType>() else {
            return Ok(());
        };
        let is_impossible = |time: &i64| timestamp::in_range(*time).is_none();
        // What stands in the place of a null is none; mostly nothing is to be looked at twice.
        let found = match times.values().iter().any(is_impossible) {
            true => times.iter().flatten().find(is_impossible),
            false => None,
        };
        match found {
            Some(time) => {
                let text = &self.text;
                Err(format!(
                    "`{text}` is the time {time}, which can't be milliseconds since 1970"
                ))
            }
            None => Ok(()),
        }
    }

    /// [`Expression::evaluate`], where null is an error too.
    pub(super) fn evaluate_non_null(&self, batch: &RecordBatch) -> Result<ArrayRef, String> {
        let values = self.evaluate(batch)?;
        if values.null_count() > 0 {
            return Err(self.is_null());
        }
        Ok(values)
    }

    fn is_null(&self) -> String {
        let text = &self.text;
        format!("`{text}` is null, and no column can be null: write `coalesce(..., instead)`")
    }
}

/// With its value, where that is the same for all records. An error also where it can be computed of no record.
fn physical(typed: &Typed, input: &Schema) -> Result<(Arc<dyn PhysicalExpr>, Option<ScalarValue>)> {
    let physical = create_physical_expr(
        &typed.expr,
        &typed.columns,
        &ExecutionProps::new(),
        &PhysicalPlanningContext::default(),
    )?;
    let checked = physical.transform_up(|expr| checked(expr, input)).data()?;
    let constants = constants::check(&checked, input)?;
    let simplified = match constants.may_be_folded {
        true => PhysicalExprSimplifier::new(input).simplify(checked)?,
        false => checked,
    };
    Ok((simplified, constants.value))
}

/// Arithmetic that fails where the result has no place.
fn checked(
    expr: Arc<dyn PhysicalExpr>,
    input: &Schema,
) -> Result<Transformed<Arc<dyn PhysicalExpr>>, DataFusionError> {
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        let (left, right) = (Arc::clone(binary.left()), Arc::clone(binary.right()));
        let binary = BinaryExpr::new(left, *binary.op(), right).with_fail_on_overflow(true);
        return Ok(Transformed::yes(Arc::new(binary)));
    }
    if let Some(negative) = expr.downcast_ref::<NegativeExpr>() {
        let argument = Arc::clone(negative.arg());
        let data_type = argument.data_type(input)?;
        if data_type.is_signed_integer() {
            // It has no checked form of its own.
            let zero = Arc::new(Literal::new(ScalarValue::new_zero(&data_type)?));
            let difference =
                BinaryExpr::new(zero, Operator::Minus, argument).with_fail_on_overflow(true);
            return Ok(Transformed::yes(Arc::new(difference)));
        }
    }
    Ok(Transformed::no(expr))
}
