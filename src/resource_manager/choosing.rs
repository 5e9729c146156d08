//! Which slots a job is given: free default slots, or dynamic ones cut out of what a TaskExecutor has left. Pure, a part of
//! [`super::slot_manager`], which says by what rule.

use std::collections::BTreeSet;

use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::{ResourceProfile, Resources};

use super::packing::{Room, least_first};
use super::slots::{Slots, Worker};

/// A slot to ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Whose.
    pub worker: ResourceId,
    /// Its number there.
    pub number: u32,
    /// What it is to have; unknown: it is a default slot.
    pub profile: ResourceProfile,
}

/// Where slots are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Balance {
    /// From TaskExecutors of which the job has slots already, then from those with the most room.
    #[default]
    None,
    /// From those of which the smallest part is in use, whoever uses it.
    Slots,
}

/// Slots for all of the profiles, the most demanding first; `None`: they are not found. Chosen as by [`choose`], unless that leaves no room for
/// the last of them: then packed.
pub fn choose_all(
    slots: &Slots,
    job: JobId,
    profiles: &[ResourceProfile],
    (balance, closed): (Balance, &BTreeSet<ResourceId>),
) -> Option<Vec<Choice>> {
    let chosen = choose(slots, job, profiles, (balance, closed));
    if chosen.len() == profiles.len() {
        return Some(chosen);
    }
    // Of one profile there is as much in any order: where the first one does not go in there is nothing to gain, least of all in a full
    // cluster, in which very many may wait.
    let first = profiles.chunk_by(|one, next| one == next).next()?;
    let last_of_first = chosen.get(first.len() - 1)?;
    if last_of_first.profile != first[0] {
        return None;
    }
    pack(slots, profiles, closed)
}

/// Slots for all of the profiles, from those with the least room: what is large fits later, too. Nothing but the room counts.
fn pack(
    slots: &Slots,
    profiles: &[ResourceProfile],
    closed: &BTreeSet<ResourceId>,
) -> Option<Vec<Choice>> {
    let workers = slots.workers();
    let workers = workers.filter(|(id, worker)| !worker.is_draining && !closed.contains(*id));
    let mut workers: Vec<(&ResourceId, &Worker, Room)> = workers
        .map(|(id, worker)| (id, worker, Room::left_of(worker)))
        .collect();
    least_first(&mut workers, |(.., room)| room);
    let in_order = workers.into_iter().map(|(id, worker, _)| (id, worker));
    pack_in_order(in_order.collect(), profiles)
}

/// Slots for all of the profiles, from these TaskExecutors, each as far as it goes before the next one.
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

/// Slots for as many of the profiles as there are, but none of TaskExecutors that are closed to the job.
pub fn choose(
    slots: &Slots,
    job: JobId,
    profiles: &[ResourceProfile],
    (balance, closed): (Balance, &BTreeSet<ResourceId>),
) -> Vec<Choice> {
    if profiles.is_empty() {
        return Vec::new();
    }
    let is_any_cut = profiles.iter().any(|profile| !profile.is_unknown());
    let workers = slots.workers().filter(|(id, worker)| {
        let is_usable = is_any_cut || worker.free().len() > 0;
        is_usable && !worker.is_draining && !closed.contains(*id)
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
            // Of equals the one with the lowest id.
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

/// The numbers of slots that may be asked for.
#[derive(Debug)]
struct Numbers<Free> {
    /// Of default slots, the lowest first.
    free: Free,
    /// Of dynamic ones.
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
    /// Slots that somebody has.
    held: u64,
    numbers: Numbers<Free>,
    /// What nobody has; `None`: enough for every free default slot, and nothing else is asked for.
    left: Option<Resources>,
}

impl<Free: ExactSizeIterator<Item = u32>> Candidate<'_, Free> {
    /// For how many such slots there is room; `None`: for none.
    fn room_for(&self, profile: &ResourceProfile) -> Option<u64> {
        let free = self.numbers.free.len() as u64;
        let room = match (profile, &self.left) {
            (ResourceProfile::Of(wanted), Some(left)) => left.holds(wanted).unwrap_or(u64::MAX),
            (ResourceProfile::Unknown, None) => free,
            (ResourceProfile::Unknown, Some(left)) => {
                let share = self.worker.spec.default_slot();
                left.holds(&share).unwrap_or(u64::MAX).min(free)
            }
            (ResourceProfile::Of(_), None) | (ResourceProfile::Any, _) => 0,
        };
        (room > 0).then_some(room)
    }

    /// Of all slots that could be here those that nobody has, in millionths.
    fn unused_part(&self, room: u64) -> u64 {
        room.saturating_mul(1_000_000) / room.saturating_add(self.held).max(1)
    }

    fn take(&mut self, profile: &ResourceProfile) -> Option<Choice> {
        let number = self.numbers.take(profile)?;
        if let Some(left) = &mut self.left {
            let share = self.worker.spec.default_slot();
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
