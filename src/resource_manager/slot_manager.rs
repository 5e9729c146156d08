//! Which slot belongs to whom, and which free slots to give to which job. Pure: no clock, no messages.
//!
//! It is a view: the TaskExecutors decide who holds their slots, and what they report replaces what is believed here.
//!
//! - A slot is given to one allocation only, and while the request for it is unanswered to nobody else.
//! - A job gets what its minimum lacks as a whole or not at all, so that two jobs can't block each other with halves; what
//!   is left over is given up to the maximum. Jobs are served in the order in which they first stated requirements; one that
//!   can't be served lets the next one pass.
//! - A job's slots are taken from TaskExecutors that hold slots of it already, then from those with the most free slots.
//!   The fewer TaskExecutors a job depends on, the fewer failures reach it and the fewer connections it needs; a
//!   TaskExecutor with many free slots is the one most likely to take all of it, and taking from there keeps the load even.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::v1 as pb;

use crate::gateway::{ResourceRequirement, ResourceRequirements};

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
    fn holder(&self) -> Option<SlotHolder> {
        match self {
            SlotState::Free | SlotState::Resting => None,
            SlotState::Pending { holder, .. } | SlotState::Allocated(holder) => Some(*holder),
        }
    }
}

/// A slot to ask a TaskExecutor for. Sent again unchanged until the answer is definite.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotRequest {
    /// Whose slot.
    pub worker: ResourceId,
    /// Its number there.
    pub slot: u32,
    /// For whom.
    pub holder: SlotHolder,
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

/// What a job lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Slots that it has.
    pub acquired: u32,
    /// Slots without which it can't run.
    pub missing: u32,
}

#[derive(Debug)]
struct Worker {
    slot_profile: pb::ResourceProfile,
    /// It is to leave: nothing is asked of it any more.
    is_draining: bool,
    slots: BTreeMap<u32, Slot>,
}

#[derive(Debug)]
struct Slot {
    state: SlotState,
    changed: Turn,
}

#[derive(Debug)]
struct Job {
    order: u64,
    address: String,
    /// The most demanding first.
    resources: Vec<ResourceRequirement>,
    /// Slots that it held before this term.
    held: BTreeMap<ResourceId, u32>,
}

/// See the module.
#[derive(Debug)]
pub struct SlotManager {
    workers: BTreeMap<ResourceId, Worker>,
    /// All that ever registered: of these the reports say what a job holds there.
    seen: BTreeSet<ResourceId>,
    jobs: BTreeMap<JobId, Job>,
    turn: Turn,
    next_order: u64,
    allocation_seed: u64,
    next_allocation: u64,
}

impl SlotManager {
    /// Without workers and jobs. The seed makes allocation ids unique among all ResourceManagers.
    pub fn new(allocation_seed: u64) -> SlotManager {
        SlotManager {
            workers: BTreeMap::new(),
            seen: BTreeSet::new(),
            jobs: BTreeMap::new(),
            turn: Turn::default(),
            next_order: 0,
            allocation_seed,
            next_allocation: 0,
        }
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
        slot_profile: pb::ResourceProfile,
        report: &[(u32, Option<SlotHolder>)],
    ) {
        self.turn.0 += 1;
        self.seen.insert(worker.clone());
        let slots = report
            .iter()
            .map(|&(slot, holder)| {
                let state = holder.map_or(SlotState::Free, SlotState::Allocated);
                (
                    slot,
                    Slot {
                        state,
                        changed: self.turn,
                    },
                )
            })
            .collect();
        self.workers.insert(
            worker.clone(),
            Worker {
                slot_profile,
                is_draining: false,
                slots,
            },
        );
    }

