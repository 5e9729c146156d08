//! Random job graphs: up to five vertices of up to three subtasks, in two slot sharing groups, with any edges
//! to later vertices, pipelined or blocking. Half of them state resources.

use proptest::prelude::*;
use tanist_model::blocking_edges_within_regions;
use tanist_proto::v1 as pb;

use crate::core::tests::testing::graph_of;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A randomly chosen edge.
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
    let graphs = (vertices, edges).prop_map(|(vertices, edges)| graph(&vertices, &edges));
    let graphs = prop_oneof![4 => graphs, 1 => read_beside_files()];
    (graphs, any::<bool>()).prop_map(|(graph, states_resources)| match states_resources {
        true => with_resources(graph),
        false => graph,
    })
}

/// The second vertex is read by one that is in a region with the first, and by another one. So a single
/// subtask of the first may run again after all had finished.
fn read_beside_files() -> impl Strategy<Value = pb::JobGraph> {
    let groups = prop::collection::vec(any::<bool>(), 4);
    (2u32..=3, groups).prop_map(|(parallelism, groups)| {
        let vertices: Vec<(u32, bool)> = groups.into_iter().map(|it| (parallelism, it)).collect();
        let drawn = |ends| match ends {
            (0, 2) => Drawn::Pipelined,
            (1, 2 | 3) => Drawn::Blocking,
            _ => Drawn::None,
        };
        let edges = pairs(vertices.len()).map(|ends| (drawn(ends), true));
        graph(&vertices, &edges.collect::<Vec<_>>())
    })
}

/// Each subtask needs a core, so the slots of the two groups differ if these have different numbers of
/// vertices.
fn with_resources(mut graph: pb::JobGraph) -> pb::JobGraph {
    for vertex in &mut graph.vertices {
        vertex.resources = Some(pb::ResourceProfile {
            cpu_cores: 1.0,
            ..pb::ResourceProfile::default()
        });
    }
    graph
}

/// All pairs of a vertex and a later one, in the order of the drawn edges.
fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(|target| (0..target).map(move |source| (source, target)))
}

fn graph(vertices: &[(u32, bool)], edges: &[(Drawn, bool)]) -> pb::JobGraph {
    let named: Vec<(&str, u32)> = NAMES
        .into_iter()
        .zip(vertices.iter().map(|it| it.0))
        .collect();
    let chosen: Vec<((usize, usize), (Drawn, bool))> = pairs(vertices.len())
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
    // No vertex of a region may wait for the end of another one in it.
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
