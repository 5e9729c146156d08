//! What the slots of a job have to have, how many of each are needed, and which regions can never be served.

use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;

use super::blocking::OfVertices;
use super::core::JobMasterCore;
use super::execution_graph::{ExecutionGraph, Vertex, as_index};
use super::slot_pool::SlotKey;
use crate::gateway::Unfulfillable;
use crate::job::resources::slot_profile;

/// What the slots of each slot sharing group have.
pub(super) fn profiles(graph: &pb::JobGraph, vertices: &[Vertex]) -> Vec<ResourceProfile> {
    let mut profiles = Vec::new();
    // Groups are numbered as they come.
    for (vertex, built) in graph.vertices.iter().zip(vertices) {
        if built.group == profiles.len() {
            let group = &vertex.slot_sharing_group;
            profiles.push(slot_profile(graph, group));
        }
    }
    // Most jobs have one.
    profiles.shrink_to_fit();
    profiles
}

impl ExecutionGraph {
    /// What the slot of a key has.
    pub fn profile_of(&self, key: SlotKey) -> &ResourceProfile {
        &self.profiles[key.group]
    }

    /// How many slots are needed for what runs or could, and has not finished.
    pub fn slots_needed(&self) -> usize {
        self.overview.slots.needed().map(as_index).sum()
    }

    /// What the slots that are needed have, and how many of each. Asked after each event.
    pub fn profiles_needed(&self) -> Vec<(ResourceProfile, u32)> {
        self.kinds.by_profile(self.overview.slots.needed())
    }

    /// What the slots have that something is in, or will be, and how many of each.
    pub(super) fn profiles_taken(&self) -> Vec<(ResourceProfile, u32)> {
        let kinds = 0..self.kinds.profiles().len();
        let taken = kinds.map(|kind| self.overview.slots.taken(kind));
        self.kinds.by_profile(taken)
    }

    /// The same if a region was placed, too.
    pub(super) fn profiles_taken_with(&self, region: usize) -> Vec<(ResourceProfile, u32)> {
        let need = &self.overview.regions[region].need;
        let more = need.of_kinds.iter().enumerate();
        let with = more.map(|(kind, more)| self.overview.slots.taken(kind) + more);
        self.kinds.by_profile(with)
    }
}

impl JobMasterCore {
    /// The regions of these that will never get their slots, and why, if that is known.
    pub(super) fn never_served(&self, regions: &[usize]) -> Vec<(usize, &Unfulfillable)> {
        let Some(verdict) = self.unfulfillable.as_deref() else {
            return Vec::new();
        };
        let (mut known, mut assignment) = (OfVertices::default(), None);
        let is_never = |region: &usize| {
            let wanted = &self.execution.regions[*region].slots;
            let is_of_it = |key: &SlotKey| *self.execution.profile_of(*key) == verdict.profile;
            if !wanted.iter().any(is_of_it) || !self.is_consumable(*region, &mut known) {
                return false;
            }
            let assignment = assignment.get_or_insert_with(|| self.slot_assignment());
            assignment.assign(&self.pool, wanted).is_none()
        };
        let never = regions.iter().copied().filter(is_never);
        never.map(|region| (region, verdict)).collect()
    }
}
