//! How many more workers are needed, and which are not needed any more. Pure, without state: what is there is counted anew
//! each time, so that a start that failed, a TaskManager that somebody started by hand and a change of the leader need no
//! rule of their own.
//!
//! - What a job lacks is reserved first in what registered TaskManagers have left, then in what workers will have that are
//!   expected to register, and only for the rest more workers are asked for. Jobs are served in their order, as in matching, and
//!   what is thought to fit there is found by that: both pack alike (`packing`).
//! - Workers are of the configured kind, unless a slot is asked for that one of these could not give: for that one is started which
//!   has just that, where the driver's host is as large.
//! - A job is helped as a whole or not at all: what can't be enough for it, because of the maximum or because no worker is as
//!   large, is not started. What jobs could use beyond that, to run more of their regions at the same time, comes after all of it,
//!   as far as it goes.

use std::collections::BTreeSet;

use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::{CpuCores, ResourceProfile, Resources, WorkerResourceSpec};

use super::super::packing::{Room, least_first};

/// What jobs lack, in the order in which they are served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lacking {
    /// What each lacks to run, or to go on.
    pub needed: Vec<(JobId, Vec<ResourceProfile>)>,
    /// What each could use beyond that, each slot by itself.
    pub useful: Vec<(JobId, Vec<ResourceProfile>)>,
    /// For whom slots of these TaskManagers are kept: nobody behind it gets any.
    pub kept: Option<(JobId, BTreeSet<ResourceId>)>,
}

/// What there is and what is lacking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Situation {
    /// What jobs lack.
    pub lacking: Lacking,
    /// The registered TaskManagers of which slots may be had, whoever started them.
    pub registered: Vec<(ResourceId, Room)>,
    /// So many workers of the configured kind are expected to register.
    pub pending: u32,
    /// The others that are expected to register.
    pub pending_kinds: Vec<WorkerResourceSpec>,
    /// All default slots that there are or may be, of whatever TaskManager.
    pub total: u32,
}

/// What is to be there at least and at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// What workers are started with, unless more is asked for.
    pub spec: WorkerResourceSpec,
    /// The most that any worker can have where the driver starts them; nothing: all are of one kind.
    pub largest: Option<Resources>,
    /// `slotmanager.number-of-slots.min`.
    pub min: u32,
    /// `slotmanager.number-of-slots.max`.
    pub max: u32,
    /// `slotmanager.redundant-taskmanager-num`, in slots.
    pub redundant: u32,
}

impl Bounds {
    /// The kind of worker that is started for such a slot: the configured one if it gives one, else one with this slot alone.
    /// Of what the profile leaves open it has what one of the configured kind has, but no extended resources.
    pub fn kind_for(&self, profile: &ResourceProfile) -> Option<WorkerResourceSpec> {
        if Room::of(&self.spec).holds(profile) > 0 {
            return Some(self.spec.clone());
        }
        let (ResourceProfile::Of(wanted), Some(largest)) = (profile, &self.largest) else {
            return None;
        };
        let usual = self.spec.total();
        let total = Resources {
            cpu: match wanted.cpu {
                CpuCores::ZERO => usual.cpu,
                cpu => cpu,
            },
            task_memory: match wanted.task_memory {
                0 => usual.task_memory,
                bytes => bytes,
            },
            // All exchanges of the process share it.
            network_memory: wanted.network_memory.max(usual.network_memory),
            managed_memory: wanted.managed_memory,
            extended: wanted.extended.clone(),
        };
        let fits = largest.covers(&total) && total.total_memory() <= largest.task_memory;
        fits.then(|| WorkerResourceSpec::new(total, 1))
    }
}

/// What follows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// So many workers of the configured kind are to be started.
    pub start: u32,
    /// And these others.
    pub kinds: Vec<WorkerResourceSpec>,
    /// The registered TaskManagers on which something is reserved.
    pub reserved: BTreeSet<ResourceId>,
    /// So many default slots of registered TaskManagers are not reserved.
    pub spare: u32,
    /// Jobs that the maximum keeps from being helped.
    pub capped: Vec<JobId>,
    /// Jobs that ask for more than any worker can have.
    pub too_large: Vec<JobId>,
}

