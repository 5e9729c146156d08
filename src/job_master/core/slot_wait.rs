//! The part of the core that decides which slots a region needs before it can start, and how long it waits
//! for them (`docs/adr/0022`).
//!
//! The job's minimum is the slots that its tasks are in, plus those that the next waiting region lacks. Slots
//! for all other regions that could run are only in the maximum. A region adds nothing to the minimum if it
//! will find its slots among those the job has: unused ones, and those of regions that end by themselves.
//! While such a region runs, the timeout of waiting regions does not start. Slots that are too few for any
//! waiting region are given back after they have idled; otherwise two jobs could each hold what the other
//! lacks. A job with a single region keeps its slots until it has failed for lack of the others.
//!
//! A region for which the cluster has room waits without limit: it does not fail because other jobs were
//! first (`docs/adr/0050`). After `slot.request.timeout` it only stops keeping slots that are too few for it.
//!
//! A starved region gets every other *reservation round*. In the rounds between, the slots of regions behind
//! it are requested, and those regions may take the slots that it could use. So regions that fit nowhere do
//! not starve those that fit, and a sequence of small regions does not starve a large one.

use std::collections::BTreeMap;

use tanist_compact::SmallSet;
use tanist_proto::resources::ResourceProfile;

use super::JobMasterCore;
use super::execution_graph::RegionPhase;
use super::waiting_list::Need;

/// Number of reservation rounds in one `slot.request.timeout`.
const ROUNDS_PER_TIMEOUT: u64 = 20;

/// State of the wait for slots.
#[derive(Debug, Clone, Default)]
pub(super) struct SlotWait {
    /// The last time at which a region ran that ends by itself.
    pub(super) from_ms: u64,
    /// Whether the cluster has room for the job's minimum, according to the ResourceManager.
    pub(super) has_room: bool,
    /// The last time at which it had room.
    pub(super) room_until_ms: u64,
    /// Number of slots after the last event.
    slots: usize,
    /// Rounds of the first region that lacks slots which the job does not have.
    lacking: ReservationRound,
    /// Rounds of the first region that waits for slots which the job has.
    waiting: ReservationRound,
    /// The starved regions: they timed out for lack of slots and were not placed since.
    pub(super) starved: SmallSet<usize>,
}

/// Reservation rounds of a region: (the region, since ms). Its own ones are the first, the third and so on.
#[derive(Debug, Clone, Copy, Default)]
struct ReservationRound {
    of: Option<(usize, u64)>,
}

impl ReservationRound {
    /// Sets the region. The rounds continue if it is still the same one.
    fn note(&mut self, region: Option<usize>, now_ms: u64) {
        let since_ms = |region| match self.of {
            Some((of, since_ms)) if of == region => since_ms,
            Some(_) | None => now_ms,
        };
        self.of = region.map(|region| (region, since_ms(region)));
    }

    /// The region, and the number of rounds that are over.
    fn at(&self, now_ms: u64, length_ms: u64) -> Option<(usize, u64)> {
        let (region, since_ms) = self.of?;
        Some((region, now_ms.saturating_sub(since_ms) / length_ms))
    }

    /// The end of the present round.
    fn next_ms(&self, now_ms: u64, length_ms: u64) -> Option<u64> {
        let (_, over) = self.at(now_ms, length_ms)?;
        let (_, since_ms) = self.of?;
        Some(since_ms.saturating_add(length_ms.saturating_mul(over + 1)))
    }

    fn put_off(&mut self, by_ms: u64) {
        if let Some((_, since_ms)) = &mut self.of {
            *since_ms = since_ms.saturating_add(by_ms);
        }
    }
}

impl SlotWait {
    /// Moves all times by the duration for which this process stood still.
    pub(super) fn put_off(&mut self, by_ms: u64) {
        self.from_ms = self.from_ms.saturating_add(by_ms);
        self.room_until_ms = self.room_until_ms.saturating_add(by_ms);
        self.lacking.put_off(by_ms);
        self.waiting.put_off(by_ms);
    }
}

