//! What jobs lack of what they have stated: a part of [`super::slot_manager`], which gives it to them. Pure; decides nothing.

use std::collections::BTreeMap;

use tanist_proto::id::JobId;
use tanist_proto::resources::{ResourceProfile, WorkerResourceSpec};

use super::slot_manager::{SlotManager, count};

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

impl SlotManager {
    /// The jobs that lack slots without which they can't run.
    pub fn shortages(&self) -> BTreeMap<JobId, Shortage> {
        let shortage = |&job: &JobId| {
            let missing = self.missing(job);
            let acquired = || self.slots.held_by(job).map(|(_, _, slots)| slots).sum();
            (missing > 0).then(|| {
                let acquired = acquired();
                (job, Shortage { acquired, missing })
            })
        };
        self.jobs.keys().filter_map(shortage).collect()
    }

    /// What each job lacks without which it can't run, in the order in which jobs are served.
    pub fn lacking_by_job(&self) -> Vec<(JobId, Vec<ResourceProfile>)> {
        let lacking = self
            .in_order()
            .into_iter()
            .filter(|job| self.missing(*job) > 0);
        lacking
            .map(|job| (job, self.lacking(job, Bound::Minimum)))
            .collect()
    }

    /// What each job could use beyond that, in the same order.
    pub fn useful_by_job(&self) -> Vec<(JobId, Vec<ResourceProfile>)> {
        let jobs = self.jobs.iter().filter(|(_, job)| job.takes_more());
        let mut order: Vec<(u64, JobId)> = jobs.map(|(id, job)| (job.order, *id)).collect();
        order.sort_unstable();
        let useful = order.into_iter().map(|(_, job)| {
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
        &self,
        workers: &[WorkerResourceSpec],
    ) -> BTreeMap<JobId, ResourceProfile> {
        let stating = self.jobs.iter().filter(|(_, job)| job.states_profiles());
        let lacking = stating.filter_map(|(&job, _)| {
            let mut lacking = self.lacking(job, Bound::Minimum).into_iter();
            let could = |profile: &ResourceProfile| workers.iter().any(|it| it.can_serve(profile));
            Some((job, lacking.find(|profile| !could(profile))?))
        });
        lacking.collect()
    }

    /// How many slots a job lacks without which it can't run. Asked of every job again and again.
    pub(super) fn missing(&self, job: JobId) -> u32 {
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
