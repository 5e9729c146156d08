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

/// Writes the values of a record: for each a byte that says whether it is null, then the bytes of one that is not.
/// Records have the same bytes only if their values are equal.
fn write_values(columns: &[ColumnView<'_>], row: usize, values: &mut Vec<u8>) {
    values.clear();
    for column in columns {
        let is_null = column.is_null(row);
        values.push(u8::from(is_null));
        if !is_null {
            column.write_bytes(row, values);
        }
    }
}

impl Operator for Sample {
    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let columns: Vec<_> = batch.columns().iter().filter_map(ColumnView::of).collect();
        let mut values = Vec::new();
        let taken = BooleanBuffer::collect_bool(batch.num_rows(), |row| {
            write_values(&columns, row, &mut values);
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

    use arrow_array::{ArrayRef, Float64Array, TimestampMillisecondArray};
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
        let (mut one, mut other) = (Vec::new(), Vec::new());
        write_values(&columns, 0, &mut one);
        write_values(&columns, 1, &mut other);
        assert_ne!(one, other);
    }

    /// Records of each type, with nulls. The NaNs have different bits.
    fn typed() -> RecordBatch {
        let floats = [0.0, -0.0, f64::NAN, -f64::NAN, 0.5].map(Some);
        let floats: Vec<Option<f64>> = floats.into_iter().chain([None]).collect();
        let times = vec![Some(0), Some(0), Some(-1), Some(-1), None, Some(1_000)];
        let columns: [(&str, ArrayRef, bool); 4] = [
            ("f", Arc::new(Float64Array::from(floats)), true),
            ("at", Arc::new(TimestampMillisecondArray::from(times)), true),
            ("n", ints(&[1, 1, 2, 2, 3, 4]), false),
            (
                "t",
                Arc::new(BooleanArray::from(vec![
                    true, true, false, false, true, true,
                ])),
                false,
            ),
        ];
        RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
    }

    #[test]
    fn the_bytes_of_a_record_are_those_of_its_values_and_never_change() {
        let rows = typed();
        let columns: Vec<_> = rows.columns().iter().filter_map(ColumnView::of).collect();
        let bytes = |row| {
            let mut values = Vec::new();
            write_values(&columns, row, &mut values);
            values
        };
        let expected: [&[&[u8]]; 6] = [
            &[&[0], &[0; 8], &[0], &[0; 8], &[0, 1], &[0; 7], &[0, 1]],
            &[&[0], &[0; 8], &[0], &[0; 8], &[0, 1], &[0; 7], &[0, 1]],
            &[
                &[0, 0, 0, 0, 0, 0, 0, 0xf8, 0x7f],
                &[0],
                &[0xff; 8],
                &[0, 2],
                &[0; 7],
                &[0, 0],
            ],
            &[
                &[0, 0, 0, 0, 0, 0, 0, 0xf8, 0x7f],
                &[0],
                &[0xff; 8],
                &[0, 2],
                &[0; 7],
                &[0, 0],
            ],
            &[
                &[0, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f],
                &[1],
                &[0, 3],
                &[0; 7],
                &[0, 1],
            ],
            &[
                &[1],
                &[0, 0xe8, 3, 0, 0, 0, 0, 0, 0],
                &[0, 4],
                &[0; 7],
                &[0, 1],
            ],
        ];
        for (row, expected) in expected.into_iter().enumerate() {
            assert_eq!(bytes(row), expected.concat(), "record {row}");
        }
    }

    #[test]
    fn equal_numbers_of_different_bits_are_passed_on_together() {
        let passed = (0..32).map(|seed| sampled(0.5, seed, &typed().slice(0, 4)));
        let both = |lines: &[String], n: &str| {
            let of_n = |line: &&String| line.split(' ').nth(2) == Some(n);
            lines.iter().filter(of_n).count() != 1
        };
        for lines in passed {
            assert!(both(&lines, "1") && both(&lines, "2"), "{lines:?}");
        }
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
