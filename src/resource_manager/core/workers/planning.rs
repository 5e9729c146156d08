//! Computes how many more workers are needed, and which are no longer needed. Pure and stateless: everything is
//! counted again each time, so that a failed start, a TaskManager started by hand and a change of leader need no
//! rules of their own.
//!
//! - The slots that a job lacks are reserved first in the free room of registered TaskManagers, then in the workers
//!   that are expected to register; more workers are started only for the rest. Jobs are served in the same order
//!   as in matching, and matching finds the slots that planning has reserved: both pack alike (`packing`).
//! - Workers are of the configured kind. For a slot that does not fit into such a worker, one is started that has
//!   exactly that slot, if the driver's host is large enough.
//! - A job is served as a whole or not at all: if the maximum or the size of a worker prevents that, nothing is
//!   started for it. Slots that jobs could use beyond their minimum, to run more regions at the same time, come
//!   after all minimums, as far as possible.

use std::collections::BTreeSet;

use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::{CpuCores, ResourceProfile, Resources, WorkerResourceSpec};

use super::super::packing::{Room, least_first};

/// Slots that jobs lack, in the order in which jobs are served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shortages {
    /// The slots that each job lacks to run or to continue.
    pub needed: Vec<(JobId, Vec<ResourceProfile>)>,
    /// The slots that each job could use beyond that; each is useful alone.
    pub useful: Vec<(JobId, Vec<ResourceProfile>)>,
    /// The job that slots of these TaskManagers are kept for: no job behind it gets any.
    pub kept: Option<(JobId, BTreeSet<ResourceId>)>,
}

/// Existing resources, and slots that jobs lack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Situation {
    /// Slots that jobs lack.
    pub shortages: Shortages,
    /// Registered TaskManagers with free room, started by the driver or by hand.
    pub registered: Vec<(ResourceId, Room)>,
    /// Number of workers of the configured kind that are expected to register.
    pub pending: u32,
    /// Workers of other kinds that are expected to register.
    pub pending_kinds: Vec<WorkerResourceSpec>,
    /// Default slots of all existing and expected TaskManagers, workers or not.
    pub total: u32,
}

/// Limits of the number and size of workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Resources of a worker, unless a slot needs more.
    pub spec: WorkerResourceSpec,
    /// Largest resources that a worker can have where the driver starts it. `None`: all workers are of one kind.
    pub largest: Option<Resources>,
    /// `slotmanager.number-of-slots.min`.
    pub min: u32,
    /// `slotmanager.number-of-slots.max`.
    pub max: u32,
    /// `slotmanager.redundant-taskmanager-num`, in slots.
    pub redundant: u32,
}

impl Bounds {
    /// The kind of worker to start for such a slot: the configured one if the slot fits, otherwise one with this
    /// slot alone. Resources that the profile does not state are those of the configured kind, but without extended
    /// resources.
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

/// The result of planning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Number of workers of the configured kind to start.
    pub start: u32,
    /// Workers of other kinds to start.
    pub kinds: Vec<WorkerResourceSpec>,
    /// Registered TaskManagers on which slots are reserved.
    pub reserved: BTreeSet<ResourceId>,
    /// Number of default slots of registered TaskManagers that are not reserved.
    pub spare: u32,
    /// Jobs that are not served because of the maximum.
    pub capped: Vec<JobId>,
    /// Jobs that request more than any worker can have.
    pub too_large: Vec<JobId>,
}

/// Rooms that slots are taken from: registered TaskManagers first, then expected workers, then new ones.
struct Pool<'a> {
    rooms: Vec<(Option<ResourceId>, Room)>,
    /// Number of default slots that may still be added.
    slots_left: u32,
    /// Number of new workers of the configured kind.
    started: u32,
    /// New workers of other kinds.
    kinds: Vec<WorkerResourceSpec>,
    bounds: &'a Bounds,
    /// TaskManagers that give no slots at present.
    closed: BTreeSet<ResourceId>,
}

/// Why a job is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blocked {
    Capped,
    TooLarge,
}

impl Pool<'_> {
    fn is_closed(&self, index: usize) -> bool {
        let id = self.rooms[index].0.as_ref();
        id.is_some_and(|id| self.closed.contains(id))
    }

    /// Takes all of the slots, or changes nothing. Returns the rooms that it took from.
    fn take(&mut self, lacking: &[ResourceProfile]) -> Result<Vec<usize>, Blocked> {
        let (rooms, started, kinds) = (self.rooms.len(), self.started, self.kinds.len());
        let slots_left = self.slots_left;
        let mut before: Vec<(usize, Room)> = Vec::new();
        for same in lacking.chunk_by(|one, next| one == next) {
            let profile = &same[0];
            let mut count = u32::try_from(same.len()).unwrap_or(u32::MAX);
            let mut index = 0;
            while count > 0 {
                if index == self.rooms.len()
                    && let Err(blocked) = self.start_one_for(profile)
                {
                    for (index, room) in before.into_iter().rev() {
                        self.rooms[index].1 = room;
                    }
                    self.rooms.truncate(rooms);
                    self.started = started;
                    self.kinds.truncate(kinds);
                    self.slots_left = slots_left;
                    return Err(blocked);
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

    /// Takes as many of the slots as possible. Returns the rooms that it took from.
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

    /// Adds a worker that holds at least one slot of the profile.
    fn start_one_for(&mut self, profile: &ResourceProfile) -> Result<(), Blocked> {
        let kind = self.bounds.kind_for(profile).ok_or(Blocked::TooLarge)?;
        let slots_left = self.slots_left.checked_sub(kind.slots());
        self.slots_left = slots_left.ok_or(Blocked::Capped)?;
        self.rooms.push((None, Room::of(&kind)));
        if kind == self.bounds.spec {
            self.started += 1;
        } else {
            self.kinds.push(kind);
        }
        Ok(())
    }
}

/// Workers that a driver could start in addition to the registered TaskManagers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Startable {
    /// Limits of the number and size of workers.
    pub bounds: Bounds,
    /// Room of the workers that are expected to register.
    pub expected: Vec<Room>,
    /// Number of default slots that may still be added.
    pub slots_left: u32,
}

/// The rooms that all wanted slots go into, each filled before the next one, followed by workers that could be
/// started. `None`: they do not fit.
pub(crate) fn places(
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

/// Computes the plan.
pub(super) fn plan(situation: &Situation, bounds: &Bounds) -> Plan {
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
    let kept = situation.shortages.kept.as_ref();
    for (job, lacking) in &situation.shortages.needed {
        match pool.take(lacking) {
            Ok(taken) => {
                let ids = taken.into_iter().filter_map(|it| pool.rooms[it].0.clone());
                plan.reserved.extend(ids);
            }
            Err(Blocked::Capped) => plan.capped.push(*job),
            Err(Blocked::TooLarge) => plan.too_large.push(*job),
        }
        if let Some((_, closed)) = kept.filter(|(of, _)| of == job) {
            // Matching gives none of their slots to jobs behind it; nor are they released.
            plan.reserved.extend(closed.iter().cloned());
            pool.closed.clone_from(closed);
        }
    }
    for (job, useful) in &situation.shortages.useful {
        // A job that can't continue has no use for more slots.
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

/// Which of these idle workers may be released. Each has its number of slots; `total` includes them.
pub(super) fn releasable(
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
