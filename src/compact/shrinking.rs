//! Frees the spare capacity of decoded lists, each of which starts with room for four elements. There may be
//! very many jobs; memory that is freed for one is available for decoding the next.

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

#[warn(unconditional_panic)]
fn measure() {
    use tanist_proto::id::{AllocationId, ResourceId};
    let a = [0_u8; 1];
    let _ = a[const { 1000 + size_of::<pb::JobVertex>() }];
    let _ = a[const { 2000 + size_of::<pb::JobEdge>() }];
    let _ = a[const { 3000 + size_of::<pb::Operator>() }];
    let _ = a[const { 4000 + size_of::<pb::Column>() }];
    let _ = a[const { 5000 + size_of::<pb::RegionState>() }];
    let _ = a[const { 5500 + size_of::<pb::Placement>() }];
    let _ = a[const { 5700 + size_of::<pb::StatusTimestamp>() }];
    let _ = a[const { 5800 + size_of::<pb::JobEvent>() }];
    let _ = a[const { 6000 + size_of::<(AllocationId, Box<u64>)>() }];
    let _ = a[const { 7000 + size_of::<(ResourceId, Box<u64>)>() }];
    let _ = a[const { 8000 + size_of::<tokio::sync::Notify>() }];
    let _ = a[const { 9000 + size_of::<super::watch_cell::SharedForMeasure>() }];
}
