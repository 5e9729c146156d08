//! Whether the input of a vertex ends by itself: true if all its sources do, its own and those of the vertices
//! upstream.

use std::collections::{HashMap, HashSet};

use tanist_proto::id::JobVertexId;
use tanist_proto::v1::JobGraph;

use super::OperatorSpec;

/// Whether the input of a vertex ends; see the module. An unknown source counts as ending.
pub(crate) fn input_ends(graph: &JobGraph, vertex: JobVertexId) -> bool {
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

#[cfg(test)]
mod tests {
    use super::super::{CompileOptions, JobBuilder};
    use super::*;

    #[test]
    fn what_an_endless_source_feeds_over_whatever_edges_does_not_end() {
        let ends = |count| {
            let job = JobBuilder::new("job").parallelism(2);
            let job = job.datagen("numbers", None, count, 1, 10);
            let job = job.key_by("by-key", ["key"]).count("counted");
            let graph = job.discard("out").build();
            let graph = graph.compile(&CompileOptions::default());
            let graph = graph.expect("the job is valid");
            assert!(graph.vertices.len() > 1, "the last one has an edge");
            let vertices = graph.vertices.iter();
            let ids = vertices.map(|vertex| vertex.id.parse().expect("it is an id"));
            ids.map(|id| input_ends(&graph, id)).collect::<Vec<bool>>()
        };
        assert!(ends(Some(5)).into_iter().all(|ends| ends));
        assert!(!ends(None).into_iter().any(|ends| ends));
    }
}
