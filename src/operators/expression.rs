//! An expression compiled for batches: physical, with checked arithmetic, constants evaluated and folded.
//!
//! Integer overflow is an error and never wraps, as in `sum`. Times that a column can't hold and panics of a
//! function are errors too.

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
use tanist_compile::expression::{Typed, column, condition, explain, on_deep_stack};
use tanist_dataflow::{OperatorError, record};
use tanist_model::timestamp;
use tanist_telemetry::catch_panic;

use super::constants;

/// An expression over the records of one input.
#[derive(Debug)]
pub(super) struct Expression {
    physical: Arc<dyn PhysicalExpr>,
    /// The source text.
    text: String,
}

impl Expression {
    /// Compiles the expression of a column; errors name `what` it is for. Evaluates its constants, so it may
    /// take time.
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

    /// Compiles the condition of a filter.
    pub(super) fn condition(
        text: &str,
        input: &SchemaRef,
        what: &str,
    ) -> Result<Expression, OperatorError> {
        let (expression, _) = Expression::compile(text, input, what, condition)?;
        Ok(expression)
    }

    /// Also returns the value if it is the same for all records.
    fn compile(
        text: &str,
        input: &SchemaRef,
        what: &str,
        typed: fn(&str, &tanist_model::Schema) -> Result<Typed, String>,
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

    /// Evaluates the rows of a batch; an error is a message with the expression.
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

    /// Checks that times are in the range that a column may hold.
    fn check_times(&self, values: &ArrayRef) -> Result<(), String> {
        let Some(times) = values.as_primitive_opt::<TimestampMillisecondType>() else {
            return Ok(());
        };
        let is_impossible = |time: &i64| timestamp::in_range(*time).is_none();
        // The value in the place of a null does not count. Usually the first scan finds nothing.
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

/// Also returns the value if it is the same for all records. Fails if it can't be computed for any record.
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

/// Replaces arithmetic by a form that fails on overflow.
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
            // Negation has no checked form of its own.
            let zero = Arc::new(Literal::new(ScalarValue::new_zero(&data_type)?));
            let difference =
                BinaryExpr::new(zero, Operator::Minus, argument).with_fail_on_overflow(true);
            return Ok(Transformed::yes(Arc::new(difference)));
        }
    }
    Ok(Transformed::no(expr))
}
