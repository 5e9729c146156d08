//! The TaskManagers that are drained, the move of regions off them, and which slots it needs (`docs/adr/0051`).
//! `eviction.rs` decides about moves.
//!
//! Other regions of the job may wait for slots at the same time as a move. They don't run, while the moved regions do.
//! So until the move begins they alternate in *rounds* (`slot_wait.rs`), and the waiting regions have the first round.
//! In their rounds no move begins with slots that they could use, and their missing slots are requested. In the rounds
//! of the move they take no slots that the move could use, and its missing slots are requested. So neither delays the
//! other without limit, no matter which slots become free.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tanist_gateway::{Leave, Leaving};
use tanist_proto::id::AllocationId;
use tanist_proto::resources::ResourceProfile;

use super::execution_graph::RegionPhase;
use super::slot_assignment::SlotAssignment;
use super::slot_needs::SlotNeeds;
use super::slot_pool::SlotKey;

/// The free slots of a job that are reserved for the move.
#[derive(Debug, Clone)]
pub(super) enum LeftToMoves {
    Nothing,
    /// The slots that serve one of these profiles.
    Profiles(Vec<ResourceProfile>),
    All,
}

/// The TaskManagers to leave, and the move that is under way; see the module.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// The TaskManagers to leave, and how each is left.
    leaving: Arc<Leaving>,
    /// The regions of the move, until all of them are placed elsewhere.
    regions: BTreeSet<usize>,
    /// Their slots on the TaskManagers to leave. The job requests as many in addition.
    replaced: BTreeMap<SlotKey, AllocationId>,
    /// Since when the move waits for slots, in ms.
    since_ms: u64,
    /// The restart time of the regions that were moved last. It distinguishes them from failed ones.
    restart_at_ms: u64,
}

impl Moves {
    /// Sets the TaskManagers to leave.
    pub(super) fn set_leaving(&mut self, leaving: Arc<Leaving>) {
        self.leaving = leaving;
    }

    /// The TaskManagers to leave, and how each is left.
    pub(super) fn leaving(&self) -> &Arc<Leaving> {
        &self.leaving
    }

    /// The names of the first TaskManagers off which regions are moved.
    pub(super) fn describe(&self) -> String {
        let evicting = self.leaving.iter().filter(|(_, it)| **it > Leave::ByItself);
        let named: Vec<&str> = evicting.map(|(id, _)| id.as_str()).take(4).collect();
        format!("TaskManagers that are drained: {}", named.join(", "))
    }

    /// Whether any regions have to be moved.
    pub(super) fn is_any_evicted(&self) -> bool {
        self.leaving.values().any(|it| *it > Leave::ByItself)
    }

    /// The regions of the move.
    pub(super) fn regions(&self) -> &BTreeSet<usize> {
        &self.regions
    }

    /// Whether a region is part of the move.
    pub(super) fn is_moved(&self, region: usize) -> bool {
        self.regions.contains(&region)
    }

    /// The slots that the move needs elsewhere.
    pub(super) fn replaced(&self) -> &BTreeMap<SlotKey, AllocationId> {
        &self.replaced
    }

    /// Since when the move waits for slots, in ms.
    pub(super) fn since_ms(&self) -> u64 {
        self.since_ms
    }

    /// Whether this is the restart time of the move.
    pub(super) fn is_of_move(&self, restart_at_ms: u64) -> bool {
        !self.regions.is_empty() && restart_at_ms == self.restart_at_ms
    }

    /// Ends the move.
    pub(super) fn clear(&mut self) {
        (self.regions, self.replaced) = Default::default();
    }

    /// Begins a move of these regions.
    pub(super) fn begin(&mut self, regions: BTreeSet<usize>, now_ms: u64) {
        self.regions = regions;
        self.since_ms = now_ms;
    }

    /// Sets the regions of the move that is under way.
    pub(super) fn set_regions(&mut self, regions: BTreeSet<usize>) {
        self.regions = regions;
    }

    /// Sets the slots that the move needs elsewhere.
    pub(super) fn set_replaced(&mut self, replaced: BTreeMap<SlotKey, AllocationId>) {
        self.replaced = replaced;
    }

    /// Notes that moved regions restart now.
    pub(super) fn note_restart(&mut self, now_ms: u64) {
        self.restart_at_ms = now_ms;
    }
}

