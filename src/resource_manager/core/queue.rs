//! The queue of the jobs that lack slots: the order of service, and the job that slots are kept for. Pure, a
//! part of [`super::slot_manager`].
//!
//! Jobs are served in the order of submission; a job that can't be served lets later ones pass. Without more
//! rules small jobs could pass a large one forever: for the first job that has waited long enough slots are
//! *kept* (`docs/adr/0050`).
//!
//! - Whole TaskExecutors are kept: as many as hold what the job lacks once bounded jobs, which end by
//!   themselves, have left them. Jobs behind it get no slots there. Elsewhere they may pass, as that delays no
//!   job.
//! - Nothing is kept for a job that would not fit even then, nor in workers that could be started: other jobs
//!   would wait for nothing.
//! - A job keeps the TaskExecutors that were kept for it; others are added only if they are too few.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tanist_ha::clock::Uptime;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::{ResourceProfile, WorkerResourceSpec};

use super::LogLine;
use super::packing::Room;
use super::placement::{Choice, pack_in_order};
use super::shortages::Bound;
use super::slot_manager::{Job, SlotManager, count};
use super::slots::Worker;
use super::workers::{Startable, places};

/// The job that slots are kept for, and their TaskExecutors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reservation {
    job: JobId,
    workers: BTreeSet<ResourceId>,
}

impl Reservation {
    pub(super) fn is_for(&self, job: JobId) -> bool {
        self.job == job
    }
}

/// What did not fit in this match: the same amount or more does not fit either.
#[derive(Debug)]
pub(super) struct Search {
    /// This number of default slots did not fit.
    too_many: u32,
    too_large: BTreeSet<Vec<ResourceProfile>>,
}

