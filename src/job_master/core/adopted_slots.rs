//! The part of the core that tells the ResourceManager which slots adopted executions are in, as it may not
//! know them yet.
//!
//! Kept by TaskManager, and computed again only where an execution has ended or was given up. Invariant: the
//! entry of a TaskManager that is not stale is correct.

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_compact::{SmallMap, SmallSet};
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::ResourceProfile;

use super::JobMasterCore;
use super::execution_graph::ExecutionGraph;

/// The profiles of the slots in which adopted executions are, by TaskManager.
pub type Held = SmallMap<ResourceId, Vec<ResourceProfile>>;

/// The slots of adopted executions; see the module.
#[derive(Debug, Default)]
pub(super) struct AdoptedSlots {
    // Shared with the last declaration until it changes.
    held: Arc<Held>,
    /// TaskManagers whose entry has to be computed again.
    stale: SmallSet<ResourceId>,
}

impl AdoptedSlots {
    /// Notes that an execution, which may be an adopted one, has ended or was given up.
    pub(super) fn recheck(&mut self, graph: &ExecutionGraph, task: usize) {
        if let Some(place) = &graph.tasks[task].execution.place
            && self.held.contains_key(&place.task_manager)
        {
            self.stale.insert(place.task_manager.clone());
        }
    }
}

impl JobMasterCore {
    /// After a recovery: everything that the record places is of an earlier term.
    pub(super) fn note_adopted_slots(&mut self) {
        let places = self.execution.indexes.places.iter();
        self.adopted_slots.stale = places.map(|(id, _)| id.clone()).collect();
    }

    /// The slots in which adopted executions are.
    pub(super) fn adopted_slots(&mut self) -> Arc<Held> {
        for task_manager in std::mem::take(&mut self.adopted_slots.stale) {
            let slots = self.adopted_slots_on(&task_manager);
            let held = Arc::make_mut(&mut self.adopted_slots.held);
            match slots.is_empty() {
                true => held.remove(&task_manager),
                false => held.insert(task_manager, slots),
            };
        }
        self.adopted_slots.held.clone()
    }

    fn adopted_slots_on(&self, task_manager: &ResourceId) -> Vec<ResourceProfile> {
        let mut slots: BTreeMap<AllocationId, &ResourceProfile> = BTreeMap::new();
        for index in self.execution.live_on(task_manager) {
            let task = &self.execution.tasks[index];
            let is_adopted = self.record.is_of_earlier_term(task.region);
            if let Some(place) = task.execution.place.as_ref().filter(|_| is_adopted) {
                let profile = self.execution.profile_of(self.execution.slot_key(index));
                slots.insert(place.allocation, profile);
            }
        }
        slots.into_values().cloned().collect()
    }
}
