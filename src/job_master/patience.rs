//! The part of the core that knows which slots a region has to have before it can start, and how long it waits for them
//! (`docs/adr/0022`).
//!
//! A job needs at once what its tasks are in, and what the next region that waits lacks; all else that could run is welcome. A region
//! needs nothing at once that it will find in slots which the job has: those that nothing is in, and those of regions that end by
//! themselves. While such a region runs, the time that others may wait does not begin. Slots that are too few for any region that
//! waits go back when they have idled: else two jobs could hold what each of them lacks. Whoever has but one region keeps them until it
//! has failed for want of the others.
//!
//! What the cluster has room for waits for its turn, without limit: nobody fails because others were first (`docs/adr/0050`). After
//! `slot.request.timeout` it only ceases to keep slots that are too few for it.
//!
//! Whoever waits in vain has *turns*, every other one: in the others what those behind it lack is asked for, and what it could use is
//! theirs. So neither those that fit nowhere starve those that do, nor small ones, one after the other, a large one.

use std::collections::BTreeMap;

use tanist_proto::resources::ResourceProfile;

use super::core::JobMasterCore;
use super::execution_graph::RegionPhase;
use super::waiting_list::Need;
use crate::small_set::SmallSet;

/// A region may wait for slots so many turns.
const TURNS: u64 = 20;

/// Since when what waits for slots waits in earnest.
#[derive(Debug, Clone, Default)]
pub(super) struct Patience {
    /// The last moment at which a region ran that ends by itself.
    pub(super) from_ms: u64,
    /// Whether the cluster has room for what the job needs at least, says the ResourceManager.
    pub(super) has_room: bool,
    /// The last moment at which it had.
    pub(super) room_until_ms: u64,
    /// How many slots there were after the last event.
    slots: usize,
    /// The first region that lacks slots which the job does not have.
    lacking: Turns,
    /// The first region that waits for those which the job has.
    waiting: Turns,
    /// The regions that failed for want of slots and were not placed since.
    pub(super) in_vain: SmallSet<usize>,
}

/// Whose turns they are, and since when: its own ones are the first, the third and so on.
#[derive(Debug, Clone, Copy, Default)]
struct Turns {
    of: Option<(usize, u64)>,
}

impl Turns {
    /// As long as it is the same region, nothing begins anew.
    fn note(&mut self, region: Option<usize>, now_ms: u64) {
        let since_ms = |region| match self.of {
            Some((of, since_ms)) if of == region => since_ms,
            Some(_) | None => now_ms,
        };
        self.of = region.map(|region| (region, since_ms(region)));
    }

    /// Whose they are, and how many are over.
    fn at(&self, now_ms: u64, length_ms: u64) -> Option<(usize, u64)> {
        let (region, since_ms) = self.of?;
        Some((region, now_ms.saturating_sub(since_ms) / length_ms))
    }

    /// When the present one is over.
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

impl Patience {
    /// This process stood still for so long.
    pub(super) fn put_off(&mut self, by_ms: u64) {
        self.from_ms = self.from_ms.saturating_add(by_ms);
        self.room_until_ms = self.room_until_ms.saturating_add(by_ms);
        self.lacking.put_off(by_ms);
        self.waiting.put_off(by_ms);
    }
}

impl JobMasterCore {
    /// Until this moment it was as it is. To be called before anything changes.
    pub(super) fn note_patience(&mut self, now_ms: u64) {
        self.patience.slots = self.pool.len();
        if self.is_patient() {
            self.patience.from_ms = now_ms;
        }
        if self.patience.has_room {
            self.patience.room_until_ms = now_ms;
        }
    }

    /// From when the time counts after which regions that wait fail; nothing: it does not count at present.
    pub(super) fn fails_from_ms(&self) -> Option<u64> {
        let Patience {
            from_ms,
            has_room,
            room_until_ms,
            ..
        } = self.patience;
        (!has_room && !self.is_patient()).then_some(from_ms.max(room_until_ms))
    }

    fn waits(&self, region: usize) -> bool {
        let phase = self.execution.regions[region].phase;
        matches!(phase, RegionPhase::Waiting { .. })
    }

    /// Whether a region runs that ends by itself, and leaves its slots to others, or room for theirs. Sources end once they were told to.
    pub(super) fn is_patient(&self) -> bool {
        let overview = &self.execution.overview;
        let will_end = match self.tells_to_stop() {
            true => overview.running,
            false => overview.running_bounded,
        };
        self.execution.regions.len() > 1 && will_end > 0
    }

    /// How many slots of each profile the job has to have before it can begin anything more, or move anything: not both together where slots
    /// are waited for, as there may be enough for either.
    pub(super) fn needed_at_once(&self) -> Vec<(ResourceProfile, u32)> {
        if self.execution.regions.len() == 1 {
            return self.profiles_needed.clone();
        }
        let is_turn_of_move = self.is_turn_of_move(self.settled_at_ms);
        let next = self.next_served().filter(|_| !is_turn_of_move);
        match next {
            Some(next) if self.awaits_replacements() => self.execution.profiles_taken_with(next),
            Some(next) => self.with_replacements(self.execution.profiles_taken_with(next)),
            None => self.with_replacements(self.execution.profiles_taken()),
        }
    }

