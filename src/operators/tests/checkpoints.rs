//! A checkpoint at any place of the input changes no output: what an operator emits before it, and one that is restored
//! from it emits behind it, is what one uninterrupted operator emits.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray};
use proptest::prelude::*;
use tanist_dataflow::{
    Element, EndOfInput, Operator, Output, Restored, Snapshot, Source, SourceState, TimeSignal,
    record,
};
use tanist_model::operators::{self, AggregateFunction, Aggregation, StateUse, Trigger, Windows};
use tanist_model::{Emit, OperatorSpec};
use tanist_proto::v1::{DatagenPosition, SubtaskSnapshot};
use tokio::time::Instant;

use super::{count_by, file_sink};
use crate::faults::{Fault, plant};
use crate::testing::{batch, ints, operator, source, texts};

pub(super) const UID: &str = "step";

/// A record: event time, key, value.
pub(super) type Row = (i64, u8, i64);

/// What an operator receives.
#[derive(Debug, Clone)]
pub(super) enum Input {
    Records(Vec<Row>),
    Watermark(i64),
    Idle,
}

pub(super) fn rows() -> impl Strategy<Value = Vec<Input>> {
    let row = (0_i64..60, 0_u8..4, -5_i64..5);
    let input = prop_oneof![
        6 => prop::collection::vec(row, 0..6).prop_map(Input::Records),
        2 => (0_i64..60).prop_map(Input::Watermark),
        1 => Just(Input::Idle),
    ];
    prop::collection::vec(input, 0..20)
}

pub(super) fn records(rows: &[Row]) -> RecordBatch {
    let column = |of: fn(&Row) -> i64| ints(&rows.iter().map(of).collect::<Vec<_>>());
    let words: Vec<String> = rows.iter().map(|row| format!("k{}", row.1)).collect();
    let words: ArrayRef = Arc::new(StringArray::from(words));
    let halves: Vec<f64> = rows.iter().map(|row| row.2 as f64 / 2.0).collect();
    let halves: ArrayRef = Arc::new(Float64Array::from(halves));
    batch([
        ("t", column(|row| row.0)),
        ("word", words),
        ("v", column(|row| row.2)),
        ("half", halves),
    ])
}

/// All operators with state and an input that need nothing outside.
pub(super) fn stateful() -> Vec<OperatorSpec> {
    use AggregateFunction::{Average, Count, Max, Min, Sum};
    let sum = |column: &str, emit| operators::Sum {
        keys: vec!["word".to_owned()],
        column: column.to_owned(),
        emit: Some(emit),
    };
    let aggregation = |function, column: Option<&str>| Aggregation {
        name: format!("{function:?}-{column:?}"),
        function,
        column: column.map(str::to_owned),
    };
    let all = |trigger| operators::Aggregate {
        keys: vec!["word".to_owned()],
        aggregations: vec![
            aggregation(Count, None),
            aggregation(Sum, Some("v")),
            aggregation(Sum, Some("half")),
            aggregation(Average, Some("v")),
            aggregation(Average, Some("half")),
            aggregation(Min, Some("half")),
            aggregation(Max, Some("word")),
            aggregation(Max, Some("t")),
        ],
        trigger: Some(trigger),
    };
    let windows = |slide_ms, allowed_lateness_ms| {
        Trigger::Window(Windows {
            size_ms: 10,
            slide_ms,
            time: "t".to_owned(),
            allowed_lateness_ms,
        })
    };
    let watermarks = |idle_timeout_ms| operators::Watermarks {
        column: "t".to_owned(),
        out_of_orderness_ms: 3,
        idle_timeout_ms,
    };
    vec![
        count_by("word", Emit::Final),
        count_by("word", Emit::Updates),
        sum("v", Emit::Final).into(),
        sum("half", Emit::Updates).into(),
        all(Trigger::Final).into(),
        all(Trigger::Updates).into(),
        all(windows(10, 0)).into(),
        all(windows(4, 7)).into(),
        watermarks(None).into(),
        watermarks(Some(1_000)).into(),
        operators::Sample {
            fraction: 0.5,
            seed: 3,
        }
        .into(),
    ]
}

fn opened(spec: &OperatorSpec, restored: Option<&SubtaskSnapshot>) -> Box<dyn Operator> {
    let mut operator = operator(spec, records(&[]).schema()).expect("built");
    if let Some(snapshot) = restored {
        let restored = Restored::of(UID, snapshot);
        operator.restore(&restored).expect("its own state");
    }
    operator.open().expect("opened");
    operator
}

