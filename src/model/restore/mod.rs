//! Translates the manifest of a checkpoint to another graph, or to other parallelisms: what each task of the new job is
//! restored from. Pure: the Dispatcher checks a submission with it, and the JobMaster deploys with it.
//!
//! The manifest may come from a user's directory, with any content. What does not fit is a [`Mismatch`] with all
//! problems. A manifest that passes [`check`] loses nothing and doubles nothing, except state without a step if
//! that is allowed.
//!
//! State finds its step by uid, or by the name of a step without one. Operators may be chained differently. Keyed state
//! goes by key groups; state without keys and positions go as the operator declares it
//! ([`Redistribution`](crate::operators::Redistribution)) if the parallelism of the step differs, and otherwise subtask
//! by subtask.

mod left_out;
mod planted;
mod saved;
mod shares;
mod splits;
mod tasks;

use tanist_proto::segments;
use tanist_proto::v1::{
    CheckpointManifest, CoordinatorState, JobGraph, JobVertex, ManifestStep, Operator,
    RegionSnapshot, RegionSnapshotKind, SubtaskSnapshot,
};

use self::saved::Saved;
use crate::job_graph::shown;
use crate::problem::{MAX_PROBLEMS, listing};
use crate::topology::{MAX_REGIONS, key_groups, subtask_regions, uid};
use crate::{OperatorSpec, Schema};

/// What happens to state whose step is not in the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unclaimed {
    /// It is a mismatch.
    Refused,
    /// It is left behind.
    Ignored,
}

/// A manifest does not fit a graph. All problems are for users: each names its step, and both sides.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", mismatch_text(.problems))]
pub struct Mismatch {
    problems: Vec<String>,
}

fn mismatch_text(problems: &[String]) -> String {
    match problems {
        [only] => format!("the state does not fit the job: {only}"),
        many => listing("the state does not fit the job: it", many),
    }
}

