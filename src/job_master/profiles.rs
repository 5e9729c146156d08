//! What the slots of a job have to have: by slot sharing group, how many of each are needed, and which regions can be served.

use std::collections::BTreeMap;

use tanist_proto::id::AllocationId;
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;

use super::core::JobMasterCore;
use super::execution_graph::{ExecutionGraph, Vertex};
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
    profiles
}

impl ExecutionGraph {
    /// What the slot of a key has.
    pub fn profile_of(&self, key: SlotKey) -> &ResourceProfile {
        &self.profiles[key.group]
    }

    /// What the slots that are needed have, and how many of each. Asked after each event.
    pub fn profiles_needed(&self) -> Vec<(ResourceProfile, u32)> {
        self.by_profile(self.slots_needed_of_groups())
    }

    /// So many slots of each group, by what they have.
    pub(super) fn by_profile(&self, of_groups: Vec<u32>) -> Vec<(ResourceProfile, u32)> {
        let mut needed: Vec<(ResourceProfile, u32)> = Vec::with_capacity(1);
        let of_groups = self.profiles.iter().zip(of_groups);
        for (profile, number) in of_groups.filter(|(_, number)| *number > 0) {
            match needed.iter_mut().find(|(it, _)| it == profile) {
                Some((_, there)) => *there += number,
                None => needed.push((profile.clone(), number)),
            }
        }
        needed
    }
}

impl JobMasterCore {
    /// Slots for all tasks of a region, if there are enough.
    pub(super) fn assignment(&self, region: usize) -> Option<BTreeMap<SlotKey, AllocationId>> {
        let wanted = &self.execution.regions[region].slots;
        let (taken, blocked) = (self.taken_slots(), self.blocked_slots());
        let profiles = &self.execution.profiles;
        self.pool.assign(wanted, profiles, &taken, &blocked)
    }

    /// Why a region that waits will never get its slots, if that is known.
    pub(super) fn never_served(&self, region: usize) -> Option<&Unfulfillable> {
        let verdict = self.unfulfillable.as_ref()?;
        let mut slots = self.execution.regions[region].slots.iter();
        let is_meant = slots.any(|key| *self.execution.profile_of(*key) == verdict.profile);
        let waits = self.is_consumable(region) && self.assignment(region).is_none();
        (is_meant && waits).then_some(verdict)
    }
}
