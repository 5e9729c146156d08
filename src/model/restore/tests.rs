//! For any two parallelisms nothing is lost and nothing is doubled; what does not fit is refused with both sides named.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use prost::Message as _;
use tanist_proto::v1::{
    CheckpointCommittable, Committable, JobEdge, KeyGroupRange, Operator, OperatorState,
    Partitioning, RegionSnapshot, RegionSnapshotKind, SourcePosition, StateRedistribution,
    StateSegment,
};

use super::planted::{Fault, plant};
use super::*;
use crate::operators::{self, CustomSpec};
use crate::{ColumnType, Emit};

const MAX: u32 = 128;

fn datagen() -> OperatorSpec {
    let spec = operators::Datagen {
        rate: None,
        count: None,
        seed: 0,
        keys: 1,
    };
    spec.into()
}

fn count() -> OperatorSpec {
    let spec = operators::Count {
        keys: vec!["key".to_owned()],
        emit: Some(Emit::Final),
    };
    spec.into()
}

fn print() -> OperatorSpec {
    let prefix = String::new();
    operators::Print { prefix }.into()
}

/// A vertex: its id, its steps by name, its parallelism.
fn vertex(id: &str, steps: &[(&str, OperatorSpec)], parallelism: u32) -> JobVertex {
    let operators = steps.iter().map(|(name, spec)| Operator {
        name: (*name).to_owned(),
        spec: spec.to_json(),
        output: Schema::of([("key", ColumnType::Int64), ("value", ColumnType::Int64)]).to_proto(),
        ..Operator::default()
    });
    JobVertex {
        id: id.to_owned(),
        operators: operators.collect(),
        parallelism,
        max_parallelism: MAX,
        ..JobVertex::default()
    }
}

/// Vertices in a row.
fn graph(vertices: Vec<JobVertex>, partitioning: Partitioning) -> JobGraph {
    let edges = vertices.windows(2).map(|pair| JobEdge {
        source: pair[0].id.clone(),
        target: pair[1].id.clone(),
        partitioning: partitioning.into(),
        ..JobEdge::default()
    });
    JobGraph {
        edges: edges.collect(),
        vertices,
        ..JobGraph::default()
    }
}

/// `numbers` to `counts` by key; the latter are printed in the same task.
fn counting(sources: u32, counts: u32) -> JobGraph {
    let numbers = vertex("n", &[("numbers", datagen())], sources);
    let counted = vertex("c", &[("counts", count()), ("out", print())], counts);
    graph(vec![numbers, counted], Partitioning::Hash)
}

/// A manifest of this graph: each operator saves what its kind saves, marked by its subtask.
fn manifest(graph: &JobGraph) -> CheckpointManifest {
    let mut subtasks = Vec::new();
    for vertex in &graph.vertices {
        for subtask in 0..vertex.parallelism {
            let mut snapshot = SubtaskSnapshot {
                vertex_id: vertex.id.clone(),
                subtask,
                ..SubtaskSnapshot::default()
            };
            for operator in &vertex.operators {
                save(&mut snapshot, operator, vertex);
            }
            subtasks.push(snapshot);
        }
    }
    CheckpointManifest {
        regions: vec![RegionSnapshot {
            kind: RegionSnapshotKind::Taken.into(),
            subtasks,
            ..RegionSnapshot::default()
        }],
        steps: steps(graph),
        ..CheckpointManifest::default()
    }
}

fn save(snapshot: &mut SubtaskSnapshot, operator: &Operator, vertex: &JobVertex) {
    let spec = OperatorSpec::from_json(&operator.spec).expect("valid");
    let (uid, mark) = (uid(operator).to_owned(), snapshot.subtask.to_le_bytes());
    if spec.is_source() {
        snapshot.positions.push(SourcePosition {
            uid,
            position: mark.to_vec(),
            request: 5,
            ..SourcePosition::default()
        });
    } else if spec.keys().is_some() {
        let groups = key_groups(snapshot.subtask, vertex.parallelism, MAX);
        snapshot.segments.push(StateSegment {
            uid,
            name: "results".to_owned(),
            content: mark.to_vec(),
            length: 4,
            first_key_group: groups.start,
            end_key_group: groups.end,
            ..StateSegment::default()
        });
    } else {
        snapshot.files.push(mark.to_vec());
        snapshot.operators.push(OperatorState {
            uid,
            name: "unwritten".to_owned(),
            content: mark.to_vec(),
            ..OperatorState::default()
        });
    }
}

