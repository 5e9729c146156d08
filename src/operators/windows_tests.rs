//! Windows against a simple model, and the rules of lateness one by one.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, StringArray};
use proptest::prelude::*;
use tanist_dataflow::Operator as _;
use tanist_model::OperatorSpec;
use tanist_model::operators::{Aggregate, AggregateFunction, Aggregation, Trigger, Windows};

use crate::testing::{self, Harness, batch, ints};

fn spec(size_ms: u64, slide_ms: u64, allowed_lateness_ms: u64) -> OperatorSpec {
    OperatorSpec::Aggregate(Aggregate {
        keys: vec!["k".into()],
        aggregations: vec![
            Aggregation::count("n"),
            Aggregation::of("s", AggregateFunction::Sum, "v"),
        ],
        trigger: Some(Trigger::Window(Windows {
            size_ms,
            slide_ms,
            time: "t".into(),
            allowed_lateness_ms,
        })),
    })
}

/// Records of key, time and value.
fn records(records: &[(i64, i64, i64)]) -> arrow_array::RecordBatch {
    let column =
        |of: fn(&(i64, i64, i64)) -> i64| ints(&records.iter().map(of).collect::<Vec<_>>());
    batch([
        ("k", column(|record| record.0)),
        ("t", column(|record| record.1)),
        ("v", column(|record| record.2)),
    ])
}

fn harness(spec: &OperatorSpec) -> Harness {
    Harness::new(spec, &records(&[]))
}

/// Key, start, end, count, sum; in the order of emission, or sorted.
fn results(harness: &Harness) -> Vec<[i64; 5]> {
    let lines = harness.lines();
    let line = |line: &String| {
        let values: Vec<i64> = line
            .split(' ')
            .filter_map(|text| {
                text.parse()
                    .ok()
                    .or_else(|| tanist_model::timestamp::parse(text, None))
            })
            .collect();
        values.try_into().expect("five columns")
    };
    lines.iter().map(line).collect()
}

#[test]
fn a_window_is_emitted_when_the_watermark_reaches_its_last_millisecond() {
    let mut harness = harness(&spec(10, 10, 0));
    harness.process(records(&[(1, 0, 5), (1, 9, 6), (1, 10, 7), (2, -1, 8)]));
    harness.watermark(-1);
    assert_eq!(results(&harness), [[2, -10, 0, 1, 8]]);
    harness.watermark(8);
    assert_eq!(results(&harness).len(), 1);
    harness.watermark(9);
    assert_eq!(results(&harness)[1..], [[1, 0, 10, 2, 11]]);
    harness.end();
    assert_eq!(results(&harness)[2..], [[1, 10, 20, 1, 7]]);
    assert_eq!(harness.dropped(), (0, 0));
}

#[test]
fn late_records_are_dropped_and_counted() {
    let mut harness = harness(&spec(10, 10, 0));
    harness.process(records(&[(1, 5, 1)]));
    harness.watermark(9);
    harness.process(records(&[(1, 9, 1), (1, 3, 1), (1, 10, 1)]));
    harness.end();
    assert_eq!(results(&harness), [[1, 0, 10, 1, 1], [1, 10, 20, 1, 1]]);
    assert_eq!(harness.dropped(), (2, 0));
}

#[test]
fn a_record_is_late_only_if_all_its_sliding_windows_are_gone() {
    let mut harness = harness(&spec(10, 5, 0));
    harness.watermark(9);
    harness.process(records(&[(1, 7, 1), (1, 4, 1)]));
    harness.end();
    assert_eq!(results(&harness), [[1, 5, 15, 1, 1]]);
    assert_eq!(harness.dropped(), (1, 0));
}

#[test]
fn allowed_lateness_emits_what_changed_again() {
    let mut harness = harness(&spec(10, 10, 5));
    harness.process(records(&[(1, 5, 1), (2, 5, 1)]));
    harness.watermark(9);
    assert_eq!(results(&harness).len(), 2);
    harness.process(records(&[(1, 6, 3), (1, 7, 3)]));
    assert_eq!(results(&harness)[2..], [[1, 0, 10, 3, 7]]);
    harness.watermark(13);
    harness.process(records(&[(2, 0, 1)]));
    assert_eq!(results(&harness)[3..], [[2, 0, 10, 2, 2]]);
    harness.watermark(14);
    harness.process(records(&[(2, 0, 1)]));
    harness.end();
    assert_eq!(results(&harness).len(), 4);
    assert_eq!(harness.dropped(), (1, 0));
}

#[test]
fn times_that_can_not_be_are_errors() {
    for time in [i64::MAX, i64::MIN] {
        let error = harness(&spec(10, 10, 0)).try_process(records(&[(1, time, 1)]));
        assert!(error.is_err());
    }
    let farthest = tanist_model::timestamp::FARTHEST;
    let mut harness = harness(&spec(farthest.unsigned_abs(), farthest.unsigned_abs(), 0));
    harness.process(records(&[(1, farthest, 1), (1, -farthest, 1)]));
    harness.watermark(i64::MAX);
    assert_eq!(results(&harness).len(), 2);
}

#[test]
fn many_keys_are_emitted_in_batches() {
    let input: Vec<_> = (0..10_000).map(|key| (key, 0, 1)).collect();
    let mut harness = harness(&spec(10, 10, 0));
    harness.process(records(&input));
    harness.watermark(9);
    assert_eq!(results(&harness).len(), 10_000);
    assert!(testing::operator(&spec(5, 10, 0), records(&[]).schema()).is_err());
}

