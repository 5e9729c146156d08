//! The resource profiles of a job's slots: how many slots of each profile are needed and taken. Reads `slot_uses.rs`.

use tanist_model::resources::slot_profile;
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;

use super::{ExecutionGraph, Vertex, as_index};
use crate::core::slot_assignment::Assigned;
use crate::core::slot_pool::SlotKey;

/// The slot profile of each slot sharing group.
pub(super) fn profiles(graph: &pb::JobGraph, vertices: &[Vertex]) -> Vec<ResourceProfile> {
    let mut profiles = Vec::new();
    // Groups are numbered in the order of their first vertex.
    for (vertex, built) in graph.vertices.iter().zip(vertices) {
        if built.group == profiles.len() {
            let group = &vertex.slot_sharing_group;
            profiles.push(slot_profile(graph, group));
        }
    }
    // Saves memory: most jobs have one.
    profiles.shrink_to_fit();
    profiles
}

impl ExecutionGraph {
    /// The profile of a key's slot.
    pub(crate) fn profile_of(&self, key: SlotKey) -> &ResourceProfile {
        &self.profiles[key.group]
    }

    /// Number of slots needed for unfinished tasks of regions that run or could run.
    pub(crate) fn slots_needed(&self) -> usize {
        self.indexes.slots.needed().map(as_index).sum()
    }

    /// The needed slots by profile. Called after each event.
    pub(crate) fn profiles_needed(&self) -> Vec<(ResourceProfile, u32)> {
        self.kinds.by_profile(self.indexes.slots.needed())
    }

    /// The slots that tasks are in or will be, by profile.
    pub(crate) fn profiles_taken(&self) -> Vec<(ResourceProfile, u32)> {
        let kinds = 0..self.kinds.profiles().len();
        let taken = kinds.map(|kind| self.indexes.slots.taken(kind));
        self.kinds.by_profile(taken)
    }

    /// The slots in which executions of the job are or will be.
    pub(crate) fn taken_slots(&self) -> Assigned {
        let mut taken = Assigned::new();
        for (task, at) in self.tasks.iter().enumerate() {
            if let Some(place) = at
                .execution
                .place
                .as_ref()
                .filter(|_| !at.execution.is_ended())
            {
                taken.insert(self.slot_key(task), place.allocation);
            }
        }
        taken
    }

    /// The taken slots by profile, plus those that a region still needs.
    pub(crate) fn profiles_taken_with(&self, region: usize) -> Vec<(ResourceProfile, u32)> {
        let need = &self.indexes.regions[region].need;
        let more = need.of_kinds.iter().enumerate();
        let with = more.map(|(kind, more)| self.indexes.slots.taken(kind) + more);
        self.kinds.by_profile(with)
    }
}