/// Has a subtask ended in the manifest, with output.
fn end(manifest: &mut CheckpointManifest, vertex: &str, subtask: u32) {
    let mut subtasks = manifest.regions.iter_mut().flat_map(|it| &mut it.subtasks);
    let found = subtasks.find(|it| it.vertex_id == vertex && it.subtask == subtask);
    let found = found.expect("there");
    *found = SubtaskSnapshot {
        vertex_id: vertex.to_owned(),
        subtask,
        ended: true,
        ..SubtaskSnapshot::default()
    };
}

/// The tasks of a vertex, by subtask.
fn tasks(manifest: &CheckpointManifest, graph: &JobGraph, vertex: &str) -> Vec<SubtaskSnapshot> {
    let all = redistribute(manifest, graph).expect("it fits");
    let places = all.iter().map(|it| (it.vertex_id.clone(), it.subtask));
    let of_vertex = |it: &JobVertex| {
        (0..it.parallelism)
            .map(|subtask| (it.id.clone(), subtask))
            .collect::<Vec<_>>()
    };
    let expected = graph.vertices.iter().flat_map(of_vertex);
    assert!(places.eq(expected), "in the order of the graph");
    check(manifest, graph, Unclaimed::Refused).expect("what is redistributed is accepted");
    all.into_iter()
        .filter(|it| it.vertex_id == vertex)
        .collect()
}

fn refused(manifest: &CheckpointManifest, graph: &JobGraph) -> String {
    let error = check(manifest, graph, Unclaimed::Refused).expect_err("refused");
    assert!(!error.problems().is_empty());
    error.to_string()
}

/// How often each key group of a state is in the segments of each task, whose groups these are.
fn coverage(tasks: &[SubtaskSnapshot]) -> BTreeMap<u32, usize> {
    let mut found = BTreeMap::new();
    let parallelism = u32::try_from(tasks.len()).expect("few");
    for task in tasks {
        let own = key_groups(task.subtask, parallelism, MAX);
        for segment in &task.segments {
            let groups = segment.first_key_group..segment.end_key_group;
            assert!(
                groups.start < own.end && own.start < groups.end,
                "it has none of these"
            );
            for group in groups.filter(|group| own.contains(group)) {
                *found.entry(group).or_default() += 1;
            }
        }
    }
    found
}

/// Checks that a job of two parallelisms goes on at two others with each key group, position and state once.
fn check_redistribution(from: (u32, u32), to: (u32, u32)) -> Result<(), TestCaseError> {
    let (before, after) = (counting(from.0, from.1), counting(to.0, to.1));
    let manifest = manifest(&before);
    let sources = tasks(&manifest, &after, "n");
    for source in &sources {
        let positions: Vec<&[u8]> = source.positions.iter().map(|it| &*it.position).collect();
        if from.0 == to.0 {
            prop_assert_eq!(positions, [source.subtask.to_le_bytes()]);
            prop_assert_eq!(source.positions[0].request, 5);
        } else {
            let all = (0..from.0).map(u32::to_le_bytes);
            prop_assert!(
                positions.iter().copied().eq(all
                    .clone()
                    .collect::<Vec<_>>()
                    .iter()
                    .map(|it| &it[..]))
            );
            prop_assert!(source.positions.iter().all(|it| it.request == 0));
        }
    }
    let counts = tasks(&manifest, &after, "c");
    prop_assert!(
        coverage(&counts)
            .into_iter()
            .eq((0..MAX).map(|group| (group, 1)))
    );
    let contents = counts
        .iter()
        .flat_map(|it| &it.operators)
        .map(|it| it.content.clone());
    let mut contents: Vec<Vec<u8>> = contents.collect();
    contents.sort();
    let mut expected: Vec<Vec<u8>> = (0..from.1).map(|it| it.to_le_bytes().to_vec()).collect();
    expected.sort();
    prop_assert_eq!(&contents, &expected);
    let mut files: Vec<Vec<u8>> = counts.iter().flat_map(|it| it.files.clone()).collect();
    files.sort();
    prop_assert_eq!(files, expected);
    let most = counts.iter().map(|it| it.operators.len()).max();
    prop_assert!(most <= Some(from.1.div_ceil(to.1) as usize));
    Ok(())
}

