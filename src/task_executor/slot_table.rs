//! Who holds which slot of a TaskExecutor. Pure.
//!
//! - A slot has at most one holder, an allocation at most one slot; an allocation that was freed is never taken again, so
//!   that a request which comes late can't bring it back.
//! - A slot that is being released belongs to its holder until nothing runs in it.
//! - What is taken is reserved from all that the TaskManager has, as long as the slot is held: the profile that was asked for,
//!   else that of a slot. So a slot may be larger than its share while others are smaller or free.
//! - The time in which a JobMaster has to take an allocated slot runs only while [`SlotTable::start_timers`] says so.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use tanist_proto::id::{AllocationId, JobId};
use tanist_proto::v1 as pb;
use tokio::time::Instant;

use super::budget::Budget;

/// Freed allocations that are remembered: more than can be under way.
const REMEMBERED: usize = 4096;

/// Who holds a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotHolder {
    /// The job.
    pub job: JobId,
    /// The allocation.
    pub allocation: AllocationId,
}

/// One slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotState {
    /// Nobody's.
    Free,
    /// A job's, whose JobMaster has not taken it yet.
    Allocated {
        /// Whose.
        holder: SlotHolder,
        /// When it is freed again; `None` while the time stands still.
        deadline: Option<Instant>,
    },
    /// Taken by a JobMaster.
    Active(SlotHolder),
    /// Freed as soon as nothing runs in it.
    Releasing(SlotHolder),
}

impl SlotState {
    /// Who holds it.
    pub fn holder(&self) -> Option<SlotHolder> {
        match self {
            SlotState::Free => None,
            SlotState::Allocated { holder, .. }
            | SlotState::Active(holder)
            | SlotState::Releasing(holder) => Some(*holder),
        }
    }
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestAnswer {
    /// The job has it.
    Allocated {
        /// Whether it had not before.
        is_new: bool,
    },
    /// Somebody else has it.
    Occupied(SlotHolder),
    /// It can't be had.
    Refused(String),
}

/// See the module.
#[derive(Debug)]
pub struct SlotTable {
    slots: Vec<SlotState>,
    budget: Budget,
    freed: BTreeSet<AllocationId>,
    /// The order in which they were freed.
    freed_order: VecDeque<AllocationId>,
    version: u64,
}

impl SlotTable {
    /// So many free slots of this size each, out of this total.
    pub fn new(number: u32, profile: pb::ResourceProfile, total: pb::ResourceProfile) -> SlotTable {
        let slots = (0..number).map(|_| SlotState::Free).collect();
        let (freed, freed_order) = (BTreeSet::new(), VecDeque::new());
        SlotTable {
            slots,
            budget: Budget::new(profile, total),
            freed,
            freed_order,
            version: 1,
        }
    }

    /// Grows whenever what is reported changes; never 0.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Allocates a slot.
    pub fn request(
        &mut self,
        number: u32,
        holder: SlotHolder,
        wanted: Option<&pb::ResourceProfile>,
    ) -> RequestAnswer {
        let total = self.slots.len();
        if self.freed.contains(&holder.allocation) {
            let allocation = holder.allocation;
            return RequestAnswer::Refused(format!("allocation {allocation} was freed before"));
        }
        let elsewhere = self.find(holder.allocation).filter(|&at| at != number);
        let Some(slot) = self.slots.get_mut(index(number)) else {
            return RequestAnswer::Refused(format!("no slot {number}, there are {total}"));
        };
        if let Some(at) = elsewhere {
            let allocation = holder.allocation;
            return RequestAnswer::Refused(format!("allocation {allocation} holds slot {at}"));
        }
        match slot.holder() {
            Some(present) if present == holder => RequestAnswer::Allocated { is_new: false },
            Some(present) => RequestAnswer::Occupied(present),
            None => {
                if let Err(reason) = self.budget.reserve(holder.allocation, wanted) {
                    return RequestAnswer::Refused(reason.to_string());
                }
                *slot = SlotState::Allocated {
                    holder,
                    deadline: None,
                };
                self.version += 1;
                RequestAnswer::Allocated { is_new: true }
            }
        }
    }

    /// A JobMaster took it.
    pub fn activate(&mut self, allocation: AllocationId) {
        for slot in &mut self.slots {
            if let SlotState::Allocated { holder, .. } = slot
                && holder.allocation == allocation
            {
                *slot = SlotState::Active(*holder);
            }
        }
    }

