//! Which allocation holds each slot, and which free slots go to which job. Pure: no clock, no messages.
//!
//! It is a view: TaskExecutors decide which allocation holds their slots, and their reports replace the view.
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
use std::sync::Arc;
use std::time::Duration;

use tanist_compact::SmallMap;
use tanist_gateway::{ResourceRequirement, ResourceRequirements, SubmissionNumber};
use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::{ResourceProfile, Resources, WorkerResourceSpec};

pub use super::shortages::Shortage;
pub use super::slots::{ReportedSlot, SlotHolder, SlotState, SlotsReport, SlotsVersion, Turn};

use super::LogLine;
use super::placement::{Balance, Choice, choose, choose_all};
use super::queue::{Queue, Reservation, Search};
use super::shortages::{Bound, Wanting};
use super::slots::{Slot, Slots};

/// A slot to ask a TaskExecutor for. Sent again unchanged until the answer is definite.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotRequest {
    /// The TaskExecutor that has the slot.
    pub worker: ResourceId,
    /// Its number at the TaskExecutor.
    pub slot: u32,
    /// The job and allocation it is for.
    pub holder: SlotHolder,
    /// The resources it must have. `Unknown`: it is a default slot.
    pub profile: ResourceProfile,
    /// Address of the job's JobMaster.
    pub job_master_address: String,
}

/// The outcome of a [`SlotRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The slot was allocated to the job.
    Allocated,
    /// Another allocation holds it.
    Occupied(SlotHolder),
    /// It was not allocated and will not be by this request.
    Refused,
    /// It may have been allocated.
    Unknown,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) submission: SubmissionNumber,
    /// Whether the job ends by itself, so that its slots become free.
    pub(super) is_bounded: bool,
    address: String,
    /// The most demanding first.
    pub(super) resources: Vec<ResourceRequirement>,
    /// Slots that it held before this term.
    pub(super) held: Arc<SmallMap<ResourceId, Vec<ResourceProfile>>>,
}

impl Job {
    /// Whether its maximum is above its minimum.
    pub(super) fn takes_more(&self) -> bool {
        let mut resources = self.resources.iter();
        resources.any(|resource| resource.minimum < resource.maximum)
    }

    /// The profile of each slot of its minimum.
    pub(super) fn minimum(&self) -> Vec<ResourceProfile> {
        let each = self.resources.iter().flat_map(|it| {
            let number = usize::try_from(it.minimum.min(it.maximum)).unwrap_or(usize::MAX);
            std::iter::repeat_n(it.profile.clone(), number)
        });
        each.collect()
    }

    pub(super) fn states_profiles(&self) -> bool {
        // The most demanding comes first.
        let first = self.resources.first();
        first.is_some_and(|resource| !resource.profile.is_unknown())
    }
}

/// See the module.
#[derive(Debug)]
pub struct SlotManager {
    pub(super) slots: Slots,
    /// TaskExecutors that have registered in this term, except those that never will again: for these, reports
    /// tell which slots a job holds.
    pub(super) seen: BTreeSet<ResourceId>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    pub(super) wanting: Wanting,
    turn: Turn,
    allocation_seed: u64,
    next_allocation: u64,
    balance: Balance,
    pub(super) queue: Queue,
    pub(super) log: Vec<LogLine>,
}

impl SlotManager {
    /// Without workers and jobs. The seed makes allocation ids unique among all ResourceManagers.
    pub fn new(allocation_seed: u64) -> SlotManager {
        SlotManager {
            slots: Slots::default(),
            seen: BTreeSet::new(),
            jobs: BTreeMap::new(),
            wanting: Wanting::default(),
            turn: Turn::default(),
            allocation_seed,
            next_allocation: 0,
            balance: Balance::None,
            queue: Queue::default(),
            log: Vec::new(),
        }
    }

