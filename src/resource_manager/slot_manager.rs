//! Which slot belongs to whom, and which free slots to give to which job. Pure: no clock, no messages.
//!
//! It is a view: the TaskExecutors decide who holds their slots, and what they report replaces what is believed here.
//!
//! - A slot is given to one allocation only, and while the request for it is unanswered to nobody else.
//! - A job gets what its minimum lacks as a whole or not at all, so that two jobs can't block each other with halves; what
//!   is left over is given up to the maximum. Jobs are served in the order in which they were submitted; one that can't be served
//!   lets the next one pass, until it has waited for so long that slots are kept for it: `queue`.
//! - A job's slots are taken from TaskExecutors that hold slots of it already, then from those with the most free slots.
//!   The fewer TaskExecutors a job depends on, the fewer failures reach it and the fewer connections it needs; a
//!   TaskExecutor with many free slots is the one most likely to take all of it, and taking from there keeps the load even.
//!   Or else, by configuration, from those of which the smallest part is in use.
//!   Where a minimum of several profiles does not fit in that way it is packed: into those with the least room first.
//! - A job that states no profile is given default slots; one that does is given dynamic slots of exactly that profile, cut out
//!   of what a TaskExecutor has left. What slots that were asked for are to have counts as taken, answered or not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::{ResourceProfile, Resources, WorkerResourceSpec};
use tokio::time::Instant;

pub use super::slots::{ReportedSlot, SlotHolder, SlotState, SlotsReport, SlotsVersion, Turn};

pub use super::lacking::Shortage;

use super::choosing::{Balance, Choice, choose, choose_all};
use super::lacking::{Bound, Wanting};
use super::queue::{Queue, Reservation, Search};
use super::slots::{Slot, Slots};
use crate::gateway::{ResourceRequirement, ResourceRequirements, SubmissionNumber};
use crate::small_map::SmallMap;

/// A slot to ask a TaskExecutor for. Sent again unchanged until the answer is definite.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotRequest {
    /// Whose slot.
    pub worker: ResourceId,
    /// Its number there.
    pub slot: u32,
    /// For whom.
    pub holder: SlotHolder,
    /// What it is to have; unknown: it is a default slot.
    pub profile: ResourceProfile,
    /// Where the job's JobMaster is.
    pub job_master_address: String,
}

/// What came of a [`SlotRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The job has it.
    Allocated,
    /// Somebody else has it.
    Occupied(SlotHolder),
    /// It was not allocated, now and later.
    Refused,
    /// It may have been allocated.
    Unknown,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) submission: SubmissionNumber,
    /// Whether what it holds comes free some day.
    pub(super) is_bounded: bool,
    address: String,
    /// The most demanding first.
    pub(super) resources: Vec<ResourceRequirement>,
    /// Slots that it held before this term.
    pub(super) held: Arc<SmallMap<ResourceId, Vec<ResourceProfile>>>,
}

impl Job {
    /// Whether there is a difference between what it needs and what it could use.
    pub(super) fn takes_more(&self) -> bool {
        let mut resources = self.resources.iter();
        resources.any(|resource| resource.minimum < resource.maximum)
    }

    /// The profile of each slot without which it can't run.
    pub(super) fn minimum(&self) -> Vec<ResourceProfile> {
        let each = self.resources.iter().flat_map(|it| {
            let number = usize::try_from(it.minimum.min(it.maximum)).unwrap_or(usize::MAX);
            std::iter::repeat_n(it.profile.clone(), number)
        });
        each.collect()
    }

    pub(super) fn states_profiles(&self) -> bool {
        // The most demanding stands first.
        let first = self.resources.first();
        first.is_some_and(|resource| !resource.profile.is_unknown())
    }
}