impl SlotNeeds<'_> {
    /// Whether a region of the move is not placed elsewhere yet.
    pub(super) fn is_under_way(&self, region: usize) -> bool {
        match self.graph.region(region).phase {
            RegionPhase::Stopping { .. } | RegionPhase::Waiting { .. } => true,
            RegionPhase::Placed | RegionPhase::Deployed => self.runs_where_it_leaves(region),
            RegionPhase::AwaitingInput | RegionPhase::Reconciling => false,
        }
    }

    /// Whether a region waits and there are no slots for it. It has stopped, so other moves need not wait for
    /// it.
    pub(super) fn is_short_of_slots(&self, region: usize, unused: &[u32]) -> bool {
        let need = &self.graph.indexes().regions[region].need;
        self.graph.waiting().contains(&region) && need.exceeds(unused)
    }

    fn leave(&self, task: usize) -> Option<Leave> {
        let execution = self.graph.execution(task);
        let place = execution.place.as_ref().filter(|_| !execution.is_ended())?;
        self.moves.leaving.get(&place.task_manager).copied()
    }

    pub(super) fn runs_where_it_leaves(&self, region: usize) -> bool {
        let tasks = &self.graph.region(region).tasks;
        tasks
            .iter()
            .any(|task| self.leave(*task) > Some(Leave::ByItself))
    }

    /// The regions that run on TaskManagers that are left in this way.
    pub(super) fn regions_to_leave(&self, how: impl Fn(Leave) -> bool) -> BTreeSet<usize> {
        let there = self.moves.leaving.iter().filter(|(_, it)| how(**it));
        let tasks = there.flat_map(|(id, _)| self.graph.live_on(id));
        let regions = tasks.map(|task| self.graph.task(task).region);
        let runs = |region: &usize| self.graph.region(*region).phase.is_placed();
        regions.filter(runs).collect()
    }

    /// The running regions in each slot that has to be left.
    pub(super) fn regions_by_slot_to_leave(&self) -> BTreeMap<SlotKey, BTreeSet<usize>> {
        let mut by_slot: BTreeMap<SlotKey, BTreeSet<usize>> = BTreeMap::new();
        let there = self.moves.leaving.keys();
        for task in there.flat_map(|id| self.graph.live_on(id)) {
            let key = self.graph.slot_key(task);
            let region = self.graph.task(task).region;
            if self.graph.region(region).phase.is_placed() {
                by_slot.entry(key).or_default().insert(region);
            }
        }
        by_slot
    }

    /// The slots of these regions on TaskManagers to leave.
    pub(super) fn slots_to_leave(
        &self,
        regions: &BTreeSet<usize>,
    ) -> BTreeMap<SlotKey, AllocationId> {
        if regions.is_empty() {
            return BTreeMap::new();
        }
        let tasks = self.tasks_to_leave().into_iter();
        let there = tasks.filter(|task| regions.contains(&self.graph.task(*task).region));
        let slot = |task: usize| {
            let place = self.graph.execution(task).place.as_ref()?;
            Some((self.graph.slot_key(task), place.allocation))
        };
        there.filter_map(slot).collect()
    }

    /// The tasks on TaskManagers where tasks are not left to end by themselves.
    pub(super) fn tasks_to_leave(&self) -> Vec<usize> {
        let leaving = self.moves.leaving.iter();
        let there = leaving.filter(|(_, it)| **it > Leave::ByItself);
        there.flat_map(|(id, _)| self.graph.live_on(id)).collect()
    }

    /// The keys of slots on TaskManagers where nothing is placed any more.
    pub(super) fn keys_to_leave(&self) -> BTreeSet<SlotKey> {
        let there = self.moves.leaving.keys();
        let tasks = there.flat_map(|id| self.graph.live_on(id));
        tasks.map(|task| self.graph.slot_key(task)).collect()
    }

    /// Slots whose tasks are stopping for a move. No waiting region is placed into them.
    pub(super) fn slots_being_left(&self) -> Vec<AllocationId> {
        let tasks = self.tasks_to_leave().into_iter();
        let stops = tasks.filter(|task| self.is_stopped(self.graph.task(*task).region));
        let place = |task: usize| self.graph.execution(task).place.as_ref();
        let slots = stops.filter_map(|task| Some(place(task)?.allocation));
        slots.collect()
    }

    pub(super) fn is_stopped(&self, region: usize) -> bool {
        let phase = self.graph.region(region).phase;
        matches!(phase, RegionPhase::Stopping { .. })
    }

    /// Whether the move waits for slots elsewhere while all its regions still run.
    pub(super) fn awaits_replacements(&self) -> bool {
        let runs = |region: &usize| self.graph.region(*region).phase.is_placed();
        !self.moves.replaced.is_empty() && self.moves.regions.iter().all(runs)
    }

    /// Number of rounds since the move began to wait for slots.
    fn rounds_of_move(&self) -> u64 {
        self.now_ms.saturating_sub(self.moves.since_ms) / self.slots.wait().round_ms()
    }

    /// Whether the present round belongs to the move, and not to regions that wait for slots.
    pub(super) fn is_round_of_move(&self) -> bool {
        self.awaits_replacements() && !self.rounds_of_move().is_multiple_of(2)
    }

    /// The end of the present round of the move or of the waiting regions.
    pub(super) fn next_round_of_move_ms(&self) -> Option<u64> {
        let next = (self.rounds_of_move() + 1).saturating_mul(self.slots.wait().round_ms());
        let at_ms = self.moves.since_ms.saturating_add(next);
        self.awaits_replacements().then_some(at_ms)
    }

    /// Whether the move may take free slots: in its rounds, or if enough are left for the waiting regions.
    pub(super) fn may_take_replacements(&self) -> bool {
        if self.is_round_of_move() {
            return true;
        }
        let waiting = self.graph.indexes().waiting.iter();
        let wanted: usize = waiting
            .map(|(need, regions)| need.slots.saturating_mul(regions.len()))
            .sum();
        let unused: u32 = self.unused_slots().iter().sum();
        wanted == 0 || unused as usize >= self.moves.replaced.len().saturating_add(wanted)
    }

    /// Whether there are slots elsewhere for the whole move.
    pub(super) fn has_replacements(&self) -> bool {
        let unused: u32 = self.unused_slots().iter().sum();
        if self.moves.replaced.len() > unused as usize {
            return false;
        }
        let mut taken = self.graph.taken_slots();
        taken.retain(|key, _| !self.moves.replaced.contains_key(key));
        let (profiles, closed) = (self.graph.profiles(), &self.moves.leaving);
        let pool = self.slots.pool();
        let mut blocked = self.blocked_slots();
        // The executions in a slot may have ended while their region stops: it gets the slot back, or waits for slots
        // from then on, and the rounds divide them.
        let slots = pool.places().map(|(.., allocation)| allocation);
        blocked.extend(slots.filter(|allocation| !pool.is_unused(allocation)));
        let mut assignment = SlotAssignment::new(pool, profiles, taken, blocked, closed);
        let wanted: Vec<SlotKey> = self.moves.replaced.keys().copied().collect();
        assignment.assign(pool, &wanted).is_some()
    }

    /// `needed`, plus the slots that replace those to be left.
    pub(super) fn with_replacements(
        &self,
        mut needed: Vec<(ResourceProfile, u32)>,
    ) -> Vec<(ResourceProfile, u32)> {
        for key in self.slots_to_leave(&self.moves.regions).keys() {
            let profile = self.graph.profile_of(*key);
            match needed.iter_mut().find(|(it, _)| it == profile) {
                Some((_, number)) => *number += 1,
                None => needed.push((profile.clone(), 1)),
            }
        }
        needed
    }

    /// The free slots that other regions leave to the move: all, while its regions have stopped, or wait
    /// although there are slots for them; and in its rounds those that it waits for.
    pub(super) fn left_to_moves(&self) -> LeftToMoves {
        let moved = &self.moves.regions;
        if moved.is_empty() {
            return LeftToMoves::Nothing;
        }
        let unused = self.unused_slots();
        let finds_slots = |region: usize| {
            let is_waiting = self.graph.waiting().contains(&region);
            is_waiting && !self.graph.indexes().regions[region].need.exceeds(&unused)
        };
        if moved
            .iter()
            .any(|it| self.is_stopped(*it) || finds_slots(*it))
        {
            return LeftToMoves::All;
        }
        if !self.is_round_of_move() {
            return LeftToMoves::Nothing;
        }
        let mut profiles: Vec<ResourceProfile> = Vec::new();
        for key in self.moves.replaced.keys() {
            let profile = self.graph.profile_of(*key);
            if !profiles.contains(profile) {
                profiles.push(profile.clone());
            }
        }
        LeftToMoves::Profiles(profiles)
    }

    /// Whether a region takes no slots at present because they are reserved for the move.
    pub(super) fn leaves_slots(&self, region: usize, left: &LeftToMoves) -> bool {
        if self.moves.regions.contains(&region) {
            return false;
        }
        match left {
            LeftToMoves::Nothing => false,
            LeftToMoves::All => true,
            LeftToMoves::Profiles(profiles) => {
                let mut own = self.graph.region(region).slots.iter();
                let could_use = |key: &SlotKey| {
                    let own = self.graph.profile_of(*key);
                    profiles.iter().any(|profile| own.is_matching(profile))
                };
                let is_short = self.graph.indexes().regions[region].need.slots > 0;
                is_short && own.any(could_use)
            }
        }
    }
}
