//! Job graphs at random: up to five vertices of up to three subtasks, in two slot sharing groups, with any edges from one to a
//! later one, pipelined or blocking.

use proptest::prelude::*;
use tanist_proto::v1 as pb;

use crate::job::blocking_edges_within_regions;
use crate::job_master::testing::graph_of;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// An edge as it is drawn.
#[derive(Debug, Clone, Copy)]
enum Drawn {
    None,
    Pipelined,
    Blocking,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    prop_oneof![
        3 => Just(Drawn::None),
        1 => Just(Drawn::Pipelined),
        1 => Just(Drawn::Blocking),
    ]
}

pub(super) fn any_graph() -> impl Strategy<Value = pb::JobGraph> {
    let vertices = prop::collection::vec((1u32..=3, any::<bool>()), 1..=NAMES.len());
    // One for each pair of two vertices, forward or not.
    let edges = prop::collection::vec((drawn(), any::<bool>()), 10);
    (vertices, edges).prop_map(|(vertices, edges)| graph(&vertices, &edges))
}

fn graph(vertices: &[(u32, bool)], edges: &[(Drawn, bool)]) -> pb::JobGraph {
    let named: Vec<(&str, u32)> = NAMES
        .into_iter()
        .zip(vertices.iter().map(|it| it.0))
        .collect();
    let pairs =
        (0..vertices.len()).flat_map(|target| (0..target).map(move |source| (source, target)));
    let chosen: Vec<((usize, usize), (Drawn, bool))> = pairs
        .zip(edges.iter().copied())
        .filter(|(_, (drawn, _))| !matches!(drawn, Drawn::None))
        .collect();
    let ends: Vec<(usize, usize)> = chosen.iter().map(|(ends, _)| *ends).collect();
    let mut graph = graph_of(&named, &ends);
    for (vertex, (_, is_other_group)) in graph.vertices.iter_mut().zip(vertices) {
        if *is_other_group {
            "other".clone_into(&mut vertex.slot_sharing_group);
        }
    }
    for (edge, ((source, target), (drawn, is_forward))) in graph.edges.iter_mut().zip(chosen) {
        if is_forward && vertices[source].0 == vertices[target].0 {
            edge.set_partitioning(pb::Partitioning::Forward);
        }
        if matches!(drawn, Drawn::Blocking) {
            edge.set_exchange(pb::Exchange::Blocking);
        }
    }
    // Within what runs together nothing waits for the end of something.
    loop {
        let within = blocking_edges_within_regions(&graph);
        let within: Vec<pb::JobEdge> = within.into_iter().cloned().collect();
        if within.is_empty() {
            return graph;
        }
        for edge in graph.edges.iter_mut().filter(|edge| within.contains(edge)) {
            edge.set_exchange(pb::Exchange::Pipelined);
        }
    }
}
