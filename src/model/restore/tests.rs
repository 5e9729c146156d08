//! Restoring from the manifest of another graph: for any two parallelisms nothing is lost and nothing is doubled; what
//! does not fit is refused with both sides named. Here: graphs and manifests for all tests.

mod beginnings;
mod chaining;
mod division;
mod hostile;
mod mismatches;

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
