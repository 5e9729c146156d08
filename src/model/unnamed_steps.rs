//! Finds steps with state that have neither a name nor a uid. A checkpoint identifies the state of such a step by the
//! name of its operator. A changed job with two steps of that operator can't tell whose state it is, so users are
//! warned.

use tanist_proto::v1::JobGraph;

use crate::OperatorSpec;
use crate::operators::StateUse;

/// Names of the steps of a graph that have state, and neither a name nor a uid. Each is that of its operator.
pub fn unnamed_steps(graph: &JobGraph) -> Vec<&str> {
    let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    let unnamed = operators.filter(|operator| {
        operator.uid.is_empty()
            && OperatorSpec::from_json(&operator.spec).is_ok_and(|spec| {
                spec.kind() == operator.name
                    && spec.state() != StateUse::None
                    && !spec.runs_program()
            })
    });
    unnamed.map(|operator| operator.name.as_str()).collect()
}
