//! The slots of a TaskExecutor and their holders. Pure.
//!
//! There is a configured number of *default slots*, numbered from 0: equal shares of the TaskManager's resources. A
//! higher number is a *dynamic slot*, which exists only while it is held: cut to the requested profile, out of the
//! free resources. So default slots may be free although no resources are left for them.
//!
//! - A slot has at most one holder, an allocation at most one slot. An allocation that was freed, or that too
//!   little was left for, is never allocated again, so that a late copy of the request can't bring it back.
//! - A slot that is being released belongs to its holder until nothing runs in it.
//! - While a slot is held, its resources are reserved from the TaskManager's total: the requested profile, or that
//!   of a default slot. So a slot may be larger than its share while others are smaller or free.
//! - The timeout in which a JobMaster must accept an allocated slot runs only while it can do so:
//!   [`SlotTable::review_timeouts`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, JobId};
use tanist_proto::resources::{ResourceProfile, WorkerResourceSpec};
use tanist_proto::v1 as pb;

use super::budget::{Budget, Indices};

/// Number of past allocations that are remembered: more than can be in flight.
const REMEMBERED: usize = 4096;

/// The holder of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotHolder {
    /// The job.
    pub job: JobId,
    /// The allocation.
    pub allocation: AllocationId,
}

/// One slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Not held.
    Free,
    /// Held by a job whose JobMaster has not accepted it yet.
    Allocated {
        /// The job and allocation.
        holder: SlotHolder,
        /// When it is freed again. `None`: the timeout is suspended.
        deadline: Option<Uptime>,
    },
    /// Accepted by a JobMaster.
    Active(SlotHolder),
    /// Will be free as soon as nothing runs in it.
    Releasing(SlotHolder),
}

impl SlotState {
    /// Its holder.
    pub(super) fn holder(&self) -> Option<SlotHolder> {
        match self {
            SlotState::Free => None,
            SlotState::Allocated { holder, .. }
            | SlotState::Active(holder)
            | SlotState::Releasing(holder) => Some(*holder),
        }
    }
}

/// The answer to a slot request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RequestAnswer {
    /// The job holds it.
    Allocated {
        /// Whether this request allocated it.
        is_new: bool,
    },
    /// Another allocation holds it.
    Occupied(SlotHolder),
    /// It can't be allocated, with the reason.
    Refused(String),
}

/// See the module.
#[derive(Debug)]
pub(super) struct SlotTable {
    slots: BTreeMap<u32, SlotState>,
    /// The slots that are being released.
    releasing: BTreeMap<u32, SlotHolder>,
    /// Numbers below this are default slots.
    default_slots: u32,
    budget: Budget,
    gone: BTreeSet<AllocationId>,
    /// The order in which they were freed.
    gone_order: VecDeque<AllocationId>,
    version: u64,
    /// The version that the last registration at the ResourceManager reported.
    reported_version: u64,
}

impl SlotTable {
    /// The slots of this TaskManager, all free.
    pub(super) fn new(worker: &WorkerResourceSpec) -> SlotTable {
        let default_slots = worker.slots();
        SlotTable {
            slots: (0..default_slots)
                .map(|number| (number, SlotState::Free))
                .collect(),
            releasing: BTreeMap::new(),
            default_slots,
            budget: Budget::new(worker),
            gone: BTreeSet::new(),
            gone_order: VecDeque::new(),
            version: 1,
            reported_version: 0,
        }
    }

    /// Grows with every change of the report; never 0.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Records that a registration reports all slots.
    pub(super) fn record_report(&mut self) {
        self.reported_version = self.version;
    }

    /// Whether slots have changed since a registration last reported them.
    pub(super) fn has_changed_since_report(&self) -> bool {
        self.version != self.reported_version
    }

    /// Allocates a slot.
    pub(super) fn request(
        &mut self,
        number: u32,
        holder: SlotHolder,
        wanted: &ResourceProfile,
    ) -> RequestAnswer {
        let allocation = holder.allocation;
        if self.gone.contains(&allocation) {
            let reason = format!("allocation {allocation} was freed or refused before");
            return RequestAnswer::Refused(reason);
        }
        let present = self.find(allocation).map(|(at, _)| at);
        if let Some(at) = present.filter(|&at| at != number) {
            return RequestAnswer::Refused(format!("allocation {allocation} holds slot {at}"));
        }
        match self.slots.get(&number).and_then(SlotState::holder) {
            Some(present) if present == holder => {
                return RequestAnswer::Allocated { is_new: false };
            }
            Some(present) => return RequestAnswer::Occupied(present),
            None => {}
        }
        let wanted = match wanted {
            ResourceProfile::Of(resources) => Some(resources),
            ResourceProfile::Unknown if number < self.default_slots => None,
            ResourceProfile::Unknown | ResourceProfile::Any => {
                let total = self.default_slots;
                return RequestAnswer::Refused(format!("no slot {number}, there are {total}"));
            }
        };
        if let Err(reason) = self.budget.reserve(allocation, wanted) {
            // The ResourceManager then requests another slot: an earlier copy of this request must not be granted
            // after that.
            self.never_again(allocation);
            return RequestAnswer::Refused(reason.to_string());
        }
        let allocated = SlotState::Allocated {
            holder,
            deadline: None,
        };
        self.slots.insert(number, allocated);
        self.version += 1;
        RequestAnswer::Allocated { is_new: true }
    }

