//! A change of the parallelism at any checkpoint loses nothing and doubles nothing: all subtasks together generate and
//! emit what one uninterrupted subtask does.

use proptest::prelude::*;
use tanist_dataflow::{
    Built, EndOfInput, KeyColumns, KeyGroups, Operator, OperatorContext, Output, Restored,
    Snapshot, Source, SourceState, TimeSignal, record,
};
use tanist_model::restore::{redistribute, steps};
use tanist_model::{OperatorSpec, operators};
use tanist_proto::v1::{
    CheckpointManifest, JobGraph, JobVertex, Operator as GraphOperator, RegionSnapshot,
    RegionSnapshotKind, SubtaskSnapshot,
};
use tokio::time::Instant;

use super::checkpoints::{Input, Row, UID, numbers, records, rows, saved, stateful};
use crate::factory::build;
use crate::schema::output_schema;
use crate::testing::{context, host};

const MAX_PARALLELISM: u32 = 128;

/// One vertex with one step, at this parallelism.
fn graph(spec: &OperatorSpec, parallelism: u32) -> JobGraph {
    JobGraph {
        vertices: vec![JobVertex {
            id: context(0, 1).vertex.to_string(),
            operators: vec![GraphOperator {
                name: UID.to_owned(),
                spec: spec.to_json(),
                ..GraphOperator::default()
            }],
            parallelism,
            max_parallelism: MAX_PARALLELISM,
            ..JobVertex::default()
        }],
        ..JobGraph::default()
    }
}

/// What the tasks of the graph at another parallelism get of these snapshots, by subtask.
fn redistributed(
    spec: &OperatorSpec,
    mut subtasks: Vec<SubtaskSnapshot>,
    parallelism: u32,
) -> Vec<SubtaskSnapshot> {
    let before = u32::try_from(subtasks.len()).expect("few");
    let before = graph(spec, before);
    for (number, subtask) in (0..).zip(&mut subtasks) {
        subtask.vertex_id.clone_from(&before.vertices[0].id);
        subtask.subtask = number;
    }
    let manifest = CheckpointManifest {
        regions: vec![RegionSnapshot {
            kind: RegionSnapshotKind::Taken.into(),
            subtasks,
            ..RegionSnapshot::default()
        }],
        steps: steps(&before),
        ..CheckpointManifest::default()
    };
    redistribute(&manifest, &graph(spec, parallelism)).expect("it fits")
}

fn context_of(spec: &OperatorSpec, subtask: u32, parallelism: u32) -> OperatorContext {
    let input = (!spec.is_source()).then(|| records(&[]).schema());
    OperatorContext {
        graph: graph(spec, parallelism).into(),
        output: output_schema(spec, input.as_ref()).expect("it fits its input"),
        input,
        ..context(subtask, parallelism)
    }
}

/// A subtask, restored if there is a snapshot.
fn opened(context: &OperatorContext, spec: &OperatorSpec, from: Option<&SubtaskSnapshot>) -> Built {
    let mut built = build(spec, context, &host()).expect("built");
    let restored = from.map(|from| Restored::of(UID, from));
    match &mut built {
        Built::Source(source) => {
            let restored = restored.map(|restored| source.restore(&restored));
            restored.transpose().expect("its share");
            source.open()
        }
        Built::Operator(operator) => {
            let restored = restored.map(|restored| operator.restore(&restored));
            restored.transpose().expect("its share");
            operator.open()
        }
    }
    .expect("opened");
    built
}

fn source(
    spec: &OperatorSpec,
    subtask: u32,
    parallelism: u32,
    from: Option<&SubtaskSnapshot>,
) -> Box<dyn Source> {
    match opened(&context_of(spec, subtask, parallelism), spec, from) {
        Built::Source(source) => source,
        Built::Operator(_) => panic!("{spec:?} is no source"),
    }
}

