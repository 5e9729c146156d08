//! Which allocation holds each slot, and which free slots go to which job. Pure: no clock, no messages.
//!
//! It is a view: TaskExecutors decide which allocation holds their slots, and their reports replace the view.
//!
//! ```text
//!   SlotManager   combines the parts; numbers allocations and turns
//!     Slots         the view, with its indexes
//!     Requirements  what jobs require
//!     ShortJobs     which jobs lack slots
//!     Queue         since when, and for which one slots are kept (Reserver)
//! ```
//!
//! - A slot is given to one allocation only, and to no other while the request for it is unanswered.
//! - A job gets the missing part of its minimum as a whole or not at all, so that two jobs can't block each
//!   other with halves; the remaining slots are given up to the maximum. Jobs are served in the order of
//!   submission; a job that can't be served lets the next one pass, until it has waited long enough for slots
//!   to be kept for it: `queue`.
//! - A job's slots are taken from TaskExecutors where it holds slots already, then from those with the most
//!   free slots. The fewer TaskExecutors a job depends on, the fewer failures reach it and the fewer
//!   connections it needs; a TaskExecutor with many free slots is most likely to take the whole job, and taking
//!   from there keeps the load even. Or, if so configured, from those with the smallest part in use. A minimum
//!   of several profiles that does not fit this way is packed: into those with the least room first.
//! - A job that states no profile gets default slots; one that does gets dynamic slots of exactly that profile,
//!   cut out of the free resources of a TaskExecutor. The resources of requested slots count as taken, answered
//!   or not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tanist_gateway::ResourceRequirements;
use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::{ResourceProfile, Resources, WorkerResourceSpec};

pub use super::shortages::Shortage;
pub(crate) use super::slot::{ReportedSlot, SlotHolder, SlotState, Turn};
pub use super::slot::{RequestOutcome, SlotRequest, SlotsReport, SlotsVersion};

use super::LogLine;
use super::capacity::Capacity;
use super::placement::{Balance, Choice, choose, choose_all};
use super::queue::{Queue, Reservation, Reserver, Search, pack_kept};
use super::requirements::{Bound, JobRequirements, Requirements};
use super::shortages::ShortJobs;
use super::slot::Slot;
use super::slots::Slots;
use super::workers::Startable;

/// See the module.
#[derive(Debug)]
pub struct SlotManager {
    slots: Slots,
    requirements: Requirements,
    short_jobs: ShortJobs,
    turn: Turn,
    allocation_seed: u64,
    next_allocation: u64,
    balance: Balance,
    queue: Queue,
    log: Vec<LogLine>,
}

impl SlotManager {
    /// Without workers and jobs. The seed makes allocation ids unique among all ResourceManagers.
    pub fn new(allocation_seed: u64) -> SlotManager {
        SlotManager {
            slots: Slots::default(),
            requirements: Requirements::default(),
            short_jobs: ShortJobs::default(),
            turn: Turn::default(),
            allocation_seed,
            next_allocation: 0,
            balance: Balance::None,
            queue: Queue::default(),
            log: Vec::new(),
        }
    }

