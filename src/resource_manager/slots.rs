//! The slots of all TaskExecutors as they are believed to be, and two indices over them: which are free, and which job holds how
//! many where. Pure, a part of [`super::slot_manager`].
//!
//! With very many jobs and slots neither may be looked for by going through all slots: every change of a slot passes through
//! here, so that the indices are always those of the states.
//!
//! The default slots of a TaskExecutor are always there; numbers above theirs are *dynamic slots*, cut to what a job asked for,
//! which are forgotten when they are free. A dynamic slot's number is never used again in the same registration, so that what
//! comes late of an earlier one can't be taken for it.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::{ResourceProfile, Resources, WorkerResourceSpec};

use crate::small_map::SmallMap;

/// Who holds a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotHolder {
    /// The job.
    pub job: JobId,
    /// The allocation.
    pub allocation: AllocationId,
}

/// Counts the changes of the view, to tell reports from before a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Turn(u64);

impl Turn {
    /// The view has changed.
    pub fn advance(&mut self) {
        self.0 += 1;
    }

    /// The turn with this number.
    #[cfg(test)]
    pub fn of(number: u64) -> Turn {
        Turn(number)
    }
}

/// How often the slots of a TaskExecutor have changed hands, as it counts. 0: it does not say.
///
/// What it sends may come late: after a younger copy, or after the answer to a request that it handled since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct SlotsVersion(pub u64);

impl SlotsVersion {
    /// Whether what is told as of this version is older than what is known.
    pub fn is_before(self, known: SlotsVersion) -> bool {
        self.0 != 0 && self < known
    }
}

/// A slot as it is believed to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// Nobody's.
    Free,
    /// Nobody's, but the TaskExecutor refused it or was not reached: left alone for a moment.
    Resting,
    /// Asked for; it is not known whether the TaskExecutor has allocated it.
    Pending {
        /// For whom.
        holder: SlotHolder,
        /// Whether an answer may still come; otherwise the request is to be sent again.
        is_in_flight: bool,
    },
    /// Allocated by its TaskExecutor.
    Allocated(SlotHolder),
}

impl SlotState {
    /// Who has it, or may have it.
    pub fn holder(&self) -> Option<SlotHolder> {
        match self {
            SlotState::Free | SlotState::Resting => None,
            SlotState::Pending { holder, .. } | SlotState::Allocated(holder) => Some(*holder),
        }
    }
}

/// A slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// As it is believed to be.
    pub state: SlotState,
    /// Since when.
    pub changed: Turn,
    /// The youngest version as of which its TaskExecutor told of it, in this registration.
    pub version: SlotsVersion,
    /// What it has, or is to have; unknown: as a default slot.
    pub profile: ResourceProfile,
}

/// A slot as its TaskExecutor tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedSlot {
    /// Its number there.
    pub number: u32,
    /// Who has it.
    pub holder: Option<SlotHolder>,
    /// What is reserved for the holder; unknown: as for a default slot.
    pub profile: ResourceProfile,
}

/// What a TaskExecutor tells of its slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotsReport {
    /// These.
    pub slots: Vec<ReportedSlot>,
    /// As of when.
    pub version: SlotsVersion,
    /// Whether there are no others.
    pub are_all: bool,
}

impl SlotsReport {
    /// What a TaskExecutor tells that has only default slots, or of some of them.
    pub fn of_default_slots(
        slots: &[(u32, Option<SlotHolder>)],
        version: SlotsVersion,
    ) -> SlotsReport {
        let reported = slots.iter().map(|&(number, holder)| ReportedSlot {
            number,
            holder,
            profile: ResourceProfile::Unknown,
        });
        SlotsReport {
            slots: reported.collect(),
            version,
            are_all: true,
        }
    }
}

