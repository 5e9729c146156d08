//! Whether the input of a vertex ends by itself: true if all its sources do, its own and those of the vertices
//! upstream. Also when a file sink makes its output visible, which follows from the sources.

use std::collections::{HashMap, HashSet};

use tanist_proto::id::JobVertexId;
use tanist_proto::v1::JobGraph;

use crate::OperatorSpec;
use crate::operators::{Commit, FileSink};

/// Whether the input of a vertex ends; see the module. An unknown source counts as ending.
pub fn input_ends(graph: &JobGraph, vertex: JobVertexId) -> bool {
    let mut sources_of: HashMap<&str, Vec<&str>> = HashMap::new();
    for edge in &graph.edges {
        sources_of
            .entry(&edge.target)
            .or_default()
            .push(&edge.source);
    }
    let vertex = vertex.to_string();
    let mut feeding: HashSet<&str> = HashSet::from([vertex.as_str()]);
    let mut ahead = vec![vertex.as_str()];
    while let Some(vertex) = ahead.pop() {
        let sources = sources_of.get(vertex).into_iter().flatten();
        ahead.extend(sources.filter(|source| feeding.insert(source)));
    }
    let operators = graph.vertices.iter();
    let operators = operators.filter(|vertex| feeding.contains(vertex.id.as_str()));
    let mut specs = operators
        .flat_map(|vertex| &vertex.operators)
        .flat_map(|operator| OperatorSpec::from_json(&operator.spec));
    !specs.any(|spec| spec.is_source() && !spec.is_bounded_source())
}

/// When the parts of a file sink of this graph become visible, if checkpoints are taken of its tasks. Without a
/// statement of the sink: with checkpoints if any source of the job is unbounded, else at the end.
pub fn commit_of(sink: &FileSink, graph: &JobGraph) -> Commit {
    sink.commit.unwrap_or_else(|| default_commit(graph))
}

/// The same for a sink without a statement. Parses the specifications of all operators.
pub(crate) fn default_commit(graph: &JobGraph) -> Commit {
    let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    let mut specs = operators.flat_map(|operator| OperatorSpec::from_json(&operator.spec));
    match specs.any(|spec| spec.is_source() && !spec.is_bounded_source()) {
        true => Commit::Checkpoint,
        false => Commit::End,
    }
}
