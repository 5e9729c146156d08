//! The slots of all TaskExecutors as they are believed to be, and two indices over them: which are free, and which job holds how
//! many where. Pure, a part of [`super::slot_manager`].
//!
//! With very many jobs and slots neither may be looked for by going through all slots: every change of a slot passes through
//! here, so that the indices are always those of the states.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::v1 as pb;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// As it is believed to be.
    pub state: SlotState,
    /// Since when.
    pub changed: Turn,
    /// The youngest version as of which its TaskExecutor told of it, in this registration.
    pub version: SlotsVersion,
}

/// A TaskExecutor.
#[derive(Debug)]
pub struct Worker {
    /// What each slot has.
    pub slot_profile: pb::ResourceProfile,
    /// It is to leave: nothing is asked of it any more.
    pub is_draining: bool,
    slots: BTreeMap<u32, Slot>,
    free: BTreeSet<u32>,
}

impl Worker {
    /// Its slots.
    pub fn slots(&self) -> impl Iterator<Item = (u32, &Slot)> {
        self.slots.iter().map(|(&number, slot)| (number, slot))
    }

    /// The numbers of those that are free, the lowest first.
    pub fn free(&self) -> impl ExactSizeIterator<Item = u32> {
        self.free.iter().copied()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Slots {
    workers: BTreeMap<ResourceId, Worker>,
    /// No count is zero, and no map empty.
    held: BTreeMap<JobId, BTreeMap<ResourceId, u32>>,
}

impl Slots {
    /// Adds a TaskExecutor, or replaces all that was known of it.
    pub fn put_worker(
        &mut self,
        id: &ResourceId,
        slot_profile: pb::ResourceProfile,
        report: &[(u32, Option<SlotHolder>)],
        changed: Turn,
        version: SlotsVersion,
    ) {
        self.remove_worker(id);
        let worker = Worker {
            slot_profile,
            is_draining: false,
            slots: BTreeMap::new(),
            free: BTreeSet::new(),
        };
        self.workers.insert(id.clone(), worker);
        for &(number, holder) in report {
            let state = holder.map_or(SlotState::Free, SlotState::Allocated);
            let slot = Slot {
                state,
                changed,
                version,
            };
            self.put(id, number, slot);
        }
    }

    /// Forgets a TaskExecutor.
    pub fn remove_worker(&mut self, id: &ResourceId) {
        let Some(worker) = self.workers.remove(id) else {
            return;
        };
        for slot in worker.slots.values() {
            self.release(id, slot.state);
        }
    }

    /// Asks no slots of a TaskExecutor, or does so again.
    pub fn set_draining(&mut self, id: &ResourceId, is_draining: bool) {
        if let Some(worker) = self.workers.get_mut(id) {
            worker.is_draining = is_draining;
        }
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
    pub fn get(&self, id: &ResourceId, number: u32) -> Option<Slot> {
        self.workers.get(id)?.slots.get(&number).copied()
    }

    /// Changes a slot that is there.
    pub fn set(&mut self, id: &ResourceId, number: u32, state: SlotState, changed: Turn) {
        if let Some(Slot { version, .. }) = self.get(id, number) {
            let slot = Slot {
                state,
                changed,
                version,
            };
            self.put(id, number, slot);
        }
    }

    /// Its TaskExecutor told of a slot as of this version.
    pub fn see(&mut self, id: &ResourceId, number: u32, version: SlotsVersion) {
        let worker = self.workers.get_mut(id);
        if let Some(slot) = worker.and_then(|worker| worker.slots.get_mut(&number)) {
            slot.version = slot.version.max(version);
        }
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

    /// The jobs that hold slots, each once.
    pub fn holders(&self) -> impl Iterator<Item = JobId> {
        self.held.keys().copied()
    }

    /// Whether any slot is free.
    pub fn is_any_free(&self) -> bool {
        self.workers.values().any(|worker| !worker.free.is_empty())
    }

    fn put(&mut self, id: &ResourceId, number: u32, slot: Slot) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        if slot.state == SlotState::Free {
            worker.free.insert(number);
        } else {
            worker.free.remove(&number);
        }
        let before = worker.slots.insert(number, slot);
        if let Some(before) = before {
            self.release(id, before.state);
        }
        if let Some(holder) = slot.state.holder() {
            let at = self.held.entry(holder.job).or_default();
            *at.entry(id.clone()).or_default() += 1;
        }
    }

    /// Takes a slot that was in this state out of what its job holds.
    fn release(&mut self, id: &ResourceId, state: SlotState) {
        let Some(SlotHolder { job, .. }) = state.holder() else {
            return;
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state() -> impl Strategy<Value = SlotState> {
        let holder = (0..3_u128, 0..4_u128).prop_map(|(job, allocation)| SlotHolder {
            job: JobId::from_bits(job),
            allocation: AllocationId::from_bits(allocation),
        });
        prop_oneof![
            Just(SlotState::Free),
            Just(SlotState::Resting),
            (holder.clone(), any::<bool>()).prop_map(|(holder, is_in_flight)| {
                SlotState::Pending {
                    holder,
                    is_in_flight,
                }
            }),
            holder.prop_map(SlotState::Allocated),
        ]
    }

    /// What the indices should be, from the states.
    fn check(slots: &Slots) {
        let mut held: BTreeMap<JobId, BTreeMap<ResourceId, u32>> = BTreeMap::new();
        for (id, worker) in slots.workers() {
            let mut free = Vec::new();
            for (number, slot) in worker.slots() {
                if let Some(holder) = slot.state.holder() {
                    let at = held.entry(holder.job).or_default();
                    *at.entry(id.clone()).or_default() += 1;
                }
                if slot.state == SlotState::Free {
                    free.push(number);
                }
            }
            assert_eq!(worker.free().collect::<Vec<_>>(), free);
        }
        assert_eq!(slots.held, held);
    }

    proptest! {
        #[test]
        fn the_indices_are_those_of_the_states_after_any_changes(
            changes in proptest::collection::vec((0..3_u8, 0..4_u32, proptest::option::of(state())), 1..60),
        ) {
            let mut slots = Slots::default();
            for (turn, (worker, number, state)) in changes.into_iter().enumerate() {
                let id: ResourceId = format!("tm-{worker}").parse().expect("a name");
                let changed = Turn::of(turn as u64);
                match state {
                    Some(state) if slots.worker(&id).is_some() => {
                        slots.set(&id, number, state, changed);
                    }
                    None if number == 0 => slots.remove_worker(&id),
                    Some(_) | None => {
                        let holder = SlotHolder {
                            job: JobId::from_bits(u128::from(number)),
                            allocation: AllocationId::from_bits(1),
                        };
                        let report = [(0, None), (1, Some(holder)), (2, None), (3, Some(holder))];
                        let version = SlotsVersion::default();
                        slots.put_worker(&id, pb::ResourceProfile::default(), &report, changed, version);
                    }
                }
                check(&slots);
            }
        }
    }
}
