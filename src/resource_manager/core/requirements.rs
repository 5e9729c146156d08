//! The slots that jobs require, and which of them a job lacks. Pure, a part of [`super::slot_manager`].
//!
//! A job says which slots it held before this term. These count until their TaskExecutor has registered: from then
//! on its reports show which slots the job holds there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tanist_compact::SmallMap;
use tanist_gateway::{ResourceRequirement, ResourceRequirements, SubmissionNumber};
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::ResourceProfile;

use super::slots::Slots;

/// The number of slots up to which is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    Minimum,
    Maximum,
}

/// What a job requires: at least one slot.
#[derive(Debug)]
pub(super) struct JobRequirements {
    submission: SubmissionNumber,
    /// Whether the job ends by itself, so that its slots become free.
    is_bounded: bool,
    job_master_address: String,
    /// The most demanding first.
    resources: Vec<ResourceRequirement>,
    /// Slots that it held before this term.
    held: Arc<SmallMap<ResourceId, Vec<ResourceProfile>>>,
}

impl JobRequirements {
    /// `None`: no slots are required.
    pub(super) fn of(declared: ResourceRequirements) -> Option<JobRequirements> {
        let mut resources = declared.resources;
        resources.retain(|resource| resource.maximum > 0);
        // The most demanding is placed first, since it fits in the fewest places. Slots without profile take
        // what is left.
        resources.sort_by_key(|resource| {
            let profile = resource.profile.resources();
            let size = profile.map(|it| (it.cpu, it.total_memory(), it.all_extended().len()));
            std::cmp::Reverse(size)
        });
        (!resources.is_empty()).then_some(JobRequirements {
            submission: declared.submission,
            is_bounded: declared.is_bounded,
            job_master_address: declared.job_master_address,
            resources,
            held: declared.held,
        })
    }

    /// When the job was submitted: the order of service.
    pub(super) fn submission(&self) -> SubmissionNumber {
        self.submission
    }

    /// Whether the job ends by itself, so that its slots become free.
    pub(super) fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    /// Whether its maximum is above its minimum.
    pub(super) fn takes_more(&self) -> bool {
        let mut resources = self.resources.iter();
        resources.any(|resource| resource.minimum < resource.maximum)
    }

    /// Whether it states a profile for any of its slots.
    pub(super) fn states_profiles(&self) -> bool {
        // The most demanding comes first.
        let first = self.resources.first();
        first.is_some_and(|resource| !resource.profile.is_unknown())
    }

    /// The profile of each slot of its minimum.
    fn minimum(&self) -> Vec<ResourceProfile> {
        let each = self.resources.iter().flat_map(|it| {
            let number = usize::try_from(it.minimum.min(it.maximum)).unwrap_or(usize::MAX);
            std::iter::repeat_n(it.profile.clone(), number)
        });
        each.collect()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Requirements {
    jobs: BTreeMap<JobId, JobRequirements>,
    /// TaskExecutors that have registered in this term, except those that never will again.
    registered: BTreeSet<ResourceId>,
}

impl Requirements {
    /// Replaces the requirements of a job.
    pub(super) fn put(&mut self, job: JobId, requirements: JobRequirements) {
        self.jobs.insert(job, requirements);
    }

    /// Removes the requirements of a job. Returns whether it had any.
    pub(super) fn remove(&mut self, job: JobId) -> bool {
        self.jobs.remove(&job).is_some()
    }

    pub(super) fn get(&self, job: JobId) -> Option<&JobRequirements> {
        self.jobs.get(&job)
    }

    /// The jobs that require slots.
    pub(super) fn jobs(&self) -> impl Iterator<Item = JobId> {
        self.jobs.keys().copied()
    }

    /// Address of the job's JobMaster; empty if the job requires nothing.
    pub(super) fn job_master_address(&self, job: JobId) -> String {
        let job = self.jobs.get(&job);
        job.map_or_else(String::new, |job| job.job_master_address.clone())
    }

    /// Records that a TaskExecutor has registered. Returns whether it is the first time: then the slots that jobs
    /// say they held there no longer count.
    pub(super) fn note_registered(&mut self, worker: &ResourceId) -> bool {
        self.registered.insert(worker.clone())
    }

    /// Forgets that a TaskExecutor has registered, since it is gone permanently. Not if a job says that it held
    /// slots there: the job would be believed again.
    pub(super) fn forget_registered(&mut self, worker: &ResourceId) {
        let mut jobs = self.jobs.values();
        if !jobs.any(|job| job.held.contains_key(worker)) {
            self.registered.remove(worker);
        }
    }

    #[cfg(test)]
    pub(super) fn knows_any_registered(&self) -> bool {
        !self.registered.is_empty()
    }

    /// Slots of TaskExecutors that have not registered yet in this term: the job runs in them.
    fn unreported<'a>(
        &'a self,
        job: &'a JobRequirements,
    ) -> impl Iterator<Item = &'a Vec<ResourceProfile>> {
        let unreported = job.held.iter();
        let unreported = unreported.filter(|(id, _)| !self.registered.contains(*id));
        unreported.map(|(_, profiles)| profiles)
    }