/// A parallelism, one of the smallest or one of all.
fn parallelism() -> impl Strategy<Value = u32> {
    prop_oneof![1_u32..=16, 1..=MAX, Just(1), Just(MAX)]
}

#[test]
fn a_key_group_that_is_lost_between_two_ranges_is_found() {
    assert!(check_redistribution((1, MAX), (1, 3)).is_ok());
    plant(Some(Fault::KeyGroupLost));
    let found = check_redistribution((1, MAX), (1, 3));
    plant(None);
    assert!(found.is_err());
}

proptest! {
    #[test]
    fn nothing_is_lost_or_doubled_between_any_two_parallelisms(
        from in (parallelism(), parallelism()), to in (parallelism(), parallelism()),
    ) {
        check_redistribution(from, to)?;
    }

    #[test]
    fn key_groups_of_subtasks_that_had_ended_have_no_entries_and_all_others_stay(
        from in 1_u32..=16, to in 1_u32..=16, ended in prop::collection::btree_set(0_u32..16, 0..16),
    ) {
        let before = counting(1, from);
        let mut manifest = manifest(&before);
        let ended = ended.into_iter().filter(|subtask| *subtask < from).collect::<Vec<_>>();
        ended.iter().for_each(|subtask| end(&mut manifest, "c", *subtask));
        let counts = tasks(&manifest, &counting(1, to), "c");
        // The source has something left, so no subtask behind it can have ended.
        prop_assert!(counts.iter().all(|it| !it.ended));
        if from != to && ended.len() < from as usize {
            prop_assert!(coverage(&counts).into_iter().eq((0..MAX).map(|group| (group, 1))));
        }
        for segment in counts.iter().flat_map(|it| &it.segments) {
            let is_empty = segment.length == 0;
            prop_assert_eq!(is_empty, segment.content.is_empty());
            let of_ended = ended.iter().any(|subtask| {
                key_groups(*subtask, from, MAX) == (segment.first_key_group..segment.end_key_group)
            });
            prop_assert_eq!(is_empty, of_ended);
        }
    }
}

#[test]
fn segments_go_in_their_order_to_the_tasks_for_whose_key_groups_they_count() {
    let mut manifest = manifest(&counting(1, 1));
    let subtasks = manifest.regions.iter_mut().flat_map(|it| &mut it.subtasks);
    for segments in subtasks.map(|it| &mut it.segments) {
        let Some(older) = segments.first().cloned() else {
            continue;
        };
        segments[0].superseded = vec![KeyGroupRange {
            first: 4,
            end: MAX / 2,
        }];
        segments[0].written_in = 1;
        segments.push(StateSegment {
            written_in: 2,
            ..older.clone()
        });
        segments.insert(
            0,
            StateSegment {
                superseded: vec![KeyGroupRange {
                    first: 0,
                    end: MAX / 2,
                }],
                ..older
            },
        );
    }
    let counts = tasks(&manifest, &counting(1, 2), "c");
    let written = counts.iter().map(|task| {
        let segments = task.segments.iter();
        segments.map(|it| it.written_in).collect::<Vec<_>>()
    });
    assert_eq!(written.collect::<Vec<_>>(), [vec![1, 2], vec![0, 1, 2]]);
}

#[test]
fn operators_that_are_chained_otherwise_find_their_state() {
    let before = counting(3, 3);
    let [numbers, counts, out] = [
        ("numbers", datagen()),
        ("counts", count()),
        ("out", print()),
    ];
    // What was one vertex is two, and the other way round.
    let parts = vec![vertex("x", &[numbers, counts], 3), vertex("y", &[out], 2)];
    let after = graph(parts, Partitioning::Rebalance);
    let mut manifest = manifest(&before);
    let joined = tasks(&manifest, &after, "x");
    for (subtask, task) in (0_u32..).zip(&joined) {
        assert_eq!(task.positions[0].position, subtask.to_le_bytes());
        assert_eq!(task.segments[0].content, subtask.to_le_bytes());
        assert!(task.operators.is_empty() && task.files.is_empty());
    }
    let parts = tasks(&manifest, &after, "y");
    let contents = |task: &SubtaskSnapshot| {
        task.operators
            .iter()
            .map(|it| it.content[0])
            .collect::<Vec<_>>()
    };
    assert_eq!(
        parts.iter().map(contents).collect::<Vec<_>>(),
        [vec![0, 2], vec![1]]
    );

    // A source that had ended does not begin again, although what is chained to it goes on.
    end(&mut manifest, "n", 1);
    let joined = tasks(&manifest, &after, "x");
    assert!(joined.iter().all(|it| !it.ended));
    let positions = joined
        .iter()
        .map(|it| (it.positions.len(), it.positions[0].ended));
    assert!(positions.eq([(1, false), (1, true), (1, false)]));
}