/// The sources of a parallelism; those that have ended are `None`.
fn sources(
    spec: &OperatorSpec,
    parallelism: u32,
    from: Option<&[SubtaskSnapshot]>,
) -> Vec<Option<Box<dyn Source>>> {
    let sources = (0..parallelism).map(|subtask| {
        let from = from.map(|from| &from[subtask as usize]);
        let has_ended = from.is_some_and(|from| from.ended);
        (!has_ended).then(|| source(spec, subtask, parallelism, from))
    });
    sources.collect()
}

/// Reads some batches of a subtask; it may end.
fn read(slot: &mut Option<Box<dyn Source>>, batches: usize, found: &mut Vec<i64>) {
    for _ in 0..batches {
        let Some(source) = slot else {
            return;
        };
        match numbers(&mut **source, 1) {
            none if none.is_empty() => *slot = None,
            some => found.extend(some),
        }
    }
}

fn save(slot: &mut Option<Box<dyn Source>>) -> SubtaskSnapshot {
    let mut subtask = SubtaskSnapshot {
        ended: slot.is_none(),
        ..SubtaskSnapshot::default()
    };
    if let Some(source) = slot {
        let mut snapshot = Snapshot::default();
        source.snapshot(&mut snapshot).expect("saved");
        snapshot.add_to(&mut subtask, UID).expect("encoded");
    }
    subtask
}

/// The subtasks of an operator with keys.
struct Subtasks {
    spec: OperatorSpec,
    contexts: Vec<OperatorContext>,
    operators: Vec<Box<dyn Operator>>,
    lines: Vec<String>,
}

impl Subtasks {
    fn start(
        spec: &OperatorSpec,
        parallelism: u32,
        from: Option<&[SubtaskSnapshot]>,
        lines: Vec<String>,
    ) -> Subtasks {
        let contexts = (0..parallelism).map(|subtask| context_of(spec, subtask, parallelism));
        let contexts: Vec<OperatorContext> = contexts.collect();
        let operators = contexts.iter().enumerate().map(|(index, context)| {
            let from = from.map(|from| &from[index]);
            match opened(context, spec, from) {
                Built::Operator(operator) => operator,
                Built::Source(_) => panic!("{spec:?} has no input"),
            }
        });
        Subtasks {
            spec: spec.clone(),
            operators: operators.collect(),
            contexts,
            lines,
        }
    }

    fn rescaled(mut self, parallelism: u32) -> Subtasks {
        let operators = self.operators.iter_mut();
        let saved = operators.map(|operator| saved(&mut **operator)).collect();
        let tasks = redistributed(&self.spec, saved, parallelism);
        Subtasks::start(&self.spec, parallelism, Some(&tasks), self.lines)
    }

    /// Passes records to the subtasks of their keys, and signals to all.
    fn take(&mut self, input: &Input) {
        let signal = match input {
            Input::Records(rows) => return self.process(rows),
            Input::Watermark(watermark) => TimeSignal::Watermark(*watermark),
            Input::Idle => TimeSignal::Idle,
        };
        for operator in &mut self.operators {
            let mut output = Output::default();
            operator.signal(signal, &mut output).expect("taken");
            collect(output, &mut self.lines);
        }
    }

    fn process(&mut self, rows: &[Row]) {
        let schema = records(&[]).schema();
        let names = self.spec.keys().expect("it has keys");
        let keys = KeyColumns::resolve(&schema, names).expect("there");
        for (context, operator) in self.contexts.iter().zip(&mut self.operators) {
            let groups = KeyGroups::of(context);
            let is_own = |row: &&Row| {
                let batch = records(std::slice::from_ref(*row));
                let mut keys = keys.keys_of(&batch);
                groups.contain(keys.key(0))
            };
            let own: Vec<Row> = rows.iter().filter(is_own).copied().collect();
            let mut output = Output::default();
            operator
                .process(records(&own), &mut output)
                .expect("processed");
            collect(output, &mut self.lines);
        }
    }

    fn end(mut self) -> Vec<String> {
        for operator in &mut self.operators {
            let mut output = Output::default();
            while operator.end_input(&mut output).expect("ended") == EndOfInput::More {}
            collect(output, &mut self.lines);
        }
        self.lines.sort();
        self.lines
    }
}

