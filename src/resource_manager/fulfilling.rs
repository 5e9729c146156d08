//! Which jobs ask for slots that no TaskExecutor could ever give. Pure, a part of [`super::core`].
//!
//! Where TaskExecutors are started by hand nobody starts a larger one for a job, and a driver none larger than its host, so it is told at once instead of waiting for
//! nothing. Not before those that there are have had their time to register, though, and one that left counts for as long: it may
//! be on its way back. Where none is known at all nothing is said, as nothing is known of what will come.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::WorkerResourceSpec;
use tokio::time::Instant;

use super::core::{Core, Effect};
use super::queue::Capacity;
use super::workers::core::Workers;
use crate::gateway::Unfulfillable;

/// See the module.
#[derive(Debug)]
pub(super) struct Fulfilling {
    /// `resourcemanager.standalone.start-up-time`.
    start_up_time: Duration,
    /// Until then TaskExecutors come that were there before this term.
    starts_until: Instant,
    /// Those that left, and when.
    departed: BTreeMap<ResourceId, (Instant, WorkerResourceSpec)>,
    /// What jobs were told.
    told: BTreeMap<JobId, Unfulfillable>,
    /// The jobs that were told last that the cluster has room for them.
    have_room: BTreeSet<JobId>,
    /// For what room that was found out.
    capacity: Option<Capacity>,
    check_at: Option<Instant>,
}

impl Fulfilling {
    pub(super) fn new(now: Instant, start_up_time: Duration) -> Fulfilling {
        let starts_until = now + start_up_time;
        Fulfilling {
            start_up_time,
            starts_until,
            departed: BTreeMap::new(),
            told: BTreeMap::new(),
            have_room: BTreeSet::new(),
            capacity: None,
            check_at: Some(starts_until),
        }
    }

    /// Larger ones are started by nobody but a driver, and it starts none: those that were there have this long to come.
    pub(super) fn wait_only(&mut self, patience: Duration) {
        let begun = self.starts_until - self.start_up_time;
        self.start_up_time = self.start_up_time.min(patience);
        self.starts_until = begun + self.start_up_time;
        self.check_at = Some(self.starts_until);
    }

    /// When something may be known that was not.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.check_at
    }

    /// Whether that time has come.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.check_at.is_some_and(|at| at <= now);
        if is_due {
            let start_up_time = self.start_up_time;
            self.departed.retain(|_, (at, _)| *at + start_up_time > now);
            let departed = self.departed.values().map(|(at, _)| *at + start_up_time);
            self.check_at = departed.min();
        }
        is_due
    }

    /// Nobody could come for so long, as this process stood still.
    pub(super) fn put_off(&mut self, by: Duration) {
        self.starts_until += by;
        self.departed.values_mut().for_each(|(at, _)| *at += by);
        self.check_at = self.check_at.map(|at| at + by);
    }

    pub(super) fn departs(&mut self, now: Instant, id: &ResourceId, spec: &WorkerResourceSpec) {
        self.departed.insert(id.clone(), (now, spec.clone()));
        let back_by = now + self.start_up_time;
        self.check_at = Some(self.check_at.map_or(back_by, |at| at.min(back_by)));
    }

    pub(super) fn comes(&mut self, id: &ResourceId) {
        self.departed.remove(id);
    }
}

impl Core {
    /// A TaskExecutor is there no more.
    pub(super) fn depart(&mut self, now: Instant, id: &ResourceId) {
        if let Some(worker) = self.workers.remove(id) {
            self.fulfilling.departs(now, id, &worker.spec);
        }
        self.slots.remove_worker(id);
    }

    /// What the job was told that nobody could ever give.
    pub fn unfulfillable(&self, job: JobId) -> Option<&Unfulfillable> {
        self.fulfilling.told.get(&job)
    }

    /// The kinds of TaskExecutors whose slots may be had, sooner or later.
    fn possible_workers(&self) -> Vec<WorkerResourceSpec> {
        // One that is drained is not told from one that is to be started anew: once it has left it counts for a while yet.
        let registered = self.workers.values().map(|worker| &worker.spec);
        let departed = self.fulfilling.departed.values().map(|(_, spec)| spec);
        let driver = self.workers_of_driver.as_ref();
        let started = driver.map(Workers::spec);
        let mut all: Vec<_> = registered.chain(departed).chain(started).cloned().collect();
        all.extend(driver.and_then(Workers::largest));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// What the job was told of the room for it.
    pub fn has_room(&self, job: JobId) -> bool {
        self.fulfilling.have_room.contains(&job)
    }

    /// Finds out for which jobs that lack slots there is room in the cluster, whoever has it at present, and has those told for which
    /// that has changed. Of the jobs only these have changed: of others that is found out again where the room has.
    pub(super) fn judge_room(&mut self, changed: &BTreeSet<JobId>) {
        // One that left may be on its way back.
        let departed = self.fulfilling.departed.values();
        let capacity = self
            .slots
            .capacity(departed.map(|(_, spec)| spec.clone()).collect());
        let is_as_before = self.fulfilling.capacity.as_ref() == Some(&capacity);
        let mut jobs = changed.clone();
        if !is_as_before {
            jobs.extend(self.slots.short());
        }
        let with_room = self.slots.with_room(jobs.iter().copied(), &capacity);
        #[cfg(test)]
        let of_all = {
            let short = self.slots.short().into_iter();
            self.slots.with_room(short, &capacity)
        };
        self.fulfilling.capacity = Some(capacity);
        let told = &mut self.fulfilling.have_room;
        for job in jobs {
            let had_room = told.contains(&job);
            // A job that lacks nothing any more needs not know, and still believes what it was told.
            let has_room = with_room.contains(&job)
                || had_room && self.slots.is_known(job) && !self.slots.is_short(job);
            if has_room == had_room {
                continue;
            }
            match has_room {
                true => told.insert(job),
                false => told.remove(&job),
            };
            self.effects.push(Effect::Room { job, has_room });
        }
        #[cfg(test)]
        {
            let told = self.fulfilling.have_room.iter().copied();
            let told: BTreeSet<JobId> = told.filter(|job| self.slots.is_short(*job)).collect();
            assert_eq!(
                told, of_all,
                "it was not found out again for all that changed"
            );
        }
    }

    /// Finds out which jobs ask for what nobody could ever give, and has those told for which that has changed.
    pub(super) fn judge_requirements(&mut self, now: Instant) {
        if now < self.fulfilling.starts_until {
            return;
        }
        let workers = self.possible_workers();
        let size = |spec: &&WorkerResourceSpec| (spec.total().cpu, spec.total().total_memory());
        let largest = workers.iter().max_by_key(size);
        let unfulfillable = match largest {
            None => BTreeMap::new(),
            Some(largest) => {
                let found = self.slots.unfulfillable(&workers).into_iter();
                let named = found.map(|(job, profile)| {
                    let largest = largest.total().clone();
                    (job, Unfulfillable { profile, largest })
                });
                named.collect()
            }
        };
        let before = std::mem::take(&mut self.fulfilling.told);
        for (&job, verdict) in &unfulfillable {
            if before.get(&job) != Some(verdict) {
                tracing::warn!(%job, %verdict, "no task manager can serve the job");
                let verdict = Some(verdict.clone());
                self.effects.push(Effect::Judged { job, verdict });
            }
        }
        for &job in before.keys().filter(|job| !unfulfillable.contains_key(job)) {
            let verdict = None;
            self.effects.push(Effect::Judged { job, verdict });
        }
        self.fulfilling.told = unfulfillable;
    }
}