/// Where slots are had: of registered TaskManagers first, then of workers that are expected, then of more.
struct Pool<'a> {
    rooms: Vec<(Option<ResourceId>, Room)>,
    /// So many more default slots there may be.
    slots_left: u32,
    /// Of the configured kind.
    started: u32,
    /// Of others.
    kinds: Vec<WorkerResourceSpec>,
    bounds: &'a Bounds,
    /// Of these nobody gets anything at present.
    closed: BTreeSet<ResourceId>,
}

/// Why a job is not helped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hindered {
    Capped,
    TooLarge,
}

impl Pool<'_> {
    fn is_closed(&self, index: usize) -> bool {
        let id = self.rooms[index].0.as_ref();
        id.is_some_and(|id| self.closed.contains(id))
    }

    /// Takes all of it, or changes nothing. Gives the rooms that it took from.
    fn take(&mut self, lacking: &[ResourceProfile]) -> Result<Vec<usize>, Hindered> {
        let (rooms, started, kinds) = (self.rooms.len(), self.started, self.kinds.len());
        let slots_left = self.slots_left;
        let mut before: Vec<(usize, Room)> = Vec::new();
        for same in lacking.chunk_by(|one, next| one == next) {
            let profile = &same[0];
            let mut count = u32::try_from(same.len()).unwrap_or(u32::MAX);
            let mut index = 0;
            while count > 0 {
                if index == self.rooms.len()
                    && let Err(hindered) = self.start_one_for(profile)
                {
                    for (index, room) in before.into_iter().rev() {
                        self.rooms[index].1 = room;
                    }
                    self.rooms.truncate(rooms);
                    self.started = started;
                    self.kinds.truncate(kinds);
                    self.slots_left = slots_left;
                    return Err(hindered);
                }
                let is_closed = self.is_closed(index);
                let room = &mut self.rooms[index].1;
                if !is_closed && room.holds(profile) > 0 {
                    before.push((index, room.clone()));
                    count -= room.take(profile, count);
                }
                index += 1;
            }
        }
        Ok(before.into_iter().map(|(index, _)| index).collect())
    }

    /// Takes as much of it as there can be. Gives the rooms that it took from.
    fn take_some(&mut self, useful: &[ResourceProfile]) -> Vec<usize> {
        let mut taken = Vec::new();
        for same in useful.chunk_by(|one, next| one == next) {
            let profile = &same[0];
            let mut count = u32::try_from(same.len()).unwrap_or(u32::MAX);
            let mut index = 0;
            while count > 0 {
                if index == self.rooms.len() && self.start_one_for(profile).is_err() {
                    break;
                }
                let some = match self.is_closed(index) {
                    true => 0,
                    false => self.rooms[index].1.take(profile, count),
                };
                if some > 0 {
                    taken.push(index);
                    count -= some;
                }
                index += 1;
            }
        }
        taken
    }

    /// One more worker, which holds at least one of the profile.
    fn start_one_for(&mut self, profile: &ResourceProfile) -> Result<(), Hindered> {
        let kind = self.bounds.kind_for(profile).ok_or(Hindered::TooLarge)?;
        let slots_left = self.slots_left.checked_sub(kind.slots());
        self.slots_left = slots_left.ok_or(Hindered::Capped)?;
        self.rooms.push((None, Room::of(&kind)));
        if kind == self.bounds.spec {
            self.started += 1;
        } else {
            self.kinds.push(kind);
        }
        Ok(())
    }
}

/// What a driver could start beside the TaskManagers that have registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Startable {
    /// What there may be at most, and of which kinds.
    pub bounds: Bounds,
    /// What workers have that are expected.
    pub expected: Vec<Room>,
    /// So many more default slots there may be.
    pub slots_left: u32,
}

