//! Computes which slots a region needs before it can start, which slots the job needs and keeps, and which regions
//! take slots at present (`docs/adr/0022`). Decides nothing by itself and changes nothing.
//!
//! The job's minimum is the slots that its tasks are in, plus those that the next waiting region is short of. Slots
//! for all other regions that could run are only in the maximum. A region adds nothing to the minimum if it
//! will find its slots among those the job has: unused ones, and those of regions that end by themselves.
//! While such a region runs, the timeout of waiting regions does not start. Slots that are too few for any
//! waiting region are given back after they have idled; otherwise two jobs could each hold what the other
//! needs. A job with a single region keeps its slots until it has failed for lack of the others.
//!
//! A region for which the cluster has room waits without limit: it does not fail because other jobs were
//! first (`docs/adr/0050`). After `slot.request.timeout` it only stops keeping slots that are too few for it.
//!
//! `slot_wait.rs` says in which order waiting regions are served.

use std::collections::{BTreeMap, BTreeSet};

use tanist_gateway::Unfulfillable;
use tanist_proto::id::AllocationId;
use tanist_proto::resources::ResourceProfile;

use super::coordinator::Coordinators;
use super::durable_record::DurableRecord;
use super::execution_graph::blocking::OfVertices;
use super::execution_graph::waiting_list::Need;
use super::execution_graph::{ExecutionGraph, RegionPhase};
use super::moves::Moves;
use super::result_partitions::is_consumable;
use super::slot_assignment::SlotAssignment;
use super::slot_pool::SlotKey;
use super::slots::Slots;
use super::task_managers::TaskManagers;

/// Maximum number of profiles that are named.
const NAMED_PROFILES: usize = 8;

/// Borrows what the need for slots depends on.
#[derive(Clone, Copy)]
pub(super) struct SlotNeeds<'a> {
    pub(super) graph: &'a ExecutionGraph,
    pub(super) slots: &'a Slots,
    pub(super) record: &'a DurableRecord,
    pub(super) coordinators: &'a Coordinators,
    pub(super) task_managers: &'a TaskManagers,
    pub(super) moves: &'a Moves,
    /// The time of the last event.
    pub(super) now_ms: u64,
}