impl Default for Search {
    fn default() -> Search {
        Search {
            too_many: u32::MAX,
            too_large: BTreeSet::new(),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Waiting time after which slots are kept. `None`: never.
    delay: Option<Duration>,
    /// Since when each job lacks slots.
    waiting_since: BTreeMap<JobId, Uptime>,
    /// The same, longest waiting first.
    by_age: BTreeSet<(Uptime, JobId)>,
    /// Jobs that became short since the last match.
    came: Vec<JobId>,
    reservation: Option<Reservation>,
    nothing: BTreeSet<ResourceId>,
    startable: Option<Startable>,
}

impl Queue {
    /// With slots kept for the first job that has waited for `delay`.
    pub(super) fn new(delay: Duration) -> Queue {
        Queue {
            delay: Some(delay),
            ..Queue::default()
        }
    }

    /// Records whether a job lacks slots.
    pub(super) fn note(&mut self, job: JobId, is_short: bool) {
        if !is_short {
            if let Some(since) = self.waiting_since.remove(&job) {
                self.by_age.remove(&(since, job));
            }
        } else if !self.waiting_since.contains_key(&job) {
            self.came.push(job);
        }
    }

    /// Whether any job has waited long enough for slots to be kept for it.
    pub(super) fn is_any_due(&self, now: Uptime) -> bool {
        let longest = self.by_age.first().zip(self.delay);
        longest.is_some_and(|((since, _), delay)| *since + delay <= now)
    }

    /// Whether this job has waited long enough.
    fn is_due(&self, job: JobId, now: Uptime) -> bool {
        let since = self.waiting_since.get(&job).zip(self.delay);
        since.is_some_and(|(since, delay)| *since + delay <= now)
    }

    /// Takes the reservation, which is computed again in each match.
    pub(super) fn take_reservation(&mut self) -> Option<Reservation> {
        self.reservation.take()
    }

    /// TaskExecutors whose slots go only to the job that they are kept for.
    pub(super) fn closed(&self) -> &BTreeSet<ResourceId> {
        let reservation = self.reservation.as_ref();
        reservation.map_or(&self.nothing, |it| &it.workers)
    }
}

impl SlotManager {
    /// Sets the workers that a driver could start in addition to the registered ones.
    pub fn set_startable(&mut self, startable: Option<Startable>) {
        self.queue.startable = startable;
    }

    /// The job that slots are kept for, and their TaskExecutors.
    pub fn kept(&self) -> Option<(JobId, BTreeSet<ResourceId>)> {
        let reservation = self.queue.reservation.clone()?;
        Some((reservation.job, reservation.workers))
    }

    /// Whether a job has declared requirements.
    pub fn is_known(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
    }

    /// Whether a job lacked slots at the last count.
    pub fn is_short(&self, job: JobId) -> bool {
        self.wanting.missing(job) > 0
    }

    /// Records since when jobs lack slots.
    pub(super) fn note_waiting(&mut self, now: Uptime) {
        let queue = &mut self.queue;
        for job in queue.came.drain(..) {
            if self.wanting.missing(job) > 0 && !queue.waiting_since.contains_key(&job) {
                queue.waiting_since.insert(job, now);
                queue.by_age.insert((now, job));
            }
        }
    }

    /// Keeps slots for the first of these jobs that has waited long enough and fits into what can be kept.
    pub(super) fn reserve_for_first(&mut self, now: Uptime, short: &[JobId]) {
        let (before, mut search) = (self.queue.take_reservation(), Search::default());
        if !self.queue.is_any_due(now) {
            return;
        }
        for &job in short {
            let known = before.as_ref().filter(|before| before.is_for(job));
            if self.reserve_for(now, job, known, &mut search) {
                return;
            }
        }
    }

    /// Keeps slots for a job, if it has waited long enough and fits into what can be kept. Returns whether it
    /// does.
    pub(super) fn reserve_for(
        &mut self,
        now: Uptime,
        job: JobId,
        known: Option<&Reservation>,
        search: &mut Search,
    ) -> bool {
        if !self.queue.is_due(job, now) {
            return false;
        }
        let states_profiles = self.jobs.get(&job).is_some_and(|it| it.states_profiles());
        let missing = self.wanting.missing(job);
        if !states_profiles && missing >= search.too_many {
            return false;
        }
        let lacking = self.lacking(job, Bound::Minimum);
        if search.too_large.contains(&lacking) {
            return false;
        }
        let Some(workers) = self.places_for(job, &lacking, known) else {
            match states_profiles {
                true => {
                    search.too_large.insert(lacking);
                }
                false => search.too_many = missing,
            }
            return false;
        };
        if known.is_none() {
            let on = workers.len();
            self.log.push(LogLine::SlotsKept { job, missing, on });
        }
        self.queue.reservation = Some(Reservation { job, workers });
        true
    }

    /// TaskExecutors where a job finds what it lacks once bounded jobs have left: those kept for it already
    /// come first, then those with the most free room.
    fn places_for(
        &self,
        job: JobId,
        lacking: &[ResourceProfile],
        known: Option<&Reservation>,
    ) -> Option<BTreeSet<ResourceId>> {
        let in_order = self.in_order_of_keeping(known).into_iter();
        let rooms = in_order.map(|(id, it)| (Some(id.clone()), self.room_some_day(job, it)));
        let startable = self.queue.startable.as_ref();
        let mut found = places(rooms.collect(), startable, lacking)?;
        // One that is not needed at present may be needed again: the reservation stays in place.
        let there = |id: &&ResourceId| self.slots.worker(id).is_some_and(|it| !it.is_draining);
        let kept = known.into_iter().flat_map(|known| &known.workers);
        found.extend(kept.filter(there).cloned());
        Some(found)
    }

    fn in_order_of_keeping(&self, known: Option<&Reservation>) -> Vec<(&ResourceId, &Worker)> {
        let open = self.slots.workers().filter(|(_, it)| !it.is_draining);
        let mut open: Vec<(&ResourceId, &Worker)> = open.collect();
        open.sort_by_cached_key(|(id, worker)| {
            let is_known = known.is_some_and(|known| known.workers.contains(*id));
            let free = Room::left_of(worker).spare();
            (!is_known, u32::MAX - free, (*id).clone())
        });
        open
    }

    /// Slots for the job that they are kept for, packed in the order that showed that they suffice.
    pub(super) fn pack_kept(
        &self,
        kept: &Reservation,
        lacking: &[ResourceProfile],
    ) -> Option<Vec<Choice>> {
        pack_in_order(self.in_order_of_keeping(Some(kept)), lacking)
    }

    /// Number of free default slots outside of these TaskExecutors.
    pub(super) fn free_but_of(&self, closed: &BTreeSet<ResourceId>) -> u32 {
        let open = self.slots.workers();
        let open = open.filter(|(id, it)| !it.is_draining && !closed.contains(*id));
        count(open.map(|(_, it)| it.free().len()).sum())
    }

    /// Room at a TaskExecutor once other jobs have left it that are bounded. Jobs without known requirements
    /// stay.
    fn room_some_day(&self, job: JobId, worker: &Worker) -> Room {
        let mut room = Room::of(&worker.spec);
        let share = ResourceProfile::from(room.share.clone());
        for (number, slot) in worker.slots() {
            let Some(holder) = slot.state.holder() else {
                continue;
            };
            let known = self.jobs.get(&holder.job);
            let leaves = holder.job != job && known.is_some_and(|it| it.is_bounded);
            if !leaves {
                let has = worker.profile_of(slot);
                room.left = match has.resources() {
                    Some(has) => room.left.saturating_minus(has),
                    None => room.left,
                };
                let is_default = number < worker.spec.slots() && *has == share;
                room.free = room.free.saturating_sub(u32::from(is_default));
            }
        }
        room
    }

    /// The profiles of a job's minimum without those that it has on drained TaskExecutors: these are about to
    /// leave, but while the job has slots there it needs no room elsewhere for them.
    fn minimum_elsewhere(&self, id: JobId, job: &Job) -> Vec<ResourceProfile> {
        let mut minimum = job.minimum();
        for (_, worker, _) in self.slots.held_by(id).filter(|(_, it, _)| it.is_draining) {
            for (_, slot) in worker.slots() {
                if slot.state.holder().is_none_or(|it| it.job != id) {
                    continue;
                }
                let has = worker.profile_of(slot);
                let states_profiles = job.states_profiles();
                let serves = |it: &ResourceProfile| !states_profiles || has.is_matching(it);
                if let Some(at) = minimum.iter().position(serves) {
                    minimum.remove(at);
                }
            }
        }
        minimum
    }

    /// What the room for jobs depends on, except for slots that a job has on drained TaskExecutors.
    pub(super) fn capacity(&self, departed: Vec<WorkerResourceSpec>) -> Capacity {
        Capacity {
            of_workers: self.slots.capacity_version(),
            departed,
            startable: self.queue.startable.clone(),
        }
    }

    /// Those of these jobs that lack slots and whose whole minimum would fit, if no other job held slots, into
    /// the registered TaskExecutors, those that may come back, and those that a driver could start. Slots that
    /// a job has on drained TaskExecutors need no room.
    pub(super) fn with_room(
        &self,
        jobs: impl Iterator<Item = JobId>,
        capacity: &Capacity,
    ) -> BTreeSet<JobId> {
        let open = self.slots.workers().filter(|(_, it)| !it.is_draining);
        let there = open.map(|(_, it)| &it.spec).chain(&capacity.departed);
        // Computed only if needed.
        let rooms = LazyCell::new(|| -> Vec<_> {
            let rooms = there.map(|spec| (None, Room::of(spec)));
            rooms.collect()
        });
        let startable = capacity.startable.as_ref();
        let fits =
            |profiles: &[ResourceProfile]| places(rooms.clone(), startable, profiles).is_some();
        // Largest number of default slots known to fit, and smallest number known not to fit.
        let (mut most, mut too_many) = (0, u32::MAX);
        let mut known: BTreeMap<Vec<ResourceProfile>, bool> = BTreeMap::new();
        let mut has_room = |id: JobId, job: &Job| {
            let minimum = self.minimum_elsewhere(id, job);
            if job.states_profiles() {
                let fits = || fits(&minimum);
                return *known.entry(minimum.clone()).or_insert_with(fits);
            }
            let number = count(minimum.len());
            if number > most && number < too_many {
                match fits(&minimum) {
                    true => most = number,
                    false => too_many = number,
                }
            }
            number <= most
        };
        let with_room = jobs.filter(|job| {
            let known = self.jobs.get(job).filter(|_| self.is_short(*job));
            known.is_some_and(|known| has_room(*job, known))
        });
        with_room.collect()
    }
}

/// What the room for jobs depends on: equal capacity means equal room.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Capacity {
    /// Version of the set of registered TaskExecutors.
    of_workers: u64,
    departed: Vec<WorkerResourceSpec>,
    startable: Option<Startable>,
}
