//! What jobs lack of what they have stated: a part of [`super::slot_manager`], which gives it to them. Pure; decides nothing.
//!
//! There may be ten thousand jobs that have all they need: what a job lacks is counted again only when its needs or its slots have
//! changed. Invariant: once settled, the jobs that lack something are exactly those of which a count of all says so.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::id::JobId;
use tanist_proto::resources::{ResourceProfile, WorkerResourceSpec};

use super::slot_manager::{SlotManager, count};
use crate::gateway::SubmissionNumber;

/// What a job lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Slots that it has.
    pub acquired: u32,
    /// Slots without which it can't run.
    pub missing: u32,
}

/// Up to which number of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    Minimum,
    Maximum,
}

/// The jobs that slots may be given to.
#[derive(Debug, Default)]
pub(super) struct Wanting {
    /// Those that lack slots without which they can't run.
    short: BTreeMap<JobId, Short>,
    /// The same, in the order in which they are served.
    order: BTreeSet<(SubmissionNumber, JobId)>,
    /// Those that could use more than they need.
    flexible: BTreeSet<JobId>,
    /// Those that state profiles, whether they lack slots or not.
    profiled: BTreeSet<JobId>,
    /// Those whose needs have changed since it was last settled.
    stated: BTreeSet<JobId>,
    /// All are to be counted again.
    have_all_changed: bool,
    /// Those whose needs or slots have changed since that was last taken.
    changed: BTreeSet<JobId>,
}

/// A job that lacks slots without which it can't run.
#[derive(Debug, Clone, Copy)]
struct Short {
    missing: u32,
    /// Its place in the order, as of when it was counted.
    submission: SubmissionNumber,
}

impl Wanting {
    /// What a job needs has changed.
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

    /// A job needs nothing any more.
    pub(super) fn withdrawn(&mut self, job: JobId) {
        self.stated(job, false, false);
    }

    /// What any job lacks may have changed.
    pub(super) fn all_changed(&mut self) {
        self.have_all_changed = true;
    }

    /// How many slots a job lacked without which it can't run, when it was last counted.
    pub(super) fn missing(&self, job: JobId) -> u32 {
        self.short.get(&job).map_or(0, |short| short.missing)
    }

    /// Whether any job states profiles that lacks slots.
    pub(super) fn is_any_profiled_short(&self) -> bool {
        self.profiled_short().next().is_some()
    }

    /// Whether any job states profiles that slots may be given to.
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
    /// The jobs that lack slots without which they can't run.
    #[cfg(test)]
    pub fn shortages(&mut self) -> BTreeMap<JobId, Shortage> {
        self.settle();
        let short = self.wanting.short.keys();
        let shortage = |&job: &JobId| Some((job, self.shortage(job)?));
        short.filter_map(shortage).collect()
    }

    /// What a job lacked when it was last counted.
    pub(super) fn shortage(&self, job: JobId) -> Option<Shortage> {
        let missing = self.wanting.short.get(&job)?.missing;
        let acquired = self.slots.held_by(job).map(|(_, _, slots)| slots).sum();
        Some(Shortage { acquired, missing })
    }

    /// How many jobs lacked slots when that was last looked at.
    pub fn short_count(&self) -> usize {
        self.wanting.short.len()
    }

    /// The jobs whose needs or slots have changed since this was last asked.
    pub fn take_changed_jobs(&mut self) -> BTreeSet<JobId> {
        self.settle();
        std::mem::take(&mut self.wanting.changed)
    }

    /// The jobs that can't run, in the order in which they are served.
    pub(super) fn short(&mut self) -> Vec<JobId> {
        self.settle();
        self.wanting.order.iter().map(|(_, job)| *job).collect()
    }

    /// Those that could use more than they need, in the same order.
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

    /// Counts again what the jobs lack of which anything has changed.
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

    /// What each job lacks without which it can't run, in the order in which jobs are served.
    pub fn lacking_by_job(&mut self) -> Vec<(JobId, Vec<ResourceProfile>)> {
        let short = self.short().into_iter();
        short
            .map(|job| (job, self.lacking(job, Bound::Minimum)))
            .collect()
    }

    /// What each job could use beyond that, in the same order.
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

    /// What the jobs lack without which they can't run and what none of these TaskExecutors could give if nothing of it were
    /// taken: of each job the most demanding. Default slots are everywhere.
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

    /// How many slots a job lacks without which it can't run.
    fn missing(&self, job: JobId) -> u32 {
        let Some(known) = self.jobs.get(&job) else {
            return 0;
        };
        if known.states_profiles() {
            return count(self.lacking(job, Bound::Minimum).len());
        }
        // Any slot will do: they need only be counted.
        let wanted = known.resources.iter().map(|it| it.minimum.min(it.maximum));
        let acquired = self.slots.held_by(job).map(|(_, _, slots)| slots);
        let unreported = known.held.iter().filter(|(id, _)| !self.seen.contains(*id));
        let there = acquired.chain(unreported.map(|(_, slots)| count(slots.len())));
        let (wanted, there): (u32, u32) = (wanted.sum(), there.sum());
        wanted.saturating_sub(there)
    }

    /// The profiles of the slots that a job lacks up to the bound, the most demanding first.
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
        // Slots of TaskExecutors that have yet to report them: the job runs in them.
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
