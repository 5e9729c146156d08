//! Slots that jobs lack compared with their requirements: a part of [`super::slot_manager`], which provides
//! them. Pure; decides nothing.
//!
//! Ten thousand jobs may have all they need: the shortage of a job is computed again only when its requirements
//! or slots have changed. Invariant: after `settle`, the jobs recorded as short are exactly those that a full
//! count finds.

use std::collections::{BTreeMap, BTreeSet};

use tanist_gateway::SubmissionNumber;
use tanist_proto::id::JobId;
use tanist_proto::resources::{ResourceProfile, WorkerResourceSpec};

use super::slot_manager::{SlotManager, count};

/// The shortage of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Slots that the job has.
    pub acquired: u32,
    /// Slots of its minimum that it lacks.
    pub missing: u32,
}

/// The number of slots up to which is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    Minimum,
    Maximum,
}

/// Jobs that slots may be given to.
#[derive(Debug, Default)]
pub(super) struct Wanting {
    /// Jobs that lack slots of their minimum.
    short: BTreeMap<JobId, Short>,
    /// The same, in the order in which they are served.
    order: BTreeSet<(SubmissionNumber, JobId)>,
    /// Jobs whose maximum is above their minimum.
    flexible: BTreeSet<JobId>,
    /// Jobs that state profiles, whether they lack slots or not.
    profiled: BTreeSet<JobId>,
    /// Jobs whose requirements changed since the last `settle`.
    stated: BTreeSet<JobId>,
    /// Whether all jobs must be counted again.
    have_all_changed: bool,
    /// Jobs whose requirements or slots changed and that were not taken yet.
    changed: BTreeSet<JobId>,
}

/// A job that lacks slots of its minimum.
#[derive(Debug, Clone, Copy)]
struct Short {
    missing: u32,
    /// Its position in the order, as of the last count.
    submission: SubmissionNumber,
}

impl Wanting {
    /// Records that the requirements of a job changed.
    pub(super) fn stated(&mut self, job: JobId, takes_more: bool, states_profiles: bool) {
        self.stated.insert(job);
        let sets = [
            (&mut self.flexible, takes_more),
            (&mut self.profiled, states_profiles),
        ];
        for (set, belongs) in sets {
            if belongs {
                set.insert(job);
            } else {
                set.remove(&job);
            }
        }
    }

    /// Records that a job has no requirements any more.
    pub(super) fn withdrawn(&mut self, job: JobId) {
        self.stated(job, false, false);
    }

    /// Records that the shortage of any job may have changed.
    pub(super) fn all_changed(&mut self) {
        self.have_all_changed = true;
    }

    /// Number of slots of its minimum that a job lacked at the last count.
    pub(super) fn missing(&self, job: JobId) -> u32 {
        self.short.get(&job).map_or(0, |short| short.missing)
    }

    /// Whether a job that states profiles lacks slots.
    pub(super) fn is_any_profiled_short(&self) -> bool {
        self.profiled_short().next().is_some()
    }

    /// Whether slots may be given to a job that states profiles.
    pub(super) fn is_any_profiled_wanting(&self) -> bool {
        let mut profiled = self.profiled.iter();
        profiled.any(|job| self.short.contains_key(job) || self.flexible.contains(job))
    }

    fn profiled_short(&self) -> impl Iterator<Item = JobId> {
        let profiled = self.profiled.iter().copied();
        profiled.filter(|job| self.short.contains_key(job))
    }

    fn put_short(&mut self, job: JobId, missing: u32, submission: SubmissionNumber) {
        let short = Short {
            missing,
            submission,
        };
        match self.short.insert(job, short) {
            Some(before) if before.submission == submission => return,
            Some(before) => self.order.remove(&(before.submission, job)),
            None => false,
        };
        self.order.insert((submission, job));
    }

    fn remove_short(&mut self, job: JobId) {
        if let Some(before) = self.short.remove(&job) {
            self.order.remove(&(before.submission, job));
        }
    }
}

impl SlotManager {
    /// Jobs that lack slots of their minimum.
    #[cfg(test)]
    pub fn shortages(&mut self) -> BTreeMap<JobId, Shortage> {
        self.settle();
        let short = self.wanting.short.keys();
        let shortage = |&job: &JobId| Some((job, self.shortage(job)?));
        short.filter_map(shortage).collect()
    }

    /// Shortage of a job at the last count.
    pub(super) fn shortage(&self, job: JobId) -> Option<Shortage> {
        let missing = self.wanting.short.get(&job)?.missing;
        let acquired = self.slots.held_by(job).map(|(_, _, slots)| slots).sum();
        Some(Shortage { acquired, missing })
    }

    /// Number of jobs that lacked slots at the last count.
    pub fn short_count(&self) -> usize {
        self.wanting.short.len()
    }

    /// Takes the jobs whose requirements or slots changed since the last call.
    pub fn take_changed_jobs(&mut self) -> BTreeSet<JobId> {
        self.settle();
        std::mem::take(&mut self.wanting.changed)
    }