#[test]
fn a_task_has_ended_if_all_its_steps_had_and_so_have_those_that_write_to_it() {
    let before = counting(2, 2);
    let mut manifest = manifest(&before);
    for subtask in 0..2 {
        end(&mut manifest, "c", subtask);
        end(&mut manifest, "n", subtask);
    }
    for (sources, counts) in [(2, 2), (3, 5), (1, 1)] {
        let all = redistribute(&manifest, &counting(sources, counts)).expect("it fits");
        assert!(all.iter().all(|it| it.ended && it.positions.is_empty()));
    }
    // Another source before it begins from the start, so what follows has not ended.
    let mut after = counting(2, 2);
    after.vertices[0].operators[0].name = "others".to_owned();
    assert!(tasks(&manifest, &after, "c").iter().all(|it| !it.ended));
    assert!(
        tasks(&manifest, &after, "n")
            .iter()
            .all(|it| it.positions.is_empty() && !it.ended)
    );
    // So does a step that is new in the same task.
    let mut after = counting(2, 2);
    after.vertices[1].operators[1].name = "other".to_owned();
    assert!(tasks(&manifest, &after, "c").iter().all(|it| !it.ended));
}

#[test]
fn output_of_subtasks_that_had_ended_is_kept_once_or_the_start_is_refused() {
    let before = counting(2, 3);
    let mut manifest = manifest(&before);
    (0..2).for_each(|subtask| end(&mut manifest, "n", subtask));
    (0..3).for_each(|subtask| end(&mut manifest, "c", subtask));
    let output = Committable {
        pending_path: "p".to_owned(),
        final_path: "f".to_owned(),
    };
    let committable = CheckpointCommittable {
        uid: "out".to_owned(),
        ..CheckpointCommittable::default()
    };
    for subtask in &mut manifest.regions[0].subtasks {
        if subtask.vertex_id == "c" {
            subtask.output.push(output.clone());
            subtask.committables.push(committable.clone());
        }
    }
    for counts in [3, 2, 1, 7] {
        let all = redistribute(&manifest, &counting(2, counts)).expect("it fits");
        assert_eq!(all.iter().map(|it| it.output.len()).sum::<usize>(), 3);
        // They were committed before the savepoint was complete.
        assert!(all.iter().all(|it| it.committables.is_empty()));
    }
    let mut goes_on = counting(2, 3);
    goes_on.vertices[1].operators[0].name = "others".to_owned();
    let problem = refused(&manifest, &goes_on);
    assert!(
        problem.contains("step `out` has output of subtasks that had ended"),
        "{problem}"
    );
}