/// Into which of these rooms all that is wanted would go, each filled before the next one, and then into workers that could be started; nothing:
/// it does not fit.
pub fn places(
    rooms: Vec<(Option<ResourceId>, Room)>,
    startable: Option<&Startable>,
    wanted: &[ResourceProfile],
) -> Option<BTreeSet<ResourceId>> {
    let nothing = Bounds {
        spec: WorkerResourceSpec::new(Resources::ZERO, 0),
        largest: None,
        min: 0,
        max: 0,
        redundant: 0,
    };
    let expected = startable.map_or(&[][..], |it| &it.expected);
    let expected = expected.iter().map(|room| (None, room.clone()));
    let mut pool = Pool {
        rooms: rooms.into_iter().chain(expected).collect(),
        slots_left: startable.map_or(0, |it| it.slots_left),
        started: 0,
        kinds: Vec::new(),
        bounds: startable.map_or(&nothing, |it| &it.bounds),
        closed: BTreeSet::new(),
    };
    let taken = pool.take(wanted).ok()?.into_iter();
    Some(taken.filter_map(|it| pool.rooms[it].0.clone()).collect())
}

/// What is to be done.
pub fn plan(situation: &Situation, bounds: &Bounds) -> Plan {
    let each = bounds.spec.slots().max(1);
    let expected = (0..situation.pending).map(|_| &bounds.spec);
    let expected = expected.chain(&situation.pending_kinds);
    let expected = expected.map(|spec| (None, Room::of(spec)));
    let mut registered: Vec<(Option<ResourceId>, Room)> = situation
        .registered
        .iter()
        .map(|(id, room)| (Some(id.clone()), room.clone()))
        .collect();
    least_first(&mut registered, |(_, room)| room);
    let mut pool = Pool {
        rooms: registered.into_iter().chain(expected).collect(),
        slots_left: bounds.max.saturating_sub(situation.total),
        started: 0,
        kinds: Vec::new(),
        bounds,
        closed: BTreeSet::new(),
    };
    let mut plan = Plan::default();
    let kept = situation.lacking.kept.as_ref();
    for (job, lacking) in &situation.lacking.needed {
        match pool.take(lacking) {
            Ok(taken) => {
                let ids = taken.into_iter().filter_map(|it| pool.rooms[it].0.clone());
                plan.reserved.extend(ids);
            }
            Err(Hindered::Capped) => plan.capped.push(*job),
            Err(Hindered::TooLarge) => plan.too_large.push(*job),
        }
        if let Some((_, closed)) = kept.filter(|(of, _)| of == job) {
            // Matching gives nothing of them to those behind it; nor are they let go.
            plan.reserved.extend(closed.iter().cloned());
            pool.closed.clone_from(closed);
        }
    }
    for (job, useful) in &situation.lacking.useful {
        // Who can't go on has no use for more.
        if plan.capped.contains(job) || plan.too_large.contains(job) {
            continue;
        }
        let taken = pool.take_some(useful).into_iter();
        let ids = taken.filter_map(|it| pool.rooms[it].0.clone());
        plan.reserved.extend(ids);
    }
    let mut spare = 0_u32;
    for (id, room) in &pool.rooms {
        spare = spare.saturating_add(room.spare());
        if id.is_some() {
            plan.spare = plan.spare.saturating_add(room.spare());
        }
    }
    let of_kinds: u32 = pool.kinds.iter().map(WorkerResourceSpec::slots).sum();
    let total = situation
        .total
        .saturating_add(pool.started.saturating_mul(each))
        .saturating_add(of_kinds);
    let below_min = bounds.min.saturating_sub(total).div_ceil(each);
    let below_redundant = bounds.redundant.saturating_sub(spare).div_ceil(each);
    let extra = below_min.max(below_redundant).min(pool.slots_left / each);
    plan.start = pool.started + extra;
    plan.kinds = pool.kinds;
    plan
}

/// Which of these idle workers, each with its slots, may go. `total` includes theirs.
pub fn releasable(
    idle: &[(ResourceId, u32)],
    total: u32,
    plan: &Plan,
    bounds: &Bounds,
) -> Vec<ResourceId> {
    let (mut spare, mut total) = (plan.spare, total);
    let mut going = Vec::new();
    for (worker, slots) in idle {
        let is_free = !plan.reserved.contains(worker);
        let is_spare = spare >= bounds.redundant.saturating_add(*slots);
        let is_above_min = total >= bounds.min.saturating_add(*slots);
        if is_free && is_spare && is_above_min {
            spare -= slots;
            total -= slots;
            going.push(worker.clone());
        }
    }
    going
}