/// A TaskExecutor.
#[derive(Debug)]
pub struct Worker {
    /// What it has.
    pub spec: WorkerResourceSpec,
    /// It is to leave: nothing is asked of it any more.
    pub is_draining: bool,
    default_slot: ResourceProfile,
    slots: BTreeMap<u32, Slot>,
    free: BTreeSet<u32>,
    /// What the slots that are not free have together.
    taken: Resources,
    /// How many of them are no default slots, or have something else.
    taken_otherwise: usize,
    /// The next dynamic slot.
    next_number: u32,
    /// When a dynamic slot was last forgotten.
    forgotten: (Turn, SlotsVersion),
}

impl Worker {
    fn new(spec: WorkerResourceSpec) -> Worker {
        Worker {
            default_slot: spec.default_slot().into(),
            next_number: spec.slots(),
            spec,
            is_draining: false,
            slots: BTreeMap::new(),
            free: BTreeSet::new(),
            taken: Resources::ZERO,
            taken_otherwise: 0,
            forgotten: Default::default(),
        }
    }

    /// Its slots.
    pub fn slots(&self) -> impl Iterator<Item = (u32, &Slot)> {
        self.slots.iter().map(|(&number, slot)| (number, slot))
    }

    /// The numbers of the default slots that nobody has, the lowest first. Whether anything is left for them is another question.
    pub fn free(&self) -> impl ExactSizeIterator<Item = u32> {
        self.free.iter().copied()
    }

    /// How many slots somebody has, or may get.
    pub fn held(&self) -> u64 {
        let held = self.slots.values();
        held.filter(|slot| slot.state.holder().is_some()).count() as u64
    }

    /// What no slot has.
    pub fn left(&self) -> Resources {
        self.spec.total().saturating_minus(&self.taken)
    }

    /// Whether all slots that somebody has are as default slots are: then there is enough for every one that is free.
    pub fn is_shared_equally(&self) -> bool {
        self.taken_otherwise == 0
    }

    /// The youngest version as of which its TaskExecutor told of any of its slots.
    pub fn version(&self) -> SlotsVersion {
        let of_slots = self.slots.values().map(|slot| slot.version);
        of_slots.fold(self.forgotten.1, SlotsVersion::max)
    }

    /// The number of the next dynamic slot.
    pub fn next_number(&self) -> u32 {
        self.next_number
    }

    /// What a slot of it has, or is to have.
    pub fn profile_of<'a>(&'a self, slot: &'a Slot) -> &'a ResourceProfile {
        match &slot.profile {
            ResourceProfile::Of(_) => &slot.profile,
            ResourceProfile::Unknown | ResourceProfile::Any => &self.default_slot,
        }
    }

    fn is_dynamic(&self, number: u32) -> bool {
        number >= self.spec.slots()
    }

