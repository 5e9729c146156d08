//! Passes on records for which a comparison with a constant is true.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, TimestampMillisecondType};
use arrow_array::{BooleanArray, RecordBatch};
use arrow_buffer::BooleanBuffer;
use arrow_schema::{DataType, Schema};
use arrow_select::filter::filter_record_batch;
use serde_json::Value;
use tanist_dataflow::record::type_name;
use tanist_dataflow::{Built, Operator, OperatorError, Output};
use tanist_model::{Comparison, operators};

use super::factory::{Runtime, Setup, operator};
use super::schema::column_of;

impl Runtime for operators::Filter {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(Filter::new(
            setup.input()?,
            &self.column,
            self.op,
            &self.value,
        )?)
    }
}

pub(super) struct Filter {
    column: usize,
    test: Test,
}

/// The comparison, in the column's type.
enum Test {
    Text(Comparison, String),
    Int64(Comparison, i64),
    /// Milliseconds since 1970.
    Timestamp(Comparison, i64),
    Float64(Comparison, f64),
    Bool(bool),
}

impl Filter {
    pub(super) fn new(
        input: &Schema,
        column: &str,
        op: Comparison,
        value: &Value,
    ) -> Result<Filter, OperatorError> {
        let (index, field) = column_of(input, column)?;
        let unfit = || {
            OperatorError::specification(format!(
                "column {column:?} of type {} can't be compared by {op:?} with {value}",
                type_name(field.data_type())
            ))
        };
        let on_text = matches!(op, Comparison::Contains | Comparison::StartsWith);
        let test = match field.data_type() {
            DataType::Utf8 => Test::Text(op, value.as_str().ok_or_else(unfit)?.to_owned()),
            _ if on_text => return Err(unfit()),
            DataType::Int64 => Test::Int64(op, value.as_i64().ok_or_else(unfit)?),
            DataType::Timestamp(..) => Test::Timestamp(op, value.as_i64().ok_or_else(unfit)?),
            DataType::Float64 => Test::Float64(op, value.as_f64().ok_or_else(unfit)?),
            DataType::Boolean => match (op, value.as_bool().ok_or_else(unfit)?) {
                (Comparison::Eq, value) => Test::Bool(value),
                (Comparison::Ne, value) => Test::Bool(!value),
                _ => return Err(unfit()),
            },
            _ => return Err(unfit()),
        };
        Ok(Filter {
            column: index,
            test,
        })
    }

    fn holds(&self, batch: &RecordBatch) -> BooleanArray {
        let column = batch.column(self.column);
        let rows = batch.num_rows();
        let bits = match &self.test {
            Test::Text(op, value) => {
                let texts = column.as_string::<i32>();
                let value = value.as_str();
                BooleanBuffer::collect_bool(rows, |row| match op {
                    Comparison::Contains => texts.value(row).contains(value),
                    Comparison::StartsWith => texts.value(row).starts_with(value),
                    _ => compare(*op, texts.value(row), value),
                })
            }
            Test::Int64(op, value) => {
                let numbers = column.as_primitive::<Int64Type>().values();
                BooleanBuffer::collect_bool(rows, |row| compare(*op, numbers[row], *value))
            }
            Test::Timestamp(op, value) => {
                let times = column.as_primitive::<TimestampMillisecondType>().values();
                BooleanBuffer::collect_bool(rows, |row| compare(*op, times[row], *value))
            }
            Test::Float64(op, value) => {
                let numbers = column.as_primitive::<Float64Type>().values();
                BooleanBuffer::collect_bool(rows, |row| compare(*op, numbers[row], *value))
            }
            Test::Bool(value) => {
                let bools = column.as_boolean();
                BooleanBuffer::collect_bool(rows, |row| bools.value(row) == *value)
            }
        };
        BooleanArray::new(bits, None)
    }
}

fn compare<T: PartialOrd>(op: Comparison, left: T, right: T) -> bool {
    match op {
        Comparison::Eq => left == right,
        Comparison::Ne => left != right,
        Comparison::Lt => left < right,
        Comparison::Le => left <= right,
        Comparison::Gt => left > right,
        Comparison::Ge => left >= right,
        // Only texts have these; `new` refuses them for other types.
        Comparison::Contains | Comparison::StartsWith => false,
    }
}