    /// Lines for the log that were collected since they were last taken.
    pub fn log(&mut self) -> &mut Vec<LogLine> {
        &mut self.log
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
        if self.seen.insert(worker.clone()) {
            // The slots that jobs say they held there before this term no longer count.
            self.wanting.all_changed();
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

    /// Forgets that a TaskExecutor has registered, since it is gone permanently. Not if a job says that it
    /// holds slots there: the job would be believed again.
    pub fn forget_worker(&mut self, worker: &ResourceId) {
        let mut jobs = self.jobs.values();
        if !jobs.any(|job| job.held.contains_key(worker)) {
            self.seen.remove(worker);
        }
    }

    /// Applies a slot report of a TaskExecutor. Does not touch slots that changed after `asked_at`, slots known
    /// as of a higher version, or a pending slot that is reported free, since its request may still be on the
    /// way.
    pub fn report(&mut self, worker: &ResourceId, report: &SlotsReport, asked_at: Turn) {
        let version = report.version;
        for reported in &report.slots {
            let number = reported.number;
            let known = self.slots.get(worker, number);
            if known.is_some_and(|it| it.changed > asked_at || version.is_before(it.version)) {
                continue;
            }
            let state = known.map(|it| it.state);
            let mut turn = self.turn;
            turn.advance();
            let is_changed = match (state, reported.holder) {
                (_, Some(_)) => self
                    .slots
                    .take_held(worker, reported, asked_at, version, turn),
                (None | Some(SlotState::Pending { .. } | SlotState::Free), None) => false,
                (Some(SlotState::Resting | SlotState::Allocated(_)), None) => {
                    self.slots.set(worker, number, SlotState::Free, turn);
                    true
                }
            };
            if is_changed {
                self.turn = turn;
            }
            if state.is_some() {
                self.slots.see(worker, number, version);
            }
        }
        if report.are_all {
            for number in self.slots.unreported(worker, report, asked_at) {
                self.turn.advance();
                self.slots.see(worker, number, version);
                self.slots.set(worker, number, SlotState::Free, self.turn);
            }
        }
    }

    /// Replaces the requirements of a job.
    pub fn declare(&mut self, requirements: ResourceRequirements) {
        let mut resources = requirements.resources;
        resources.retain(|resource| resource.maximum > 0);
        if resources.is_empty() {
            self.withdraw(requirements.job);
            return;
        }
        // The most demanding is placed first, since it fits in the fewest places. Slots without profile take
        // what is left.
        resources.sort_by_key(|resource| {
            let profile = resource.profile.resources();
            let size = profile.map(|it| (it.cpu, it.total_memory(), it.all_extended().len()));
            std::cmp::Reverse(size)
        });
        let job = self.jobs.entry(requirements.job).or_insert_with(|| Job {
            submission: SubmissionNumber::default(),
            is_bounded: false,
            address: String::new(),
            resources: Vec::new(),
            held: Arc::default(),
        });
        job.submission = requirements.submission;
        job.is_bounded = requirements.is_bounded;
        job.address = requirements.job_master_address;
        job.resources = resources;
        job.held = requirements.held;
        let (takes_more, states_profiles) = (job.takes_more(), job.states_profiles());
        self.wanting
            .stated(requirements.job, takes_more, states_profiles);
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
            let address = self.jobs.get(&holder.job).map(|job| job.address.clone());
            again.push(SlotRequest {
                worker,
                slot: number,
                holder,
                profile: slot.profile,
                job_master_address: address.unwrap_or_default(),
            });
        }
        again
    }

    /// Assigns slots to the jobs that lack some; each slot is pending until its request is answered.
    pub fn match_slots(&mut self, now: Uptime) -> Vec<SlotRequest> {
        let short = self.short();
        self.note_waiting(now);
        if !self.slots.is_any_free() && !self.wanting.is_any_profiled_wanting() {
            self.reserve_for_first(now, &short);
            return Vec::new();
        }
        let flexible = self.flexible();
        let any_default_will_do = !self.wanting.is_any_profiled_short();
        let is_any_due = self.queue.is_any_due(now);
        let mut requests = Vec::new();
        // Slots are kept for the first job that finds none and has waited long enough.
        let before = self.queue.take_reservation();
        let (mut search, mut is_behind) = (Search::default(), false);
        let mut free = self.free_but_of(self.queue.closed());
        for &job in &short {
            if free == 0 && any_default_will_do && (is_behind || !is_any_due) {
                // The remaining jobs get nothing, and nothing is kept for them.
                break;
            }
            // Any default slot will do, so a job that lacks more of them than are free need not search.
            let missing = self.wanting.missing(job);
            let known = before.as_ref().filter(|it| it.is_for(job));
            let chosen = match missing > free && !self.jobs[&job].states_profiles() {
                true => None,
                false => self.choose_minimum(job, known),
            };
            if chosen.is_none() && !is_behind && self.reserve_for(now, job, known, &mut search) {
                is_behind = true;
                free = self.free_but_of(self.queue.closed());
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
        chosen.or_else(|| self.pack_kept(known?, &lacking))
    }

    /// Withdraws the requirements of a job. Returns whether it had any.
    pub fn withdraw(&mut self, job: JobId) -> bool {
        self.wanting.withdrawn(job);
        self.jobs.remove(&job).is_some()
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
        let Some(worker) = self.slots.worker(worker) else {
            return (0, 0);
        };
        let holders = worker.slots().map(|(_, slot)| slot.state.holder());
        let free = count(holders.filter(Option::is_none).count());
        let room = match worker.is_shared_equally() {
            true => None,
            false => worker.left().holds(&worker.spec.default_slot()),
        };
        let room = room.map_or(u32::MAX, |room| u32::try_from(room).unwrap_or(u32::MAX));
        (count(worker.slots().count()), free.min(room))
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
    pub fn slots(&self) -> impl Iterator<Item = (&ResourceId, u32, SlotState)> {
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
        let address = self.jobs.get(&job).map(|job| job.address.clone());
        let job_master_address = address.unwrap_or_default();
        SlotRequest {
            worker,
            slot: number,
            holder,
            profile,
            job_master_address,
        }
    }
}

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
