//! What the slots of a job have to have: by slot sharing group, how many of each are needed, and which regions can be served.

use std::collections::BTreeMap;

use tanist_proto::id::AllocationId;
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::core::JobMasterCore;
use super::execution_graph::{ExecutionGraph, RegionPhase, Vertex, as_index};
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

    /// How many slots are needed for what runs or could, and has not finished.
    pub fn slots_needed(&self) -> usize {
        let of_groups = self.slots_needed_of_groups().into_iter();
        of_groups.map(as_index).sum()
    }

    /// The same by slot sharing group.
    fn slots_needed_of_groups(&self) -> Vec<u32> {
        let regions = self.regions.iter().enumerate();
        let could_run = regions.filter(|(index, _)| self.could_run(*index));
        let tasks = could_run.flat_map(|(_, region)| region.tasks.iter().copied());
        self.count_slots(tasks.filter(|task| !self.has_finished(*task)))
    }

    fn has_finished(&self, task: usize) -> bool {
        self.tasks[task].execution.state == ExecutionState::Finished
    }

    /// Whether a region runs, or waits for nothing but slots. One whose input is complete starts as soon as the record says so.
    pub(super) fn could_run(&self, region: usize) -> bool {
        self.regions[region].phase != RegionPhase::AwaitingInput
            || self.inputs_of(region).all(|task| self.has_finished(task))
    }

    /// How many slots these tasks need, by slot sharing group.
    pub(super) fn count_slots(&self, tasks: impl Iterator<Item = usize>) -> Vec<u32> {
        let all = self.slot_offsets.last().copied().unwrap_or_default();
        let mut is_needed = vec![false; all];
        let mut counts = vec![0; self.profiles.len()];
        for task in tasks {
            let SlotKey { group, index } = self.slot_key(task);
            let seen = &mut is_needed[self.slot_offsets[group] + as_index(index)];
            counts[group] += u32::from(!std::mem::replace(seen, true));
        }
        counts
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
