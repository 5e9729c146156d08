//! The part of the core that leaves TaskManagers that are drained (`docs/adr/0051`): nothing is placed there,
//! and running regions are moved, if that is requested, as soon as the job has all the slots that they need
//! elsewhere.
//!
//! A *move* contains all regions that share a slot there: a slot is for one number of a slot sharing group,
//! so they have to go together. One move is under way at a time, the smallest first. It is a restart without
//! a failure: 1 slots are requested in addition to those in use; 2 they arrive; 3 the regions' next
//! generation is written; 4 the present one is cancelled; 5 the next one is placed and deployed. Only 3 is
//! persisted: the next leader begins with 1 again, or, after 3, finishes it as any restart.
//!
//! Invariants: until 3 the regions run unchanged; from 3 to 5 nothing else is placed in their new slots.
//!
//! Other regions of the job may wait for slots meanwhile. They don't run, while the moved regions do. So
//! until 3 they alternate in *rounds*, and the first round is theirs. In their rounds no move begins with
//! slots that they could use, and their missing slots are requested. In the rounds of the move they take no
//! slots that the move could use, and its missing slots are requested. So neither delays the other without
//! limit, no matter which slots become free.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tanist_gateway::{Leave, Leaving};
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;

use super::blocked_reasons::blocked_reason;
use super::execution_graph::RegionPhase;
use super::result_partitions::ResultPartition;
use super::slot_assignment::SlotAssignment;
use super::slot_pool::SlotKey;
use super::stopped::would_lose_input;
use super::{Effect, JobMasterCore, LogLine};

/// The free slots of a job that are reserved for moves.
#[derive(Debug, Clone)]
pub(super) enum LeftToMoves {
    Nothing,
    /// The slots that serve one of these profiles.
    Profiles(Vec<ResourceProfile>),
    All,
}

/// The TaskManagers to leave, and the move that is under way.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// The TaskManagers to leave, and how each is left.
    pub(super) leaving: Arc<Leaving>,
    /// The regions of the move, until all of them are placed elsewhere.
    regions: BTreeSet<usize>,
    /// Their slots on the TaskManagers to leave. The job requests as many in addition.
    replaced: BTreeMap<SlotKey, AllocationId>,
    /// Since when the move waits for slots, in ms.
    since_ms: u64,
    /// The restart time of the regions that were moved last. It distinguishes them from failed ones.
    restart_at_ms: u64,
}

impl JobMasterCore {
    /// Starts, extends or completes a move, where that is possible.
    pub(super) fn move_regions(&mut self, now_ms: u64) {
        let is_any = self.moves.leaving.values().any(|it| *it > Leave::ByItself);
        let is_open = self.record.is_durable()
            && !self.record.is_stopping()
            && !self.is_reconciling()
            && self.record.decided().wanted() == pb::WantedStatus::Running;
        if !is_any || !is_open {
            (self.moves.regions, self.moves.replaced) = Default::default();
            return;
        }
        self.leave_at_once(now_ms);
        let unused = self.unused_slots();
        let is_open = |it: &usize| self.is_under_way(*it) && !self.lacks_slots(*it, &unused);
        if !self.moves.regions.iter().any(is_open) {
            self.begin_move(now_ms);
        } else {
            self.join_move();
        }
        self.moves.replaced = self.slots_to_leave(&self.moves.regions);
        let runs = |region: &usize| self.execution.regions[*region].phase.is_placed();
        let are_here = self.moves.regions.iter().all(runs)
            && self.may_take_replacements(now_ms)
            && self.has_replacements();
        if !self.moves.regions.is_empty() && are_here {
            let regions: Vec<usize> = self.moves.regions.iter().copied().collect();
            self.restart_moved(&regions, now_ms);
        }
    }

    /// Whether a region of the move is not placed elsewhere yet.
    fn is_under_way(&self, region: usize) -> bool {
        match self.execution.regions[region].phase {
            RegionPhase::Stopping { .. } | RegionPhase::Waiting { .. } => true,
            RegionPhase::Placed | RegionPhase::Deployed => self.runs_where_it_leaves(region),
            RegionPhase::AwaitingInput | RegionPhase::Reconciling => false,
        }
    }