impl SlotNeeds<'_> {
    /// The start of the timeout after which waiting regions fail. None: the timeout does not run at present.
    pub(super) fn fails_from_ms(&self) -> Option<u64> {
        let fails_from_ms = self.slots.wait().fails_from_ms();
        fails_from_ms.filter(|_| !self.will_free_slots())
    }

    /// Whether a region waits for the preparation of its coordinators.
    pub(super) fn is_preparing(&self, region: usize) -> bool {
        self.coordinators
            .is_preparing(self.graph.region(region).coordinator_group)
    }

    /// Whether a region runs that ends by itself and so leaves its slots, or room, to others. After a stop
    /// request sources end, too.
    pub(super) fn will_free_slots(&self) -> bool {
        will_free_slots(self.graph, self.record)
    }

    /// The minimum by profile: the slots that the job needs before it can start one more region or move one.
    /// Not both at once while replacement slots are awaited, as there may be enough for either alone.
    pub(super) fn needed_at_once(&self) -> Vec<(ResourceProfile, u32)> {
        if self.graph.regions().len() == 1 {
            return self.slots.needed().to_vec();
        }
        let is_round_of_move = self.is_round_of_move();
        let next = self.next_served().filter(|_| !is_round_of_move);
        match next {
            Some(next) if self.awaits_replacements() => self.graph.profiles_taken_with(next),
            Some(next) => self.with_replacements(self.graph.profiles_taken_with(next)),
            None => self.with_replacements(self.graph.profiles_taken()),
        }
    }

    /// Number of slots of each kind that waiting regions would find: the job's slots that do not stay in use.
    /// The slots of tasks that end by themselves become free, except on TaskManagers where nothing is placed
    /// any more.
    fn found(&self) -> Vec<u32> {
        let (slots, is_stopping) = (&self.graph.indexes().slots, self.record.is_stop_durable());
        let there = |profile: &ResourceProfile| self.slots.pool().count_for(profile);
        let mut left = vec![0; self.graph.kinds().profiles().len()];
        for key in self.keys_to_leave() {
            if !slots.is_staying(self.graph.kinds(), key, is_stopping) {
                left[self.graph.kinds().of(key)] += 1;
            }
        }
        let staying = |kind| slots.staying(kind, is_stopping) + left[kind];
        self.graph.kinds().left(there, staying)
    }

    /// The heads of both queues: the first region that is short of slots, and the first one that waits for slots
    /// which the job has. To be called after all possible placements.
    pub(super) fn heads(&self) -> (Option<usize>, Option<usize>) {
        if self.graph.regions().len() == 1 {
            return (None, None);
        }
        let found = self.found();
        let indexes = self.graph.indexes();
        let is_short = |need: &Need| need.exceeds(&found);
        let both = [&indexes.waiting, &indexes.to_wait].map(|list| list.first(is_short));
        let finds = |need: &Need| {
            !is_short(need) && !self.coordinators.is_preparing(need.coordinator_group)
        };
        (
            both.into_iter().flatten().min(),
            indexes.waiting.first(finds),
        )
    }

    /// The region whose slots are requested. In the rounds of the head of the queue that region; in the other rounds
    /// one behind it: the smallest first, in the next such round the next one with a different need.
    fn next_served(&self) -> Option<usize> {
        let (first, over) = self.slots.wait().short(self.now_ms)?;
        if over.is_multiple_of(2) {
            return Some(first);
        }
        let found = self.found();
        let mut others: BTreeMap<(usize, &[u32]), usize> = BTreeMap::new();
        for (need, regions) in self.graph.indexes().waiting.iter() {
            let behind = regions.range(first + 1..).next();
            if let Some(region) = behind.filter(|_| need.exceeds(&found)) {
                let of_need = others.entry((need.slots, &need.of_kinds));
                let earliest = of_need.or_insert(*region);
                *earliest = (*earliest).min(*region);
            }
        }
        let in_order: Vec<usize> = others.into_values().collect();
        let which = usize::try_from(over / 2).unwrap_or_default();
        let which = which.checked_rem(in_order.len());
        Some(which.map_or(first, |which| in_order[which]))
    }

    /// The region for which the regions behind it leave free slots, in the present round.
    pub(super) fn served_first(&self) -> Option<usize> {
        let (first, over) = self.slots.wait().waiting(self.now_ms)?;
        let phase = self.graph.region(first).phase;
        let waits = matches!(phase, RegionPhase::Waiting { .. });
        // In the first round nothing is reserved: mostly there are soon enough slots for all.
        (!over.is_multiple_of(2) && waits).then_some(first)
    }

    /// Whether a region takes no slots at present because a region before it that waits longer could use
    /// them.
    pub(super) fn yields_slots(&self, region: usize) -> bool {
        let Some(first) = self.served_first().filter(|first| *first < region) else {
            return false;
        };
        let of = |region: usize| {
            let slots = self.graph.region(region).slots.iter();
            slots.map(|key| self.graph.profile_of(*key))
        };
        of(region).any(|own| of(first).any(|other| own.is_matching(other)))
    }

    /// The start of the next round, if more than one region waits, or one beside a move.
    pub(super) fn next_round_ms(&self) -> Option<u64> {
        let waiting = self.graph.waiting().len();
        let is_any = waiting > 0 || self.slots.wait().short(self.now_ms).is_some();
        let of_move = self.next_round_of_move_ms().filter(|_| is_any);
        if waiting < 2 {
            return of_move;
        }
        let of_regions = self.slots.wait().next_round_ms(self.now_ms);
        of_regions.into_iter().chain(of_move).min()
    }

    /// The slots that are not given back when idle, by profile. Normally all that the job could use. Only
    /// those that tasks are in, if all others together are too few for any waiting region and no more arrive.
    /// The reservation round does not matter: a slot reserved for a region idles. A job with a single region
    /// keeps its slots while it waits for those it lost, until that wait has failed. A move is given its
    /// replacement slots as a whole; too few slots for a move are not kept either.
    pub(super) fn worth_keeping(&self) -> Vec<(ResourceProfile, u32)> {
        let mut waiting = self.graph.indexes().waiting.iter();
        let is_any_short =
            waiting.any(|(need, _)| !self.coordinators.is_preparing(need.coordinator_group));
        let is_starved = is_any_short && self.graph.regions().len() > 1;
        let is_worth = !is_starved && self.slots.wait().starved().is_empty();
        let kept = match is_worth || self.is_unused_enough() {
            true => self.graph.profiles_needed(),
            false => self.graph.profiles_taken(),
        };
        match self.awaits_replacements() {
            true => kept,
            false => self.with_replacements(kept),
        }
    }

    /// Whether the unused slots are enough for a region that waits or will. It takes them when its input has
    /// been checked, in its next round, or when its backoff is over.
    fn is_unused_enough(&self) -> bool {
        let unused = self.unused_slots();
        let indexes = self.graph.indexes();
        let mut needs = indexes.waiting.iter().chain(indexes.to_wait.iter());
        needs.any(|(need, _)| need.fits(&unused).is_some_and(|regions| regions > 0))
    }

    /// Number of unused slots of each kind.
    pub(super) fn unused_slots(&self) -> Vec<u32> {
        let there = |profile: &ResourceProfile| self.slots.pool().count_for(profile);
        let taken = |kind| self.graph.indexes().slots.taken(kind);
        self.graph.kinds().left(there, taken)
    }

    /// Number of missing slots by profile.
    pub(super) fn missing_slots(&self) -> Vec<(ResourceProfile, u32)> {
        let mut missing = self.graph.profiles_needed();
        for (profile, number) in &mut missing {
            *number = number.saturating_sub(self.slots.pool().count_for(profile));
        }
        missing.retain(|(_, number)| *number > 0);
        missing
    }

    /// Describes the missing slots.
    pub(super) fn shortage(&self) -> String {
        let (needed, all) = (self.graph.slots_needed(), self.missing_slots());
        let missing = all.iter().map(|(_, number)| number).sum::<u32>();
        let of_profile = all.iter().filter(|(profile, _)| !profile.is_unknown());
        let named: Vec<String> = of_profile
            .map(|(profile, number)| format!("{number} of {profile}"))
            .take(NAMED_PROFILES)
            .collect();
        let named = match named.as_slice() {
            [] => String::new(),
            named => format!(" ({})", named.join("; ")),
        };
        format!("{missing} of {needed} slots are missing{named}")
    }

    /// Describes the missing slots and what to do.
    pub(super) fn shortage_with_advice(&self) -> String {
        let shortage = self.shortage();
        match self.slots.max_slots() {
            Some(max) => format!(
                "{shortage}; start TaskManagers, raise slotmanager.number-of-slots.max ({max}), or lower the parallelism"
            ),
            None => format!("{shortage}; start TaskManagers or lower the parallelism"),
        }
    }

    /// Those of `regions` that can never get their slots, with the reason, if that is known.
    pub(super) fn never_served(&self, regions: &[usize]) -> Vec<(usize, &Unfulfillable)> {
        let Some(verdict) = self.slots.unfulfillable() else {
            return Vec::new();
        };
        let (mut known, mut assignment) = (OfVertices::default(), None);
        let is_never = |region: &usize| {
            let wanted = &self.graph.region(*region).slots;
            let is_of_it = |key: &SlotKey| *self.graph.profile_of(*key) == verdict.profile;
            if !wanted.iter().any(is_of_it)
                || !is_consumable(self.graph, self.record, *region, &mut known)
            {
                return false;
            }
            let assignment = assignment.get_or_insert_with(|| self.slot_assignment());
            assignment.assign(self.slots.pool(), wanted).is_none()
        };
        let never = regions.iter().copied().filter(is_never);
        never.map(|region| (region, verdict)).collect()
    }

    /// The slots in which orphan executions are.
    pub(super) fn blocked_slots(&self) -> BTreeSet<AllocationId> {
        self.task_managers.orphans().slots().collect()
    }

    /// The assignment from which regions get slots, made from the pool and the running executions.
    pub(super) fn slot_assignment(&self) -> SlotAssignment {
        let (taken, mut blocked) = (self.graph.taken_slots(), self.blocked_slots());
        blocked.extend(self.slots_being_left());
        let (profiles, closed) = (self.graph.profiles(), self.moves.leaving());
        SlotAssignment::new(self.slots.pool(), profiles, taken, blocked, closed)
    }
}

/// Whether a region runs that ends by itself; see [`SlotNeeds::will_free_slots`].
pub(super) fn will_free_slots(graph: &ExecutionGraph, record: &DurableRecord) -> bool {
    let will_end = match record.is_stop_durable() {
        true => graph.indexes().running,
        false => graph.indexes().running_bounded,
    };
    graph.regions().len() > 1 && will_end > 0
}
