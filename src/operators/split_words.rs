//! Splits a text column into words: runs of ASCII letters and digits, in order, case kept.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow_schema::{DataType, Schema, SchemaRef};
use tanist_dataflow::record::{BATCH_BYTES, BATCH_ROWS};
use tanist_dataflow::{Built, Operator, OperatorError, Output};
use tanist_model::operators;

use super::factory::{Runtime, Setup, operator};
use super::schema::column_of;

impl Runtime for operators::SplitWords {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(SplitWords::new(
            setup.input()?,
            &self.column,
            setup.output(),
        )?)
    }
}

pub(super) struct SplitWords {
    column: usize,
    output: SchemaRef,
}

impl SplitWords {
    pub(super) fn new(
        input: &Schema,
        column: &str,
        output: SchemaRef,
    ) -> Result<SplitWords, OperatorError> {
        let (index, field) = column_of(input, column)?;
        if field.data_type() != &DataType::Utf8 {
            return Err(OperatorError::specification(format!(
                "column {column:?} is no text that could be cut into words"
            )));
        }
        Ok(SplitWords {
            column: index,
            output,
        })
    }

    fn batch(&self, words: &mut StringBuilder) -> Result<RecordBatch, OperatorError> {
        let words: StringArray = words.finish();
        Ok(RecordBatch::try_new(
            Arc::clone(&self.output),
            vec![Arc::new(words) as ArrayRef],
        )?)
    }
}

impl Operator for SplitWords {
    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let texts: &StringArray = batch.column(self.column).as_string();
        let mut words = StringBuilder::with_capacity(BATCH_ROWS, 8 * BATCH_ROWS);
        let mut rows = 0;
        for row in 0..texts.len() {
            let text = texts.value(row);
            for word in text.split(|c: char| !c.is_ascii_alphanumeric()) {
                if word.is_empty() {
                    continue;
                }
                words.append_value(word);
                rows += 1;
                if rows == BATCH_ROWS || words.values_slice().len() >= BATCH_BYTES {
                    output.emit(self.batch(&mut words)?);
                    rows = 0;
                }
            }
        }
        output.emit(self.batch(&mut words)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Harness, texts};

    fn words(lines: &[&str]) -> Vec<String> {
        let input = texts("line", lines);
        let mut harness = Harness::new(
            &operators::SplitWords {
                column: "line".into(),
            }
            .into(),
            &input,
        );
        harness.process(input);
        harness.lines()
    }

    #[test]
    fn anything_but_ascii_letters_and_digits_separates() {
        assert_eq!(
            words(&["It's  a_b; 42nd-ß", "", "ümlaut x"]),
            ["It", "s", "a", "b", "42nd", "mlaut", "x"]
        );
    }

    proptest! {
        #[test]
        fn words_are_the_runs_of_letters_and_digits(line in "\\PC{0,60}") {
            let mut expected = vec![String::new()];
            for c in line.chars() {
                match expected.last_mut() {
                    Some(word) if c.is_ascii_alphanumeric() => word.push(c),
                    _ => expected.push(String::new()),
                }
            }
            expected.retain(|word| !word.is_empty());
            prop_assert_eq!(words(&[&line]), expected);
        }
    }

    #[test]
    fn more_words_than_a_batch_holds_become_several_batches() {
        let line = "w ".repeat(2 * BATCH_ROWS + 1);
        assert_eq!(words(&[&line]).len(), 2 * BATCH_ROWS + 1);
    }
}
