//! Finds steps that can't continue from a checkpoint, because no checkpoints are taken of their tasks. A JobMaster
//! starts such a region from the beginning: without this check its state would be dropped without an error, and its
//! sources would read everything again.

use std::collections::BTreeMap;

use tanist_proto::v1::{Exchange, JobGraph};

use super::saved::{Saved, SavedStep};
use crate::OperatorSpec;
use crate::job_graph::shown;
use crate::operators::StateUse;
use crate::topology::{region_of, uid};

/// The steps with state whose tasks take no part in checkpoints in this graph, so that they would begin from the start.
pub(super) fn left_out(saved: &Saved<'_>, graph: &JobGraph) -> Vec<String> {
    let regions = region_of(graph);
    let mut reasons: BTreeMap<usize, String> = BTreeMap::new();
    for (vertex, region) in graph.vertices.iter().zip(&regions) {
        let is_at_blocking_edge = graph.edges.iter().any(|edge| {
            edge.exchange() == Exchange::Blocking
                && (edge.source == vertex.id || edge.target == vertex.id)
        });
        let mut operators = vertex.operators.iter();
        let not_saved = operators.find_map(|operator| {
            let spec = OperatorSpec::from_json(&operator.spec).ok()?;
            match spec.declaration().state() {
                StateUse::NotSaved(why) => Some(format!("{}: {why}", operator.name)),
                StateUse::None | StateUse::Saved => None,
            }
        });
        let blocking =
            is_at_blocking_edge.then(|| format!("{} is at a blocking edge", vertex.name));
        if let Some(reason) = not_saved.or(blocking) {
            reasons.entry(*region).or_insert(reason);
        }
    }
    let mut problems = Vec::new();
    for (vertex, region) in graph.vertices.iter().zip(&regions) {
        let Some(reason) = reasons.get(region) else {
            continue;
        };
        let restored = vertex.operators.iter().map(uid);
        for uid in restored.filter(|uid| saved.steps.get(uid).is_some_and(SavedStep::has_state)) {
            problems.push(format!(
                "step {} has state, and would begin from the start: no checkpoint is taken of its tasks ({reason})",
                shown(uid)
            ));
        }
    }
    problems
}