    /// Whether a region waits and there are no slots for it. It has stopped, so other moves need not wait for
    /// it.
    fn lacks_slots(&self, region: usize, unused: &[u32]) -> bool {
        let need = &self.execution.indexes.regions[region].need;
        self.execution.waiting().contains(&region) && need.lacks(unused)
    }

    fn leave(&self, task: usize) -> Option<Leave> {
        let execution = &self.execution.tasks[task].execution;
        let place = execution.place.as_ref().filter(|_| !execution.is_ended())?;
        self.moves.leaving.get(&place.task_manager).copied()
    }

    fn runs_where_it_leaves(&self, region: usize) -> bool {
        let tasks = &self.execution.regions[region].tasks;
        tasks
            .iter()
            .any(|task| self.leave(*task) > Some(Leave::ByItself))
    }

    /// The regions that run on TaskManagers that are left in this way.
    fn regions_to_leave(&self, how: impl Fn(Leave) -> bool) -> BTreeSet<usize> {
        let there = self.moves.leaving.iter().filter(|(_, it)| how(**it));
        let tasks = there.flat_map(|(id, _)| self.execution.live_on(id));
        let regions = tasks.map(|task| self.execution.tasks[task].region);
        let runs = |region: &usize| self.execution.regions[*region].phase.is_placed();
        regions.filter(runs).collect()
    }

    /// Restarts regions whose time to leave is over, whether there are slots elsewhere or not. Outputs kept
    /// there are lost.
    fn leave_at_once(&mut self, now_ms: u64) {
        let at_once = |leave: Leave| leave == Leave::AtOnce;
        let regions: Vec<usize> = self.regions_to_leave(at_once).into_iter().collect();
        let there = self.moves.leaving.iter().filter(|(_, it)| at_once(**it));
        let there: Vec<ResourceId> = there.map(|(id, _)| id.clone()).collect();
        for id in there {
            let tasks = self.execution.tasks_on(&id);
            let cause = "its TaskManager is drained, and the time for that is over";
            self.lose_outputs(
                tasks,
                |output| matches!(output, ResultPartition::Kept { .. }),
                cause,
            );
        }
        if regions.is_empty() {
            return;
        }
        self.restart_moved(&regions, now_ms);
        let stopped = regions.into_iter().filter(|it| self.is_stopped(*it));
        let stopped: BTreeSet<usize> = stopped.collect();
        if !stopped.is_empty() {
            // Regions that still run and wait for slots begin their move again, behind these.
            let phases = &self.execution.regions;
            let moved = &mut self.moves.regions;
            moved.retain(|region| !phases[*region].phase.is_placed());
            moved.extend(stopped);
            self.moves.since_ms = now_ms;
        }
    }

    fn is_stopped(&self, region: usize) -> bool {
        let phase = self.execution.regions[region].phase;
        matches!(phase, RegionPhase::Stopping { .. })
    }

    /// Chooses the next move: the one that needs the fewest slots. If there is none, moved regions that wait
    /// without finding slots keep their place in line.
    fn begin_move(&mut self, now_ms: u64) {
        let mut open = self.regions_to_leave(|leave| leave > Leave::ByItself);
        let by_slot = self.regions_by_slot_to_leave();
        let mut by_region: BTreeMap<usize, BTreeSet<SlotKey>> = BTreeMap::new();
        for task in self.tasks_to_leave() {
            let slots = by_region.entry(self.execution.tasks[task].region);
            slots.or_default().insert(self.execution.slot_key(task));
        }
        let mut next: Option<(usize, BTreeSet<usize>)> = None;
        while let Some(region) = open.first().copied() {
            let together = self.regions_with_slots_of(region, &by_slot);
            open.retain(|it| !together.contains(it));
            let slots = together.iter().filter_map(|it| by_region.get(it));
            let slots = slots.flatten().collect::<BTreeSet<&SlotKey>>().len();
            if next.as_ref().is_none_or(|(fewest, _)| slots < *fewest) {
                next = Some((slots, together));
            }
        }
        match next {
            Some((_, regions)) => {
                self.moves.regions = regions;
                self.moves.since_ms = now_ms;
            }
            None => {
                let waiting = self.execution.waiting();
                self.moves.regions.retain(|it| waiting.contains(it));
            }
        }
    }

