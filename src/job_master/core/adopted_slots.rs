//! The slots in which adopted executions are. The ResourceManager may not know them yet, so declarations name them.
//! Owned by `slots.rs`.
//!
//! Kept by TaskManager, and computed again only where an execution has ended or was given up. Invariant: the
//! entry of a TaskManager that is not stale is correct.

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_compact::{SmallMap, SmallSet};
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::ResourceProfile;

use super::durable_record::DurableRecord;
use super::execution_graph::ExecutionGraph;

/// The profiles of the slots in which adopted executions are, by TaskManager.
pub(super) type Held = SmallMap<ResourceId, Vec<ResourceProfile>>;

/// The slots of adopted executions; see the module.
#[derive(Debug, Default)]
pub(super) struct AdoptedSlots {
    // Shared with the last declaration until it changes.
    held: Arc<Held>,
    /// TaskManagers whose entry has to be computed again.
    stale: SmallSet<ResourceId>,
}

impl AdoptedSlots {
    /// After a recovery: everything that is placed is of an earlier term.
    pub(super) fn recheck_all(&mut self, graph: &ExecutionGraph) {
        let places = graph.indexes().places.iter();
        self.stale = places.map(|(id, _)| id.clone()).collect();
    }

    /// Notes that an execution, which may be an adopted one, has ended or was given up.
    pub(super) fn recheck(&mut self, graph: &ExecutionGraph, task: usize) {
        if let Some(place) = &graph.execution(task).place
            && self.held.contains_key(&place.task_manager)
        {
            self.stale.insert(place.task_manager.clone());
        }
    }

    /// The slots in which adopted executions are.
    pub(super) fn held(&mut self, graph: &ExecutionGraph, record: &DurableRecord) -> Arc<Held> {
        for task_manager in std::mem::take(&mut self.stale) {
            let slots = adopted_on(&task_manager, graph, record);
            let held = Arc::make_mut(&mut self.held);
            match slots.is_empty() {
                true => held.remove(&task_manager),
                false => held.insert(task_manager, slots),
            };
        }
        self.held.clone()
    }
}

/// The profiles of the slots on a TaskManager in which adopted executions are.
fn adopted_on(
    task_manager: &ResourceId,
    graph: &ExecutionGraph,
    record: &DurableRecord,
) -> Vec<ResourceProfile> {
    let mut slots: BTreeMap<AllocationId, &ResourceProfile> = BTreeMap::new();
    for index in graph.live_on(task_manager) {
        let task = graph.task(index);
        let is_adopted = record.is_of_earlier_term(task.region);
        if let Some(place) = task.execution.place.as_ref().filter(|_| is_adopted) {
            let profile = graph.profile_of(graph.slot_key(index));
            slots.insert(place.allocation, profile);
        }
    }
    slots.into_values().cloned().collect()
}
