//! What follows from the shape of a JobGraph: its regions, the slots that it needs, who feeds whom. Functions of a valid
//! graph; on any other they answer something and never panic.

use std::collections::HashMap;
use std::ops::Range;

use tanist_proto::id::JobVertexId;
use tanist_proto::v1::{JobEdge, JobGraph, JobVertex, Partitioning};

/// The pipelined regions: vertices that run, fail and restart together. All edges are pipelined, so these are the
/// connected parts of the graph. Regions and the vertices in them stand in topological order.
pub fn regions(graph: &JobGraph) -> Vec<Vec<JobVertexId>> {
    let index_of: HashMap<&str, usize> = index_of(graph);
    // Union-find: each vertex points towards the first of its region.
    let mut first: Vec<usize> = (0..graph.vertices.len()).collect();
    fn find(first: &mut [usize], mut vertex: usize) -> usize {
        while first[vertex] != vertex {
            first[vertex] = first[first[vertex]];
            vertex = first[vertex];
        }
        vertex
    }
    for edge in &graph.edges {
        let ends = index_of
            .get(edge.source.as_str())
            .zip(index_of.get(edge.target.as_str()));
        if let Some((&source, &target)) = ends {
            let (source, target) = (find(&mut first, source), find(&mut first, target));
            first[source.max(target)] = source.min(target);
        }
    }
    let mut regions: Vec<Vec<JobVertexId>> = Vec::new();
    let mut region_of: HashMap<usize, usize> = HashMap::new();
    for (index, vertex) in graph.vertices.iter().enumerate() {
        let Ok(id) = vertex.id.parse() else { continue };
        let region = *region_of.entry(find(&mut first, index)).or_insert_with(|| {
            regions.push(Vec::new());
            regions.len() - 1
        });
        regions[region].push(id);
    }
    regions
}

/// How many slots run the whole graph: subtasks of one vertex need a slot each, those of different vertices in a slot
/// sharing group share.
pub fn slots_needed(graph: &JobGraph) -> u32 {
    let mut groups: HashMap<&str, u32> = HashMap::new();
    for vertex in &graph.vertices {
        let largest = groups.entry(&vertex.slot_sharing_group).or_default();
        *largest = (*largest).max(vertex.parallelism);
    }
    groups.into_values().fold(0, u32::saturating_add)
}

/// The vertex with this id.
pub fn vertex(graph: &JobGraph, id: JobVertexId) -> Option<&JobVertex> {
    let id = id.to_string();
    graph.vertices.iter().find(|vertex| vertex.id == id)
}

/// The edges that a vertex reads.
pub fn edges_into(graph: &JobGraph, vertex: JobVertexId) -> impl Iterator<Item = &JobEdge> {
    let vertex = vertex.to_string();
    graph.edges.iter().filter(move |edge| edge.target == vertex)
}

/// The edges that a vertex writes.
pub fn edges_out_of(graph: &JobGraph, vertex: JobVertexId) -> impl Iterator<Item = &JobEdge> {
    let vertex = vertex.to_string();
    graph.edges.iter().filter(move |edge| edge.source == vertex)
}

/// The subtasks of the edge's source that have a channel to this subtask of its target. Along a global edge too: there,
/// all but subtask 0 get nothing but the end.
pub fn feeding_subtasks(graph: &JobGraph, edge: &JobEdge, target_subtask: u32) -> Range<u32> {
    connected(edge, target_subtask, parallelism(graph, &edge.source))
}

/// The subtasks of the edge's target that have a channel from this subtask of its source.
pub fn fed_subtasks(graph: &JobGraph, edge: &JobEdge, source_subtask: u32) -> Range<u32> {
    connected(edge, source_subtask, parallelism(graph, &edge.target))
}

fn connected(edge: &JobEdge, subtask: u32, others: u32) -> Range<u32> {
    match edge.partitioning() {
        Partitioning::Forward if subtask < others => subtask..subtask + 1,
        Partitioning::Forward => 0..0,
        Partitioning::Unspecified
        | Partitioning::Hash
        | Partitioning::Rebalance
        | Partitioning::Broadcast
        | Partitioning::Global => 0..others,
    }
}

fn parallelism(graph: &JobGraph, vertex: &str) -> u32 {
    let vertex = graph
        .vertices
        .iter()
        .find(|candidate| candidate.id == vertex);
    vertex.map_or(0, |vertex| vertex.parallelism)
}

fn index_of(graph: &JobGraph) -> HashMap<&str, usize> {
    graph
        .vertices
        .iter()
        .enumerate()
        .map(|(index, vertex)| (vertex.id.as_str(), index))
        .collect()
}