fn collect(output: Output, lines: &mut Vec<String>) {
    for batch in output.into_batches() {
        let mut text = Vec::new();
        record::write_lines(&batch, "", &mut text);
        lines.extend(String::from_utf8_lossy(&text).lines().map(str::to_owned));
    }
}

/// A parallelism, now and then the largest one.
fn parallelism() -> impl Strategy<Value = u32> {
    prop_oneof![9 => 1_u32..=16, 1 => Just(MAX_PARALLELISM)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn results_by_key_do_not_depend_on_changes_of_the_parallelism(
        input in rows(),
        parallelisms in prop::collection::vec((parallelism(), 0_usize..20), 1..4),
    ) {
        let with_keys = stateful().into_iter().filter(|spec| spec.keys().is_some());
        for spec in with_keys {
            let mut alone = Subtasks::start(&spec, 1, None, Vec::new());
            input.iter().for_each(|input| alone.take(input));
            let mut parallelisms = parallelisms.clone();
            parallelisms.sort_by_key(|(_, at)| *at);
            let mut all = Subtasks::start(&spec, parallelisms[0].0, None, Vec::new());
            for (index, input) in input.iter().enumerate() {
                for (parallelism, _) in parallelisms.iter().filter(|(_, at)| *at == index) {
                    all = all.rescaled(*parallelism);
                }
                all.take(input);
            }
            prop_assert_eq!(all.end(), alone.end(), "{:?}", spec);
        }
    }

    #[test]
    fn datagen_generates_each_number_once_at_any_parallelisms(
        phases in prop::collection::vec(
            (parallelism(), prop::collection::vec(0_usize..4, 1..5)), 1..5,
        ),
        count in prop::option::of(0_u64..60_000),
    ) {
        let spec: OperatorSpec = operators::Datagen { rate: None, count, seed: 1, keys: 5 }.into();
        let mut found = Vec::new();
        let mut running = sources(&spec, phases[0].0, None);
        for (parallelism, batches) in phases {
            let from = running.iter_mut().map(save).collect();
            let tasks = redistributed(&spec, from, parallelism);
            running = sources(&spec, parallelism, Some(&tasks));
            for (source, batches) in running.iter_mut().zip(batches.iter().cycle()) {
                read(source, *batches, &mut found);
            }
        }
        // Without a count, each subtask reads on until it is beyond all that any has read.
        let highest = found.iter().max().map_or(0, |highest| {
            highest + i64::from(MAX_PARALLELISM)
        });
        let end = count.map_or(highest, |count| i64::try_from(count).expect("small"));
        for source in &mut running {
            while source.is_some() {
                let mut more = Vec::new();
                read(source, 1, &mut more);
                let is_beyond = more.first().is_some_and(|first| *first >= end);
                found.extend(more);
                if is_beyond {
                    break;
                }
            }
        }
        found.retain(|number| *number < end);
        found.sort_unstable();
        let expected: Vec<i64> = (0..end).collect();
        prop_assert!(found == expected, "{} of {end} numbers", found.len());
    }
}

#[test]
fn a_change_of_the_parallelism_leaves_no_more_ranges_than_there_were_subtasks() {
    let spec: OperatorSpec = operators::Datagen {
        rate: None,
        count: None,
        seed: 1,
        keys: 5,
    }
    .into();
    let mut running = sources(&spec, 7, None);
    let mut found = Vec::new();
    for parallelism in [3, 16, 5, 1, 9] {
        for (slot, batches) in running.iter_mut().zip([2, 0, 1, 3].iter().cycle()) {
            read(slot, *batches, &mut found);
        }
        let from = running.iter_mut().map(save).collect();
        let tasks = redistributed(&spec, from, parallelism);
        running = sources(&spec, parallelism, Some(&tasks));
    }
    let size: usize = running
        .iter_mut()
        .map(|slot| save(slot).positions[0].position.len())
        .sum();
    assert!(size < 9 * 100 + 40 * 30, "{size} bytes");
    assert!(matches!(
        running[0]
            .as_mut()
            .map(|source| source.next(Instant::now())),
        Some(Ok(SourceState::Batch(_)))
    ));
}