    /// Records that a JobMaster accepted a slot.
    pub(super) fn activate(&mut self, allocation: AllocationId) {
        for slot in self.slots.values_mut() {
            if let SlotState::Allocated { holder, .. } = slot
                && holder.allocation == allocation
            {
                *slot = SlotState::Active(*holder);
            }
        }
    }

    /// Begins to free a slot. Returns whether there was one to free.
    pub(super) fn release(&mut self, allocation: AllocationId) -> bool {
        for (&number, slot) in &mut self.slots {
            match slot {
                SlotState::Allocated { holder, .. } | SlotState::Active(holder)
                    if holder.allocation == allocation =>
                {
                    self.releasing.insert(number, *holder);
                    *slot = SlotState::Releasing(*holder);
                    return true;
                }
                SlotState::Free
                | SlotState::Allocated { .. }
                | SlotState::Active(_)
                | SlotState::Releasing(_) => {}
            }
        }
        false
    }

    /// Frees slots that are being released and in which nothing runs. Returns them with their last holders. Dynamic
    /// slots are removed.
    pub(super) fn free_released(
        &mut self,
        is_in_use: impl Fn(SlotHolder) -> bool,
    ) -> Vec<(u32, SlotHolder)> {
        let releasing = self.releasing.iter();
        let releasing = releasing.map(|(&number, &holder)| (number, holder));
        let ended: Vec<_> = releasing
            .filter(|&(_, holder)| !is_in_use(holder))
            .collect();
        for &(number, SlotHolder { allocation, .. }) in &ended {
            self.releasing.remove(&number);
            if number < self.default_slots {
                self.slots.insert(number, SlotState::Free);
            } else {
                self.slots.remove(&number);
            }
            self.budget.give_back(allocation);
            self.version += 1;
            self.never_again(allocation);
        }
        ended
    }

    /// Starts the timeout of allocated slots that a JobMaster can accept from now on, and suspends that of slots
    /// that no JobMaster can accept.
    pub(super) fn review_timeouts(
        &mut self,
        now: Uptime,
        timeout: Duration,
        can_be_accepted: impl Fn(JobId) -> bool,
    ) {
        for slot in self.slots.values_mut() {
            if let SlotState::Allocated { holder, deadline } = slot {
                let runs = can_be_accepted(holder.job);
                *deadline = runs.then(|| deadline.unwrap_or(now + timeout));
            }
        }
    }

    /// Allocations whose timeout has passed.
    pub(super) fn expired(&self, now: Uptime) -> Vec<SlotHolder> {
        let is_due = |slot: &SlotState| match slot {
            SlotState::Allocated {
                holder,
                deadline: Some(deadline),
            } if *deadline <= now => Some(*holder),
            SlotState::Free
            | SlotState::Allocated { .. }
            | SlotState::Active(_)
            | SlotState::Releasing(_) => None,
        };
        self.slots.values().filter_map(is_due).collect()
    }

    /// When the next allocation expires.
    pub(super) fn next_deadline(&self) -> Option<Uptime> {
        let deadline = |slot: &SlotState| match slot {
            SlotState::Allocated { deadline, .. } => *deadline,
            SlotState::Free | SlotState::Active(_) | SlotState::Releasing(_) => None,
        };
        self.slots.values().filter_map(deadline).min()
    }

    /// Whether the job holds this allocation, and it is not being released.
    pub(super) fn is_held(&self, holder: SlotHolder) -> bool {
        self.held_by(holder.job).any(|it| it == holder.allocation)
    }

    /// The job's slots that are not being released, and their numbers.
    fn slots_of(&self, job: JobId) -> impl Iterator<Item = (u32, &SlotState)> {
        let all = self.slots.iter().map(|(&number, slot)| (number, slot));
        all.filter(move |(_, slot)| match slot {
            SlotState::Allocated { holder, .. } | SlotState::Active(holder) => holder.job == job,
            SlotState::Free | SlotState::Releasing(_) => false,
        })
    }

    /// The allocations of the job that are not being released.
    pub(super) fn held_by(&self, job: JobId) -> impl Iterator<Item = AllocationId> {
        let holders = self.slots_of(job).filter_map(|(_, slot)| slot.holder());
        holders.map(|holder| holder.allocation)
    }