#[test]
fn what_does_not_fit_is_refused_with_both_sides_named() {
    let before = counting(2, 4);
    let intact = manifest(&before);
    let case = |graph: &JobGraph, words: &[&str]| {
        let problem = refused(&intact, graph);
        words
            .iter()
            .for_each(|word| assert!(problem.contains(word), "{problem}"));
    };
    let mut other = counting(2, 2);
    other.vertices[1].max_parallelism = 64;
    case(
        &other,
        &["step `counts` has maximum parallelism 64, and its state has 128"],
    );
    let mut other = counting(2, 4);
    other.vertices[1].operators[0].spec = print().to_json();
    case(
        &other,
        &["step `counts` is `print`, and its state is that of `count`"],
    );
    for (keys, of) in [("value", "value: int64"), ("key", "key: string")] {
        let mut other = counting(2, 4);
        let counts = &mut other.vertices[1].operators[0];
        let spec = operators::Count {
            keys: vec![keys.to_owned()],
            emit: Some(Emit::Final),
        };
        counts.spec = OperatorSpec::from(spec).to_json();
        if keys == "key" {
            counts.output = Schema::of([("key", ColumnType::String)]).to_proto();
        }
        let here = format!("here the step is `count by {of}`");
        case(
            &other,
            &["the state of step `counts` is `count by key: int64`", &here],
        );
    }
    let mut other = counting(2, 4);
    other.vertices[1].operators[0].name = "counted".to_owned();
    case(&other, &["no step of the job has the state of `counts`"]);
    check(&intact, &other, Unclaimed::Ignored).expect("allowed");
    // A uid keeps the state of a step that was renamed.
    other.vertices[1].operators[0].uid = "counts".to_owned();
    check(&intact, &other, Unclaimed::Refused).expect("it finds its state");

    let mut channels = intact.clone();
    channels.regions[0].subtasks[0]
        .channels
        .push(StateSegment::default());
    let problem = refused(&channels, &before);
    assert!(problem.contains("batches of its channels"), "{problem}");
    let mut of_origin = intact.clone();
    of_origin.regions.push(RegionSnapshot {
        kind: RegionSnapshotKind::FromOrigin.into(),
        ..RegionSnapshot::default()
    });
    let problem = refused(&of_origin, &before);
    assert!(problem.contains("had not yet saved all"), "{problem}");
    let mut unnamed = intact.clone();
    unnamed.steps.clear();
    let problem = refused(&unnamed, &before);
    assert!(
        problem.contains("does not say which step `counts` is"),
        "{problem}"
    );
    let mut short = intact.clone();
    short.regions[0].subtasks.pop();
    let problem = refused(&short, &before);
    assert!(
        problem.contains("a subtask of `counts` is missing"),
        "{problem}"
    );
}

#[test]
fn an_operator_that_can_t_divide_its_state_keeps_its_parallelism() {
    let step = CustomSpec::operator("enrich", [("a", ColumnType::Int64)]).saving_state();
    let custom = |parallelism| {
        let vertices = vec![vertex("v", &[("step", step.clone().into())], parallelism)];
        graph(vertices, Partitioning::Hash)
    };
    let saved = manifest(&custom(2));
    check(&saved, &custom(2), Unclaimed::Refused).expect("the same");
    let problem = refused(&saved, &custom(3));
    assert!(
        problem.contains(
            "step `step` has parallelism 3, and its state, of parallelism 2, can't be divided"
        ),
        "{problem}"
    );
    // A step may declare that what it saves can be divided.
    let divided = |rule: operators::CustomRedistribution, parallelism| {
        let step = step.clone().redistributed(rule);
        let vertices = vec![vertex("v", &[("step", step.into())], parallelism)];
        let tasks = tasks(&saved, &graph(vertices, Partitioning::Hash), "v");
        let states = tasks.iter().map(|task| task.operators.len());
        states.collect::<Vec<_>>()
    };
    assert_eq!(divided(operators::CustomRedistribution::List, 3), [1, 1, 0]);
    assert_eq!(
        divided(operators::CustomRedistribution::Union, 3),
        [2, 2, 2]
    );
    // Keyed state alone can be.
    let mut keyed = saved;
    for subtask in &mut keyed.regions[0].subtasks {
        let groups = key_groups(subtask.subtask, 2, MAX);
        subtask.operators.clear();
        subtask.segments.push(StateSegment {
            uid: "step".to_owned(),
            length: 1,
            first_key_group: groups.start,
            end_key_group: groups.end,
            ..StateSegment::default()
        });
    }
    assert_eq!(
        coverage(&tasks(&keyed, &custom(3), "v")).len(),
        MAX as usize
    );
}

