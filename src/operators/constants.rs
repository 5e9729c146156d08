//! Evaluates the constants of an expression before any record arrives. An expression that can't be computed for
//! any record fails when the task starts, and a restart can't fix it.
//!
//! Only parts that are evaluated for every record count: `case when n = 0 then 0 else 1 / 0 end` may never
//! reach its last part. Nothing is evaluated that would create a text longer than [`LONGEST_TEXT`].
//!
//! If some arguments of a call are constants, the call is evaluated with example values for the others,
//! provided that one value of these is as good as another. Then a failure is caused by a constant, such as an
//! invalid pattern.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema};
use datafusion_common::{DataFusionError, Result, ScalarValue};
use datafusion_expr::{ColumnarValue, Operator};
use datafusion_physical_expr::expressions::{BinaryExpr, CaseExpr, Column, InListExpr, Literal};
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use tanist_model::timestamp;

/// In bytes: no record with a longer text passes between tasks.
pub(super) const LONGEST_TEXT: u64 = 64 * 1024 * 1024;

/// What is known about an expression's constants.
#[derive(Debug)]
pub(super) struct Constants {
    /// The value of the whole expression, if it is constant.
    pub(super) value: Option<ScalarValue>,
    /// Whether all constants may be folded: none creates a text that is too long.
    pub(super) may_be_folded: bool,
}

/// Evaluates the constants. The error says what can't be computed.
pub(super) fn check(expr: &Arc<dyn PhysicalExpr>, input: &Schema) -> Result<Constants> {
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let one_record =
        RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options)?;
    let mut evaluation = Evaluation {
        input,
        one_record,
        may_be_folded: true,
    };
    let value = evaluation.value_of(expr, Evaluated::Always)?;
    Ok(Constants {
        value,
        may_be_folded: evaluation.may_be_folded,
    })
}

/// Whether a part is evaluated for every record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evaluated {
    Always,
    Perhaps,
}

struct Evaluation<'a> {
    input: &'a Schema,
    one_record: RecordBatch,
    may_be_folded: bool,
}

impl Evaluation<'_> {
    /// Returns the value of a part; `None` if it depends on the record, or if it can't be computed and may not
    /// have to be.
    fn value_of(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        evaluated: Evaluated,
    ) -> Result<Option<ScalarValue>> {
        if let Some(literal) = expr.downcast_ref::<Literal>() {
            return Ok(Some(literal.value().clone()));
        }
        let always = always_evaluated(expr);
        let mut values = Vec::new();
        for (index, child) in expr.children().into_iter().enumerate() {
            let of_child = if index < always {
                evaluated
            } else {
                Evaluated::Perhaps
            };
            values.push(self.value_of(child, of_child)?);
        }
        // Before anything is evaluated: some calls would create a text that fills the memory.
        let problem = problem_of(expr, &values, self.input);
        if let Some(problem) = problem {
            self.may_be_folded = false;
            return match evaluated {
                Evaluated::Always => Err(DataFusionError::Execution(problem)),
                Evaluated::Perhaps => Ok(None),
            };
        }
        if values.is_empty() || values.iter().any(Option::is_none) {
            if evaluated == Evaluated::Always {
                self.try_example(expr, &values)?;
            }
            return Ok(None);
        }
        let values: Vec<ScalarValue> = values.into_iter().flatten().collect();
        if multiplies(expr, &values) {
            self.may_be_folded = false;
            return Ok(None);
        }
        match self.evaluate(expr, values) {
            Err(_) if evaluated == Evaluated::Perhaps => Ok(None),
            evaluated => evaluated.map(Some),
        }
    }

    fn evaluate(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        values: Vec<ScalarValue>,
    ) -> Result<ScalarValue> {
        let literals = values.into_iter().map(|value| {
            let literal: Arc<dyn PhysicalExpr> = Arc::new(Literal::new(value));
            literal
        });
        let of_literals = Arc::clone(expr).with_new_children(literals.collect())?;
        match of_literals.evaluate(&self.one_record)? {
            ColumnarValue::Scalar(value) => Ok(value),
            ColumnarValue::Array(values) => ScalarValue::try_from_array(&values, 0),
        }
    }

    /// Evaluates a call with its constants, and with example values for arguments that may have any value.
    /// Succeeds without evaluation if another argument depends on the record.
    fn try_example(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        values: &[Option<ScalarValue>],
    ) -> Result<()> {
        let free = free_arguments(expr);
        let is_to_be_tried = |(index, value): (usize, &Option<ScalarValue>)| {
            value.is_some() || free.contains(&index)
        };
        let has_constant = values.iter().any(Option::is_some);
        if !has_constant || !values.iter().enumerate().all(is_to_be_tried) {
            return Ok(());
        }
        if let Some((call, record)) = self.with_examples(expr, values) {
            call.evaluate(&record)?;
        }
        Ok(())
    }

    /// Builds the call with its example values in a record, as for arguments that depend on the record. `None`
    /// if a type has no example.
    fn with_examples(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        values: &[Option<ScalarValue>],
    ) -> Option<(Arc<dyn PhysicalExpr>, RecordBatch)> {
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        let mut arguments: Vec<Arc<dyn PhysicalExpr>> = Vec::new();
        for (child, value) in expr.children().into_iter().zip(values) {
            arguments.push(match value {
                Some(value) => Arc::new(Literal::new(value.clone())),
                None => {
                    let example = example_of(&child.data_type(self.input).ok()?)?;
                    let name = format!("argument {}", columns.len());
                    fields.push(Field::new(&name, example.data_type(), true));
                    let column = Column::new(&name, columns.len());
                    columns.push(example.to_array().ok()?);
                    Arc::new(column)
                }
            });
        }
        let record = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).ok()?;
        let call = Arc::clone(expr).with_new_children(arguments).ok()?;
        Some((call, record))
    }
}