    /// Jobs that lack slots of their minimum, in the order in which they are served.
    pub(super) fn short(&mut self) -> Vec<JobId> {
        self.settle();
        self.wanting.order.iter().map(|(_, job)| *job).collect()
    }

    /// Jobs whose maximum is above their minimum, in the same order.
    pub(super) fn flexible(&self) -> Vec<JobId> {
        let known = self
            .wanting
            .flexible
            .iter()
            .filter_map(|id| Some((self.jobs.get(id)?.submission, *id)));
        let mut order: Vec<(SubmissionNumber, JobId)> = known.collect();
        order.sort_unstable();
        order.into_iter().map(|(_, id)| id).collect()
    }

    /// Counts the shortage again for jobs whose requirements or slots changed.
    fn settle(&mut self) {
        let mut changed = self.slots.take_changed();
        changed.append(&mut self.wanting.stated);
        if std::mem::take(&mut self.wanting.have_all_changed) {
            changed.extend(self.jobs.keys());
        }
        for &job in &changed {
            let missing = self.missing(job);
            self.queue.note(job, missing > 0);
            match self.jobs.get(&job) {
                Some(known) if missing > 0 => {
                    self.wanting.put_short(job, missing, known.submission);
                }
                Some(_) | None => self.wanting.remove_short(job),
            }
        }
        self.wanting.changed.append(&mut changed);
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
        let useful = self.flexible().into_iter().map(|job| {
            let mut useful = self.lacking(job, Bound::Maximum);
            for first in self.lacking(job, Bound::Minimum) {
                if let Some(at) = useful.iter().position(|it| *it == first) {
                    useful.remove(at);
                }
            }
            (job, useful)
        });
        useful.filter(|(_, useful)| !useful.is_empty()).collect()
    }

    /// The jobs that lack a profile of their minimum which none of these TaskExecutors could provide even if
    /// empty, each with the most demanding such profile. Every TaskExecutor has default slots.
    pub fn unfulfillable(
        &mut self,
        workers: &[WorkerResourceSpec],
    ) -> BTreeMap<JobId, ResourceProfile> {
        self.settle();
        let lacking = self.wanting.profiled_short().filter_map(|job| {
            let mut lacking = self.lacking(job, Bound::Minimum).into_iter();
            let could = |profile: &ResourceProfile| workers.iter().any(|it| it.can_serve(profile));
            Some((job, lacking.find(|profile| !could(profile))?))
        });
        lacking.collect()
    }

    /// Number of slots of its minimum that a job lacks.
    fn missing(&self, job: JobId) -> u32 {
        let Some(known) = self.jobs.get(&job) else {
            return 0;
        };
        if known.states_profiles() {
            return count(self.lacking(job, Bound::Minimum).len());
        }
        // Any slot will do: counting is enough.
        let wanted = known.resources.iter().map(|it| it.minimum.min(it.maximum));
        let acquired = self.slots.held_by(job).map(|(_, _, slots)| slots);
        let unreported = known.held.iter().filter(|(id, _)| !self.seen.contains(*id));
        let there = acquired.chain(unreported.map(|(_, slots)| count(slots.len())));
        let (wanted, there): (u32, u32) = (wanted.sum(), there.sum());
        wanted.saturating_sub(there)
    }

    /// The profiles of the slots that a job lacks up to the bound, most demanding first.
    pub(super) fn lacking(&self, job: JobId, bound: Bound) -> Vec<ResourceProfile> {
        let Some(known) = self.jobs.get(&job) else {
            return Vec::new();
        };
        let mut acquired: BTreeMap<&ResourceProfile, u32> = BTreeMap::new();
        if known.states_profiles() {
            for (_, worker, _) in self.slots.held_by(job) {
                let own = worker
                    .slots()
                    .filter(|(_, slot)| slot.state.holder().is_some_and(|it| it.job == job));
                for (_, slot) in own {
                    *acquired.entry(worker.profile_of(slot)).or_default() += 1;
                }
            }
        } else {
            let held = self.slots.held_by(job).map(|(_, _, slots)| slots);
            acquired.insert(&ResourceProfile::Any, held.sum());
        }
        // Slots of TaskExecutors that have not registered yet in this term: the job runs in them.
        let unreported = known.held.iter().filter(|(id, _)| !self.seen.contains(*id));
        for profile in unreported.flat_map(|(_, profiles)| profiles) {
            let profile = match known.states_profiles() {
                true => profile,
                false => &ResourceProfile::Any,
            };
            *acquired.entry(profile).or_default() += 1;
        }
        let mut lacking = Vec::new();
        for resource in &known.resources {
            let mut wanted = match bound {
                Bound::Minimum => resource.minimum.min(resource.maximum),
                Bound::Maximum => resource.maximum,
            };
            for (profile, there) in &mut acquired {
                if profile.is_matching(&resource.profile) {
                    let taken = wanted.min(*there);
                    *there -= taken;
                    wanted -= taken;
                }
            }
            for _ in 0..wanted {
                lacking.push(resource.profile.clone());
            }
        }
        lacking
    }
}