proptest! {
    /// Such state needs no declaration of its step.
    #[test]
    fn state_that_says_how_it_is_divided_is_in_the_subtasks_as_it_says(
        before in 1_u32..8, here in 1_u32..8, elements in 0_u32..5,
    ) {
        let step = CustomSpec::operator("enrich", [("a", ColumnType::Int64)]).saving_state();
        let graph_of = |parallelism| {
            let vertices = vec![vertex("v", &[("step", step.clone().into())], parallelism)];
            graph(vertices, Partitioning::Hash)
        };
        let mut saved = manifest(&graph_of(before));
        let state = |name: &str, rule: StateRedistribution, content: String| OperatorState {
            uid: "step".to_owned(),
            name: name.to_owned(),
            content: content.into_bytes(),
            redistribution: rule.into(),
            ..OperatorState::default()
        };
        let mut all = Vec::new();
        for subtask in &mut saved.regions[0].subtasks {
            let number = subtask.subtask;
            subtask.operators.clear();
            for element in 0..(elements + number) % 5 {
                let element = format!("{number}-{element}");
                subtask.operators.push(state("list", StateRedistribution::List, element.clone()));
                subtask.operators.push(state("union", StateRedistribution::Union, element.clone()));
                all.push(element);
            }
            subtask.operators.push(state("all", StateRedistribution::Broadcast, "same".to_owned()));
        }
        let tasks = tasks(&saved, &graph_of(here), "v");
        let of = |task: &SubtaskSnapshot, name: &str| -> Vec<String> {
            let states = task.operators.iter().filter(|it| it.name == name);
            states.map(|it| String::from_utf8_lossy(&it.content).into_owned()).collect()
        };
        let mut listed: Vec<String> = tasks.iter().flat_map(|task| of(task, "list")).collect();
        let most = tasks.iter().map(|task| of(task, "list").len()).max();
        if before == here {
            let kept = tasks.iter().zip(&saved.regions[0].subtasks);
            prop_assert!(kept.clone().all(|(task, saved)| task.operators == saved.operators));
        } else {
            prop_assert!(tasks.iter().all(|task| of(task, "union") == all));
            let even = all.len().div_ceil(here as usize);
            prop_assert_eq!(most, Some(even), "they are divided evenly");
        }
        listed.sort();
        all.sort();
        prop_assert_eq!(listed, all);
        prop_assert!(tasks.iter().all(|task| of(task, "all") == ["same"]));
    }
}

/// A job of one source.
fn source(parallelism: u32) -> JobGraph {
    graph(
        vec![vertex("n", &[("numbers", datagen())], parallelism)],
        Partitioning::Forward,
    )
}

/// A manifest of that job in which one of three subtasks begins from the start.
fn partial() -> CheckpointManifest {
    let mut partial = manifest(&source(3));
    partial.regions[0].subtasks.remove(1);
    partial.regions.push(RegionSnapshot {
        kind: RegionSnapshotKind::FromStart.into(),
        ..RegionSnapshot::default()
    });
    partial
}

#[test]
fn a_region_without_a_snapshot_begins_from_the_start() {
    let mut partial = partial();
    let same = tasks(&partial, &source(3), "n");
    assert!(same.iter().map(|it| it.positions.len()).eq([1, 0, 1]));
    let problem = refused(&partial, &source(2));
    assert!(
        problem.contains(
            "step `numbers` has parallelism 2, and its state, of parallelism 3, is missing for some"
        ),
        "{problem}"
    );
    partial.regions[0].subtasks.clear();
    let none = tasks(&partial, &source(2), "n");
    assert!(none.iter().all(|it| it.positions.is_empty() && !it.ended));
}

/// A job may begin from what another one began from, before it has saved anything itself.
#[test]
fn what_a_job_begins_with_gives_the_next_one_what_the_first_manifest_would_give() {
    for (sources, counts, here) in [(2, 3, 3), (2, 3, 2), (1, 2, 5)] {
        let first = manifest(&counting(sources, counts));
        let mut graph = counting(sources, here);
        graph.job_id = "second".to_owned();
        let begun = laid_out(&first, &graph).expect("it fits");
        assert_eq!((&*begun.job_id, begun.number), ("second", first.number));
        assert_eq!(begun.regions.len(), 1, "as the graph has");
        assert_eq!(begun.steps, steps(&graph));
        for next in [2, 3, 5] {
            let next = counting(sources, next);
            let expected = tasks(&first, &next, "c");
            let found = tasks(&begun, &next, "c");
            let sum = |tasks: &[SubtaskSnapshot]| {
                let segments = tasks.iter().flat_map(|it| &it.segments);
                let named = segments.filter(|it| !it.content.is_empty());
                let mut named: Vec<_> = named
                    .map(|it| (it.content.clone(), it.first_key_group))
                    .collect();
                named.sort();
                named.dedup();
                named
            };
            assert_eq!(sum(&found), sum(&expected));
            // Each key group comes from one subtask, also where a segment has those of several.
            for (task, whole) in found.iter().zip(&expected) {
                let own = key_groups(task.subtask, found.len() as u32, MAX);
                let counts = |task: &SubtaskSnapshot| {
                    let all = task.segments.iter().flat_map(segments::counted);
                    let own =
                        all.map(|it| it.end.min(own.end).saturating_sub(it.start.max(own.start)));
                    own.sum::<u32>()
                };
                assert_eq!(counts(task), counts(whole));
            }
            assert_eq!(tasks(&begun, &next, "n"), tasks(&first, &next, "n"));
        }
    }
    let lines = || {
        let spec: OperatorSpec = operators::FileSource::new(["in"]).into();
        vertex("f", &[("lines", spec)], 2)
    };
    let before = graph(
        vec![vertex("n", &[("numbers", datagen())], 2)],
        Partitioning::Forward,
    );
    let mut after = before.clone();
    after.vertices.push(lines());
    let begun = laid_out(&manifest(&before), &after).expect("it fits");
    assert_eq!(begun.regions.len(), 4);
    // Nothing was saved of the source that was added: it begins from the start again, at any parallelism.
    let starts = |graph: &JobGraph| {
        let tasks = tasks(&begun, graph, "f");
        tasks
            .iter()
            .all(|it| it.from_start && it.positions.is_empty())
    };
    assert!(starts(&after));
    after.vertices[1].parallelism = 3;
    assert!(starts(&after));
}