impl JobMasterCore {
    /// Records the slot count and the wait conditions before an event is applied.
    pub(super) fn note_slot_wait(&mut self, now_ms: u64) {
        self.slot_wait.slots = self.pool.len();
        if self.will_free_slots() {
            self.slot_wait.from_ms = now_ms;
        }
        if self.slot_wait.has_room {
            self.slot_wait.room_until_ms = now_ms;
        }
    }

    /// The start of the timeout after which waiting regions fail. None: the timeout does not run at present.
    pub(super) fn fails_from_ms(&self) -> Option<u64> {
        let SlotWait {
            from_ms,
            has_room,
            room_until_ms,
            ..
        } = self.slot_wait;
        (!has_room && !self.will_free_slots()).then_some(from_ms.max(room_until_ms))
    }

    fn waits(&self, region: usize) -> bool {
        let phase = self.execution.regions[region].phase;
        matches!(phase, RegionPhase::Waiting { .. })
    }

    /// Whether a region runs that ends by itself and so leaves its slots, or room, to others. After a stop
    /// request sources end, too.
    pub(super) fn will_free_slots(&self) -> bool {
        let indexes = &self.execution.indexes;
        let will_end = match self.record.is_stop_durable() {
            true => indexes.running,
            false => indexes.running_bounded,
        };
        self.execution.regions.len() > 1 && will_end > 0
    }

    /// The minimum by profile: the slots that the job needs before it can start one more region or move one.
    /// Not both at once while replacement slots are awaited, as there may be enough for either alone.
    pub(super) fn needed_at_once(&self) -> Vec<(ResourceProfile, u32)> {
        if self.execution.regions.len() == 1 {
            return self.profiles_needed.clone();
        }
        let is_round_of_move = self.is_round_of_move(self.decided_at_ms);
        let next = self.next_served().filter(|_| !is_round_of_move);
        match next {
            Some(next) if self.awaits_replacements() => self.execution.profiles_taken_with(next),
            Some(next) => self.with_replacements(self.execution.profiles_taken_with(next)),
            None => self.with_replacements(self.execution.profiles_taken()),
        }
    }

    /// Number of slots of each kind that waiting regions would find: the job's slots that do not stay in use.
    /// The slots of tasks that end by themselves become free, except on TaskManagers where nothing is placed
    /// any more.
    fn found(&self) -> Vec<u32> {
        let (slots, is_told) = (&self.execution.indexes.slots, self.record.is_stop_durable());
        let there = |profile: &ResourceProfile| self.pool.count_for(profile);
        let mut left = vec![0; self.execution.kinds.profiles().len()];
        for key in self.keys_to_leave() {
            if !slots.is_staying(&self.execution.kinds, key, is_told) {
                left[self.execution.kinds.of(key)] += 1;
            }
        }
        let staying = |kind| slots.staying(kind, is_told) + left[kind];
        self.execution.kinds.left(there, staying)
    }

    pub(super) fn round_ms(&self) -> u64 {
        (self.options.slot_request_timeout_ms / ROUNDS_PER_TIMEOUT).max(1)
    }

    /// Notes the first starved regions. To be called after all possible placements.
    pub(super) fn note_rounds(&mut self, now_ms: u64) {
        let (mut lacking, mut waiting) = (None, None);
        if self.execution.regions.len() > 1 {
            let found = self.found();
            let indexes = &self.execution.indexes;
            let lack = |need: &Need| need.lacks(&found);
            let both = [&indexes.waiting, &indexes.to_wait].map(|list| list.first(lack));
            lacking = both.into_iter().flatten().min();
            let finds = |need: &Need| !lack(need) && !self.coordinators.is_preparing(need.look);
            waiting = indexes.waiting.first(finds);
        }
        self.slot_wait.lacking.note(lacking, now_ms);
        self.slot_wait.waiting.note(waiting, now_ms);
    }

