//! The part of the core that knows which slots a region has to have before it can start, and how long it waits for them
//! (`docs/adr/0022`).
//!
//! A job needs at once what its tasks are in, and what the next region that waits lacks; all else that could run is welcome. A region
//! needs nothing at once that it will find in slots which the job has: those that nothing is in, and those of regions that end by
//! themselves. While such a region runs, the time that others may wait does not begin. Slots that are too few for any region that
//! waits go back when they have idled: else two jobs could hold what each of them lacks.

use std::collections::BTreeSet;

use tanist_proto::resources::ResourceProfile;

use super::core::JobMasterCore;
use super::execution_graph::{Region, RegionPhase};
use super::slot_pool::SlotKey;

/// Since when what waits for slots waits in earnest.
#[derive(Debug, Clone, Default)]
pub(super) struct Patience {
    /// The last moment at which a region ran that ends by itself.
    pub(super) from_ms: u64,
    /// How many slots there were after the last event.
    slots: usize,
}

impl JobMasterCore {
    /// Until this moment it was as it is. To be called before anything changes.
    pub(super) fn note_patience(&mut self, now_ms: u64) {
        self.patience.slots = self.pool.len();
        if self.is_patient() {
            self.patience.from_ms = now_ms;
        }
    }

    fn waits(&self, region: usize) -> bool {
        let phase = self.execution.regions[region].phase;
        matches!(phase, RegionPhase::Waiting { .. })
    }

    /// Whether a region runs that ends by itself, and leaves its slots to others, or room for theirs.
    pub(super) fn is_patient(&self) -> bool {
        let regions = &self.execution.regions;
        let is_live = |task: &usize| !self.execution.tasks[*task].execution.is_ended();
        let ends = |region: &Region| {
            let is_placed = matches!(region.phase, RegionPhase::Placed | RegionPhase::Deployed);
            is_placed && self.will_end(region.is_bounded) && region.tasks.iter().any(is_live)
        };
        regions.len() > 1 && regions.iter().any(ends)
    }

    /// Sources end once they were told to.
    fn will_end(&self, is_bounded: bool) -> bool {
        is_bounded || self.tells_to_stop()
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
        let waits = |region: &usize| match self.execution.regions[*region].phase {
            RegionPhase::AwaitingInput => self.execution.could_run(*region),
            RegionPhase::Waiting { .. } => true,
            RegionPhase::Stopping { restart_at_ms } => restart_at_ms.is_some(),
            RegionPhase::Reconciling | RegionPhase::Placed | RegionPhase::Deployed => false,
        };
        // Asked after each event, and mostly nothing waits.
        let first = (0..self.execution.regions.len()).find(waits)?;
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
        (first..self.execution.regions.len()).find(|index| {
            let slots = self.execution.regions[*index].slots.iter();
            let open: Vec<&SlotKey> = slots.filter(|key| !staying.contains(key)).collect();
            let lacks = |(profile, free): &(&ResourceProfile, u32)| {
                let wanted = open.iter().filter(|key| profiles[key.group] == **profile);
                wanted.count() > usize::try_from(*free).unwrap_or(usize::MAX)
            };
            waits(index) && free.iter().any(lacks)
        })
    }

    /// Whether slots came with the last event: those that came before have not idled in vain.
    pub(super) fn has_more_slots(&self) -> bool {
        self.pool.len() > self.patience.slots
    }

    /// The slots that are not given back: all that could be used, or only those that tasks are in, where all others together are too
    /// few for any region that waits, and no more come. Whoever has but one region keeps them: it waits for what it has lost.
    pub(super) fn worth_keeping(&self) -> Vec<(ResourceProfile, u32)> {
        let regions = self.execution.regions.len();
        // What could be placed has been, unless something has to be looked at first.
        let lacks = |region: usize| self.waits(region) && !self.is_preparing(region);
        if regions == 1 || !(0..regions).any(lacks) {
            return self.profiles_needed.clone();
        }
        let counted = self.execution.count_slots(self.in_slots());
        self.execution.by_profile(counted)
    }
}
