//! Continues the coordinators of file sources in another job.
//!
//! At the same parallelism nothing changes: a subtask continues with the request after those that its position covers,
//! and gets the same answers. At another parallelism no split is assigned: a split that a position covers was read, or
//! its rest is in that position; all other splits are free again.

use std::collections::BTreeSet;

use tanist_proto::v1::coordinator_state::State;
use tanist_proto::v1::{
    CheckpointManifest, CoordinatorState, FileSplits, JobGraph, JobVertex, Operator,
};

use super::saved::{Part, Saved, SavedStep};
use crate::job_graph::{file_source, shown};
use crate::topology::{self, MAX_REGIONS, subtask_regions};

/// The coordinators of a graph, and all problems.
pub(super) fn coordinators(
    manifest: &CheckpointManifest,
    saved: &Saved<'_>,
    graph: &JobGraph,
) -> Result<Vec<CoordinatorState>, Vec<String>> {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    let mut regions = subtask_regions(graph, MAX_REGIONS).into_iter();
    for vertex in &graph.vertices {
        let parallelism = usize::try_from(vertex.parallelism).unwrap_or(usize::MAX);
        let of_vertex: BTreeSet<usize> = regions.by_ref().take(parallelism).collect();
        for operator in &vertex.operators {
            let step = saved.steps.get(topology::uid(operator));
            let Some(step) = step.filter(|it| !it.all_start()) else {
                continue;
            };
            if file_source(&operator.spec).is_none() {
                continue;
            }
            match splits(manifest, step, vertex) {
                Ok(splits) => found.push(state(vertex, operator, of_vertex.len(), splits)),
                Err(problem) => {
                    problems.push(format!("step {}: {problem}", shown(&operator.name)));
                }
            }
        }
    }
    match problems.is_empty() {
        true => Ok(found),
        false => Err(problems),
    }
}

/// The state of a coordinator before the first placement. Its generation is the sum of those of its regions, and each
/// of these is placed for the first time with generation 1.
fn state(
    vertex: &JobVertex,
    operator: &Operator,
    regions: usize,
    splits: FileSplits,
) -> CoordinatorState {
    CoordinatorState {
        vertex_id: vertex.id.clone(),
        operator: operator.name.clone(),
        generation: regions as u64,
        state: Some(State::FileSplits(splits)),
    }
}

/// The splits of a step as they are for this vertex.
fn splits(
    manifest: &CheckpointManifest,
    step: &SavedStep<'_>,
    vertex: &JobVertex,
) -> Result<FileSplits, String> {
    let mut coordinators = manifest.coordinators.iter();
    let found = coordinators
        .find(|it| it.vertex_id == step.step.vertex_id && it.operator == step.step.name);
    let Some(State::FileSplits(splits)) = found.and_then(|it| it.state.as_ref()) else {
        // A job drops the coordinator when all subtasks have ended: then nothing is left to read.
        return match step.all_ended() {
            true => Ok(FileSplits::default()),
            false => Err("the state does not say which files are read".to_owned()),
        };
    };
    if step.step.parallelism == vertex.parallelism {
        return Ok(splits.clone());
    }
    let mut read: BTreeSet<u32> = splits.read.iter().copied().collect();
    for assigned in &splits.assigned {
        let part = step.part(assigned.subtask);
        let taken = part.map_or(0, |part| taken(part, &step.step.uid, assigned.splits.len()));
        let covered = assigned.splits.get(..taken);
        let covered = covered.ok_or("a position is ahead of the splits that were assigned")?;
        for split in covered {
            if !read.insert(*split) {
                return Err(format!("split {split} was assigned twice"));
            }
        }
    }
    Ok(FileSplits {
        files: splits.files.clone(),
        ends: splits.ends.clone(),
        assigned: Vec::new(),
        read: read.into_iter().collect(),
    })
}

/// The number of assigned splits that are covered by what the subtask saved.
fn taken(part: Part<'_>, uid: &str, assigned: usize) -> usize {
    match part {
        Part::Ended(_) => assigned,
        Part::Saved(saved) => {
            let position = saved.positions.iter().find(|it| it.uid == uid);
            match position {
                None => 0,
                Some(position) if position.ended => assigned,
                Some(position) => usize::try_from(position.request).unwrap_or(usize::MAX),
            }
        }
    }
}