/// Indices of the arguments of a call that don't decide whether it fails: any example value does for them.
fn free_arguments(expr: &Arc<dyn PhysicalExpr>) -> &'static [usize] {
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        return match binary.op() {
            Operator::RegexMatch
            | Operator::RegexIMatch
            | Operator::RegexNotMatch
            | Operator::RegexNotIMatch => &[0],
            _ => &[],
        };
    }
    let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() else {
        return &[];
    };
    match call.name() {
        "regexp_like" | "regexp_match" | "regexp_count" | "regexp_instr" | "to_char" => &[0],
        "regexp_replace" => &[0, 2],
        "date_trunc" | "date_part" | "date_bin" => &[1],
        "split_part" | "substr" => &[0, 1],
        _ => &[],
    }
}

/// An example value of a type.
fn example_of(data_type: &DataType) -> Option<ScalarValue> {
    let text = || Some("a".to_owned());
    match data_type {
        DataType::Utf8 => Some(ScalarValue::Utf8(text())),
        DataType::LargeUtf8 => Some(ScalarValue::LargeUtf8(text())),
        DataType::Utf8View => Some(ScalarValue::Utf8View(text())),
        other => ScalarValue::new_default(other).ok(),
    }
}

/// Number of first children that are evaluated whenever the expression is.
fn always_evaluated(expr: &Arc<dyn PhysicalExpr>) -> usize {
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        return match binary.op() {
            Operator::And | Operator::Or => 1,
            _ => 2,
        };
    }
    if let Some(case) = expr.downcast_ref::<CaseExpr>() {
        // The compared operand, if there is one, and the first condition.
        return 1 + usize::from(case.expr().is_some());
    }
    if expr.downcast_ref::<InListExpr>().is_some() {
        return 1;
    }
    if let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>()
        && call.fun().short_circuits()
    {
        return 0;
    }
    usize::MAX
}

/// Returns why a part can't be computed for any values of its unknown arguments.
fn problem_of(
    expr: &Arc<dyn PhysicalExpr>,
    values: &[Option<ScalarValue>],
    input: &Schema,
) -> Option<String> {
    if let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() {
        if let Some(format) = format_of_no_time(call, values) {
            return Some(format!("{format:?} is no format of times"));
        }
        let bytes = least_bytes(call.name(), values)?;
        return (bytes > LONGEST_TEXT).then(|| {
            let name = call.name();
            format!("{name} makes a text of {bytes} bytes: at most {LONGEST_TEXT} are possible")
        });
    }
    let binary = expr.downcast_ref::<BinaryExpr>()?;
    if !matches!(binary.op(), Operator::Divide | Operator::Modulo) {
        return None;
    }
    let [left, Some(divisor)] = values else {
        return None;
    };
    // Null divided by zero is null.
    let is_nullable = match left {
        Some(value) => value.is_null(),
        None => binary.left().nullable(input).unwrap_or(true),
    };
    let is_exact = divisor.data_type().is_integer() || divisor.data_type().is_decimal();
    let zero = ScalarValue::new_zero(&divisor.data_type()).ok()?;
    (is_exact && !is_nullable && *divisor == zero).then(|| "Divide by zero error".to_owned())
}

/// Returns the last format if no time can be written or read by any of them.
fn format_of_no_time<'a>(
    call: &ScalarFunctionExpr,
    values: &'a [Option<ScalarValue>],
) -> Option<&'a str> {
    let name = call.name();
    if !name.starts_with("to_timestamp") && !matches!(name, "to_char" | "to_date" | "to_unixtime") {
        return None;
    }
    // Of several formats, the first one by which the text can be read is used.
    let mut wrong = None;
    for value in values.get(1..)? {
        let format = text_of(value.as_ref()?)?;
        if format.is_empty() || timestamp::is_format(format) {
            return None;
        }
        wrong = Some(format);
    }
    wrong
}

/// Minimum number of bytes of the text that a call creates, as far as its known arguments determine it.
fn least_bytes(name: &str, arguments: &[Option<ScalarValue>]) -> Option<u64> {
    let text = |index: usize| text_of(arguments.get(index)?.as_ref()?);
    let count = || match arguments.get(1)?.as_ref()? {
        ScalarValue::Int64(Some(count)) => u64::try_from(*count).ok(),
        _ => None,
    };
    match name {
        "repeat" => {
            let length = u64::try_from(text(0)?.len()).ok()?;
            count()?.checked_mul(length)
        }
        "lpad" | "rpad" => {
            let is_null =
                |value: &Option<ScalarValue>| value.as_ref().is_some_and(ScalarValue::is_null);
            let is_filled = arguments.len() < 3 || text(2).is_some_and(|fill| !fill.is_empty());
            let makes_text = is_filled && !is_null(arguments.first()?);
            makes_text.then(count).flatten()
        }
        _ => None,
    }
}

/// Whether a call may create a text as long as the product of two texts, and longer than the limit.
fn multiplies(expr: &Arc<dyn PhysicalExpr>, arguments: &[ScalarValue]) -> bool {
    let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() else {
        return false;
    };
    let length = |index: usize| {
        let text = arguments.get(index).and_then(text_of);
        text.map_or(0, |text| text.len() as u64) + 1
    };
    matches!(call.name(), "replace" | "regexp_replace")
        && length(0).saturating_mul(length(2)) > LONGEST_TEXT
}

fn text_of(value: &ScalarValue) -> Option<&str> {
    value.try_as_str().flatten()
}

#[cfg(test)]
#[path = "constants_tests.rs"]
mod tests;
