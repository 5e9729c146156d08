//! Frees the spare capacity of decoded lists, each of which starts with room for four elements. A leader decodes the
//! records of thousands of jobs one after the other: what is freed of one is used for decoding the next.

use tanist_proto::v1 as pb;

/// Shrinks the lists of vertices, operators and columns.
pub fn shrink_graph(graph: &mut pb::JobGraph) {
    graph.vertices.shrink_to_fit();
    graph.edges.shrink_to_fit();
    for vertex in &mut graph.vertices {
        vertex.operators.shrink_to_fit();
        for operator in &mut vertex.operators {
            operator.output.shrink_to_fit();
        }
    }
}

/// Shrinks the lists of regions, placements and events.
pub fn shrink_state(state: &mut pb::JobState) {
    state.regions.shrink_to_fit();
    for region in &mut state.regions {
        region.placements.shrink_to_fit();
    }
    state.terminal.shrink_to_fit();
    state.statuses.shrink_to_fit();
    state.events.shrink_to_fit();
}
