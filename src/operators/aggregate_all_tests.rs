//! Aggregates over the whole input.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, StringArray, TimestampMillisecondArray};
use tanist_model::OperatorSpec;
use tanist_model::operators::{AggregateFunction, Aggregation, Trigger};

use super::*;
use crate::testing::{Harness, batch, ints};

fn spec(aggregations: Vec<Aggregation>, trigger: Trigger) -> OperatorSpec {
    OperatorSpec::Aggregate(Aggregate {
        keys: vec!["k".into()],
        aggregations,
        trigger: Some(trigger),
    })
}

fn records() -> RecordBatch {
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.5, 2.0, -1.0]));
    let words: ArrayRef = Arc::new(StringArray::from(vec!["b", "x", "a"]));
    let times: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![5_000, 0, 1]));
    batch([
        ("k", ints(&[1, 2, 1])),
        ("i", ints(&[10, 20, 13])),
        ("f", floats),
        ("w", words),
        ("t", times),
    ])
}

fn everything() -> Vec<Aggregation> {
    use AggregateFunction::{Average, Max, Min, Sum};
    vec![
        Aggregation::count("n"),
        Aggregation::of("si", Sum, "i"),
        Aggregation::of("sf", Sum, "f"),
        Aggregation::of("ai", Average, "i"),
        Aggregation::of("af", Average, "f"),
        Aggregation::of("mi", Min, "i"),
        Aggregation::of("mf", Min, "f"),
        Aggregation::of("xw", Max, "w"),
        Aggregation::of("mw", Min, "w"),
        Aggregation::of("xt", Max, "t"),
    ]
}

#[test]
fn a_nan_of_whichever_sign_is_greater_than_all_other_numbers() {
    use AggregateFunction::{Max, Min};
    let least_and_greatest = |values: &[f64]| {
        let floats: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
        let input = batch([("k", ints(&vec![1; values.len()])), ("f", floats)]);
        let of = vec![
            Aggregation::of("least", Min, "f"),
            Aggregation::of("greatest", Max, "f"),
        ];
        let mut harness = Harness::new(&spec(of, Trigger::Final), &input);
        harness.process(input);
        harness.end();
        harness.lines()
    };
    for nan in [f64::NAN, -f64::NAN] {
        for values in [[1.0, nan, 2.0], [nan, 1.0, f64::NEG_INFINITY]] {
            let least = if values[2] == 2.0 { "1.0" } else { "-inf" };
            let lines = least_and_greatest(&values);
            assert_eq!(lines, [format!("1 {least} NaN")], "{values:?}");
        }
        assert_eq!(least_and_greatest(&[nan]), ["1 NaN NaN"]);
    }
}

#[test]
fn all_functions_over_all_types_at_the_end() {
    let mut harness = Harness::new(&spec(everything(), Trigger::Final), &records());
    harness.process(records());
    assert!(harness.lines().is_empty());
    harness.end();
    let mut lines = harness.lines();
    lines.sort();
    assert_eq!(
        lines,
        [
            "1 2 23 -0.5 11.5 -0.25 10 -1.0 b a 1970-01-01T00:00:05.000Z",
            "2 1 20 2.0 20.0 2.0 20 2.0 x x 1970-01-01T00:00:00.000Z",
        ]
    );
}

#[test]
fn updates_answer_each_record() {
    let aggregations = vec![
        Aggregation::count("n"),
        Aggregation::of("x", AggregateFunction::Max, "i"),
    ];
    let mut harness = Harness::new(&spec(aggregations, Trigger::Updates), &records());
    harness.process(records());
    harness.end();
    assert_eq!(harness.lines(), ["1 1 10", "2 1 20", "1 2 13"]);
}

#[test]
fn a_mean_of_large_integers_does_not_overflow_and_a_sum_names_the_record() {
    let input = batch([("k", ints(&[1, 1])), ("i", ints(&[i64::MAX, i64::MAX]))]);
    let of = |function| vec![Aggregation::of("r", function, "i")];
    let mut harness = Harness::new(
        &spec(of(AggregateFunction::Average), Trigger::Final),
        &input,
    );
    harness.process(input.clone());
    harness.end();
    assert_eq!(harness.lines(), ["1 9.223372036854776e18"]);
    let mut harness = Harness::new(&spec(of(AggregateFunction::Sum), Trigger::Final), &input);
    let error = harness
        .try_process(input)
        .expect_err("overflow")
        .to_string();
    assert_eq!(
        error,
        "the result `r` overflows int64, at record [1 9223372036854775807]"
    );
}

#[test]
fn long_texts_travel_in_batches_of_few_results() {
    use AggregateFunction::Max;
    const LONG: usize = 1024 * 1024;
    let long = "z".repeat(LONG);
    let mut words = vec![long.as_str()];
    words.resize(501, "a");
    let of = || vec![Aggregation::of("longest", Max, "w")];
    let records = |keys: &[i64], words: &[&str]| {
        let words: ArrayRef = Arc::new(StringArray::from(words.to_vec()));
        batch([("k", ints(keys)), ("w", words)])
    };
    let one_key = records(&[1; 501], &words);
    let mut updates = Harness::new(&spec(of(), Trigger::Updates), &one_key);
    updates.process(one_key);
    let keys: Vec<i64> = (0..16).collect();
    let each_long = records(&keys, &vec![long.as_str(); 16]);
    let mut last = Harness::new(&spec(of(), Trigger::Final), &each_long);
    last.process(each_long);
    last.end();
    for (harness, expected) in [(updates, 501), (last, 16)] {
        let rows: usize = harness.emitted().iter().map(RecordBatch::num_rows).sum();
        assert_eq!(rows, expected);
        for batch in harness.emitted() {
            let size = tanist_dataflow::record::size_of(batch);
            assert!(size <= 2 * LONG, "a batch of {size} bytes");
        }
    }
}