    /// Number of slots of its minimum that a job lacks.
    pub(super) fn missing(&self, job: JobId, slots: &Slots) -> u32 {
        let Some(known) = self.jobs.get(&job) else {
            return 0;
        };
        if known.states_profiles() {
            return count(self.lacking(job, Bound::Minimum, slots).len());
        }
        // Any slot will do: counting is enough.
        let wanted = known.resources.iter().map(|it| it.minimum.min(it.maximum));
        let acquired = slots.held_by(job).map(|(_, _, slots)| slots);
        let there = acquired.chain(self.unreported(known).map(|slots| count(slots.len())));
        let (wanted, there): (u32, u32) = (wanted.sum(), there.sum());
        wanted.saturating_sub(there)
    }

    /// The profiles of the slots that a job lacks up to the bound, most demanding first.
    pub(super) fn lacking(&self, job: JobId, bound: Bound, slots: &Slots) -> Vec<ResourceProfile> {
        let Some(known) = self.jobs.get(&job) else {
            return Vec::new();
        };
        let mut acquired: BTreeMap<&ResourceProfile, u32> = BTreeMap::new();
        if known.states_profiles() {
            for (_, worker, _) in slots.held_by(job) {
                let own = worker
                    .slots()
                    .filter(|(_, slot)| slot.state.holder().is_some_and(|it| it.job == job));
                for (_, slot) in own {
                    *acquired.entry(worker.profile_of(slot)).or_default() += 1;
                }
            }
        } else {
            let held = slots.held_by(job).map(|(_, _, slots)| slots);
            acquired.insert(&ResourceProfile::Any, held.sum());
        }
        for profile in self.unreported(known).flatten() {
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

    /// The profiles of a job's minimum without those that it has on drained TaskExecutors: these are about to
    /// leave, but while the job has slots there it needs no room elsewhere for them.
    pub(super) fn minimum_elsewhere(&self, job: JobId, slots: &Slots) -> Vec<ResourceProfile> {
        let Some(known) = self.jobs.get(&job) else {
            return Vec::new();
        };
        let mut minimum = known.minimum();
        for (_, worker, _) in slots.held_by(job).filter(|(_, it, _)| it.is_draining()) {
            for (_, slot) in worker.slots() {
                if slot.state.holder().is_none_or(|it| it.job != job) {
                    continue;
                }
                let has = worker.profile_of(slot);
                let states_profiles = known.states_profiles();
                let serves = |it: &ResourceProfile| !states_profiles || has.is_matching(it);
                if let Some(at) = minimum.iter().position(serves) {
                    minimum.remove(at);
                }
            }
        }
        minimum
    }
}

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