#[test]
fn a_subtask_that_begins_from_the_start_is_missed_by_another_parallelism_of_a_later_job_too() {
    let partial = partial();
    let begun = laid_out(&partial, &source(3)).expect("it fits");
    assert_eq!(
        tasks(&begun, &source(3), "n"),
        tasks(&partial, &source(3), "n")
    );
    let problem = refused(&begun, &source(2));
    assert!(problem.contains("is missing for some"), "{problem}");
}

#[test]
fn the_files_of_a_source_that_had_ended_are_not_looked_for_again() {
    let lines = |parallelism| {
        let spec: OperatorSpec = operators::FileSource::new(["gone"]).into();
        graph(
            vec![vertex("f", &[("lines", spec)], parallelism)],
            Partitioning::Forward,
        )
    };
    let mut ended = manifest(&lines(2));
    let problem = refused(&ended, &lines(2));
    assert!(
        problem.contains("does not say which files are read"),
        "{problem}"
    );
    (0..2).for_each(|subtask| end(&mut ended, "f", subtask));
    let coordinators = coordinators(&ended, &lines(3)).expect("it fits");
    let state = tanist_proto::v1::coordinator_state::State::FileSplits(Default::default());
    assert_eq!(coordinators[0].state, Some(state));
    assert_eq!((coordinators.len(), coordinators[0].generation), (1, 3));
}

/// Checks a manifest, and takes it apart if it passes. Returns the most memory that was in use for it at once.
fn bytes_for(manifest: &CheckpointManifest, graph: &JobGraph) -> u64 {
    let allocated = allocation_counter::measure(|| {
        if check(manifest, graph, Unclaimed::Ignored).is_ok() {
            let tasks = redistribute(manifest, graph).expect("what is accepted is redistributed");
            coordinators(manifest, graph).expect("what is accepted has its coordinators");
            drop(tasks);
        }
    });
    allocated.bytes_max
}

/// Most memory for a manifest of this size: it is taken apart for each task, of which the graph has few.
fn allowed(manifest: &CheckpointManifest) -> u64 {
    16 * 1024 + 64 * manifest.encoded_len() as u64
}

#[test]
fn a_parallelism_that_no_job_can_have_is_refused_before_anything_is_made_by_it() {
    let graph = counting(2, 2);
    assert!(bytes_for(&manifest(&graph), &graph) > 0, "it is measured");
    for (parallelism, max) in [(u32::MAX, 32), (2, u32::MAX), (32_769, 32_769)] {
        let mut hostile = manifest(&graph);
        let step = &mut hostile.steps[1];
        (step.parallelism, step.max_parallelism) = (parallelism, max);
        assert!(bytes_for(&hostile, &graph) < allowed(&hostile));
        let problem = refused(&hostile, &graph);
        assert!(
            problem.contains("step `counts` has parallelism"),
            "{problem}"
        );
        redistribute(&hostile, &graph).expect_err("refused");
        coordinators(&hostile, &graph).expect_err("refused");
    }
}