    /// The allocations of the job that its JobMaster has accepted.
    pub(super) fn active(&self, job: JobId) -> impl Iterator<Item = AllocationId> {
        self.slots_of(job).filter_map(|(_, slot)| match slot {
            SlotState::Active(holder) => Some(holder.allocation),
            SlotState::Free | SlotState::Allocated { .. } | SlotState::Releasing(_) => None,
        })
    }

    /// The allocations of the job that its JobMaster has not accepted yet.
    pub(super) fn not_accepted(&self, job: JobId) -> impl Iterator<Item = AllocationId> {
        self.slots_of(job).filter_map(|(_, slot)| match slot {
            SlotState::Allocated { holder, .. } => Some(holder.allocation),
            SlotState::Free | SlotState::Active(_) | SlotState::Releasing(_) => None,
        })
    }

    /// Whether the job holds a slot, including those being released.
    pub(super) fn is_used_by(&self, job: JobId) -> bool {
        self.slots
            .values()
            .any(|slot| slot.holder().is_some_and(|holder| holder.job == job))
    }

    /// Whether no slot is held.
    pub(super) fn is_free(&self) -> bool {
        self.slots.values().all(|slot| slot.holder().is_none())
    }

    /// A report of every slot. `tasks`: number of tasks that run in an allocation.
    pub(super) fn report(&self, tasks: impl Fn(AllocationId) -> u32) -> pb::SlotReport {
        let statuses = self.slots.iter().map(|(&number, slot)| {
            let holder = slot.holder();
            let tasks = holder.map(|holder| tasks(holder.allocation));
            pb::SlotStatus {
                tasks: tasks.unwrap_or_default(),
                ..self.status(number, holder)
            }
        });
        pb::SlotReport {
            slots: statuses.collect(),
            version: self.version,
        }
    }

    /// Reports of the named slots, without the number of tasks.
    pub(super) fn statuses(&self, numbers: impl IntoIterator<Item = u32>) -> Vec<pb::SlotStatus> {
        let holder = |number: u32| self.slots.get(&number).and_then(SlotState::holder);
        let numbers = numbers.into_iter();
        numbers
            .map(|number| self.status(number, holder(number)))
            .collect()
    }

    fn status(&self, number: u32, holder: Option<SlotHolder>) -> pb::SlotStatus {
        pb::SlotStatus {
            slot: number,
            allocation: holder.map(allocation_message),
            profile: holder.map(|holder| self.budget.reserved(holder.allocation).into()),
            tasks: 0,
        }
    }

    /// The offer of a slot, if the job holds it.
    pub(super) fn offer(&self, holder: SlotHolder) -> Option<pb::SlotOffer> {
        let mut held = self.slots_of(holder.job);
        let (number, _) = held.find(|(_, slot)| slot.holder() == Some(holder))?;
        Some(self.offer_of(number, holder.allocation))
    }

    /// The offers of all slots of a job that are not being released.
    pub(super) fn offers(&self, job: JobId) -> Vec<pb::SlotOffer> {
        let held = self.slots_of(job);
        held.filter_map(|(number, slot)| Some(self.offer_of(number, slot.holder()?.allocation)))
            .collect()
    }

    fn offer_of(&self, number: u32, allocation: AllocationId) -> pb::SlotOffer {
        pb::SlotOffer {
            allocation_id: allocation.to_string(),
            slot: number,
            profile: Some(self.budget.reserved(allocation).into()),
        }
    }

    /// The job that an allocation belongs to, also while it is being released.
    pub(super) fn job_of(&self, allocation: AllocationId) -> Option<JobId> {
        self.find(allocation).map(|(_, holder)| holder.job)
    }

    fn find(&self, allocation: AllocationId) -> Option<(u32, SlotHolder)> {
        let holders = self.slots.iter();
        let mut holders = holders.filter_map(|(&number, slot)| Some((number, slot.holder()?)));
        holders.find(|(_, holder)| holder.allocation == allocation)
    }

    /// The extended resources of an allocation, by index.
    pub(super) fn indices(&self, allocation: AllocationId) -> Indices {
        self.budget.indices(allocation)
    }

    /// Managed memory of an allocation, in bytes: its tasks' state is counted against it.
    pub(super) fn managed_memory(&self, allocation: AllocationId) -> u64 {
        self.budget.reserved(allocation).managed_memory
    }

    fn never_again(&mut self, allocation: AllocationId) {
        self.gone.insert(allocation);
        self.gone_order.push_back(allocation);
        if self.gone_order.len() > REMEMBERED
            && let Some(oldest) = self.gone_order.pop_front()
        {
            self.gone.remove(&oldest);
        }
    }
}

/// The holder as a message.
pub(super) fn allocation_message(holder: SlotHolder) -> pb::SlotAllocation {
    pb::SlotAllocation {
        allocation_id: holder.allocation.to_string(),
        job_id: holder.job.to_string(),
    }
}