/// See the module.
#[derive(Debug)]
pub struct SlotManager {
    pub(super) slots: Slots,
    /// All that have registered, except for those that never will again: of these the reports say what a job holds there.
    pub(super) seen: BTreeSet<ResourceId>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    pub(super) wanting: Wanting,
    turn: Turn,
    allocation_seed: u64,
    next_allocation: u64,
    balance: Balance,
    pub(super) queue: Queue,
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
        }
    }

    /// For the first job that lacks slots they are kept after it has waited for so long.
    pub fn reserving_after(mut self, delay: Duration) -> SlotManager {
        self.queue = Queue::new(delay);
        self
    }

    /// Slots are taken from there.
    pub fn balanced_by(mut self, balance: Balance) -> SlotManager {
        self.balance = balance;
        self
    }

    /// The present turn: what is reported to a question asked now is not older than this.
    pub fn turn(&self) -> Turn {
        self.turn
    }

    /// Adds a TaskExecutor, or replaces all that was known of it, pending requests included: it refuses requests that it
    /// got before this report.
    pub fn put_worker(
        &mut self,
        worker: &ResourceId,
        spec: WorkerResourceSpec,
        report: SlotsReport,
    ) {
        self.turn.advance();
        if self.seen.insert(worker.clone()) {
            // What jobs held there before this term counts no longer.
            self.wanting.all_changed();
        }
        self.slots.put_worker(worker, spec, report, self.turn);
    }

    /// Asks no slots of a TaskExecutor, or does so again.
    pub fn set_draining(&mut self, worker: &ResourceId, is_draining: bool) {
        self.slots.set_draining(worker, is_draining);
    }

    /// Forgets a TaskExecutor and its slots.
    pub fn remove_worker(&mut self, worker: &ResourceId) {
        self.slots.remove_worker(worker);
    }

    /// Forgets that a TaskExecutor has ever registered, which is gone for good. Unless a job says that it holds slots there: it would be
    /// believed again.
    pub fn forget_worker(&mut self, worker: &ResourceId) {
        let mut jobs = self.jobs.values();
        if !jobs.any(|job| job.held.contains_key(worker)) {
            self.seen.remove(worker);
        }
    }

    /// Takes what a TaskExecutor reports of its slots. What changed after `asked_at` is not touched, nor what is known as of a
    /// higher version, nor a pending slot that is reported free: the request may still be on its way.
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

    /// Replaces what a job needs.
    pub fn declare(&mut self, requirements: ResourceRequirements) {
        let mut resources = requirements.resources;
        resources.retain(|resource| resource.maximum > 0);
        if resources.is_empty() {
            self.withdraw(requirements.job);
            return;
        }
        // What fits nowhere else is placed first; who states nothing takes what is left.
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

    /// Takes what came of a request, as of a version of the TaskExecutor's slots. An answer from before a report that has been
    /// taken since does not say how it is: it is asked again. Gives whether something is to be retried.
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

    /// Ends the rest of slots that were refused, and gives the requests to send again.
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

    /// Gives slots to the jobs that lack some; each is pending until answered.
    pub fn match_slots(&mut self, now: Instant) -> Vec<SlotRequest> {
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
        // Slots are kept for the first that finds none, once it has waited for long enough.
        let before = self.queue.take_reservation();
        let (mut search, mut is_behind) = (Search::default(), false);
        let mut free = self.free_but_of(self.queue.closed());
        for &job in &short {
            if free == 0 && any_default_will_do && (is_behind || !is_any_due) {
                // Those that are left get nothing, and nothing is kept for them.
                break;
            }
            // Any default slot will do, so who lacks more of them than there are needs not look.
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

    /// Slots for all that a job lacks at least; where some were kept for it, also as they were found to be enough.
    fn choose_minimum(&self, job: JobId, known: Option<&Reservation>) -> Option<Vec<Choice>> {
        let lacking = self.lacking(job, Bound::Minimum);
        let closed = self.queue.closed();
        let chosen = choose_all(&self.slots, job, &lacking, (self.balance, closed));
        chosen.or_else(|| self.pack_kept(known?, &lacking))
    }

    /// Withdraws what a job needs. Whether it needed anything.
    pub fn withdraw(&mut self, job: JobId) -> bool {
        self.wanting.withdrawn(job);
        self.jobs.remove(&job).is_some()
    }

    /// Whether a job holds any slot.
    pub fn is_holder(&self, job: JobId) -> bool {
        self.slots.is_holder(job)
    }

    /// The jobs that hold slots of a TaskExecutor, or may get some.
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

    /// The number of slots of a TaskExecutor, and for how many of those that nobody has there is enough left.
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

    /// The youngest version as of which a TaskExecutor told of any of its slots.
    pub fn version_of(&self, worker: &ResourceId) -> SlotsVersion {
        let worker = self.slots.worker(worker);
        worker.map_or_else(SlotsVersion::default, |worker| worker.version())
    }

    /// Who has which slots of a TaskExecutor, with what each of them has.
    pub fn allocated(&self, worker: &ResourceId) -> impl Iterator<Item = (SlotHolder, &Resources)> {
        let worker = self.slots.worker(worker).into_iter();
        worker.flat_map(|worker| {
            worker.slots().filter_map(|(_, slot)| {
                let resources = worker.profile_of(slot).resources()?;
                Some((slot.state.holder()?, resources))
            })
        })
    }

    /// What of a TaskExecutor no slot has.
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