    /// Adds regions to the move that were placed in its slots while it waited for slots.
    fn join_move(&mut self) {
        let is_gone = |region: &usize| {
            let phase = self.execution.regions[*region].phase;
            matches!(
                phase,
                RegionPhase::Stopping { .. } | RegionPhase::Waiting { .. }
            )
        };
        if self.moves.regions.iter().any(is_gone) {
            return;
        }
        let by_slot = self.regions_by_slot_to_leave();
        let mut together = BTreeSet::new();
        for region in &self.moves.regions {
            if !together.contains(region) && self.execution.regions[*region].phase.is_placed() {
                together.extend(self.regions_with_slots_of(*region, &by_slot));
            }
        }
        self.moves.regions = together;
    }

    /// The running regions in each slot that has to be left.
    fn regions_by_slot_to_leave(&self) -> BTreeMap<SlotKey, BTreeSet<usize>> {
        let mut by_slot: BTreeMap<SlotKey, BTreeSet<usize>> = BTreeMap::new();
        let there = self.moves.leaving.keys();
        for task in there.flat_map(|id| self.execution.live_on(id)) {
            let key = self.execution.slot_key(task);
            let region = self.execution.tasks[task].region;
            if self.execution.regions[region].phase.is_placed() {
                by_slot.entry(key).or_default().insert(region);
            }
        }
        by_slot
    }

    /// A region and all that share slots with it on TaskManagers to leave; all running regions if the job's
    /// regions restart together.
    fn regions_with_slots_of(
        &self,
        region: usize,
        by_slot: &BTreeMap<SlotKey, BTreeSet<usize>>,
    ) -> BTreeSet<usize> {
        if self.failover.restarts_together() {
            let phases = self.execution.regions.iter().enumerate();
            let running = phases.filter(|(_, at)| at.phase.is_placed());
            return running.map(|(region, _)| region).collect();
        }
        let (mut together, mut open) = (BTreeSet::new(), vec![region]);
        while let Some(region) = open.pop() {
            if together.insert(region) {
                let tasks = &self.execution.regions[region].tasks;
                let keys = tasks.iter().map(|task| self.execution.slot_key(*task));
                open.extend(keys.filter_map(|key| by_slot.get(&key)).flatten());
            }
        }
        together
    }

    /// The slots of these regions on TaskManagers to leave.
    fn slots_to_leave(&self, regions: &BTreeSet<usize>) -> BTreeMap<SlotKey, AllocationId> {
        if regions.is_empty() {
            return BTreeMap::new();
        }
        let tasks = self.tasks_to_leave().into_iter();
        let there = tasks.filter(|task| regions.contains(&self.execution.tasks[*task].region));
        let slot = |task: usize| {
            let place = self.execution.tasks[task].execution.place.as_ref()?;
            Some((self.execution.slot_key(task), place.allocation))
        };
        there.filter_map(slot).collect()
    }

    /// The tasks on TaskManagers where tasks are not left to end by themselves.
    fn tasks_to_leave(&self) -> Vec<usize> {
        let leaving = self.moves.leaving.iter();
        let there = leaving.filter(|(_, it)| **it > Leave::ByItself);
        there
            .flat_map(|(id, _)| self.execution.live_on(id))
            .collect()
    }

    /// The keys of slots on TaskManagers where nothing is placed any more.
    pub(super) fn keys_to_leave(&self) -> BTreeSet<SlotKey> {
        let there = self.moves.leaving.keys();
        let tasks = there.flat_map(|id| self.execution.live_on(id));
        tasks.map(|task| self.execution.slot_key(task)).collect()
    }