    /// How many slots of each kind regions that wait would find: those that do not stay in use. What tasks are in that end by themselves
    /// comes free, but where nothing begins any more.
    fn found(&self) -> Vec<u32> {
        let (slots, is_told) = (&self.execution.overview.slots, self.tells_to_stop());
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

    pub(super) fn turn_ms(&self) -> u64 {
        (self.options.slot_request_timeout_ms / TURNS).max(1)
    }

    /// Notes who is the first that waits in vain. To be called when all that can be placed has been.
    pub(super) fn note_turns(&mut self, now_ms: u64) {
        let (mut lacking, mut waiting) = (None, None);
        if self.execution.regions.len() > 1 {
            let found = self.found();
            let overview = &self.execution.overview;
            let lack = |need: &Need| need.lacks(&found);
            let both = [&overview.waiting, &overview.to_wait].map(|list| list.first(lack));
            lacking = both.into_iter().flatten().min();
            let finds = |need: &Need| !lack(need) && !self.is_looking(need.look);
            waiting = overview.waiting.first(finds);
        }
        self.patience.lacking.note(lacking, now_ms);
        self.patience.waiting.note(waiting, now_ms);
    }

    /// The region whose slots are asked for: the first that waits for slots, or will, and does not find them in those that the job has;
    /// and in turns that are not its own one of those behind it, the smallest first, then the next one that needs something else.
    fn next_served(&self) -> Option<usize> {
        let now_ms = self.settled_at_ms;
        let (first, over) = self.patience.lacking.at(now_ms, self.turn_ms())?;
        if over.is_multiple_of(2) {
            return Some(first);
        }
        let found = self.found();
        let mut others: BTreeMap<(usize, &[u32]), usize> = BTreeMap::new();
        for (need, regions) in self.execution.overview.waiting.iter() {
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

    /// The region for which those behind it leave what comes free, now.
    pub(super) fn served_first(&self, now_ms: u64) -> Option<usize> {
        let (first, over) = self.patience.waiting.at(now_ms, self.turn_ms())?;
        // The first turn is nobody's: mostly there is enough for all soon.
        (!over.is_multiple_of(2) && self.waits(first)).then_some(first)
    }

    /// Whether a region takes no slots at present, as one before it that waits longer could use them.
    pub(super) fn stands_back(&self, region: usize, now_ms: u64) -> bool {
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

    /// When somebody else's turn begins, where more than one region waits, or one beside what is moved.
    pub(super) fn next_turn_ms(&self) -> Option<u64> {
        let (now_ms, length_ms) = (self.settled_at_ms, self.turn_ms());
        let Patience {
            lacking, waiting, ..
        } = &self.patience;
        let is_any = !self.execution.waiting().is_empty() || lacking.of.is_some();
        let of_move = self.next_turn_of_move_ms(now_ms).filter(|_| is_any);
        if self.execution.waiting().len() < 2 {
            return of_move;
        }
        let both = [lacking, waiting].map(|it| it.next_ms(now_ms, length_ms));
        both.into_iter().flatten().chain(of_move).min()
    }

    /// Whether slots came with the last event: those that came before have not idled in vain.
    pub(super) fn has_more_slots(&self) -> bool {
        self.pool.len() > self.patience.slots
    }

    /// The slots that are not given back: all that could be used, or only those that tasks are in, where all others together are too
    /// few for any region that waits, and no more come. Whose turn it is does not matter: what is kept for one idles. Whoever has but
    /// one region waits for what it has lost, and keeps the rest until that was in vain. What is moved has what it waits for as a whole; what is
    /// too little for it is no more worth keeping than what is too little for others.
    pub(super) fn worth_keeping(&self) -> Vec<(ResourceProfile, u32)> {
        let mut waiting = self.execution.overview.waiting.iter();
        let lacks = waiting.any(|(need, _)| !self.is_looking(need.look));
        let is_kept_in_vain = lacks && self.execution.regions.len() > 1;
        let is_worth = !is_kept_in_vain && self.patience.in_vain.is_empty();
        let kept = match is_worth || self.is_unused_enough() {
            true => self.execution.profiles_needed(),
            false => self.execution.profiles_taken(),
        };
        match self.awaits_replacements() {
            true => kept,
            false => self.with_replacements(kept),
        }
    }

    /// Whether what nothing is in is enough for a region that waits, or will: it has it once it has been looked at what it reads, in the
    /// next turn, or when its backoff is over.
    fn is_unused_enough(&self) -> bool {
        let unused = self.unused_slots();
        let overview = &self.execution.overview;
        let mut needs = overview.waiting.iter().chain(overview.to_wait.iter());
        needs.any(|(need, _)| need.fits(&unused).is_some_and(|regions| regions > 0))
    }
}