    /// Begins to free it. Whether there was something to free.
    pub fn release(&mut self, allocation: AllocationId) -> bool {
        for slot in &mut self.slots {
            match slot {
                SlotState::Allocated { holder, .. } | SlotState::Active(holder)
                    if holder.allocation == allocation =>
                {
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

    /// Frees what is being released and in which nothing runs; gives the numbers.
    pub fn free_released(&mut self, is_in_use: impl Fn(SlotHolder) -> bool) -> Vec<u32> {
        let mut freed = Vec::new();
        for (number, slot) in (0..).zip(&mut self.slots) {
            let SlotState::Releasing(holder) = slot else {
                continue;
            };
            if is_in_use(*holder) {
                continue;
            }
            let allocation = holder.allocation;
            *slot = SlotState::Free;
            self.budget.give_back(allocation);
            self.version += 1;
            freed.push(number);
            self.freed.insert(allocation);
            self.freed_order.push_back(allocation);
            if self.freed_order.len() > REMEMBERED
                && let Some(oldest) = self.freed_order.pop_front()
            {
                self.freed.remove(&oldest);
            }
        }
        freed
    }

    /// From now on the job's JobMaster has so much time to take what is allocated.
    pub fn start_timers(&mut self, job: JobId, now: Instant, timeout: Duration) {
        self.set_deadlines(job, Some(now + timeout));
    }

    /// From now on its JobMaster has so much time to take this one.
    pub fn start_timer(&mut self, allocation: AllocationId, now: Instant, timeout: Duration) {
        for slot in &mut self.slots {
            if let SlotState::Allocated { holder, deadline } = slot
                && holder.allocation == allocation
            {
                *deadline = Some(now + timeout);
            }
        }
    }

    /// The time stands still: nobody leads who could take them.
    pub fn stop_timers(&mut self, job: JobId) {
        self.set_deadlines(job, None);
    }

    /// The time stands still for all jobs.
    pub fn stop_all_timers(&mut self) {
        for slot in &mut self.slots {
            if let SlotState::Allocated { deadline, .. } = slot {
                *deadline = None;
            }
        }
    }

    /// The allocations whose time is over.
    pub fn expired(&self, now: Instant) -> Vec<SlotHolder> {
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
        self.slots.iter().filter_map(is_due).collect()
    }

    /// When the next allocation expires.
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadline = |slot: &SlotState| match slot {
            SlotState::Allocated { deadline, .. } => *deadline,
            SlotState::Free | SlotState::Active(_) | SlotState::Releasing(_) => None,
        };
        self.slots.iter().filter_map(deadline).min()
    }

    /// Whether the job holds this allocation, and it is not being released.
    pub fn is_held(&self, holder: SlotHolder) -> bool {
        self.held_by(holder.job)
            .any(|(_, slot)| slot.holder() == Some(holder))
    }

    /// The job's slots that are not being released.
    pub fn held_by(&self, job: JobId) -> impl Iterator<Item = (u32, &SlotState)> {
        (0..).zip(&self.slots).filter(move |(_, slot)| match slot {
            SlotState::Allocated { holder, .. } | SlotState::Active(holder) => holder.job == job,
            SlotState::Free | SlotState::Releasing(_) => false,
        })
    }

    /// Whether the job holds a slot, also one that is being released.
    pub fn is_used_by(&self, job: JobId) -> bool {
        self.slots
            .iter()
            .any(|slot| slot.holder().is_some_and(|holder| holder.job == job))
    }

    /// Whether nobody holds any slot.
    pub fn is_free(&self) -> bool {
        self.slots.iter().all(|slot| slot.holder().is_none())
    }

    /// Every slot.
    pub fn report(&self) -> pb::SlotReport {
        let numbers: Vec<u32> = (0..).zip(&self.slots).map(|(number, _)| number).collect();
        pb::SlotReport {
            slots: self.statuses(&numbers),
            version: self.version,
        }
    }

    /// The named slots.
    pub fn statuses(&self, numbers: &[u32]) -> Vec<pb::SlotStatus> {
        let status = |&number: &u32| {
            let holder = self.slots.get(index(number)).and_then(SlotState::holder);
            pb::SlotStatus {
                slot: number,
                allocation: holder.map(allocation_message),
                profile: None,
            }
        };
        numbers.iter().map(status).collect()
    }

    /// The offer of a slot.
    pub fn offer(&self, number: u32, allocation: AllocationId) -> pb::SlotOffer {
        pb::SlotOffer {
            allocation_id: allocation.to_string(),
            slot: number,
            profile: Some(self.budget.reserved(allocation)),
        }
    }

    /// The slot of an allocation.
    pub fn find(&self, allocation: AllocationId) -> Option<u32> {
        let is_it = |slot: &SlotState| slot.holder().is_some_and(|of| of.allocation == allocation);
        (0..)
            .zip(&self.slots)
            .find(|(_, slot)| is_it(slot))
            .map(|(number, _)| number)
    }

    fn set_deadlines(&mut self, job: JobId, to: Option<Instant>) {
        for slot in &mut self.slots {
            if let SlotState::Allocated { holder, deadline } = slot
                && holder.job == job
            {
                *deadline = to;
            }
        }
    }
}

/// The holder as a message.
pub fn allocation_message(holder: SlotHolder) -> pb::SlotAllocation {
    pb::SlotAllocation {
        allocation_id: holder.allocation.to_string(),
        job_id: holder.job.to_string(),
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(job: u128, allocation: u128) -> SlotHolder {
        SlotHolder {
            job: JobId::from_bits(job),
            allocation: AllocationId::from_bits(allocation),
        }
    }

    fn profile(cpu_cores: f64, memory_bytes: u64) -> pb::ResourceProfile {
        pb::ResourceProfile {
            cpu_cores,
            memory_bytes,
            ..pb::ResourceProfile::default()
        }
    }

    fn table() -> SlotTable {
        SlotTable::new(2, profile(1.0, 100), profile(2.0, 200))
    }

    #[test]
    fn a_repeated_request_is_granted_and_another_one_learns_who_holds_the_slot() {
        let mut table = table();
        let answer = table.request(0, holder(1, 1), None);
        assert_eq!(answer, RequestAnswer::Allocated { is_new: true });
        let answer = table.request(0, holder(1, 1), None);
        assert_eq!(answer, RequestAnswer::Allocated { is_new: false });
        assert_eq!(
            table.request(0, holder(2, 2), None),
            RequestAnswer::Occupied(holder(1, 1))
        );
        assert!(matches!(
            table.request(1, holder(1, 1), None),
            RequestAnswer::Refused(_)
        ));
        assert!(matches!(
            table.request(2, holder(1, 3), None),
            RequestAnswer::Refused(_)
        ));
    }

    #[test]
    fn what_a_slot_takes_is_reserved_from_the_total_until_nothing_runs_in_it() {
        let mut table = table();
        let large = profile(1.0, 150);
        let answer = table.request(0, holder(1, 1), Some(&large));
        assert_eq!(answer, RequestAnswer::Allocated { is_new: true });
        assert_eq!(
            table.offer(0, holder(1, 1).allocation).profile,
            Some(large.clone())
        );
        for wanted in [None, Some(&large)] {
            let answer = table.request(1, holder(2, 2), wanted);
            let RequestAnswer::Refused(reason) = answer else {
                panic!("it does not fit: {answer:?}");
            };
            assert!(
                reason.contains("50 bytes") && reason.contains("200 bytes"),
                "{reason}"
            );
        }
        let answer = table.request(1, holder(2, 3), Some(&profile(1.0, 50)));
        assert_eq!(answer, RequestAnswer::Allocated { is_new: true });
        table.release(holder(1, 1).allocation);
        table.free_released(|_| true);
        let refused = table.request(0, holder(2, 4), None);
        assert_eq!(refused, RequestAnswer::Occupied(holder(1, 1)));
        table.free_released(|_| false);
        let answer = table.request(0, holder(2, 4), Some(&large));
        assert_eq!(answer, RequestAnswer::Allocated { is_new: true });
    }

    #[test]
    fn a_repeated_request_reserves_nothing_more() {
        let mut table = table();
        for _ in 0..5 {
            table.request(0, holder(1, 1), None);
        }
        let answer = table.request(1, holder(1, 2), None);
        assert_eq!(answer, RequestAnswer::Allocated { is_new: true });
    }

    #[test]
    fn a_released_slot_is_free_when_nothing_runs_in_it_and_its_allocation_never_comes_back() {
        let mut table = table();
        table.request(0, holder(1, 1), None);
        table.activate(holder(1, 1).allocation);
        assert!(table.release(holder(1, 1).allocation));
        assert!(table.free_released(|_| true).is_empty());
        assert_eq!(
            table.request(0, holder(2, 2), None),
            RequestAnswer::Occupied(holder(1, 1))
        );
        assert_eq!(table.free_released(|_| false), [0]);
        assert!(matches!(
            table.request(0, holder(1, 1), None),
            RequestAnswer::Refused(_)
        ));
        let answer = table.request(0, holder(2, 2), None);
        assert_eq!(answer, RequestAnswer::Allocated { is_new: true });
    }

    #[tokio::test(start_paused = true)]
    async fn an_allocated_slot_expires_only_while_its_time_runs() {
        let mut table = table();
        let now = Instant::now();
        let later = now + Duration::from_secs(60);
        table.request(0, holder(1, 1), None);
        assert_eq!(table.expired(later), []);
        table.start_timers(JobId::from_bits(1), now, Duration::from_secs(10));
        assert_eq!(table.expired(later), [holder(1, 1)]);
        table.stop_timers(JobId::from_bits(1));
        assert_eq!(table.expired(later), []);
        table.start_timers(JobId::from_bits(1), now, Duration::from_secs(10));
        table.activate(holder(1, 1).allocation);
        assert_eq!(table.expired(later), []);
    }
}
