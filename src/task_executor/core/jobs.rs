//! The jobs on a TaskExecutor: those that have, or had, a slot here and are not forgotten yet. Pure.

use std::collections::BTreeMap;

use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, JobId};

use super::effect::Effect;
use super::job::Job;
use super::output::Output;
use super::slot_table::SlotHolder;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    jobs: BTreeMap<JobId, Job>,
    /// The highest run of a connection of forgotten jobs: a job that is added again does not take the result of a
    /// call from before.
    forgotten_run: u64,
}

impl Jobs {
    /// A job.
    pub(super) fn get(&self, job: JobId) -> Option<&Job> {
        self.jobs.get(&job)
    }

    /// A job.
    pub(super) fn get_mut(&mut self, job: JobId) -> Option<&mut Job> {
        self.jobs.get_mut(&job)
    }

    /// A job that a request names.
    pub(super) fn requested(&mut self, job: JobId) -> GatewayResult<&mut Job> {
        let unknown =
            || GatewayError::NotFound(format!("job {job} is unknown on this TaskManager"));
        self.jobs.get_mut(&job).ok_or_else(unknown)
    }

    /// A job, if this run of its connection to the JobMaster is the present one.
    pub(super) fn in_run(&mut self, job: JobId, run: u64) -> Option<&mut Job> {
        let known = self.jobs.get_mut(&job);
        known.filter(|known| known.connection().run() == run)
    }

    /// A job, which is added if it is not known.
    pub(super) fn get_or_add(&mut self, job: JobId) -> &mut Job {
        let run = self.forgotten_run;
        self.jobs.entry(job).or_insert_with(|| Job::new(job, run))
    }

    /// All jobs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values()
    }

    /// All jobs.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Job> {
        self.jobs.values_mut()
    }

    /// The ids of all jobs.
    pub(super) fn ids(&self) -> Vec<JobId> {
        self.jobs.keys().copied().collect()
    }

    /// The jobs that have not ended here.
    pub(super) fn active(&self) -> impl Iterator<Item = &Job> {
        self.iter().filter(|job| !job.is_ending())
    }

    /// The job whose connection this registration belongs to.
    pub(super) fn with_registration(&self, number: u64) -> Option<JobId> {
        let mut active = self.active();
        let of = active.find(|job| job.connection().has_registration(number));
        of.map(Job::id)
    }

    /// Whether a task runs in a slot.
    pub(super) fn is_in_use(&self, holder: SlotHolder) -> bool {
        let job = self.get(holder.job);
        job.is_some_and(|job| job.executions().is_in_use(holder.allocation))
    }

    /// The number of running tasks by allocation.
    pub(super) fn tasks_by_allocation(&self) -> BTreeMap<AllocationId, u32> {
        let in_use = self.iter().flat_map(|job| job.executions().in_use());
        in_use.collect()
    }

    /// Whether any task runs.
    pub(super) fn is_running(&self) -> bool {
        self.iter().any(|job| job.executions().is_running())
    }

    /// Whether a job is registered at its JobMaster.
    pub(super) fn is_registered(&self, job: JobId) -> bool {
        let job = self.get(job);
        job.is_some_and(|job| job.connection().is_registered())
    }

    /// Whether no task runs, every terminal state is acknowledged, and no output is kept.
    pub(super) fn are_acknowledged(&self) -> bool {
        self.iter().all(|job| job.executions().is_empty())
    }

    /// Number of kept outputs of blocking edges.
    pub(super) fn output_count(&self) -> usize {
        let outputs = self.iter().map(|job| job.executions().output_count());
        outputs.sum()
    }

    /// Forgets jobs that have ended, whose tasks have ended, and that have no slot.
    pub(super) fn forget_ended(&mut self, has_slot: impl Fn(JobId) -> bool, output: &mut Output) {
        let forgotten_run = &mut self.forgotten_run;
        self.jobs.retain(|&id, job| {
            let is_over = job.is_ending() && !job.executions().is_running() && !has_slot(id);
            if is_over {
                *forgotten_run = job.connection().run().max(*forgotten_run);
                output.effect(Effect::Release(id));
            }
            !is_over
        });
    }

    /// When something of a job is due.
    pub(super) fn next_deadline(&self) -> Option<Uptime> {
        self.iter().filter_map(Job::next_deadline).min()
    }
}
