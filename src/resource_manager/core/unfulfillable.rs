//! Finds jobs that request slots which no TaskExecutor could ever provide. Pure, a part of [`super`].
//!
//! If TaskExecutors are started by hand, no larger one is started for a job; a driver starts none larger than
//! its host. So the JobMaster of such a job is notified, and the job need not wait. But not before the existing
//! TaskExecutors have had `start_up_time` to register; one that left counts for that long too, since it may
//! come back. If no TaskExecutor is known, nothing is sent: how large the first ones will be is unknown.
//!
//! A second verdict says whether a job that lacks slots would fit into the cluster if all others left ([`Capacity`]).
//! Verdicts are not persisted: the next term judges again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tanist_gateway::Unfulfillable;
use tanist_ha::clock::Uptime;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::WorkerResourceSpec;

use super::capacity::Capacity;
use super::workers::Workers;
use super::{Effect, LogLine, ResourceManagerCore};

/// See the module.
#[derive(Debug)]
pub(super) struct UnfulfillableJobs {
    /// `resourcemanager.standalone.start-up-time`.
    start_up_time: Duration,
    /// End of the time in which TaskExecutors of earlier terms register.
    starts_until: Uptime,
    /// TaskExecutors that left, and when.
    departed: BTreeMap<ResourceId, (Uptime, WorkerResourceSpec)>,
    /// The verdicts that jobs were notified of.
    verdicts: BTreeMap<JobId, Unfulfillable>,
    /// Jobs that were last notified that the cluster has room for them.
    have_room: BTreeSet<JobId>,
    /// The capacity for which `have_room` was computed.
    capacity: Option<Capacity>,
    check_at: Option<Uptime>,
}

impl UnfulfillableJobs {
    pub(super) fn new(now: Uptime, start_up_time: Duration) -> UnfulfillableJobs {
        let starts_until = now + start_up_time;
        UnfulfillableJobs {
            start_up_time,
            starts_until,
            departed: BTreeMap::new(),
            verdicts: BTreeMap::new(),
            have_room: BTreeSet::new(),
            capacity: None,
            check_at: Some(starts_until),
        }
    }

    /// With a driver, whose largest worker is known: shortens the time for TaskExecutors of earlier terms to
    /// register.
    pub(super) fn wait_only(&mut self, timeout: Duration) {
        let begun = self.starts_until - self.start_up_time;
        self.start_up_time = self.start_up_time.min(timeout);
        self.starts_until = begun + self.start_up_time;
        self.check_at = Some(self.starts_until);
    }

    /// When a verdict may change by time alone.
    pub(super) fn next_deadline(&self) -> Option<Uptime> {
        self.check_at
    }

    /// Whether that time has come.
    pub(super) fn is_due(&mut self, now: Uptime) -> bool {
        let is_due = self.check_at.is_some_and(|at| at <= now);
        if is_due {
            let start_up_time = self.start_up_time;
            self.departed.retain(|_, (at, _)| *at + start_up_time > now);
            let departed = self.departed.values().map(|(at, _)| *at + start_up_time);
            self.check_at = departed.min();
        }
        is_due
    }

    /// This process stood still and could receive no registrations: extends the deadlines.
    pub(super) fn put_off(&mut self, by: Duration) {
        self.starts_until += by;
        self.departed.values_mut().for_each(|(at, _)| *at += by);
        self.check_at = self.check_at.map(|at| at + by);
    }

    pub(super) fn departs(&mut self, now: Uptime, id: &ResourceId, spec: &WorkerResourceSpec) {
        self.departed.insert(id.clone(), (now, spec.clone()));
        let back_by = now + self.start_up_time;
        self.check_at = Some(self.check_at.map_or(back_by, |at| at.min(back_by)));
    }

    pub(super) fn comes(&mut self, id: &ResourceId) {
        self.departed.remove(id);
    }
}