    /// Takes the collected lines for the log.
    pub fn take_log(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.log)
    }

    /// Keeps slots for the first job that lacks some, after it has waited for `delay`.
    pub fn reserving_after(mut self, delay: Duration) -> SlotManager {
        self.queue = Queue::new(delay);
        self
    }

    /// Sets which TaskExecutors slots are taken from first.
    pub fn balanced_by(mut self, balance: Balance) -> SlotManager {
        self.balance = balance;
        self
    }

    /// The current turn: the report that answers a question asked now is not older than this.
    pub fn turn(&self) -> Turn {
        self.turn
    }

    /// Adds a TaskExecutor, or replaces everything known about it, including pending requests: it refuses
    /// requests that it got before this report.
    pub fn put_worker(
        &mut self,
        worker: &ResourceId,
        spec: WorkerResourceSpec,
        report: SlotsReport,
    ) {
        self.turn.advance();
        if self.requirements.note_registered(worker) {
            self.short_jobs.note_all_changed();
        }
        self.slots.put_worker(worker, spec, report, self.turn);
    }

    /// Stops or resumes slot requests to a TaskExecutor.
    pub fn set_draining(&mut self, worker: &ResourceId, is_draining: bool) {
        self.slots.set_draining(worker, is_draining);
    }

    /// Forgets a TaskExecutor and its slots.
    pub fn remove_worker(&mut self, worker: &ResourceId) {
        self.slots.remove_worker(worker);
    }

    /// Forgets that a TaskExecutor has registered, since it is gone permanently.
    pub fn forget_worker(&mut self, worker: &ResourceId) {
        self.requirements.forget_registered(worker);
    }

    /// Whether it knows that any TaskExecutor has registered.
    #[cfg(test)]
    pub fn knows_any_registered(&self) -> bool {
        self.requirements.knows_any_registered()
    }

    /// Applies a slot report of a TaskExecutor. Does not touch slots that changed after `asked_at`, slots known
    /// as of a higher version, or a pending slot that is reported free, since its request may still be on the
    /// way.
    pub fn report(&mut self, worker: &ResourceId, report: &SlotsReport, asked_at: Turn) {
        self.slots.report(worker, report, asked_at, &mut self.turn);
    }

    /// Replaces the requirements of a job.
    pub fn declare(&mut self, requirements: ResourceRequirements) {
        let job = requirements.job;
        let Some(requirements) = JobRequirements::of(requirements) else {
            self.withdraw(job);
            return;
        };
        self.short_jobs.note_declared(job, Some(&requirements));
        self.requirements.put(job, requirements);
    }

    /// Handles the answer to a slot request, as of a version of the TaskExecutor's slots. An answer that is
    /// older than a report applied since says nothing about the present: the request is repeated. Returns
    /// whether something must be retried.
    pub fn answered(
        &mut self,
        worker: &ResourceId,
        slot: u32,
        of: SlotHolder,
        outcome: &RequestOutcome,
        version: SlotsVersion,
    ) -> bool {
        let known = self.slots.get(worker, slot);
        let Some((SlotState::Pending { holder, .. }, seen)) =
            known.map(|it| (it.state, it.version))
        else {
            return false;
        };
        if holder != of {
            return false;
        }
        self.turn.advance();
        let outcome = match outcome {
            RequestOutcome::Allocated | RequestOutcome::Occupied(_) if version.is_before(seen) => {
                &RequestOutcome::Unknown
            }
            outcome => outcome,
        };
        let state = match outcome {
            RequestOutcome::Allocated => SlotState::Allocated(holder),
            RequestOutcome::Occupied(other) => SlotState::Allocated(*other),
            RequestOutcome::Refused => SlotState::Resting,
            RequestOutcome::Unknown => SlotState::Pending {
                holder,
                is_in_flight: false,
            },
        };
        self.slots.set(worker, slot, state, self.turn);
        self.slots.see(worker, slot, version);
        matches!(outcome, RequestOutcome::Refused | RequestOutcome::Unknown)
    }

    /// Makes refused slots available again, and returns the requests to repeat.
    pub fn retry(&mut self) -> Vec<SlotRequest> {
        let is_waiting = |state: SlotState| match state {
            SlotState::Resting => true,
            SlotState::Pending { is_in_flight, .. } => !is_in_flight,
            SlotState::Free | SlotState::Allocated(_) => false,
        };
        let workers = self.slots.workers();
        let all = workers.flat_map(|(id, worker)| {
            let slots = worker.slots();
            let waiting = slots.filter(|(_, slot)| is_waiting(slot.state));
            waiting.map(move |(number, slot)| (id.clone(), number, slot.clone()))
        });
        let waiting: Vec<(ResourceId, u32, Slot)> = all.collect();
        let mut again = Vec::new();
        for (worker, number, slot) in waiting {
            let (state, changed) = (slot.state, slot.changed);
            let Some(holder) = state.holder() else {
                self.slots.set(&worker, number, SlotState::Free, changed);
                continue;
            };
            let asked_again = SlotState::Pending {
                holder,
                is_in_flight: true,
            };
            self.slots.set(&worker, number, asked_again, changed);
            again.push(SlotRequest {
                worker,
                slot: number,
                holder,
                profile: slot.profile,
                job_master_address: self.requirements.job_master_address(holder.job),
            });
        }
        again
    }

    /// Assigns slots to the jobs that lack some; each slot is pending until its request is answered.
    pub fn match_slots(&mut self, now: Uptime) -> Vec<SlotRequest> {
        let short = self.short();
        self.queue.note_waiting(now, &self.short_jobs);
        if !self.slots.is_any_free() && !self.short_jobs.is_any_profiled_wanting() {
            self.reserver().reserve_for_first(now, &short);
            return Vec::new();
        }
        let flexible = self.short_jobs.flexible(&self.requirements);
        let any_default_will_do = !self.short_jobs.is_any_profiled_short();
        let is_any_due = self.queue.is_any_due(now);
        let mut requests = Vec::new();
        // Slots are kept for the first job that finds none and has waited long enough.
        let before = self.queue.take_reservation();
        let (mut search, mut is_behind) = (Search::default(), false);
        let mut free = self.queue.open_slots(&self.slots);
        for &job in &short {
            if free == 0 && any_default_will_do && (is_behind || !is_any_due) {
                // The remaining jobs get nothing, and nothing is kept for them.
                break;
            }
            // Any default slot will do, so a job that lacks more of them than are free need not search.
            let missing = self.short_jobs.missing(job);
            let known = before.as_ref().filter(|it| it.is_for(job));
            let required = self.requirements.get(job);
            let states_profiles = required.is_some_and(JobRequirements::states_profiles);
            let chosen = match missing > free && !states_profiles {
                true => None,
                false => self.choose_minimum(job, known),
            };
            if chosen.is_none()
                && !is_behind
                && self.reserver().reserve_for(now, job, known, &mut search)
            {
                is_behind = true;
                free = self.queue.open_slots(&self.slots);
            }
            for choice in chosen.into_iter().flatten() {
                free = free.saturating_sub(u32::from(choice.profile.is_unknown()));
                requests.push(self.reserve(job, choice));
            }
        }
        for job in flexible {
            if self.lacking(job, Bound::Minimum).is_empty() {
                let lacking = self.lacking(job, Bound::Maximum);
                let closed = self.queue.closed();
                for choice in choose(&self.slots, job, &lacking, (self.balance, closed)) {
                    requests.push(self.reserve(job, choice));
                }
            }
        }
        requests
    }

    /// Chooses slots for the missing part of a job's minimum; if some were kept for it, also in the order of
    /// keeping.
    fn choose_minimum(&self, job: JobId, known: Option<&Reservation>) -> Option<Vec<Choice>> {
        let lacking = self.lacking(job, Bound::Minimum);
        let closed = self.queue.closed();
        let chosen = choose_all(&self.slots, job, &lacking, (self.balance, closed));
        chosen.or_else(|| pack_kept(&self.slots, known?, &lacking))
    }

    /// Withdraws the requirements of a job. Returns whether it had any.
    pub fn withdraw(&mut self, job: JobId) -> bool {
        self.short_jobs.note_declared(job, None);
        self.requirements.remove(job)
    }

    /// Sets the workers that a driver could start in addition to the registered ones.
    pub fn set_startable(&mut self, startable: Option<Startable>) {
        self.queue.set_startable(startable);
    }

    /// The job that slots are kept for, and their TaskExecutors.
    pub fn kept(&self) -> Option<(JobId, BTreeSet<ResourceId>)> {
        self.queue.kept()
    }

    /// Whether a job has declared requirements.
    pub fn is_known(&self, job: JobId) -> bool {
        self.requirements.get(job).is_some()
    }

    /// Whether a job lacked slots at the last count.
    pub fn is_short(&self, job: JobId) -> bool {
        self.short_jobs.missing(job) > 0
    }

    /// Number of jobs that lacked slots at the last count.
    pub fn short_count(&self) -> usize {
        self.short_jobs.number()
    }

    /// Jobs that lack slots of their minimum.
    #[cfg(test)]
    pub fn shortages(&mut self) -> BTreeMap<JobId, Shortage> {
        let short = self.short().into_iter();
        short
            .filter_map(|job| Some((job, self.shortage(job)?)))
            .collect()
    }

    /// Shortage of a job at the last count.
    pub(super) fn shortage(&self, job: JobId) -> Option<Shortage> {
        let missing = self.short_jobs.missing(job);
        let acquired = self.slots.held_by(job).map(|(_, _, slots)| slots);
        (missing > 0).then(|| Shortage {
            acquired: acquired.sum(),
            missing,
        })
    }

    /// Takes the jobs whose requirements or slots changed since the last call.
    pub fn take_changed_jobs(&mut self) -> BTreeSet<JobId> {
        self.count_again();
        self.short_jobs.take_changed()
    }

    /// Jobs that lack slots of their minimum, in the order in which they are served.
    pub(super) fn short(&mut self) -> Vec<JobId> {
        self.count_again();
        self.short_jobs.in_order()
    }

    fn count_again(&mut self) {
        self.short_jobs
            .count_again(&mut self.slots, &self.requirements, &mut self.queue);
    }

    /// The profiles that each job lacks up to its minimum, in the order in which jobs are served.
    pub fn shortages_by_job(&mut self) -> Vec<(JobId, Vec<ResourceProfile>)> {
        let short = self.short().into_iter();
        short
            .map(|job| (job, self.lacking(job, Bound::Minimum)))
            .collect()
    }

    /// The profiles that each job could use beyond its minimum, in the same order.
    pub fn useful_by_job(&self) -> Vec<(JobId, Vec<ResourceProfile>)> {
        self.short_jobs.useful(&self.requirements, &self.slots)
    }

    /// The jobs that lack a profile of their minimum which none of these TaskExecutors could provide even if
    /// empty, each with the most demanding such profile. Every TaskExecutor has default slots.
    pub fn unfulfillable(
        &mut self,
        workers: &[WorkerResourceSpec],
    ) -> BTreeMap<JobId, ResourceProfile> {
        self.count_again();
        self.short_jobs
            .unfulfillable(workers, &self.requirements, &self.slots)
    }

    fn lacking(&self, job: JobId, bound: Bound) -> Vec<ResourceProfile> {
        self.requirements.lacking(job, bound, &self.slots)
    }

    /// What the room for jobs depends on, except for slots that a job has on drained TaskExecutors.
    pub(super) fn capacity(&self, departed: Vec<WorkerResourceSpec>) -> Capacity {
        Capacity::new(&self.slots, departed, self.queue.startable())
    }

    /// Those of these jobs that lack slots and would fit into this capacity.
    pub(super) fn with_room(
        &self,
        jobs: impl Iterator<Item = JobId>,
        capacity: &Capacity,
    ) -> BTreeSet<JobId> {
        capacity.with_room(jobs, &self.slots, &self.requirements, &self.short_jobs)
    }

    fn reserver(&mut self) -> Reserver<'_> {
        Reserver::new(
            &mut self.queue,
            &self.slots,
            &self.requirements,
            &self.short_jobs,
            &mut self.log,
        )
    }

    /// Whether a job holds any slot.
    pub fn is_holder(&self, job: JobId) -> bool {
        self.slots.is_holder(job)
    }

    /// Jobs that hold, or may get, slots of a TaskExecutor.
    pub fn holders_at(&self, worker: &ResourceId) -> BTreeSet<JobId> {
        let slots = self
            .slots
            .worker(worker)
            .into_iter()
            .flat_map(|it| it.slots());
        let holders = slots.filter_map(|(_, slot)| slot.state.holder());
        holders.map(|holder| holder.job).collect()
    }

    /// The allocations of a job, each with its TaskExecutor.
    pub fn allocations_of(&self, job: JobId) -> impl Iterator<Item = (&ResourceId, AllocationId)> {
        self.slots.held_by(job).flat_map(move |(id, worker, _)| {
            let holders = worker.slots().filter_map(|(_, slot)| slot.state.holder());
            let own = holders.filter(move |holder| holder.job == job);
            own.map(move |holder| (id, holder.allocation))
        })
    }

    /// Number of slots of a TaskExecutor, and number of its free slots, as far as its free resources suffice
    /// for them.
    pub fn slot_counts(&self, worker: &ResourceId) -> (u32, u32) {
        let worker = self.slots.worker(worker);
        worker.map_or((0, 0), |worker| worker.counts())
    }

    /// Highest version of any report about a slot of a TaskExecutor.
    pub fn version_of(&self, worker: &ResourceId) -> SlotsVersion {
        let worker = self.slots.worker(worker);
        worker.map_or_else(SlotsVersion::default, |worker| worker.version())
    }

    /// Holders of the slots of a TaskExecutor, each with its resources.
    pub fn allocated(&self, worker: &ResourceId) -> impl Iterator<Item = (SlotHolder, &Resources)> {
        let worker = self.slots.worker(worker).into_iter();
        worker.flat_map(|worker| {
            worker.slots().filter_map(|(_, slot)| {
                let resources = worker.profile_of(slot).resources()?;
                Some((slot.state.holder()?, resources))
            })
        })
    }

    /// Resources of a TaskExecutor that no slot holds.
    pub fn left(&self, worker: &ResourceId) -> Resources {
        let worker = self.slots.worker(worker);
        worker.map(|worker| worker.left()).unwrap_or_default()
    }

    /// Every slot with its state.
    #[cfg(test)]
    pub(crate) fn slots(&self) -> impl Iterator<Item = (&ResourceId, u32, SlotState)> {
        self.slots.workers().flat_map(|(id, worker)| {
            let slots = worker.slots();
            slots.map(move |(number, slot)| (id, number, slot.state))
        })
    }

    fn reserve(&mut self, job: JobId, choice: Choice) -> SlotRequest {
        let Choice {
            worker,
            number,
            profile,
        } = choice;
        let bits = (u128::from(self.allocation_seed) << 64) | u128::from(self.next_allocation);
        self.next_allocation += 1;
        let holder = SlotHolder {
            job,
            allocation: AllocationId::from_bits(bits),
        };
        self.turn.advance();
        let state = SlotState::Pending {
            holder,
            is_in_flight: true,
        };
        self.slots
            .ask(&worker, number, profile.clone(), state, self.turn);
        SlotRequest {
            worker,
            slot: number,
            holder,
            profile,
            job_master_address: self.requirements.job_master_address(job),
        }
    }
}
