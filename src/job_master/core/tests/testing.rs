//! Graphs and states for this folder's tests.

use tanist_proto::v1 as pb;

/// A graph of vertices (name, parallelism) in one slot sharing group, joined by hash edges between their indices.
pub(crate) fn graph_of(vertices: &[(&str, u32)], edges: &[(usize, usize)]) -> pb::JobGraph {
    let id = |index: usize| format!("{:032x}", index + 1);
    pb::JobGraph {
        job_id: format!("{:032x}", 7),
        name: "test".to_owned(),
        vertices: vertices
            .iter()
            .enumerate()
            .map(|(index, (name, parallelism))| pb::JobVertex {
                id: id(index),
                name: (*name).to_owned(),
                operators: Vec::new(),
                parallelism: *parallelism,
                max_parallelism: 128,
                slot_sharing_group: "default".to_owned(),
                ..pb::JobVertex::default()
            })
            .collect(),
        edges: edges
            .iter()
            .map(|(source, target)| pb::JobEdge {
                exchange: 0,
                source: id(*source),
                target: id(*target),
                partitioning: pb::Partitioning::Hash.into(),
                key_columns: Vec::new(),
            })
            .collect(),
        options: None,
        artifacts: Vec::new(),
        slot_sharing_groups: Vec::new(),
        run: String::new(),
    }
}

/// A graph of separate regions with these parallelisms, each in slots of its own.
pub(crate) fn apart(parallelisms: &[u32]) -> pb::JobGraph {
    let names = ["a", "b", "c", "d", "e"];
    let vertices: Vec<(&str, u32)> = names
        .into_iter()
        .zip(parallelisms.iter().copied())
        .collect();
    let mut graph = graph_of(&vertices, &[]);
    for vertex in &mut graph.vertices {
        vertex.slot_sharing_group = vertex.name.clone();
    }
    graph
}

/// What is stored before anything was placed of a job that is allowed no more regions than sets of vertices.
pub(crate) fn submitted_whole(graph: &pb::JobGraph) -> pb::JobState {
    let count = tanist_model::count_regions(graph, 1);
    pb::JobState {
        regions: vec![pb::RegionState::default(); count],
        ..submitted(graph)
    }
}

/// The state that a submission of `graph` stores.
pub(crate) fn submitted(graph: &pb::JobGraph) -> pb::JobState {
    pb::JobState {
        job_id: graph.job_id.clone(),
        name: graph.name.clone(),
        submitted_at_ms: 1,
        submission_token: "token".to_owned(),
        ..pb::JobState::default()
    }
}
