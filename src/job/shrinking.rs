//! Gives back what decoding has set aside for more elements than there are: a list begins with room for four. There may be very many
//! jobs, and whoever decodes many of them after each other gets back what the one before has left over.

use tanist_proto::v1 as pb;

/// Of vertices, operators and columns.
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

/// Of regions, placements and what has happened.
pub fn shrink_state(state: &mut pb::JobState) {
    state.regions.shrink_to_fit();
    for region in &mut state.regions {
        region.placements.shrink_to_fit();
    }
    state.terminal.shrink_to_fit();
    state.statuses.shrink_to_fit();
    state.events.shrink_to_fit();
}
