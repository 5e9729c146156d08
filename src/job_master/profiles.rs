//! What the slots of a job have to have: by slot sharing group, how many of each are needed, and which regions can be served.

use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::blocking::OfVertices;
use super::core::JobMasterCore;
use super::execution_graph::{ExecutionGraph, RegionPhase, Vertex, as_index};
use super::slot_assignment::SlotAssignment;
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

/// A set of a graph's slot keys.
#[derive(Debug)]
pub(super) struct SlotKeys<'a> {
    offsets: &'a [usize],
    has: Vec<bool>,
}

impl SlotKeys<'_> {
    fn number(&self, key: SlotKey) -> usize {
        self.offsets[key.group] + as_index(key.index)
    }

    /// Adds a key. Whether it was not there.
    pub(super) fn insert(&mut self, key: SlotKey) -> bool {
        let number = self.number(key);
        !std::mem::replace(&mut self.has[number], true)
    }

    /// Whether a key is there.
    pub(super) fn contains(&self, key: SlotKey) -> bool {
        self.has[self.number(key)]
    }
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
        let mut known = OfVertices::default();
        let regions = self.regions.iter().enumerate();
        let could_run = regions.filter(|(index, _)| self.could_run_by(*index, &mut known));
        let tasks = could_run.flat_map(|(_, region)| region.tasks.iter().copied());
        self.count_slots(tasks.filter(|task| !self.has_finished(*task)))
    }

    fn has_finished(&self, task: usize) -> bool {
        self.tasks[task].execution.state == ExecutionState::Finished
    }

    /// Whether a region runs, or waits for nothing but slots. One whose input is complete starts as soon as the record says so.
    pub(super) fn could_run(&self, region: usize) -> bool {
        self.could_run_by(region, &mut OfVertices::default())
    }

    fn could_run_by(&self, region: usize, known: &mut OfVertices) -> bool {
        self.regions[region].phase != RegionPhase::AwaitingInput
            || self.reads_only(region, known, |task| self.has_finished(task))
    }

    /// How many slots these tasks need, by slot sharing group.
    pub(super) fn count_slots(&self, tasks: impl Iterator<Item = usize>) -> Vec<u32> {
        let (mut seen, mut counts) = (self.no_keys(), vec![0; self.profiles.len()]);
        for task in tasks {
            let key = self.slot_key(task);
            counts[key.group] += u32::from(seen.insert(key));
        }
        counts
    }

    /// A set of keys, without any.
    pub(super) fn no_keys(&self) -> SlotKeys<'_> {
        let all = self.slot_offsets.last().copied().unwrap_or_default();
        SlotKeys {
            offsets: &self.slot_offsets,
            has: vec![false; all],
        }
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
    /// From which regions get slots, as the pool and what runs are at present.
    pub(super) fn slot_assignment(&self) -> SlotAssignment {
        let (taken, blocked) = (self.taken_slots(), self.blocked_slots());
        SlotAssignment::new(&self.pool, &self.execution.profiles, taken, blocked)
    }

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
