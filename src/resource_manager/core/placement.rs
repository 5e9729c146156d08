//! Chooses slots for a job: free default slots, or dynamic slots cut out of the free resources of a
//! TaskExecutor. Pure, a part of [`super::slot_manager`], whose documentation has the rules.

use std::collections::BTreeSet;

use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::{ResourceProfile, Resources};

use super::packing::{Room, least_first};
use super::slots::{Slots, Worker};

/// A slot to request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// Its TaskExecutor.
    pub worker: ResourceId,
    /// Its number at the TaskExecutor.
    pub number: u32,
    /// The resources it must have. `Unknown`: it is a default slot.
    pub profile: ResourceProfile,
}

/// Which TaskExecutors slots are taken from first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Balance {
    /// Those where the job has slots already, then those with the most room.
    #[default]
    None,
    /// Those with the smallest part in use, by any job.
    Slots,
}

/// Chooses slots for all of the profiles, which are sorted with the most demanding first. `None`: there are not
/// enough. Chooses as [`choose`] does; if that leaves no room for the last profiles, packs.
pub(super) fn choose_all(
    slots: &Slots,
    job: JobId,
    profiles: &[ResourceProfile],
    (balance, closed): (Balance, &BTreeSet<ResourceId>),
) -> Option<Vec<Choice>> {
    let chosen = choose(slots, job, profiles, (balance, closed));
    if chosen.len() == profiles.len() {
        return Some(chosen);
    }
    // Slots of one profile fit equally in any order: if not even those of the first profile fit, packing can't
    // help. This check matters most in a full cluster, where very many jobs may wait.
    let first = profiles.chunk_by(|one, next| one == next).next()?;
    let last_of_first = chosen.get(first.len() - 1)?;
    if last_of_first.profile != first[0] {
        return None;
    }
    pack(slots, profiles, closed)
}

/// Slots for all of the profiles, from TaskExecutors with the least room first, so that large slots still fit
/// later. Considers only the room.
fn pack(
    slots: &Slots,
    profiles: &[ResourceProfile],
    closed: &BTreeSet<ResourceId>,
) -> Option<Vec<Choice>> {
    let workers = slots.open_workers();
    let workers = workers.filter(|(id, _)| !closed.contains(*id));
    let mut workers: Vec<(&ResourceId, &Worker, Room)> = workers
        .map(|(id, worker)| (id, worker, Room::left_of(worker)))
        .collect();
    least_first(&mut workers, |(.., room)| room);
    let in_order = workers.into_iter().map(|(id, worker, _)| (id, worker));
    pack_in_order(in_order.collect(), profiles)
}

/// Slots for all of the profiles from these TaskExecutors, in order: each is filled as far as possible before
/// the next.
pub(super) fn pack_in_order(
    workers: Vec<(&ResourceId, &Worker)>,
    profiles: &[ResourceProfile],
) -> Option<Vec<Choice>> {
    let mut places: Vec<_> = workers
        .into_iter()
        .map(|(id, worker)| {
            let numbers = Numbers {
                free: worker.free(),
                next: worker.next_number(),
            };
            (id, Room::left_of(worker), numbers)
        })
        .collect();
    let mut chosen = Vec::with_capacity(profiles.len());
    for same in profiles.chunk_by(|one, next| one == next) {
        let profile = &same[0];
        let mut count = u32::try_from(same.len()).unwrap_or(u32::MAX);
        for (id, room, numbers) in &mut places {
            let taken = room.take(profile, count);
            for _ in 0..taken {
                chosen.push(Choice {
                    worker: id.clone(),
                    number: numbers.take(profile)?,
                    profile: profile.clone(),
                });
            }
            count -= taken;
            if count == 0 {
                break;
            }
        }
        if count > 0 {
            return None;
        }
    }
    Some(chosen)
}

