//! Emits a record for each match of a regular expression: its named groups are the columns.

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use regex::Regex;
use tanist_dataflow::{Built, Operator, OperatorError, Output};
use tanist_model::operators;

use super::factory::{Runtime, Setup, operator};
use super::reading::RowReader;
use super::schema::{column_of, texts_of};
use super::values::Value;

impl Runtime for operators::FlatMapRegex {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(FlatMapRegex::new(setup.input()?, self, setup.output())?)
    }
}

pub(super) struct FlatMapRegex {
    column: usize,
    regex: Regex,
    /// Indices of the named groups, in the order of the columns.
    groups: Vec<usize>,
    rows: RowReader,
}

impl FlatMapRegex {
    pub(super) fn new(
        input: &Schema,
        spec: &operators::FlatMapRegex,
        output: SchemaRef,
    ) -> Result<FlatMapRegex, OperatorError> {
        let regex = spec.regex().map_err(OperatorError::specification)?;
        let names = regex.capture_names().enumerate();
        Ok(FlatMapRegex {
            column: column_of(input, &spec.column)?.0,
            groups: names
                .filter_map(|(group, name)| name.map(|_| group))
                .collect(),
            rows: RowReader::new(spec.full_reading(&regex), output),
            regex,
        })
    }
}

impl Operator for FlatMapRegex {
    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        for text in texts_of(&batch, self.column) {
            for found in self.regex.captures_iter(text) {
                let values = self.groups.iter().map(|group| {
                    let value = found.get(*group)?;
                    Some(Value::Text(value.as_str().into()))
                });
                self.rows.add(Ok(values.collect()), text, output)?;
            }
        }
        self.rows.flush(output)
    }
}

#[cfg(test)]
mod tests {
    use tanist_model::operators::{DeclaredColumn, FlatMapRegex, OnError, Reading};
    use tanist_model::{ColumnType, OperatorSpec};

    use crate::testing::{Harness, texts};

    fn spec(pattern: &str, reading: Reading) -> OperatorSpec {
        OperatorSpec::FlatMapRegex(FlatMapRegex {
            reading,
            ..FlatMapRegex::new("line", pattern)
        })
    }

    #[test]
    fn each_match_is_a_record_of_its_named_groups() {
        let input = texts("line", &["a=1 b=22", "nothing", "c=x d=4"]);
        let reading = Reading {
            on_error: OnError::Skip,
            ..Reading::of([DeclaredColumn::new("value", ColumnType::Int64)])
        };
        let mut harness = Harness::new(&spec(r"(?<name>\w)=(?<value>\w+)", reading), &input);
        harness.process(input);
        assert_eq!(harness.lines(), ["a 1", "b 22", "d 4"]);
    }

    #[test]
    fn a_group_that_did_not_take_part_has_no_value() {
        let input = texts("line", &["ab", "b"]);
        let reading = Reading::of([DeclaredColumn::new("a", ColumnType::String).or("-")]);
        let mut harness = Harness::new(&spec("(?<a>a)?(?<b>b)", reading), &input);
        harness.process(input);
        assert_eq!(harness.lines(), ["a b", "- b"]);
        let input = texts("line", &["b"]);
        let mut harness = Harness::new(&spec("(?<a>a)?(?<b>b)", Reading::default()), &input);
        let error = harness.try_process(input).expect_err("no value");
        assert_eq!(error.to_string(), "column `a` has no value, at record [b]");
    }
}
