//! Which jobs lack slots, and how many: a part of [`super::slot_manager`], which provides them. Pure; decides
//! nothing.
//!
//! Ten thousand jobs may have all they need: the shortage of a job is computed again only when its requirements
//! or slots have changed. Invariant: after `count_again`, the jobs recorded as short are exactly those that a full
//! count finds.

use std::collections::{BTreeMap, BTreeSet};

use tanist_gateway::SubmissionNumber;
use tanist_proto::id::JobId;
use tanist_proto::resources::{ResourceProfile, WorkerResourceSpec};

use super::queue::Queue;
use super::requirements::{Bound, JobRequirements, Requirements};
use super::slots::Slots;

/// The shortage of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Slots that the job has.
    pub acquired: u32,
    /// Slots of its minimum that it lacks.
    pub missing: u32,
}

/// Jobs that slots may be given to.
#[derive(Debug, Default)]
pub(super) struct ShortJobs {
    /// Jobs that lack slots of their minimum.
    short: BTreeMap<JobId, Short>,
    /// The same, in the order in which they are served.
    order: BTreeSet<(SubmissionNumber, JobId)>,
    /// Jobs whose maximum is above their minimum.
    flexible: BTreeSet<JobId>,
    /// Jobs that state profiles, whether they lack slots or not.
    profiled: BTreeSet<JobId>,
    /// Jobs whose requirements changed since the last count.
    declared: BTreeSet<JobId>,
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

impl ShortJobs {
    /// Records that the requirements of a job changed. `None`: it has none any more.
    pub(super) fn note_declared(&mut self, job: JobId, requirements: Option<&JobRequirements>) {
        self.declared.insert(job);
        let is_flexible = requirements.is_some_and(JobRequirements::takes_more);
        let is_profiled = requirements.is_some_and(JobRequirements::states_profiles);
        let sets = [
            (&mut self.flexible, is_flexible),
            (&mut self.profiled, is_profiled),
        ];
        for (set, belongs) in sets {
            if belongs {
                set.insert(job);
            } else {
                set.remove(&job);
            }
        }
    }

    /// Records that the shortage of any job may have changed.
    pub(super) fn note_all_changed(&mut self) {
        self.have_all_changed = true;
    }

    /// Counts the shortage again for jobs whose requirements or slots changed.
    pub(super) fn count_again(
        &mut self,
        slots: &mut Slots,
        requirements: &Requirements,
        queue: &mut Queue,
    ) {
        let mut changed = slots.take_changed();
        changed.append(&mut self.declared);
        if std::mem::take(&mut self.have_all_changed) {
            changed.extend(requirements.jobs());
        }
        for &job in &changed {
            let missing = requirements.missing(job, slots);
            queue.note(job, missing > 0);
            match requirements.get(job) {
                Some(known) if missing > 0 => self.put(job, missing, known.submission()),
                Some(_) | None => self.remove(job),
            }
        }
        self.changed.append(&mut changed);
    }

    /// Number of slots of its minimum that a job lacked at the last count.
    pub(super) fn missing(&self, job: JobId) -> u32 {
        self.short.get(&job).map_or(0, |short| short.missing)
    }

    /// Number of jobs that lacked slots at the last count.
    pub(super) fn number(&self) -> usize {
        self.short.len()
    }

    /// Jobs that lacked slots of their minimum at the last count, in the order in which they are served.
    pub(super) fn in_order(&self) -> Vec<JobId> {
        self.order.iter().map(|(_, job)| *job).collect()
    }

    /// Jobs whose maximum is above their minimum, in the same order.
    pub(super) fn flexible(&self, requirements: &Requirements) -> Vec<JobId> {
        let flexible = self.flexible.iter();
        let known = flexible.filter_map(|id| Some((requirements.get(*id)?.submission(), *id)));
        let mut order: Vec<(SubmissionNumber, JobId)> = known.collect();
        order.sort_unstable();
        order.into_iter().map(|(_, id)| id).collect()
    }

    /// The profiles that each job could use beyond its minimum, in the same order.
    pub(super) fn useful(
        &self,
        requirements: &Requirements,
        slots: &Slots,
    ) -> Vec<(JobId, Vec<ResourceProfile>)> {
        let useful = self.flexible(requirements).into_iter().map(|job| {
            let mut useful = requirements.lacking(job, Bound::Maximum, slots);
            for first in requirements.lacking(job, Bound::Minimum, slots) {
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
    pub(super) fn unfulfillable(
        &self,
        workers: &[WorkerResourceSpec],
        requirements: &Requirements,
        slots: &Slots,
    ) -> BTreeMap<JobId, ResourceProfile> {
        let lacking = self.profiled().filter_map(|job| {
            let lacking = requirements.lacking(job, Bound::Minimum, slots);
            let could = |profile: &ResourceProfile| workers.iter().any(|it| it.can_serve(profile));
            let unfulfillable = lacking.into_iter().find(|profile| !could(profile));
            Some((job, unfulfillable?))
        });
        lacking.collect()
    }

    /// Jobs that state profiles and lack slots.
    fn profiled(&self) -> impl Iterator<Item = JobId> {
        let profiled = self.profiled.iter().copied();
        profiled.filter(|job| self.short.contains_key(job))
    }

    /// Whether a job that states profiles lacks slots.
    pub(super) fn is_any_profiled_short(&self) -> bool {
        self.profiled().next().is_some()
    }

    /// Whether slots may be given to a job that states profiles.
    pub(super) fn is_any_profiled_wanting(&self) -> bool {
        let mut profiled = self.profiled.iter();
        profiled.any(|job| self.short.contains_key(job) || self.flexible.contains(job))
    }

    /// Takes the jobs whose requirements or slots changed since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<JobId> {
        std::mem::take(&mut self.changed)
    }

    fn put(&mut self, job: JobId, missing: u32, submission: SubmissionNumber) {
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

    fn remove(&mut self, job: JobId) {
        if let Some(before) = self.short.remove(&job) {
            self.order.remove(&(before.submission, job));
        }
    }
}

/// The shortages as of the last match, and the changes that were not taken yet.
#[derive(Debug, Default)]
pub(super) struct KnownShortages {
    all: BTreeMap<JobId, Shortage>,
    changed: Vec<(JobId, Option<Shortage>)>,
}

impl KnownShortages {
    /// Records the shortage of a job. Returns whether it has changed.
    pub(super) fn note(&mut self, job: JobId, shortage: Option<Shortage>) -> bool {
        if self.all.get(&job) == shortage.as_ref() {
            return false;
        }
        match shortage {
            Some(shortage) => self.all.insert(job, shortage),
            None => self.all.remove(&job),
        };
        self.changed.push((job, shortage));
        true
    }

    /// Takes the changes since the last call. `None`: the job no longer lacks slots.
    pub(super) fn take_changed(&mut self) -> Vec<(JobId, Option<Shortage>)> {
        std::mem::take(&mut self.changed)
    }
}