/// Chooses slots for as many of the profiles as possible, but none of TaskExecutors that are closed to the job.
pub(super) fn choose(
    slots: &Slots,
    job: JobId,
    profiles: &[ResourceProfile],
    (balance, closed): (Balance, &BTreeSet<ResourceId>),
) -> Vec<Choice> {
    if profiles.is_empty() {
        return Vec::new();
    }
    let is_any_cut = profiles.iter().any(|profile| !profile.is_unknown());
    let workers = slots.open_workers().filter(|(id, worker)| {
        let is_usable = is_any_cut || worker.free().len() > 0;
        is_usable && !closed.contains(*id)
    });
    let candidates = workers.map(|(id, worker)| Candidate {
        id,
        worker,
        is_used_by_job: slots.is_held_at(job, id),
        held: worker.held(),
        numbers: Numbers {
            free: worker.free(),
            next: worker.next_number(),
        },
        left: (is_any_cut || !worker.is_shared_equally()).then(|| worker.left()),
    });
    let mut candidates: Vec<_> = candidates.collect();
    let mut chosen = Vec::new();
    for profile in profiles {
        let room = |candidate: &Candidate<'_, _>| candidate.room_for(profile);
        let best = candidates
            .iter_mut()
            .filter_map(|candidate| Some((room(candidate)?, candidate)))
            // Of equals, the one with the lowest id.
            .max_by_key(|(room, candidate)| {
                let rank = match balance {
                    Balance::None => (candidate.is_used_by_job, 0),
                    Balance::Slots => (false, candidate.unused_part(*room)),
                };
                (rank, *room, std::cmp::Reverse(candidate.id))
            });
        let Some((_, best)) = best else { continue };
        chosen.extend(best.take(profile));
    }
    chosen
}

/// Numbers of slots that may be requested.
#[derive(Debug)]
struct Numbers<Free> {
    /// Free default slots, lowest number first.
    free: Free,
    /// Number of the next dynamic slot.
    next: u32,
}

impl<Free: Iterator<Item = u32>> Numbers<Free> {
    fn take(&mut self, profile: &ResourceProfile) -> Option<u32> {
        match profile {
            ResourceProfile::Unknown => self.free.next(),
            ResourceProfile::Of(_) | ResourceProfile::Any => {
                let number = self.next;
                self.next = number.checked_add(1)?;
                Some(number)
            }
        }
    }
}

#[derive(Debug)]
struct Candidate<'a, Free> {
    id: &'a ResourceId,
    worker: &'a Worker,
    is_used_by_job: bool,
    /// Number of slots that are held.
    held: u64,
    numbers: Numbers<Free>,
    /// Resources that no slot holds. `None`: they suffice for every free default slot, and only default slots
    /// are requested.
    left: Option<Resources>,
}

impl<Free: ExactSizeIterator<Item = u32>> Candidate<'_, Free> {
    /// Number of slots of this profile that fit. `None`: none.
    fn room_for(&self, profile: &ResourceProfile) -> Option<u64> {
        let free = self.numbers.free.len() as u64;
        let room = match (profile, &self.left) {
            (ResourceProfile::Of(wanted), Some(left)) => left.holds(wanted).unwrap_or(u64::MAX),
            (ResourceProfile::Unknown, None) => free,
            (ResourceProfile::Unknown, Some(left)) => {
                let share = self.worker.spec().default_slot();
                left.holds(&share).unwrap_or(u64::MAX).min(free)
            }
            (ResourceProfile::Of(_), None) | (ResourceProfile::Any, _) => 0,
        };
        (room > 0).then_some(room)
    }

    /// Unheld part of all slots that could be here, in millionths.
    fn unused_part(&self, room: u64) -> u64 {
        room.saturating_mul(1_000_000) / room.saturating_add(self.held).max(1)
    }

    fn take(&mut self, profile: &ResourceProfile) -> Option<Choice> {
        let number = self.numbers.take(profile)?;
        if let Some(left) = &mut self.left {
            let share = self.worker.spec().default_slot();
            *left = left.saturating_minus(profile.resources().unwrap_or(&share));
        }
        self.is_used_by_job = true;
        self.held += 1;
        Some(Choice {
            worker: self.id.clone(),
            number,
            profile: profile.clone(),
        })
    }
}
