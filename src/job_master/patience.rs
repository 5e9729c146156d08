//! The part of the core that knows which slots a region has to have before it can start, and how long it waits for them
//! (`docs/adr/0021`).
//!
//! A job needs at once what its tasks are in, and what the next region that waits lacks; all else that could run is welcome. A region
//! needs nothing at once that it will find in slots which the job has: those that nothing is in, and those of regions that end by
//! themselves. While such regions hold slots that it could use, the time that it may wait does not pass. Slots that are too few
//! for any region that waits go back when they have idled: else two jobs could hold what each of them lacks.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::resources::ResourceProfile;

use super::core::JobMasterCore;
use super::execution_graph::RegionPhase;
use super::slot_pool::SlotKey;

/// Since when nobody holds slots any more that a region could use and that will be free.
#[derive(Debug, Clone, Default)]
pub(super) struct Patience(BTreeMap<usize, u64>);

impl Patience {
    /// For a region that waits. Zero: nobody ever did.
    pub(super) fn from_ms(&self, region: usize) -> u64 {
        self.0.get(&region).copied().unwrap_or_default()
    }
}

impl JobMasterCore {
    /// Until this moment it was as it is. To be called before anything changes.
    pub(super) fn note_patience(&mut self, now_ms: u64) {
        let ending = self.held_by_ending_regions();
        let waiting = (0..self.execution.regions.len()).filter(|region| self.waits(*region));
        let patient: Vec<usize> = waiting
            .filter(|region| self.could_use(*region, &ending))
            .collect();
        self.patience.0.retain(|region, _| {
            let phase = self.execution.regions[*region].phase;
            matches!(phase, RegionPhase::Waiting { .. })
        });
        self.patience
            .0
            .extend(patient.into_iter().map(|region| (region, now_ms)));
    }

    fn waits(&self, region: usize) -> bool {
        let phase = self.execution.regions[region].phase;
        matches!(phase, RegionPhase::Waiting { .. })
    }

    /// The slot sharing groups in whose slots regions are that end by themselves.
    pub(super) fn held_by_ending_regions(&self) -> BTreeSet<usize> {
        let mut groups = BTreeSet::new();
        if self.execution.regions.len() == 1 {
            return groups;
        }
        for region in &self.execution.regions {
            let is_placed = matches!(region.phase, RegionPhase::Placed | RegionPhase::Deployed);
            if !is_placed || !self.will_end(region.is_bounded) {
                continue;
            }
            let live = region.tasks.iter().filter(|task| {
                let execution = &self.execution.tasks[**task].execution;
                !execution.is_ended()
            });
            groups.extend(live.map(|task| self.execution.slot_key(*task).group));
        }
        groups
    }

    /// Sources end once they were told to.
    fn will_end(&self, is_bounded: bool) -> bool {
        is_bounded || self.tells_to_stop()
    }

    /// Whether a region could use a slot of one of these groups.
    pub(super) fn could_use(&self, region: usize, groups: &BTreeSet<usize>) -> bool {
        if groups.is_empty() {
            return false;
        }
        let profiles = &self.execution.profiles;
        let mut slots = self.execution.regions[region].slots.iter();
        slots.any(|key| {
            let wanted = &profiles[key.group];
            groups.iter().any(|held| profiles[*held].is_matching(wanted))
        })
    }

    /// How many slots of each profile the job has to have before it can begin anything more.
    pub(super) fn needed_at_once(&self) -> Vec<(ResourceProfile, u32)> {
        if self.execution.regions.len() == 1 {
            return self.profiles_needed.clone();
        }
        let next = self.next_without_slots();
        let of_next = next.iter().flat_map(|region| {
            let tasks = &self.execution.regions[*region].tasks;
            tasks.iter().copied()
        });
        let tasks = self.in_slots().chain(of_next);
        let counted = self.execution.count_slots(tasks);
        self.execution.by_profile(counted)
    }

    /// The tasks that are in a slot, or will be.
    fn in_slots(&self) -> impl Iterator<Item = usize> {
        let tasks = self.execution.tasks.iter().enumerate();
        let placed = tasks.filter(|(_, task)| {
            let execution = &task.execution;
            execution.place.is_some() && !execution.is_ended()
        });
        placed.map(|(task, _)| task)
    }

    /// The first region that waits for slots, or will when its backoff is over, and does not find them in those that the job has.
    fn next_without_slots(&self) -> Option<usize> {
        let taken = self.taken_slots();
        // What tasks are in that end by themselves comes free.
        let mut staying: BTreeSet<SlotKey> = BTreeSet::new();
        for region in &self.execution.regions {
            let is_placed = matches!(region.phase, RegionPhase::Placed | RegionPhase::Deployed);
            if !is_placed || !self.will_end(region.is_bounded) {
                let slots = region.slots.iter().filter(|key| taken.contains_key(key));
                staying.extend(slots.copied());
            }
        }
        let profiles = &self.execution.profiles;
        let mut free: Vec<(&ResourceProfile, u32)> = Vec::new();
        for wanted in profiles {
            if !free.iter().any(|(it, _)| *it == wanted) {
                let all = self.pool.count_for(wanted);
                let stay = staying.iter();
                let stay = stay.filter(|key| profiles[key.group].is_matching(wanted));
                let stay = u32::try_from(stay.count()).unwrap_or(u32::MAX);
                free.push((wanted, all.saturating_sub(stay)));
            }
        }
        (0..self.execution.regions.len()).find(|index| {
            let region = &self.execution.regions[*index];
            let waits = match region.phase {
                RegionPhase::AwaitingInput => self.execution.could_run(*index),
                RegionPhase::Waiting { .. } => true,
                RegionPhase::Stopping { restart_at_ms } => restart_at_ms.is_some(),
                RegionPhase::Reconciling | RegionPhase::Placed | RegionPhase::Deployed => false,
            };
            waits && {
                let open = region.slots.iter().filter(|key| !staying.contains(key));
                let open: Vec<SlotKey> = open.copied().collect();
                free.iter().any(|(profile, free)| {
                    let wanted = open.iter().filter(|key| profiles[key.group] == **profile);
                    wanted.count() > usize::try_from(*free).unwrap_or(usize::MAX)
                })
            }
        })
    }

    /// The slots that are not given back: all that could be used, or only those that tasks are in, where all others together are too
    /// few for any region that waits. Whoever has but one region keeps them: it waits for what it has lost.
    pub(super) fn worth_keeping(&self) -> Vec<(ResourceProfile, u32)> {
        let regions = self.execution.regions.len();
        // What could be placed has been.
        if regions == 1 || !(0..regions).any(|region| self.waits(region)) {
            return self.profiles_needed.clone();
        }
        let counted = self.execution.count_slots(self.in_slots());
        self.execution.by_profile(counted)
    }
}