pub(super) fn saved(operator: &mut dyn Operator) -> SubtaskSnapshot {
    let mut snapshot = Snapshot::default();
    operator.snapshot(&mut snapshot).expect("saved");
    let mut subtask = SubtaskSnapshot::default();
    snapshot.add_to(&mut subtask, UID).expect("encoded");
    subtask
}

/// What an operator emits for an input and its end, with a checkpoint and a restore before the input of an index. The
/// records of one call are in any order. Event time counts as it is after a call.
fn emitted(spec: &OperatorSpec, input: &[Input], restored_at: Option<usize>) -> Vec<Vec<String>> {
    let mut operator = opened(spec, None);
    let mut all: Vec<Vec<String>> = Vec::new();
    let mut time = (i64::MIN, false);
    let mut take = |mut output: Output| {
        let before = time;
        let mut lines = Vec::new();
        let (late, skipped) = output.dropped();
        lines.push(format!("{late} late, {skipped} skipped"));
        for element in output.take() {
            if let Element::Batch(batch) = &element {
                let mut text = Vec::new();
                record::write_lines(batch, "", &mut text);
                lines.extend(String::from_utf8_lossy(&text).lines().map(str::to_owned));
            } else if let Element::Time(TimeSignal::Watermark(watermark)) = element {
                time = (watermark.max(time.0), false);
            } else if let Element::Time(TimeSignal::Idle) = element {
                time.1 = true;
            }
        }
        if time != before {
            lines.push(format!("time {time:?}"));
        }
        lines.sort();
        all.push(lines);
    };
    let now = Instant::now();
    for (index, input) in input.iter().enumerate() {
        let mut output = Output::default();
        if restored_at == Some(index) {
            let snapshot = saved(&mut *operator);
            operator = opened(spec, Some(&snapshot));
            operator.tick(now, &mut output).expect("told");
        }
        match input {
            Input::Records(rows) => operator.process(records(rows), &mut output),
            Input::Watermark(time) => operator.signal(TimeSignal::Watermark(*time), &mut output),
            Input::Idle => operator.signal(TimeSignal::Idle, &mut output),
        }
        .expect("processed");
        take(output);
    }
    let mut results = Output::default();
    while operator.end_input(&mut results).expect("ended") == EndOfInput::More {}
    take(results);
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_operator_that_is_restored_anywhere_emits_what_an_uninterrupted_one_does(
        input in rows(), at in 0_usize..20,
    ) {
        for spec in stateful() {
            let expected = emitted(&spec, &input, None);
            let found = emitted(&spec, &input, Some(at));
            prop_assert_eq!(found, expected, "{:?}", spec);
        }
    }

    /// Between the checkpoint and its end, the former attempt goes on.
    #[test]
    fn a_file_sink_that_is_restored_anywhere_writes_what_an_uninterrupted_one_does(
        words in prop::collection::vec("[a-z]{0,5}", 0..20), at in 0_usize..20, more in 0_usize..3,
    ) {
        let directory = tempfile::tempdir().expect("directory");
        let spec = file_sink(directory.path());
        let batches: Vec<RecordBatch> = words.iter().map(|word| texts("w", &[word])).collect();
        let opened = |snapshot: Option<&SubtaskSnapshot>| {
            let mut sink = operator(&spec, texts("w", &[]).schema()).expect("built");
            if let Some(snapshot) = snapshot {
                sink.restore(&Restored::of(UID, snapshot)).expect("its own state");
            }
            sink.open().expect("opened");
            sink
        };
        let write = |sink: &mut dyn Operator, batches: &[RecordBatch]| {
            for batch in batches {
                sink.process(batch.clone(), &mut Output::default()).expect("written");
            }
        };
        let (before, behind) = batches.split_at(at.min(batches.len()));
        let mut sink = opened(None);
        write(&mut *sink, before);
        let snapshot = saved(&mut *sink);
        write(&mut *sink, &behind[..more.min(behind.len())]);
        let mut restored = opened(Some(&snapshot));
        drop(sink);
        write(&mut *restored, behind);
        let committables = restored.prepare_commit().expect("sinks commit")().expect("prepared").committables;
        let written = std::fs::read_to_string(&committables[0].pending_path).expect("pending");
        let expected: String = words.iter().map(|word| format!("{word}\n")).collect();
        prop_assert_eq!(written, expected);
    }

    #[test]
    fn a_restored_datagen_continues_with_the_next_number(batches in 0_usize..4, subtask in 0_u32..3) {
        let (expected, found) = interrupted(batches, subtask);
        prop_assert_eq!(found, expected);
        // The position of another source is none of its own.
        let mut second = source(&generated(), subtask, 3).expect("built");
        let mut foreign = Snapshot::default();
        foreign.save_position_message("file-source", &DatagenPosition::default());
        let mut foreign_snapshot = SubtaskSnapshot::default();
        foreign.add_to(&mut foreign_snapshot, UID).expect("encoded");
        let error = second.restore(&Restored::of(UID, &foreign_snapshot)).expect_err("foreign");
        prop_assert!(error.to_string().contains("`position`"), "{}", error);
    }
}