    /// Asks no slots of a TaskExecutor, or does so again.
    pub fn set_draining(&mut self, worker: &ResourceId, is_draining: bool) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.is_draining = is_draining;
        }
    }

    /// Forgets a TaskExecutor and its slots.
    pub fn remove_worker(&mut self, worker: &ResourceId) {
        self.workers.remove(worker);
    }

    /// Takes what a TaskExecutor reports of its slots. What changed after `asked_at` is not touched, nor a pending slot
    /// that is reported free: the request may still be on its way.
    pub fn report(
        &mut self,
        worker: &ResourceId,
        report: &[(u32, Option<SlotHolder>)],
        asked_at: Turn,
    ) {
        let Some(known) = self.workers.get_mut(worker) else {
            return;
        };
        for &(number, holder) in report {
            let Some(slot) = known.slots.get_mut(&number) else {
                continue;
            };
            if slot.changed > asked_at {
                continue;
            }
            let reported = match (slot.state, holder) {
                (SlotState::Pending { .. }, None) => continue,
                (_, None) => SlotState::Free,
                (_, Some(holder)) => SlotState::Allocated(holder),
            };
            if slot.state != reported {
                self.turn.0 += 1;
                *slot = Slot {
                    state: reported,
                    changed: self.turn,
                };
            }
        }
    }

    /// Replaces what a job needs.
    pub fn declare(&mut self, requirements: ResourceRequirements) {
        let mut resources = requirements.resources;
        resources.retain(|resource| resource.maximum > 0);
        if resources.is_empty() {
            self.jobs.remove(&requirements.job);
            return;
        }
        let memory = |resource: &ResourceRequirement| {
            resource
                .profile
                .as_ref()
                .map_or(0, |profile| profile.memory_bytes)
        };
        resources.sort_by_key(|resource| std::cmp::Reverse(memory(resource)));
        let next_order = self.next_order;
        let job = self.jobs.entry(requirements.job).or_insert_with(|| Job {
            order: next_order,
            address: String::new(),
            resources: Vec::new(),
            held: BTreeMap::new(),
        });
        self.next_order += 1;
        job.address = requirements.job_master_address;
        job.resources = resources;
        job.held = requirements.held;
    }

    /// Takes what came of a request.
    pub fn answered(
        &mut self,
        worker: &ResourceId,
        slot: u32,
        of: SlotHolder,
        outcome: &RequestOutcome,
    ) {
        let known = self
            .workers
            .get_mut(worker)
            .and_then(|worker| worker.slots.get_mut(&slot));
        let Some(known) = known else { return };
        let SlotState::Pending { holder, .. } = known.state else {
            return;
        };
        if holder != of {
            return;
        }
        self.turn.0 += 1;
        known.changed = self.turn;
        known.state = match outcome {
            RequestOutcome::Allocated => SlotState::Allocated(holder),
            RequestOutcome::Occupied(other) => SlotState::Allocated(*other),
            RequestOutcome::Refused => SlotState::Resting,
            RequestOutcome::Unknown => SlotState::Pending {
                holder,
                is_in_flight: false,
            },
        };
    }

    /// Ends the rest of slots that were refused, and gives the requests to send again.
    pub fn retry(&mut self) -> Vec<SlotRequest> {
        let mut again = Vec::new();
        for (id, worker) in &mut self.workers {
            for (&number, slot) in &mut worker.slots {
                match &mut slot.state {
                    SlotState::Resting => slot.state = SlotState::Free,
                    SlotState::Pending {
                        holder,
                        is_in_flight,
                    } if !*is_in_flight => {
                        *is_in_flight = true;
                        let job = self.jobs.get(&holder.job);
                        again.push(SlotRequest {
                            worker: id.clone(),
                            slot: number,
                            holder: *holder,
                            job_master_address: job
                                .map(|job| job.address.clone())
                                .unwrap_or_default(),
                        });
                    }
                    SlotState::Free | SlotState::Pending { .. } | SlotState::Allocated(_) => {}
                }
            }
        }
        again
    }

    /// Gives free slots to the jobs that lack some; each is pending until answered.
    pub fn match_slots(&mut self) -> Vec<SlotRequest> {
        let is_free = |slot: &Slot| slot.state == SlotState::Free;
        let mut workers = self.workers.values();
        if !workers.any(|worker| worker.slots.values().any(is_free)) {
            return Vec::new();
        }
        let mut order: Vec<(u64, JobId)> =
            self.jobs.iter().map(|(&id, job)| (job.order, id)).collect();
        order.sort_unstable();
        let mut requests = Vec::new();
        for bound in [Bound::Minimum, Bound::Maximum] {
            for &(_, job) in &order {
                let lacking = self.lacking(job, bound);
                let chosen = self.choose(job, &lacking);
                let is_useful = match bound {
                    Bound::Minimum => chosen.len() == lacking.len(),
                    Bound::Maximum => self.lacking(job, Bound::Minimum).is_empty(),
                };
                if !is_useful {
                    continue;
                }
                for (worker, slot) in chosen {
                    requests.push(self.reserve(job, worker, slot));
                }
            }
        }
        requests
    }

    /// The jobs that lack slots without which they can't run.
    pub fn shortages(&self) -> BTreeMap<JobId, Shortage> {
        let shortage = |&job: &JobId| {
            let missing = count(self.lacking(job, Bound::Minimum).len());
            let acquired = count(self.slots_of(job).count());
            (missing > 0).then_some((job, Shortage { acquired, missing }))
        };
        self.jobs.keys().filter_map(shortage).collect()
    }

    /// How many jobs have stated requirements.
    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// Withdraws what a job needs. Whether it needed anything.
    pub fn withdraw(&mut self, job: JobId) -> bool {
        self.jobs.remove(&job).is_some()
    }

    /// The jobs that hold slots, each as often as it holds one.
    pub fn holders(&self) -> impl Iterator<Item = JobId> {
        let slots = self
            .workers
            .values()
            .flat_map(|worker| worker.slots.values());
        slots.filter_map(|slot| Some(slot.state.holder()?.job))
    }

    /// The allocations of a job, each with its TaskExecutor.
    pub fn allocations_of(&self, job: JobId) -> impl Iterator<Item = (&ResourceId, AllocationId)> {
        self.workers.iter().flat_map(move |(id, worker)| {
            let holders = worker.slots.values().filter_map(|slot| slot.state.holder());
            let own = holders.filter(move |holder| holder.job == job);
            own.map(move |holder| (id, holder.allocation))
        })
    }

    /// The number of slots of a TaskExecutor, and how many of them nobody has.
    pub fn slot_counts(&self, worker: &ResourceId) -> (u32, u32) {
        let Some(worker) = self.workers.get(worker) else {
            return (0, 0);
        };
        let free = worker
            .slots
            .values()
            .filter(|slot| slot.state.holder().is_none())
            .count();
        (count(worker.slots.len()), count(free))
    }

    /// Every slot with its state.
    #[cfg(test)]
    pub fn slots(&self) -> impl Iterator<Item = (&ResourceId, u32, SlotState)> {
        self.workers.iter().flat_map(|(id, worker)| {
            worker
                .slots
                .iter()
                .map(move |(&number, slot)| (id, number, slot.state))
        })
    }

    fn slots_of(&self, job: JobId) -> impl Iterator<Item = &pb::ResourceProfile> {
        self.workers.values().flat_map(move |worker| {
            let held = move |slot: &&Slot| slot.state.holder().is_some_and(|of| of.job == job);
            worker
                .slots
                .values()
                .filter(held)
                .map(|_| &worker.slot_profile)
        })
    }

    /// The profiles of the slots that a job lacks up to the bound.
    fn lacking(&self, job: JobId, bound: Bound) -> Vec<Option<pb::ResourceProfile>> {
        let Some(known) = self.jobs.get(&job) else {
            return Vec::new();
        };
        let mut acquired: Vec<&pb::ResourceProfile> = self.slots_of(job).collect();
        // Slots of TaskExecutors that have yet to report them. What fits is not known, but the job runs in them.
        let unreported = known.held.iter().filter(|(id, _)| !self.seen.contains(*id));
        let mut unreported: u32 = unreported.map(|(_, slots)| *slots).sum();
        let mut lacking = Vec::new();
        for resource in &known.resources {
            let wanted = match bound {
                Bound::Minimum => resource.minimum.min(resource.maximum),
                Bound::Maximum => resource.maximum,
            };
            for _ in 0..wanted {
                let found = acquired
                    .iter()
                    .position(|slot| fits(resource.profile.as_ref(), slot));
                match found {
                    Some(index) => {
                        acquired.swap_remove(index);
                    }
                    None if unreported > 0 => unreported -= 1,
                    None => lacking.push(resource.profile),
                }
            }
        }
        lacking
    }

    /// Free slots for as many of the profiles as there are.
    fn choose(
        &self,
        job: JobId,
        profiles: &[Option<pb::ResourceProfile>],
    ) -> Vec<(ResourceId, u32)> {
        if profiles.is_empty() {
            return Vec::new();
        }
        let mut candidates: Vec<Candidate<'_>> = self
            .workers
            .iter()
            .filter(|(_, worker)| !worker.is_draining)
            .map(|(id, worker)| {
                let is_free = |(_, slot): &(&u32, &Slot)| slot.state == SlotState::Free;
                let holds = |slot: &Slot| slot.state.holder().is_some_and(|of| of.job == job);
                Candidate {
                    id,
                    profile: &worker.slot_profile,
                    is_used_by_job: worker.slots.values().any(holds),
                    free: worker
                        .slots
                        .iter()
                        .filter(is_free)
                        .map(|(&slot, _)| slot)
                        .rev()
                        .collect(),
                }
            })
            .collect();
        let mut chosen = Vec::new();
        for profile in profiles {
            let best = candidates
                .iter_mut()
                .filter(|candidate| {
                    !candidate.free.is_empty() && fits(profile.as_ref(), candidate.profile)
                })
                // Of equals the one with the lowest id.
                .max_by_key(|candidate| {
                    let free = candidate.free.len();
                    (
                        candidate.is_used_by_job,
                        free,
                        std::cmp::Reverse(candidate.id),
                    )
                });
            let Some(best) = best else { continue };
            let Some(slot) = best.free.pop() else {
                continue;
            };
            best.is_used_by_job = true;
            chosen.push((best.id.clone(), slot));
        }
        chosen
    }

    fn reserve(&mut self, job: JobId, worker: ResourceId, number: u32) -> SlotRequest {
        let bits = (u128::from(self.allocation_seed) << 64) | u128::from(self.next_allocation);
        self.next_allocation += 1;
        let holder = SlotHolder {
            job,
            allocation: AllocationId::from_bits(bits),
        };
        self.turn.0 += 1;
        let slots = self
            .workers
            .get_mut(&worker)
            .map(|worker| &mut worker.slots);
        if let Some(slot) = slots.and_then(|slots| slots.get_mut(&number)) {
            let state = SlotState::Pending {
                holder,
                is_in_flight: true,
            };
            *slot = Slot {
                state,
                changed: self.turn,
            };
        }
        let address = self.jobs.get(&job).map(|job| job.address.clone());
        let job_master_address = address.unwrap_or_default();
        SlotRequest {
            worker,
            slot: number,
            holder,
            job_master_address,
        }
    }
}

/// Up to which number of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Minimum,
    Maximum,
}

#[derive(Debug)]
struct Candidate<'a> {
    id: &'a ResourceId,
    profile: &'a pb::ResourceProfile,
    is_used_by_job: bool,
    /// The lowest number last.
    free: Vec<u32>,
}

/// Whether a slot is large enough. No profile, and no amount, is anything.
fn fits(wanted: Option<&pb::ResourceProfile>, slot: &pb::ResourceProfile) -> bool {
    wanted.is_none_or(|wanted| {
        wanted.cpu_cores <= slot.cpu_cores && wanted.memory_bytes <= slot.memory_bytes
    })
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