    /// Slots whose tasks are stopping for a move. No waiting region is placed into them.
    pub(super) fn slots_being_left(&self) -> Vec<AllocationId> {
        let tasks = self.tasks_to_leave().into_iter();
        let stops = tasks.filter(|task| self.is_stopped(self.execution.tasks[*task].region));
        let place = |task: usize| self.execution.tasks[task].execution.place.as_ref();
        let slots = stops.filter_map(|task| Some(place(task)?.allocation));
        slots.collect()
    }

    /// Whether this is the restart time of the move.
    pub(super) fn is_of_move(&self, restart_at_ms: u64) -> bool {
        !self.moves.regions.is_empty() && restart_at_ms == self.moves.restart_at_ms
    }

    /// Whether a region is part of the move.
    pub(super) fn is_moved(&self, region: usize) -> bool {
        self.moves.regions.contains(&region)
    }

    /// Whether the move waits for slots elsewhere while all its regions still run.
    pub(super) fn awaits_replacements(&self) -> bool {
        let runs = |region: &usize| self.execution.regions[*region].phase.is_placed();
        !self.moves.replaced.is_empty() && self.moves.regions.iter().all(runs)
    }

    /// Number of rounds since the move began to wait for slots.
    fn rounds_of_move(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.moves.since_ms) / self.round_ms()
    }

    /// Whether the present round belongs to the move, and not to regions that wait for slots.
    pub(super) fn is_round_of_move(&self, now_ms: u64) -> bool {
        self.awaits_replacements() && !self.rounds_of_move(now_ms).is_multiple_of(2)
    }

    /// The end of the present round of the move or of the waiting regions.
    pub(super) fn next_round_of_move_ms(&self, now_ms: u64) -> Option<u64> {
        let next = (self.rounds_of_move(now_ms) + 1).saturating_mul(self.round_ms());
        let at_ms = self.moves.since_ms.saturating_add(next);
        self.awaits_replacements().then_some(at_ms)
    }

    /// Whether the move may take free slots: in its rounds, or if enough are left for the waiting regions.
    fn may_take_replacements(&self, now_ms: u64) -> bool {
        if self.is_round_of_move(now_ms) {
            return true;
        }
        let waiting = self.execution.indexes.waiting.iter();
        let wanted: usize = waiting
            .map(|(need, regions)| need.slots.saturating_mul(regions.len()))
            .sum();
        let unused: u32 = self.unused_slots().iter().sum();
        wanted == 0 || unused as usize >= self.moves.replaced.len().saturating_add(wanted)
    }

    /// Whether there are slots elsewhere for the whole move.
    fn has_replacements(&self) -> bool {
        let unused: u32 = self.unused_slots().iter().sum();
        if self.moves.replaced.len() > unused as usize {
            return false;
        }
        let mut taken = self.taken_slots();
        taken.retain(|key, _| !self.moves.replaced.contains_key(key));
        let (profiles, closed) = (&self.execution.profiles, &self.moves.leaving);
        let blocked = self.blocked_slots();
        let mut assignment = SlotAssignment::new(&self.pool, profiles, taken, blocked, closed);
        let wanted: Vec<SlotKey> = self.moves.replaced.keys().copied().collect();
        assignment.assign(&self.pool, &wanted).is_some()
    }

    /// Restarts these regions, to be placed elsewhere. Nothing has failed, so the restart strategy does not
    /// count it.
    fn restart_moved(&mut self, regions: &[usize], now_ms: u64) {
        let loses = |region: &usize| would_lose_input(&self.record, &self.execution, *region);
        if regions.iter().any(loses) {
            return;
        }
        let number = u32::try_from(regions.len()).unwrap_or(u32::MAX);
        let cause = format!("moved off {}", self.named_to_leave());
        self.out.log(LogLine::RegionsMoved {
            regions: number,
            cause: cause.clone(),
        });
        self.moves.restart_at_ms = now_ms;
        self.job_events.add_move(cause, now_ms);
        self.region_failover(now_ms).restart(regions, now_ms);
    }

    fn named_to_leave(&self) -> String {
        let leaving = self.moves.leaving.iter();
        let evicting = leaving.filter(|(_, it)| **it > Leave::ByItself);
        let named: Vec<&str> = evicting.map(|(id, _)| id.as_str()).take(4).collect();
        format!("TaskManagers that are drained: {}", named.join(", "))
    }

    /// `needed`, plus the slots that replace those to be left.
    pub(super) fn with_replacements(
        &self,
        mut needed: Vec<(ResourceProfile, u32)>,
    ) -> Vec<(ResourceProfile, u32)> {
        for key in self.slots_to_leave(&self.moves.regions).keys() {
            let profile = self.execution.profile_of(*key);
            match needed.iter_mut().find(|(it, _)| it == profile) {
                Some((_, number)) => *number += 1,
                None => needed.push((profile.clone(), 1)),
            }
        }
        needed
    }

    /// The free slots that other regions leave to the move: all, while its regions have stopped, or wait
    /// although there are slots for them; and in its rounds those that it waits for.
    pub(super) fn left_to_moves(&self, now_ms: u64) -> LeftToMoves {
        let moved = &self.moves.regions;
        if moved.is_empty() {
            return LeftToMoves::Nothing;
        }
        let unused = self.unused_slots();
        let finds_slots = |region: usize| {
            let is_waiting = self.execution.waiting().contains(&region);
            is_waiting && !self.execution.indexes.regions[region].need.lacks(&unused)
        };
        if moved
            .iter()
            .any(|it| self.is_stopped(*it) || finds_slots(*it))
        {
            return LeftToMoves::All;
        }
        if !self.is_round_of_move(now_ms) {
            return LeftToMoves::Nothing;
        }
        let mut profiles: Vec<ResourceProfile> = Vec::new();
        for key in self.moves.replaced.keys() {
            let profile = self.execution.profile_of(*key);
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
                let mut own = self.execution.regions[region].slots.iter();
                let could_use = |key: &SlotKey| {
                    let own = self.execution.profile_of(*key);
                    profiles.iter().any(|profile| own.is_matching(profile))
                };
                let lacks_any = self.execution.indexes.regions[region].need.slots > 0;
                lacks_any && own.any(could_use)
            }
        }
    }

    /// Gives back unused slots on TaskManagers to leave immediately: they may be all that keeps the
    /// TaskManager.
    pub(super) fn free_left_slots(&mut self) {
        let is_open =
            self.record.is_durable() && !self.record.is_stopping() && !self.is_reconciling();
        if self.moves.leaving.is_empty() || !is_open {
            return;
        }
        let blocked = self.blocked_slots();
        for id in self.moves.leaving.clone().keys() {
            let Some(connection) = self.task_managers.connection(id) else {
                continue;
            };
            let mut allocations = self.pool.slots_of(id);
            allocations.retain(|it| self.pool.is_unused(it) && !blocked.contains(it));
            for allocation in &allocations {
                self.pool.remove(allocation);
            }
            if !allocations.is_empty() {
                let cause = "the TaskManager is drained".to_owned();
                self.out.push(Effect::FreeSlots {
                    connection,
                    allocations,
                    cause,
                });
            }
        }
    }

    /// The blocked reason while a move waits for slots or its regions stop.
    pub(super) fn moving(&self) -> Option<pb::BlockedReason> {
        let restarting = self.execution.indexes.restarting_at.iter();
        let stopping = restarting.filter(|(at_ms, _)| self.is_of_move(*at_ms));
        let number = stopping.count();
        if number > 0 {
            let text = format!(
                "{number} regions are being moved off {}: they stop, and start elsewhere",
                self.named_to_leave()
            );
            return Some(pb::BlockedReason {
                since_ms: self.moves.since_ms,
                ..blocked_reason(pb::BlockedReasonKind::Eviction, text)
            });
        }
        self.awaits_replacements().then(|| {
            let slots = self.moves.replaced.len();
            let text = format!(
                "the job runs, but has to leave {}; it waits for {slots} slots elsewhere",
                self.named_to_leave()
            );
            pb::BlockedReason {
                since_ms: self.moves.since_ms,
                ..blocked_reason(pb::BlockedReasonKind::Eviction, text)
            }
        })
    }
}
