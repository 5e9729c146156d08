//! The view of the slots of all TaskExecutors, and two indexes over it: free slots, and the number of slots
//! that each job holds at each TaskExecutor. Pure, a part of [`super::slot_manager`].
//!
//! With very many jobs and slots, no search may go through all slots. Every change of a slot is made here, so
//! that the indexes always match the states.
//!
//! The default slots of a TaskExecutor always exist. Higher numbers are *dynamic slots*, cut to the requested
//! profile, which are forgotten when they become free. The number of a dynamic slot is never reused in the same
//! registration, so that a late message about an earlier slot can't be mistaken for one about a later slot.

use std::collections::{BTreeMap, BTreeSet};

use tanist_compact::SmallMap;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::{ResourceProfile, Resources, WorkerResourceSpec};

use super::requirements::count;
use super::slot::{ReportedSlot, Slot, SlotHolder, SlotState, SlotsReport, SlotsVersion, Turn};

/// A TaskExecutor.
#[derive(Debug)]
pub(super) struct Worker {
    spec: WorkerResourceSpec,
    /// No more slots are requested from it.
    is_draining: bool,
    default_slot: ResourceProfile,
    slots: BTreeMap<u32, Slot>,
    free: BTreeSet<u32>,
    /// Sum of the resources of all slots that are not free.
    taken: Resources,
    /// Number of these that are not default slots or have other resources than a default slot.
    taken_otherwise: usize,
    /// Number of the next dynamic slot.
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

    /// Its resources.
    pub(super) fn spec(&self) -> &WorkerResourceSpec {
        &self.spec
    }

    /// Whether it is draining: no more slots are requested from it.
    pub(super) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Its slots.
    pub(super) fn slots(&self) -> impl Iterator<Item = (u32, &Slot)> {
        self.slots.iter().map(|(&number, slot)| (number, slot))
    }

    /// Numbers of the free default slots, lowest first. The free resources may not suffice for them.
    pub(super) fn free(&self) -> impl ExactSizeIterator<Item = u32> {
        self.free.iter().copied()
    }

    /// Number of slots that are held or pending.
    pub(super) fn held(&self) -> u64 {
        let held = self.slots.values();
        held.filter(|slot| slot.state.holder().is_some()).count() as u64
    }

    /// Resources that no slot holds.
    pub(super) fn left(&self) -> Resources {
        self.spec.total().saturating_minus(&self.taken)
    }

    /// Whether all slots in use are default slots with default resources: then the free resources suffice for
    /// every free one.
    pub(super) fn is_shared_equally(&self) -> bool {
        self.taken_otherwise == 0
    }

    /// Number of its slots, and number of its free slots, as far as its free resources suffice for them.
    pub(super) fn counts(&self) -> (u32, u32) {
        let free = count(self.slots.len()) - u32::try_from(self.held()).unwrap_or(u32::MAX);
        let room = match self.is_shared_equally() {
            true => None,
            false => self.left().holds(&self.spec.default_slot()),
        };
        let room = room.map_or(u32::MAX, |room| u32::try_from(room).unwrap_or(u32::MAX));
        (count(self.slots.len()), free.min(room))
    }

    /// Highest version of a message about any of its slots.
    pub(super) fn version(&self) -> SlotsVersion {
        let of_slots = self.slots.values().map(|slot| slot.version);
        of_slots.fold(self.forgotten.1, SlotsVersion::max)
    }

    /// The number of the next dynamic slot.
    pub(super) fn next_number(&self) -> u32 {
        self.next_number
    }

    /// The resources that a slot of it has or must have.
    pub(super) fn profile_of<'a>(&'a self, slot: &'a Slot) -> &'a ResourceProfile {
        match &slot.profile {
            ResourceProfile::Of(_) => &slot.profile,
            ResourceProfile::Unknown | ResourceProfile::Any => &self.default_slot,
        }
    }

    fn is_dynamic(&self, number: u32) -> bool {
        number >= self.spec.slots()
    }