#[test]
fn the_largest_parallelism_of_many_steps_needs_no_memory_for_subtasks_that_are_not_there() {
    let graph = counting(2, 2);
    let mut hostile = manifest(&graph);
    hostile.regions[0].kind = RegionSnapshotKind::FromStart.into();
    hostile.steps.extend((0..900).map(|number| ManifestStep {
        uid: format!("s{number}"),
        vertex_id: format!("v{number}"),
        parallelism: 32_768,
        max_parallelism: 32_768,
        ..ManifestStep::default()
    }));
    assert!(bytes_for(&hostile, &graph) < allowed(&hostile));
    hostile.steps.extend((0..100).map(|number| ManifestStep {
        uid: format!("t{number}"),
        ..ManifestStep::default()
    }));
    let problem = refused(&hostile, &graph);
    assert!(problem.contains("1003 steps"), "{problem}");
}

#[test]
fn key_groups_that_a_subtask_does_not_have_are_refused_with_the_subtask_and_its_step() {
    let graph = counting(2, 2);
    let refused_with = |change: fn(&mut StateSegment)| {
        let mut hostile = manifest(&graph);
        let subtasks = &mut hostile.regions[0].subtasks;
        let mut segments = subtasks.iter_mut().flat_map(|it| &mut it.segments);
        change(segments.next().expect("counts are keyed"));
        assert!(bytes_for(&hostile, &graph) < allowed(&hostile));
        refused(&hostile, &graph)
    };
    let range = |first, end| KeyGroupRange { first, end };
    let problems = [
        refused_with(|it| it.end_key_group = u32::MAX),
        refused_with(|it| it.first_key_group = 100),
        refused_with(|it| {
            let ranges = (0..100_000).map(|it| KeyGroupRange {
                first: it,
                end: it + 1,
            });
            it.superseded = ranges.collect();
        }),
    ];
    for problem in problems {
        assert!(problem.contains("subtask 0 of `counts`"), "{problem}");
    }
    let mut intact = manifest(&graph);
    intact.regions[0].subtasks[2].segments[0].superseded = vec![range(0, 4), range(8, 16)];
    check(&intact, &graph, Unclaimed::Refused).expect("a segment that counts for a part");
}

/// A number that may stand in a manifest.
fn hostile() -> impl Strategy<Value = u32> {
    prop_oneof![
        Just(0_u32),
        Just(1),
        Just(MAX - 1),
        Just(32_768),
        Just(u32::MAX),
        any::<u32>()
    ]
}

proptest! {
    #[test]
    fn no_number_in_a_manifest_has_it_need_more_than_a_multiple_of_its_size(
        changes in prop::collection::vec((0_u8..8, any::<prop::sample::Index>(), hostile(), hostile()), 0..6),
        parallelism in 1_u32..4,
    ) {
        let graph = counting(2, 3);
        let mut manifest = manifest(&graph);
        for (change, which, one, other) in changes {
            let CheckpointManifest { steps, regions, .. } = &mut manifest;
            let step = which.index(steps.len());
            let subtask = which.index(regions[0].subtasks.len());
            let (step, subtask) = (&mut steps[step], &mut regions[0].subtasks[subtask]);
            match change {
                0 => step.parallelism = one,
                1 => step.max_parallelism = one,
                2 => (step.parallelism, step.max_parallelism) = (one, other),
                3 => subtask.subtask = one,
                4 => subtask.ended = !subtask.ended,
                5 => subtask.segments.iter_mut().for_each(|it| (it.first_key_group, it.end_key_group) = (one, other)),
                6 => {
                    let range = KeyGroupRange { first: one, end: other };
                    subtask.segments.iter_mut().for_each(|it| it.superseded.push(range));
                }
                _ => regions[0].kind = RegionSnapshotKind::FromStart.into(),
            }
        }
        let needed = bytes_for(&manifest, &counting(2, parallelism));
        prop_assert!(needed < allowed(&manifest), "{needed} bytes");
    }

    #[test]
    fn flipped_bytes_of_a_manifest_are_no_panic_and_need_no_more_than_a_multiple(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let graph = counting(2, 3);
        let mut bytes = manifest(&graph).encode_to_vec();
        for (at, to) in flips {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        if let Ok(manifest) = CheckpointManifest::decode(&*bytes) {
            let needed = bytes_for(&manifest, &graph);
            prop_assert!(needed < 16 * 1024 + 64 * bytes.len() as u64, "{needed} bytes");
        }
    }
}