fn generated() -> OperatorSpec {
    operators::Datagen {
        rate: None,
        count: Some(20_000),
        seed: 1,
        keys: 5,
    }
    .into()
}

/// The numbers of a generator, and those of one that is restored behind some batches.
fn interrupted(batches: usize, subtask: u32) -> (Vec<i64>, Vec<i64>) {
    let spec = generated();
    let expected = numbers(&mut *source(&spec, subtask, 3).expect("built"), usize::MAX);
    let mut first = source(&spec, subtask, 3).expect("built");
    let mut found = numbers(&mut *first, batches);
    let mut snapshot = Snapshot::default();
    first.snapshot(&mut snapshot).expect("saved");
    let mut saved = SubtaskSnapshot::default();
    snapshot.add_to(&mut saved, UID).expect("encoded");
    let mut second = source(&spec, subtask, 3).expect("built");
    let restored = second.restore(&Restored::of(UID, &saved));
    restored.expect("its own position");
    found.extend(numbers(&mut *second, usize::MAX));
    (expected, found)
}

#[test]
fn a_generator_with_a_planted_fault_emits_a_record_twice() {
    plant(Some(Fault::RecordEmittedTwiceAtReplay));
    let (expected, found) = interrupted(1, 0);
    plant(None);
    assert_ne!(found, expected);
}

/// The numbers of the next batches.
pub(super) fn numbers(source: &mut dyn Source, batches: usize) -> Vec<i64> {
    let mut numbers = Vec::new();
    for _ in 0..batches {
        match source.next(Instant::now()).expect("made") {
            SourceState::Batch(batch) => {
                numbers.extend(batch.column(0).as_primitive::<Int64Type>().values());
            }
            SourceState::End => break,
            other => panic!("{other:?}"),
        }
    }
    numbers
}

#[test]
fn damaged_state_and_that_of_another_step_are_errors_that_name_the_state() {
    let input = [
        Input::Records(vec![(1, 1, 1), (12, 2, 2)]),
        Input::Watermark(5),
    ];
    let specs = stateful();
    for (index, spec) in specs.iter().enumerate() {
        let mut first = opened(spec, None);
        for input in &input {
            let mut output = Output::default();
            match input {
                Input::Records(rows) => first.process(records(rows), &mut output),
                Input::Watermark(_) | Input::Idle => {
                    first.signal(TimeSignal::Watermark(5), &mut output)
                }
            }
            .expect("processed");
        }
        let intact = saved(&mut *first);
        let has_state = spec.state() == StateUse::Saved;
        assert_eq!(intact != SubtaskSnapshot::default(), has_state, "{spec:?}");
        if !has_state {
            continue;
        }
        let restore = |spec: &OperatorSpec, snapshot: &SubtaskSnapshot| {
            let mut fresh = operator(spec, records(&[]).schema()).expect("built");
            let restored = fresh.restore(&Restored::of(UID, snapshot));
            restored.map_err(|error| error.to_string())
        };
        restore(spec, &intact).expect("intact");
        let mut damaged = intact.clone();
        let contents = damaged.segments.iter_mut().map(|it| &mut it.content);
        for content in contents.chain(damaged.operators.iter_mut().map(|it| &mut it.content)) {
            *content.last_mut().expect("a state has bytes") ^= 1;
        }
        let error = restore(spec, &damaged).expect_err("damaged");
        assert!(
            error.contains("the state `") && error.contains("damaged"),
            "{error}"
        );
        // Neighbours differ in when they emit. A step without a state of the name reads nothing.
        let others = specs
            .iter()
            .enumerate()
            .filter(|(other, _)| index.abs_diff(*other) > 1);
        let refused = others.filter_map(|(_, other)| restore(other, &intact).err());
        let refused: Vec<String> = refused.collect();
        let foreign =
            |error: &String| error.contains("the state `") && error.contains("is that of");
        assert!(
            !refused.is_empty() && refused.iter().all(foreign),
            "{refused:?}"
        );
    }
}