/// Input of a window operator.
#[derive(Debug, Clone)]
enum Event {
    Records(Vec<(i64, i64, i64)>),
    Watermark(i64),
}

fn event() -> impl Strategy<Value = Event> {
    let record = (0_i64..3, -40_i64..80, -5_i64..5);
    prop_oneof![
        prop::collection::vec(record, 0..6).prop_map(Event::Records),
        (-40_i64..90).prop_map(Event::Watermark),
    ]
}

proptest! {
    #[test]
    fn windows_are_as_in_the_plain_model(
        events in prop::collection::vec(event(), 0..12), slide in 1_i64..12, more in 0_i64..20,
    ) {
        let size = slide + more;
        let mut harness = harness(&spec(size.unsigned_abs(), slide.unsigned_abs(), 0));
        // The model checks all possible windows, one by one.
        let (mut model, mut late, mut time) = (BTreeMap::new(), 0, i64::MIN);
        for event in events {
            match event {
                Event::Watermark(watermark) => {
                    time = time.max(watermark);
                    harness.watermark(watermark);
                    for [_, _, end, ..] in results(&harness) {
                        prop_assert!(end - 1 <= time, "{end} was emitted at {time}");
                    }
                }
                Event::Records(all) => {
                    for (key, at, value) in &all {
                        let starts = (-200..200).map(|n| n * slide);
                        let open: Vec<i64> = starts
                            .filter(|start| (*start..start + size).contains(at))
                            .filter(|start| start + size - 1 > time)
                            .collect();
                        late += u64::from(open.is_empty());
                        for start in open {
                            let result = model.entry((start, *key)).or_insert((0, 0));
                            *result = (result.0 + 1, result.1 + value);
                        }
                    }
                    harness.process(records(&all));
                }
            }
        }
        harness.end();
        let mut found = results(&harness);
        found.sort_by_key(|result| (result[1], result[0]));
        let expected: Vec<[i64; 5]> = model
            .into_iter()
            .map(|((start, key), (count, sum))| [key, start, start + size, count, sum])
            .collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(harness.dropped(), (late, 0));
    }
}

#[test]
fn long_texts_travel_in_batches_of_few_results() {
    const LONG: usize = 1024 * 1024;
    let texts = vec!["z".repeat(LONG); 16];
    let input = batch([
        ("k", ints(&(0..16).collect::<Vec<_>>())),
        ("t", ints(&[0; 16])),
        ("v", Arc::new(StringArray::from(texts)) as ArrayRef),
    ]);
    let OperatorSpec::Aggregate(mut aggregate) = spec(10, 10, 0) else {
        panic!("it is one");
    };
    aggregate.aggregations = vec![Aggregation::of("longest", AggregateFunction::Max, "v")];
    let mut harness = Harness::new(&OperatorSpec::Aggregate(aggregate), &input);
    harness.process(input);
    harness.end();
    let batches = harness.emitted();
    assert_eq!(batches.iter().map(|it| it.num_rows()).sum::<usize>(), 16);
    for batch in batches {
        let size = tanist_dataflow::record::size_of(batch);
        assert!(size <= 2 * LONG, "a batch of {size} bytes");
    }
}

/// An operator with a window that begins at this time, and has an entry of this key.
fn with_window(start: i64, key: &[u8]) -> super::WindowAggregate {
    let input = records(&[]).schema();
    let OperatorSpec::Aggregate(aggregate) = spec(10, 5, 20) else {
        panic!("it is an aggregate");
    };
    let Some(Trigger::Window(windows)) = &aggregate.trigger else {
        panic!("it has windows");
    };
    let output = crate::schema::output_schema(&spec(10, 5, 20), Some(&input));
    let output = output.expect("it fits").expect("it has records");
    let groups = tanist_dataflow::KeyGroups::of(&testing::context(0, 1));
    let accumulator = super::Accumulator::new(&input, &aggregate, output, groups).expect("it fits");
    let cells = [1, 1].map(super::Cell::Int).into();
    let operator = super::WindowAggregate::new(&input, windows, accumulator);
    let mut operator = operator.expect("it fits");
    operator.table.insert(start, key, cells);
    operator
}

#[test]
fn windows_and_keys_that_can_not_be_are_damaged_state_and_no_overflow() {
    let restored = |start: i64, key: &[u8]| {
        let mut snapshot = tanist_dataflow::Snapshot::default();
        with_window(start, key)
            .snapshot(&mut snapshot)
            .expect("saved");
        let mut subtask = tanist_proto::v1::SubtaskSnapshot::default();
        snapshot.add_to(&mut subtask, "w").expect("encoded");
        let mut operator = with_window(0, &[0; 8]);
        operator.table = super::table_of(&operator.accumulator, operator.signature.clone());
        operator.restore(&tanist_dataflow::Restored::of("w", &subtask))?;
        let mut output = tanist_dataflow::Output::default();
        operator.advance(i64::MAX, &mut output)?;
        operator.end_input(&mut output).map(drop)
    };
    let farthest = tanist_model::timestamp::FARTHEST;
    for start in [0, -farthest - 9, farthest] {
        restored(start, &[0; 8]).expect("a window of a time in range");
    }
    for start in [i64::MIN, i64::MAX, i64::MAX - 9, farthest + 1] {
        let error = restored(start, &[0; 8]).expect_err("damaged").to_string();
        let expected = format!("the state `results` is damaged: no window begins at {start}");
        assert_eq!(error, expected);
    }
    for key in [&[0; 7][..], &[0; 9], &[]] {
        let error = restored(0, key).expect_err("damaged").to_string();
        assert!(error.contains("`results` is damaged: a key of"), "{error}");
    }
}