impl Mismatch {
    /// At least one, and at most [`MAX_PROBLEMS`].
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

impl From<Vec<String>> for Mismatch {
    fn from(mut problems: Vec<String>) -> Mismatch {
        problems.truncate(MAX_PROBLEMS);
        Mismatch { problems }
    }
}

/// Whether the graph can be started from the manifest. After that, [`redistribute`] and [`coordinators`] succeed.
pub fn check(
    manifest: &CheckpointManifest,
    graph: &JobGraph,
    unclaimed: Unclaimed,
) -> Result<(), Mismatch> {
    let saved = Saved::of(manifest)?;
    let mut problems = Vec::new();
    if unclaimed == Unclaimed::Refused {
        let left = tasks::unclaimed(&saved, graph).into_iter().map(|uid| {
            format!(
                "no step of the job has the state of {}: give a step this uid, or, if it has none, this name; or leave the state behind: \
                 `--allow-non-restored-state`, or `execution.state-recovery.ignore-unclaimed-state: true`",
                shown(uid)
            )
        });
        problems.extend(left);
    }
    problems.extend(tasks::redistribute(&saved, graph).err().unwrap_or_default());
    problems.extend(left_out::left_out(&saved, graph));
    let coordinators = splits::coordinators(manifest, &saved, graph);
    problems.extend(coordinators.err().unwrap_or_default());
    match problems.is_empty() {
        true => Ok(()),
        false => Err(problems.into()),
    }
}

/// Why a savepoint can't have the manifest: it names output that is not visible, in files of sinks. None: all of it is
/// visible.
pub fn hidden_output(manifest: &CheckpointManifest) -> Option<String> {
    let mut subtasks = manifest.regions.iter().flat_map(|region| &region.subtasks);
    let hidden = subtasks.find(|it| !it.files.is_empty() || !it.output.is_empty())?;
    let mut steps = manifest.steps.iter().rev();
    let step = steps.find(|step| step.vertex_id == hidden.vertex_id);
    let step = step.map_or(hidden.vertex_id.as_str(), |step| step.name.as_str());
    Some(format!(
        "step {} has output that is not visible yet, and a savepoint has no files of sinks: have it commit with checkpoints, \
         or begin from the retained checkpoint of the job",
        shown(step)
    ))
}

/// What each task of the graph is restored from: in the order of the vertices, and for each of these by subtask. State
/// whose step is not in the graph is left behind. A task that has nothing to restore has an empty snapshot.
pub fn redistribute(
    manifest: &CheckpointManifest,
    graph: &JobGraph,
) -> Result<Vec<SubtaskSnapshot>, Mismatch> {
    let saved = Saved::of(manifest)?;
    Ok(tasks::redistribute(&saved, graph)?)
}

/// The coordinators of the graph, continued from the manifest, for the first record of the job: their generation is
/// that of the first placement. An operator without a coordinator in the manifest is prepared as in any other job.
pub fn coordinators(
    manifest: &CheckpointManifest,
    graph: &JobGraph,
) -> Result<Vec<CoordinatorState>, Mismatch> {
    let saved = Saved::of(manifest)?;
    Ok(splits::coordinators(manifest, &saved, graph)?)
}

/// The manifest translated to the tasks and regions of the graph: the checkpoint that a job with this graph begins
/// with. It lists nothing to commit.
pub fn laid_out(
    manifest: &CheckpointManifest,
    graph: &JobGraph,
) -> Result<CheckpointManifest, Mismatch> {
    let number = manifest.number;
    let mut regions: Vec<RegionSnapshot> = Vec::new();
    let of_tasks = subtask_regions(graph, MAX_REGIONS);
    for (mut task, region) in redistribute(manifest, graph)?.into_iter().zip(of_tasks) {
        narrow(&mut task, graph);
        if regions.len() <= region {
            let empty = RegionSnapshot {
                kind: RegionSnapshotKind::Taken.into(),
                number,
                // No attempt of this job took it.
                generation: 0,
                subtasks: Vec::new(),
            };
            regions.resize(region + 1, empty);
        }
        regions[region].subtasks.push(task);
    }
    Ok(CheckpointManifest {
        job_id: graph.job_id.clone(),
        number,
        layout: 0,
        regions,
        coordinators: coordinators(manifest, graph)?,
        uncommitted: Vec::new(),
        steps: steps(graph),
    })
}

/// Restricts each segment of a task to the key groups of its subtask: it may have been written for others, too.
fn narrow(task: &mut SubtaskSnapshot, graph: &JobGraph) {
    let mut vertices = graph.vertices.iter();
    let Some(vertex) = vertices.find(|vertex| vertex.id == task.vertex_id) else {
        return;
    };
    let own = key_groups(task.subtask, vertex.parallelism, vertex.max_parallelism);
    for segment in &mut task.segments {
        let (first, end) = (segment.first_key_group, segment.end_key_group);
        for others in [first..own.start.min(end), own.end.max(first)..end] {
            if !others.is_empty() {
                segments::supersede(segment, others);
            }
        }
    }
}

/// Describes the keyed state of an operator by functions and key columns; empty: it has none, or only the operator
/// knows. Manifests keep this text, and a restore compares it.
fn keyed_state(operator: &Operator) -> String {
    let spec = OperatorSpec::from_json(&operator.spec);
    let known = spec.ok().and_then(|spec| {
        let columns = Schema::from_proto(&operator.output).ok()?;
        let (keys, results) = (spec.keys()?, spec.keyed_results()?);
        let key = |name: &String| Some(columns.column(name)?.to_string());
        let keys: Option<Vec<String>> = keys.iter().map(key).collect();
        Some(format!("{results} by {}", keys?.join(", ")))
    });
    known.unwrap_or_default()
}

/// The steps of a graph, as its manifests list them.
pub fn steps(graph: &JobGraph) -> Vec<ManifestStep> {
    let of_vertex = |vertex: &JobVertex| {
        let steps = vertex.operators.iter().map(|operator| {
            let spec = OperatorSpec::from_json(&operator.spec);
            ManifestStep {
                uid: uid(operator).to_owned(),
                name: operator.name.clone(),
                kind: spec.map_or_else(|_| String::new(), |spec| spec.kind().to_owned()),
                vertex_id: vertex.id.clone(),
                parallelism: vertex.parallelism,
                max_parallelism: vertex.max_parallelism,
                keyed: keyed_state(operator),
            }
        });
        steps.collect::<Vec<_>>()
    };
    graph.vertices.iter().flat_map(of_vertex).collect()
}

#[cfg(test)]
mod tests;