    /// The region whose slots are requested. In its own rounds it is the first region that waits for slots,
    /// or will, and does not find them among the job's. In the other rounds it is a region behind it: the
    /// smallest first, in the next such round the next one with a different need.
    fn next_served(&self) -> Option<usize> {
        let now_ms = self.decided_at_ms;
        let (first, over) = self.slot_wait.lacking.at(now_ms, self.round_ms())?;
        if over.is_multiple_of(2) {
            return Some(first);
        }
        let found = self.found();
        let mut others: BTreeMap<(usize, &[u32]), usize> = BTreeMap::new();
        for (need, regions) in self.execution.indexes.waiting.iter() {
            let behind = regions.range(first + 1..).next();
            if let Some(region) = behind.filter(|_| need.lacks(&found)) {
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
    pub(super) fn served_first(&self, now_ms: u64) -> Option<usize> {
        let (first, over) = self.slot_wait.waiting.at(now_ms, self.round_ms())?;
        // In the first round nothing is reserved: mostly there is enough for all soon.
        (!over.is_multiple_of(2) && self.waits(first)).then_some(first)
    }

    /// Whether a region takes no slots at present because a region before it that waits longer could use
    /// them.
    pub(super) fn yields_slots(&self, region: usize, now_ms: u64) -> bool {
        let Some(first) = self.served_first(now_ms).filter(|first| *first < region) else {
            return false;
        };
        let profiles = &self.execution.profiles;
        let of = |region: usize| {
            let slots = self.execution.regions[region].slots.iter();
            slots.map(|key| &profiles[key.group])
        };
        of(region).any(|own| of(first).any(|other| own.is_matching(other)))
    }

    /// The start of the next round, if more than one region waits, or one beside a move.
    pub(super) fn next_round_ms(&self) -> Option<u64> {
        let (now_ms, length_ms) = (self.decided_at_ms, self.round_ms());
        let SlotWait {
            lacking, waiting, ..
        } = &self.slot_wait;
        let is_any = !self.execution.waiting().is_empty() || lacking.of.is_some();
        let of_move = self.next_round_of_move_ms(now_ms).filter(|_| is_any);
        if self.execution.waiting().len() < 2 {
            return of_move;
        }
        let both = [lacking, waiting].map(|it| it.next_ms(now_ms, length_ms));
        both.into_iter().flatten().chain(of_move).min()
    }

    /// Whether slots were added by the last event. If so, the idle time of the others starts again.
    pub(super) fn has_more_slots(&self) -> bool {
        self.pool.len() > self.slot_wait.slots
    }

    /// The slots that are not given back when idle, by profile. Normally all that the job could use. Only
    /// those that tasks are in, if all others together are too few for any waiting region and no more arrive.
    /// The reservation round does not matter: a slot reserved for a region idles. A job with a single region
    /// keeps its slots while it waits for those it lost, until that wait has failed. A move is given its
    /// replacement slots as a whole; too few slots for a move are not kept either.
    pub(super) fn worth_keeping(&self) -> Vec<(ResourceProfile, u32)> {
        let mut waiting = self.execution.indexes.waiting.iter();
        let lacks = waiting.any(|(need, _)| !self.coordinators.is_preparing(need.look));
        let is_starved = lacks && self.execution.regions.len() > 1;
        let is_worth = !is_starved && self.slot_wait.starved.is_empty();
        let kept = match is_worth || self.is_unused_enough() {
            true => self.execution.profiles_needed(),
            false => self.execution.profiles_taken(),
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
        let indexes = &self.execution.indexes;
        let mut needs = indexes.waiting.iter().chain(indexes.to_wait.iter());
        needs.any(|(need, _)| need.fits(&unused).is_some_and(|regions| regions > 0))
    }
}
