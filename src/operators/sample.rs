//! Passes on a fraction of the records. A hash of a record's values and the seed decides, and never changes: a
//! restarted task, on any host and in any version, passes on the same records.

use arrow_array::{BooleanArray, RecordBatch};
use arrow_buffer::BooleanBuffer;
use arrow_select::filter::filter_record_batch;
use tanist_dataflow::record::ColumnView;
use tanist_dataflow::{Built, Operator, OperatorError, Output};
use tanist_model::operators;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::factory::{Runtime, Setup, operator};

impl Runtime for operators::Sample {
    fn build(&self, _setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(Sample(self.clone()))
    }
}

struct Sample(operators::Sample);

impl Sample {
    /// Whether a record with these values is passed on.
    fn takes(&self, values: &[u8]) -> bool {
        let hash = xxh3_64_with_seed(values, self.0.seed);
        // A number from 0 to below 1, from the bits that a float64 can hold.
        let place = (hash >> 11) as f64 / (1_u64 << 53) as f64;
        place < self.0.fraction
    }
}

/// Writes the values of a record. The length stands before each one, so that no two records have the same bytes.
fn write_values(columns: &[ColumnView<'_>], row: usize, text: &mut Vec<u8>, values: &mut Vec<u8>) {
    values.clear();
    for column in columns {
        text.clear();
        column.write_text(row, text);
        values.push(u8::from(column.is_null(row)));
        values.extend_from_slice(&(text.len() as u64).to_le_bytes());
        values.extend_from_slice(text);
    }
}

impl Operator for Sample {
    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let columns: Vec<_> = batch.columns().iter().filter_map(ColumnView::of).collect();
        let (mut text, mut values) = (Vec::new(), Vec::new());
        let taken = BooleanBuffer::collect_bool(batch.num_rows(), |row| {
            write_values(&columns, row, &mut text, &mut values);
            self.takes(&values)
        });
        let taken = BooleanArray::new(taken, None);
        output.emit(filter_record_batch(&batch, &taken)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use crate::testing::{Harness, batch, ints, texts};

    use super::*;

    fn sampled(fraction: f64, seed: u64, input: &RecordBatch) -> Vec<String> {
        let spec = operators::Sample { fraction, seed };
        let mut harness = Harness::new(&spec.into(), input);
        harness.process(input.clone());
        harness.lines()
    }

    fn numbers(count: i64) -> RecordBatch {
        let numbers: Vec<i64> = (0..count).collect();
        batch([("a", ints(&numbers)), ("b", ints(&vec![1; numbers.len()]))])
    }

    #[test]
    fn the_fraction_of_the_records_is_passed_on_and_with_1_all() {
        let passed = sampled(0.1, 7, &numbers(2_000)).len();
        assert!((160..240).contains(&passed), "{passed}");
        assert_eq!(sampled(1.0, 7, &numbers(2_000)).len(), 2_000);
    }

    #[test]
    fn which_records_are_passed_on_never_changes() {
        let input = texts("word", &["a", "b", "c", "d", "e", "f", "g", "h"]);
        let passed = sampled(0.5, 7, &input);
        assert_eq!(passed, ["b", "c", "e", "g"]);
        assert_ne!(passed, sampled(0.5, 8, &input));
    }

    #[test]
    fn values_that_follow_each_other_are_not_mixed_up() {
        let rows = batch([
            ("a", Arc::clone(texts("a", &["x", "xy"]).column(0))),
            ("b", Arc::clone(texts("b", &["yz", "z"]).column(0))),
        ]);
        let columns: Vec<_> = rows.columns().iter().filter_map(ColumnView::of).collect();
        let (mut text, mut one, mut other) = (Vec::new(), Vec::new(), Vec::new());
        write_values(&columns, 0, &mut text, &mut one);
        write_values(&columns, 1, &mut text, &mut other);
        assert_ne!(one, other);
    }

    proptest! {
        #[test]
        fn how_records_arrive_in_batches_makes_no_difference(cut in 0_usize..=100) {
            let input = numbers(100);
            let mut pieces = sampled(0.3, 1, &input.slice(0, cut));
            pieces.extend(sampled(0.3, 1, &input.slice(cut, 100 - cut)));
            prop_assert_eq!(pieces, sampled(0.3, 1, &input));
        }
    }
}