impl ResourceManagerCore {
    /// Removes a TaskExecutor that is gone.
    pub(super) fn depart(&mut self, now: Uptime, id: &ResourceId) {
        if let Some(spec) = self.task_executors.remove(id) {
            self.unfulfillable_jobs.departs(now, id, &spec);
        }
        self.slots.remove_worker(id);
    }

    /// The requirement that no TaskExecutor could ever fulfil, as the job was notified.
    pub(crate) fn unfulfillable(&self, job: JobId) -> Option<&Unfulfillable> {
        self.unfulfillable_jobs.verdicts.get(&job)
    }

    /// The specs of TaskExecutors whose slots may become available.
    fn possible_workers(&self) -> Vec<WorkerResourceSpec> {
        // Includes drained ones: a drained TaskExecutor may be about to be restarted. After it has left it
        // counts for a while.
        let registered = self.task_executors.iter().map(|(_, it)| it.spec());
        let departed = self
            .unfulfillable_jobs
            .departed
            .values()
            .map(|(_, spec)| spec);
        let driver = self.workers_of_driver.as_ref();
        let started = driver.map(Workers::spec);
        let mut all: Vec<_> = registered.chain(departed).chain(started).cloned().collect();
        all.extend(driver.and_then(Workers::largest));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether the job was last notified that the cluster has room for it.
    pub(crate) fn has_room(&self, job: JobId) -> bool {
        self.unfulfillable_jobs.have_room.contains(&job)
    }

    /// Finds the jobs that lack slots and would fit into the cluster if other jobs left, and notifies those for
    /// which that changed. `changed` has all jobs whose requirements or slots changed; other jobs are only
    /// computed again if the capacity changed.
    pub(super) fn judge_room(&mut self, changed: &BTreeSet<JobId>) {
        // One that left may come back.
        let departed = self.unfulfillable_jobs.departed.values();
        let capacity = self
            .slots
            .capacity(departed.map(|(_, spec)| spec.clone()).collect());
        let is_as_before = self.unfulfillable_jobs.capacity.as_ref() == Some(&capacity);
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
        self.unfulfillable_jobs.capacity = Some(capacity);
        let known = &mut self.unfulfillable_jobs.have_room;
        for job in jobs {
            let had_room = known.contains(&job);
            // A job that lacks nothing keeps the verdict it was sent.
            let has_room = with_room.contains(&job)
                || had_room && self.slots.is_known(job) && !self.slots.is_short(job);
            if has_room == had_room {
                continue;
            }
            match has_room {
                true => known.insert(job),
                false => known.remove(&job),
            };
            self.effects.push(Effect::Room { job, has_room });
        }
        #[cfg(test)]
        {
            let told = self.unfulfillable_jobs.have_room.iter().copied();
            let told: BTreeSet<JobId> = told.filter(|job| self.slots.is_short(*job)).collect();
            assert_eq!(
                told, of_all,
                "the room was not computed again for every job that changed"
            );
        }
    }

    /// Finds jobs with requirements that no TaskExecutor could ever fulfil, and notifies those for which that
    /// changed.
    pub(super) fn judge_requirements(&mut self, now: Uptime) {
        if now < self.unfulfillable_jobs.starts_until {
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
        let before = std::mem::take(&mut self.unfulfillable_jobs.verdicts);
        for (&job, verdict) in &unfulfillable {
            if before.get(&job) != Some(verdict) {
                let verdict = verdict.clone();
                self.log.push(LogLine::Unfulfillable {
                    job,
                    verdict: Box::new(verdict.clone()),
                });
                let verdict = Some(verdict);
                self.effects.push(Effect::Unfulfillable { job, verdict });
            }
        }
        for &job in before.keys().filter(|job| !unfulfillable.contains_key(job)) {
            let verdict = None;
            self.effects.push(Effect::Unfulfillable { job, verdict });
        }
        self.unfulfillable_jobs.verdicts = unfulfillable;
    }
}