    /// Counts what a slot has, or counts it no more.
    fn count(&mut self, number: u32, slot: &Slot, is_there: bool) {
        if slot.state == SlotState::Free {
            return;
        }
        let is_default = !self.is_dynamic(number) && *self.profile_of(slot) == self.default_slot;
        let has = self.profile_of(slot).resources().cloned();
        let has = has.unwrap_or_default();
        if is_there {
            self.taken = self.taken.plus(&has);
            self.taken_otherwise += usize::from(!is_default);
        } else {
            self.taken = self.taken.saturating_minus(&has);
            self.taken_otherwise -= usize::from(!is_default);
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Slots {
    workers: BTreeMap<ResourceId, Worker>,
    /// No count is zero, and no map empty.
    held: BTreeMap<JobId, SmallMap<ResourceId, u32>>,
    /// The jobs whose slots have changed since this was last taken, some more than once.
    changed: Vec<JobId>,
    capacity_version: u64,
}

impl Slots {
    /// Adds a TaskExecutor, or replaces all that was known of it.
    pub fn put_worker(
        &mut self,
        id: &ResourceId,
        spec: WorkerResourceSpec,
        report: SlotsReport,
        changed: Turn,
    ) {
        self.remove_worker(id);
        self.capacity_version += 1;
        self.workers.insert(id.clone(), Worker::new(spec));
        for reported in report.slots {
            let ReportedSlot {
                number,
                holder,
                profile,
            } = reported;
            let slot = Slot {
                state: holder.map_or(SlotState::Free, SlotState::Allocated),
                changed,
                version: report.version,
                profile,
            };
            self.put(id, number, slot);
        }
    }

    /// Forgets a TaskExecutor.
    pub fn remove_worker(&mut self, id: &ResourceId) {
        let Some(worker) = self.workers.remove(id) else {
            return;
        };
        self.capacity_version += 1;
        for slot in worker.slots.values() {
            self.release(id, slot.state);
        }
    }

    /// Asks no slots of a TaskExecutor, or does so again.
    pub fn set_draining(&mut self, id: &ResourceId, is_draining: bool) {
        if let Some(worker) = self.workers.get_mut(id) {
            worker.is_draining = is_draining;
            self.capacity_version += 1;
        }
    }

    /// The number of changes to which TaskExecutors there are, what each has, and whether it is drained.
    pub fn capacity_version(&self) -> u64 {
        self.capacity_version
    }

    /// The TaskExecutors.
    pub fn workers(&self) -> impl Iterator<Item = (&ResourceId, &Worker)> {
        self.workers.iter()
    }

    /// One TaskExecutor.
    pub fn worker(&self, id: &ResourceId) -> Option<&Worker> {
        self.workers.get(id)
    }

    /// One slot.
    pub fn get(&self, id: &ResourceId, number: u32) -> Option<&Slot> {
        self.workers.get(id)?.slots.get(&number)
    }

    /// Changes a slot that is there. A dynamic slot that is free is there no more.
    pub fn set(&mut self, id: &ResourceId, number: u32, state: SlotState, changed: Turn) {
        let Some(slot) = self.get(id, number).cloned() else {
            return;
        };
        let profile = match state {
            SlotState::Free => ResourceProfile::Unknown,
            SlotState::Resting | SlotState::Pending { .. } | SlotState::Allocated(_) => {
                slot.profile
            }
        };
        let slot = Slot {
            state,
            changed,
            version: slot.version,
            profile,
        };
        self.put(id, number, slot);
    }

    /// Asks for a slot: a free default slot, or a dynamic one that was not there.
    pub fn ask(
        &mut self,
        id: &ResourceId,
        number: u32,
        profile: ResourceProfile,
        slot: SlotState,
        changed: Turn,
    ) {
        let version = self.get(id, number).map(|slot| slot.version);
        let slot = Slot {
            state: slot,
            changed,
            version: version.unwrap_or_default(),
            profile,
        };
        self.put(id, number, slot);
    }

    /// Its TaskExecutor told of a slot as of this version.
    pub fn see(&mut self, id: &ResourceId, number: u32, version: SlotsVersion) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        if let Some(slot) = worker.slots.get_mut(&number) {
            slot.version = slot.version.max(version);
        } else {
            worker.forgotten.1 = worker.forgotten.1.max(version);
        }
    }

    /// Takes what is reported of a slot that somebody has: of one that is known, and of a dynamic one that is not, unless that
    /// is from before one was forgotten. Whether that changed anything.
    pub fn take_held(
        &mut self,
        id: &ResourceId,
        reported: &ReportedSlot,
        asked_at: Turn,
        version: SlotsVersion,
        changed: Turn,
    ) -> bool {
        let Some(worker) = self.workers.get(id) else {
            return false;
        };
        let (number, Some(holder)) = (reported.number, reported.holder) else {
            return false;
        };
        let known = worker.slots.get(&number);
        let (forgotten_in, forgotten_as_of) = worker.forgotten;
        let is_late = forgotten_in > asked_at || version.is_before(forgotten_as_of);
        if known.is_none() && (!worker.is_dynamic(number) || is_late) {
            return false;
        }
        let slot = Slot {
            state: SlotState::Allocated(holder),
            changed,
            version,
            profile: reported.profile.clone(),
        };
        let is_same = known.is_some_and(|known| {
            known.state == slot.state && worker.profile_of(known) == worker.profile_of(&slot)
        });
        if !is_same {
            self.put(id, number, slot);
        }
        !is_same
    }

    /// The dynamic slots that are believed to be allocated, are not among those that are reported, and were not when it was
    /// asked.
    pub fn unreported(&self, id: &ResourceId, report: &SlotsReport, asked_at: Turn) -> Vec<u32> {
        let Some(worker) = self.workers.get(id) else {
            return Vec::new();
        };
        let reported: BTreeSet<u32> = report.slots.iter().map(|slot| slot.number).collect();
        let dynamic = worker.slots.range(worker.spec.slots()..);
        let gone = dynamic.filter(|(number, slot)| {
            matches!(slot.state, SlotState::Allocated(_))
                && !reported.contains(number)
                && slot.changed <= asked_at
                && !report.version.is_before(slot.version)
        });
        gone.map(|(&number, _)| number).collect()
    }

    /// How many slots a job holds, by TaskExecutor.
    pub fn held_by(&self, job: JobId) -> impl Iterator<Item = (&ResourceId, &Worker, u32)> {
        let of_job = self.held.get(&job).into_iter().flatten();
        of_job.filter_map(|(id, count)| Some((id, self.workers.get(id)?, *count)))
    }

    /// Whether a job holds a slot of a TaskExecutor.
    pub fn is_held_at(&self, job: JobId, id: &ResourceId) -> bool {
        self.held.get(&job).is_some_and(|at| at.contains_key(id))
    }

    /// Whether a job holds any slot.
    pub fn is_holder(&self, job: JobId) -> bool {
        self.held.contains_key(&job)
    }

    /// The jobs whose slots have changed since this was last asked, each once.
    pub fn take_changed(&mut self) -> BTreeSet<JobId> {
        self.changed.drain(..).collect()
    }

    #[cfg(test)]
    pub fn held(&self) -> &BTreeMap<JobId, SmallMap<ResourceId, u32>> {
        &self.held
    }

    /// Whether any default slot is free.
    pub fn is_any_free(&self) -> bool {
        self.workers.values().any(|worker| !worker.free.is_empty())
    }

    fn put(&mut self, id: &ResourceId, number: u32, slot: Slot) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        let (state, is_free) = (slot.state, slot.state == SlotState::Free);
        let before = if worker.is_dynamic(number) && is_free {
            let (turn, version) = worker.forgotten;
            let before = worker.slots.remove(&number);
            let seen = before.as_ref().map_or(version, |before| before.version);
            worker.forgotten = (turn.max(slot.changed), version.max(seen));
            before
        } else {
            if is_free {
                worker.free.insert(number);
            } else {
                worker.free.remove(&number);
            }
            worker.count(number, &slot, true);
            worker.slots.insert(number, slot)
        };
        worker.next_number = worker.next_number.max(number.saturating_add(1));
        if let Some(before) = before {
            worker.count(number, &before, false);
            self.release(id, before.state);
        }
        if let Some(holder) = state.holder() {
            self.changed.push(holder.job);
            let at = self.held.entry(holder.job).or_default();
            *at.get_or_insert_with(id.clone(), || 0) += 1;
        }
    }

    /// Takes a slot that was in this state out of what its job holds.
    fn release(&mut self, id: &ResourceId, state: SlotState) {
        let Some(SlotHolder { job, .. }) = state.holder() else {
            return;
        };
        self.changed.push(job);
        let Some(at) = self.held.get_mut(&job) else {
            return;
        };
        if let Some(count) = at.get_mut(id) {
            *count -= 1;
            if *count == 0 {
                at.remove(id);
            }
        }
        if at.is_empty() {
            self.held.remove(&job);
        }
    }
}