impl Operator for Filter {
    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let holds = self.holds(&batch);
        if holds.true_count() == batch.num_rows() {
            output.emit(batch);
        } else {
            output.emit(filter_record_batch(&batch, &holds)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Float64Array, StringArray, TimestampMillisecondArray};
    use serde_json::json;

    use tanist_model::OperatorSpec;

    use super::*;
    use crate::testing::{self, Harness, batch, ints};

    fn input() -> RecordBatch {
        batch([
            (
                "s",
                Arc::new(StringArray::from(vec!["ab", "b", "abc"])) as ArrayRef,
            ),
            ("n", ints(&[1, 2, 3])),
            ("f", Arc::new(Float64Array::from(vec![0.5, 1.0, f64::NAN]))),
            ("t", Arc::new(BooleanArray::from(vec![true, false, true]))),
            (
                "at",
                Arc::new(TimestampMillisecondArray::from(vec![-1, 0, 1_000])),
            ),
        ])
    }

    fn spec(column: &str, op: Comparison, value: Value) -> OperatorSpec {
        operators::Filter {
            column: column.into(),
            op,
            value,
        }
        .into()
    }

    fn passed(column: &str, op: Comparison, value: Value) -> Vec<String> {
        let mut harness = Harness::new(&spec(column, op, value), &input());
        harness.process(input());
        harness
            .lines()
            .iter()
            .map(|line| line.split(' ').nth(1).unwrap_or("").into())
            .collect()
    }

    #[test]
    fn each_comparison_passes_what_it_says() {
        use Comparison::*;
        let expected: [(&str, Comparison, Value, &[&str]); 14] = [
            ("s", Eq, json!("b"), &["2"]),
            ("s", Lt, json!("abc"), &["1"]),
            ("s", Contains, json!("b"), &["1", "2", "3"]),
            ("s", StartsWith, json!("ab"), &["1", "3"]),
            ("n", Ne, json!(2), &["1", "3"]),
            ("n", Le, json!(2), &["1", "2"]),
            ("n", Gt, json!(2), &["3"]),
            ("n", Ge, json!(2), &["2", "3"]),
            ("f", Ge, json!(1.0), &["2"]),
            ("f", Ne, json!(0.5), &["2", "3"]),
            ("t", Eq, json!(true), &["1", "3"]),
            ("t", Ne, json!(true), &["2"]),
            ("at", Ge, json!(0), &["2", "3"]),
            ("at", Eq, json!(1_000), &["3"]),
        ];
        for (column, op, value, numbers) in expected {
            assert_eq!(
                passed(column, op, value.clone()),
                numbers,
                "{column} {op:?} {value}"
            );
        }
    }

    #[test]
    fn what_the_check_of_the_job_takes_can_be_built() {
        let schema = tanist_dataflow::record::job_schema(&input().schema()).expect("columns");
        let values = [json!("b"), json!(2), json!(0.5), json!(true)];
        let mut taken = 0;
        for column in schema.names() {
            for op in Comparison::ALL {
                for value in &values {
                    let spec = spec(column, op, value.clone());
                    let is_taken = tanist_compile::output(&spec, &schema).is_ok();
                    let built = Filter::new(&input().schema(), column, op, value);
                    let built = built.map(drop).map_err(|error| error.to_string());
                    if is_taken {
                        assert_eq!(built, Ok(()), "{column} {op:?} {value}");
                        taken += 1;
                    }
                }
            }
        }
        // All for texts, six for each of the number types, two for booleans.
        assert_eq!(taken, 8 + 6 * 3 + 2);
    }

    #[test]
    fn a_value_of_another_type_is_refused_with_the_column() {
        let refused = [
            spec("n", Comparison::Eq, json!("1")),
            spec("n", Comparison::Contains, json!(1)),
            spec("t", Comparison::Lt, json!(true)),
            spec("s", Comparison::Eq, json!(1)),
            spec("missing", Comparison::Eq, json!(1)),
        ];
        for spec in refused {
            let error = testing::operator(&spec, input().schema())
                .err()
                .expect("refused");
            assert!(error.to_string().contains("column `"), "{error}");
        }
    }
}
