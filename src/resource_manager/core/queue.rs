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

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tanist_ha::clock::Uptime;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::ResourceProfile;

use super::LogLine;
use super::packing::Room;
use super::placement::{Choice, pack_in_order};
use super::requirements::{Bound, JobRequirements, Requirements, count};
use super::shortages::ShortJobs;
use super::slots::{Slots, Worker};
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
    newly_short: Vec<JobId>,
    reservation: Option<Reservation>,
    /// Always empty: what [`Queue::closed`] returns without a reservation.
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
            self.newly_short.push(job);
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

    /// Sets the workers that a driver could start in addition to the registered ones.
    pub(super) fn set_startable(&mut self, startable: Option<Startable>) {
        self.startable = startable;
    }

    pub(super) fn startable(&self) -> Option<&Startable> {
        self.startable.as_ref()
    }

    /// The job that slots are kept for, and their TaskExecutors.
    pub(super) fn kept(&self) -> Option<(JobId, BTreeSet<ResourceId>)> {
        let reservation = self.reservation.clone()?;
        Some((reservation.job, reservation.workers))
    }

    /// Records since when jobs lack slots.
    pub(super) fn note_waiting(&mut self, now: Uptime, short_jobs: &ShortJobs) {
        for job in self.newly_short.drain(..) {
            if short_jobs.missing(job) > 0 && !self.waiting_since.contains_key(&job) {
                self.waiting_since.insert(job, now);
                self.by_age.insert((now, job));
            }
        }
    }

    /// Number of free default slots outside of the TaskExecutors that are kept for a job.
    pub(super) fn open_slots(&self, slots: &Slots) -> u32 {
        let open = slots.open_workers();
        let open = open.filter(|(id, _)| !self.closed().contains(*id));
        count(open.map(|(_, it)| it.free().len()).sum())
    }
}

/// Keeps slots for the first job that has waited long enough.
#[derive(Debug)]
pub(super) struct Reserver<'a> {
    queue: &'a mut Queue,
    slots: &'a Slots,
    requirements: &'a Requirements,
    short_jobs: &'a ShortJobs,
    log: &'a mut Vec<LogLine>,
}

impl<'a> Reserver<'a> {
    pub(super) fn new(
        queue: &'a mut Queue,
        slots: &'a Slots,
        requirements: &'a Requirements,
        short_jobs: &'a ShortJobs,
        log: &'a mut Vec<LogLine>,
    ) -> Reserver<'a> {
        Reserver {
            queue,
            slots,
            requirements,
            short_jobs,
            log,
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
        let known_job = self.requirements.get(job);
        let states_profiles = known_job.is_some_and(JobRequirements::states_profiles);
        let missing = self.short_jobs.missing(job);
        if !states_profiles && missing >= search.too_many {
            return false;
        }
        let lacking = self.requirements.lacking(job, Bound::Minimum, self.slots);
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
        let in_order = in_order_of_keeping(self.slots, known).into_iter();
        let rooms = in_order.map(|(id, it)| (Some(id.clone()), self.room_some_day(job, it)));
        let startable = self.queue.startable.as_ref();
        let mut found = places(rooms.collect(), startable, lacking)?;
        // One that is not needed at present may be needed again: the reservation stays in place.
        let there = |id: &&ResourceId| self.slots.worker(id).is_some_and(|it| !it.is_draining());
        let kept = known.into_iter().flat_map(|known| &known.workers);
        found.extend(kept.filter(there).cloned());
        Some(found)
    }

    /// Room at a TaskExecutor once other jobs have left it that are bounded. Jobs without known requirements
    /// stay.
    fn room_some_day(&self, job: JobId, worker: &Worker) -> Room {
        let mut room = Room::of(worker.spec());
        let share = ResourceProfile::from(room.share.clone());
        for (number, slot) in worker.slots() {
            let Some(holder) = slot.state.holder() else {
                continue;
            };
            let known = self.requirements.get(holder.job);
            let leaves = holder.job != job && known.is_some_and(JobRequirements::is_bounded);
            if !leaves {
                let has = worker.profile_of(slot);
                room.left = match has.resources() {
                    Some(has) => room.left.saturating_minus(has),
                    None => room.left,
                };
                let is_default = number < worker.spec().slots() && *has == share;
                room.free = room.free.saturating_sub(u32::from(is_default));
            }
        }
        room
    }
}

/// The TaskExecutors that are not drained: those kept for a job come first, then those with the most free room.
fn in_order_of_keeping<'a>(
    slots: &'a Slots,
    known: Option<&Reservation>,
) -> Vec<(&'a ResourceId, &'a Worker)> {
    let mut open: Vec<(&ResourceId, &Worker)> = slots.open_workers().collect();
    open.sort_by_cached_key(|(id, worker)| {
        let is_known = known.is_some_and(|known| known.workers.contains(*id));
        let free = Room::left_of(worker).spare();
        (!is_known, u32::MAX - free, (*id).clone())
    });
    open
}

/// Slots for the job that they are kept for, packed in the order that showed that they suffice.
pub(super) fn pack_kept(
    slots: &Slots,
    kept: &Reservation,
    lacking: &[ResourceProfile],
) -> Option<Vec<Choice>> {
    pack_in_order(in_order_of_keeping(slots, Some(kept)), lacking)
}