    /// Adds the resources of a slot to the sums, or subtracts them.
    fn add_to_sums(&mut self, number: u32, slot: &Slot, is_there: bool) {
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
pub(super) struct Slots {
    workers: BTreeMap<ResourceId, Worker>,
    /// Number of slots of each job at each TaskExecutor. No count is zero, and no map is empty.
    held: BTreeMap<JobId, SmallMap<ResourceId, u32>>,
    /// Jobs whose slots changed since the last `take_changed`, with repetitions.
    changed: Vec<JobId>,
    capacity_version: u64,
}

impl Slots {
    /// Adds a TaskExecutor, or replaces everything known about it.
    pub(super) fn put_worker(
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
    pub(super) fn remove_worker(&mut self, id: &ResourceId) {
        let Some(worker) = self.workers.remove(id) else {
            return;
        };
        self.capacity_version += 1;
        for slot in worker.slots.values() {
            self.release(id, slot.state);
        }
    }

    /// Stops or resumes slot requests to a TaskExecutor.
    pub(super) fn set_draining(&mut self, id: &ResourceId, is_draining: bool) {
        if let Some(worker) = self.workers.get_mut(id) {
            worker.is_draining = is_draining;
            self.capacity_version += 1;
        }
    }

    /// Number of changes to the set of TaskExecutors, their resources and whether they are draining.
    pub(super) fn capacity_version(&self) -> u64 {
        self.capacity_version
    }

    /// The TaskExecutors.
    pub(super) fn workers(&self) -> impl Iterator<Item = (&ResourceId, &Worker)> {
        self.workers.iter()
    }

    /// The TaskExecutors that are not draining.
    pub(super) fn open_workers(&self) -> impl Iterator<Item = (&ResourceId, &Worker)> {
        self.workers().filter(|(_, worker)| !worker.is_draining)
    }

    /// One TaskExecutor.
    pub(super) fn worker(&self, id: &ResourceId) -> Option<&Worker> {
        self.workers.get(id)
    }

    /// One slot.
    pub(super) fn get(&self, id: &ResourceId, number: u32) -> Option<&Slot> {
        self.workers.get(id)?.slots.get(&number)
    }

    /// Applies a slot report of a TaskExecutor. Does not touch slots that changed after `asked_at`, slots known
    /// as of a higher version, or a pending slot that is reported free, since its request may still be on the
    /// way. `turn` is the present turn.
    pub(super) fn report(
        &mut self,
        worker: &ResourceId,
        report: &SlotsReport,
        asked_at: Turn,
        turn: &mut Turn,
    ) {
        let version = report.version;
        for reported in &report.slots {
            let number = reported.number;
            let known = self.get(worker, number);
            if known.is_some_and(|it| it.changed > asked_at || version.is_before(it.version)) {
                continue;
            }
            let state = known.map(|it| it.state);
            let mut next = *turn;
            next.advance();
            let is_changed = match (state, reported.holder) {
                (_, Some(_)) => self.take_held(worker, reported, asked_at, version, next),
                (None | Some(SlotState::Pending { .. } | SlotState::Free), None) => false,
                (Some(SlotState::Resting | SlotState::Allocated(_)), None) => {
                    self.set(worker, number, SlotState::Free, next);
                    true
                }
            };
            if is_changed {
                *turn = next;
            }
            if state.is_some() {
                self.see(worker, number, version);
            }
        }
        if report.are_all {
            for number in self.unreported(worker, report, asked_at) {
                turn.advance();
                self.see(worker, number, version);
                self.set(worker, number, SlotState::Free, *turn);
            }
        }
    }

    /// Changes the state of an existing slot. A dynamic slot that becomes free is removed.
    pub(super) fn set(&mut self, id: &ResourceId, number: u32, state: SlotState, changed: Turn) {
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

    /// Marks a slot as requested: a free default slot, or a new dynamic one.
    pub(super) fn ask(
        &mut self,
        id: &ResourceId,
        number: u32,
        profile: ResourceProfile,
        state: SlotState,
        changed: Turn,
    ) {
        let version = self.get(id, number).map(|slot| slot.version);
        let slot = Slot {
            state,
            changed,
            version: version.unwrap_or_default(),
            profile,
        };
        self.put(id, number, slot);
    }

    /// Records the version of a message about a slot.
    pub(super) fn see(&mut self, id: &ResourceId, number: u32, version: SlotsVersion) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        if let Some(slot) = worker.slots.get_mut(&number) {
            slot.version = slot.version.max(version);
        } else {
            worker.forgotten.1 = worker.forgotten.1.max(version);
        }
    }

    /// Applies the report of a held slot: of a known slot, or of an unknown dynamic slot unless the report is
    /// older than the last removal of a dynamic slot. Returns whether that changed anything.
    fn take_held(
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

    /// Dynamic slots that are allocated in the view but missing from the report, and that have not changed
    /// since the report was requested.
    fn unreported(&self, id: &ResourceId, report: &SlotsReport, asked_at: Turn) -> Vec<u32> {
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

    /// Number of slots that a job holds at each TaskExecutor.
    pub(super) fn held_by(&self, job: JobId) -> impl Iterator<Item = (&ResourceId, &Worker, u32)> {
        let of_job = self.held.get(&job).into_iter().flatten();
        of_job.filter_map(|(id, count)| Some((id, self.workers.get(id)?, *count)))
    }

    /// Whether a job holds a slot of a TaskExecutor.
    pub(super) fn is_held_at(&self, job: JobId, id: &ResourceId) -> bool {
        self.held.get(&job).is_some_and(|at| at.contains_key(id))
    }

    /// Whether a job holds any slot.
    pub(super) fn is_holder(&self, job: JobId) -> bool {
        self.held.contains_key(&job)
    }

    /// Takes the jobs whose slots changed since the last call, each once.
    pub(super) fn take_changed(&mut self) -> BTreeSet<JobId> {
        self.changed.drain(..).collect()
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> &BTreeMap<JobId, SmallMap<ResourceId, u32>> {
        &self.held
    }

    /// Whether any default slot is free.
    pub(super) fn is_any_free(&self) -> bool {
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
            worker.add_to_sums(number, &slot, true);
            worker.slots.insert(number, slot)
        };
        worker.next_number = worker.next_number.max(number.saturating_add(1));
        if let Some(before) = before {
            worker.add_to_sums(number, &before, false);
            self.release(id, before.state);
        }
        if let Some(holder) = state.holder() {
            self.changed.push(holder.job);
            let at = self.held.entry(holder.job).or_default();
            *at.get_or_insert_with(id.clone(), || 0) += 1;
        }
    }

    /// Removes a slot that was in this state from the slots that its job holds.
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
