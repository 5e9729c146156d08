//! Decisions of a TaskExecutor: which tasks end and when, which slots become free, which jobs are ended, which
//! connections are lost. Pure except for the epoch, which it shares with its process. Two times are arguments: the
//! time since the start of the TaskExecutor, and the clock of isolated jobs, which also runs while the host is
//! suspended.
//!
//! Its other parts: [`registering`] (the leader it follows and its registrations), [`requests`]
//! (requests of the leader), [`deployments`] (which tasks start), [`outbox`] (messages to the
//! leader), [`generation_check`] (the stored state of its jobs). Its [`output`] is collected.
//!
//! - A slot becomes free only when nothing runs in it.
//! - It ends its jobs without leader only if no leader was heard of and the store did not answer for
//!   `job-manager-failover-timeout`, and a question to the store that began after that also failed.

mod budget;
mod connection;
mod coordinator_requests;
mod deployments;
mod effect;
mod executions;
mod generation_check;
mod graphs;
mod isolation;
mod job;
mod leader_tracker;
mod leaderless_timer;
mod lifecycle;
mod log_line;
mod outbox;
mod output;
mod regions;
mod registering;
mod requests;
mod slot_table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use tanist_gateway::fencing::HighestEpoch;
use tanist_ha::clock::{Moment, Uptime, millis};
use tanist_proto::id::{AllocationId, Generation, JobId};
use tanist_proto::v1 as pb;

use self::connection::Connection;
pub use self::effect::{Effect, Target, TaskKey};
use self::executions::CancellationTimeouts;
pub use self::executions::ExecutionKey;
use self::generation_check::GenerationCheck;
pub use self::generation_check::PAUSE;
pub use self::graphs::GraphKey;
use self::job::Job;
use self::leader_tracker::LeaderTracker;
pub use self::leaderless_timer::LeaderlessTimer;
use self::lifecycle::Lifecycle;
pub use self::log_line::LogLine;
use self::output::Output;
use self::slot_table::{SlotHolder, SlotTable};
use crate::launcher::TaskStatus;
use crate::{Fatal, Options, Presence, TaskExecutorDescription};

/// See the module.
#[derive(Debug)]
pub struct Core {
    options: Options,
    description: TaskExecutorDescription,
    leader: LeaderTracker,
    generation_check: GenerationCheck,
    resource_manager: Connection,
    slots: SlotTable,
    /// Version of the slots that the last registration reported.
    reported_slots: u64,
    jobs: BTreeMap<JobId, Job>,
    lifecycle: Lifecycle,
    output: Output,
}

impl Core {
    /// Follows no leader yet. Registrations get numbers above `first_registration`.
    pub fn new(
        now: Uptime,
        options: Options,
        description: TaskExecutorDescription,
        terms: HighestEpoch,
        first_registration: u64,
    ) -> Core {
        let slots = SlotTable::new(&description.worker);
        Core {
            options,
            description,
            leader: LeaderTracker::new(now, terms.clone(), first_registration),
            generation_check: GenerationCheck::new(now, terms),
            resource_manager: Connection::idle(),
            slots,
            reported_slots: 0,
            jobs: BTreeMap::new(),
            lifecycle: Lifecycle::new(),
            output: Output::default(),
        }
    }

    /// Takes the collected lines for the log, which precede the effects.
    pub fn take_log(&mut self) -> Vec<LogLine> {
        self.output.take_log()
    }

    /// Takes the collected effects.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        self.output.take_effects()
    }

    /// Handles a change of a task's status.
    pub fn task_changed(
        &mut self,
        now: Uptime,
        task: TaskKey,
        status: TaskStatus,
        metrics: Option<pb::TaskMetrics>,
    ) {
        let is_final = status.is_terminal();
        if is_final {
            self.forget_coordinator_requests(task.job, &task.execution);
        }
        if let TaskStatus::Failed { cause, .. } = &status {
            let ExecutionKey {
                vertex,
                subtask,
                generation,
            } = task.execution;
            self.output.log(LogLine::TaskFailed {
                job: task.job,
                vertex,
                subtask,
                generation,
                cause: cause.clone(),
            });
        }
        let Some(job) = self.jobs.get_mut(&task.job) else {
            return;
        };
        if job.executions.update(&task.execution, status, metrics, now) && is_final {
            if job.executions.is_cancelled(&task.execution) {
                self.output.effect(Effect::ReleaseTask(task));
            }
            self.settle(task.job);
        }
        self.flush(now, task.job);
    }

    /// When [`Core::on_time`] must be called next.
    pub fn next_deadline(&self, now: Uptime, at: Moment) -> Option<Uptime> {
        self.jobs
            .values()
            .filter_map(Job::next_deadline)
            .chain(self.slots.next_deadline())
            .chain(self.resource_manager.lost_at())
            .chain(self.generation_check_deadline())
            .chain(self.isolation_deadline(now, at))
            .min()
    }

    /// Extends cancellation deadlines after this process stood still (it was stopped, or its host gave it no CPU
    /// time): tasks could not end meanwhile. Not those of isolated jobs: other processes rely on the time by which
    /// their tasks have ended.
    fn credit_standstill(&mut self, now: Uptime, at: Moment) {
        let due = self.next_deadline(now, at).unwrap_or(now);
        let late = now.saturating_duration_since(due);
        if late < self.options.task_cancellation_interval {
            return;
        }
        self.output.log(LogLine::StoodStill { late });
        let jobs = self.jobs.values_mut();
        jobs.filter(|job| job.isolation.is_none())
            .for_each(|job| job.executions.extend_deadlines(late));
    }

    /// Handles everything that is due.
    pub fn on_time(&mut self, now: Uptime, at: Moment) {
        self.credit_standstill(now, at);
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        if self
            .resource_manager
            .lost_at()
            .is_some_and(|deadline| deadline <= now)
        {
            self.output.log(LogLine::ResourceManagerSilent);
            self.connect(Target::ResourceManager);
        }
        for holder in self.slots.expired(now) {
            let SlotHolder { job, allocation } = holder;
            self.output
                .log(LogLine::SlotNotAccepted { job, allocation });
            self.release_slot(now, job, allocation);
        }
        for job in jobs {
            let Some(known) = self.jobs.get_mut(&job) else {
                continue;
            };
            for (execution, since) in known.executions.take_due_cancellations(now) {
                let ExecutionKey {
                    vertex, subtask, ..
                } = execution;
                let ms = millis(now - since);
                self.output.log(LogLine::TaskStillRuns {
                    job,
                    vertex,
                    subtask,
                    ms,
                });
                self.output.cancel(job, vec![execution]);
            }
            if let Some(ExecutionKey {
                vertex, subtask, ..
            }) = known.executions.take_overdue(now)
            {
                let timeout = self.options.task_cancellation_timeout;
                self.output.effect(Effect::Fatal(Fatal::CancellationTimedOut(format!(
                    "task {vertex}/{subtask} of job {job} did not end within {timeout:?} after its \
                     cancellation"
                ))));
            }
            if known
                .connection
                .lost_at()
                .is_some_and(|deadline| deadline <= now)
            {
                self.output.log(LogLine::JobMasterSilent { job });
                self.connect(Target::JobMaster(job));
            }
            self.flush(now, job);
        }
    }

    /// Cancels all tasks, and accepts nothing more.
    pub fn begin_stop(&mut self, now: Uptime) {
        self.lifecycle.stop();
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        for job in jobs {
            self.cancel_tasks_of(now, job);
        }
    }

    /// Whether it accepts no more slots.
    pub fn is_draining(&self) -> bool {
        self.lifecycle.is_draining()
    }

    /// Number of outputs that may still be read here: `unread`, those that consumers have not read to their end,
    /// known to the exchange, plus those of blocking edges, which stay until they are released.
    fn kept_outputs(&self, unread: usize) -> usize {
        let of_blocking = |known: &Job| known.executions.output_count();
        unread + self.jobs.values().map(of_blocking).sum::<usize>()
    }

    fn is_unused(&self, unread: usize) -> bool {
        let has_ended = |known: &Job| known.executions.is_empty();
        self.kept_outputs(unread) == 0 && self.slots.is_free() && self.jobs.values().all(has_ended)
    }

    /// Whether it is registered, and whether it is in use.
    pub fn presence(&self, unread: usize) -> Presence {
        Presence {
            is_registered: self.resource_manager.is_registered(),
            is_unused: self.is_unused(unread),
        }
    }

    /// Leaves if it drains, no job has a slot here, every terminal state is acknowledged, and no output is kept.
    pub fn review_draining(&mut self, unread: usize) {
        let is_unused = self.is_unused(unread);
        self.lifecycle.leave_if_drained(is_unused, &mut self.output);
    }

    /// Whether no task runs.
    pub fn is_quiet(&self) -> bool {
        !self.jobs.values().any(|job| job.executions.is_running())
    }

    /// The messages with which it disconnects, by address.
    pub fn disconnect_messages(&self, cause: &str) -> DisconnectMessages {
        let (resource_id, incarnation) = self.identity();
        let resource_manager = self.resource_manager.is_registered().then(|| {
            let request = pb::DisconnectTaskExecutorRequest {
                sender: Some(self.resource_manager.sender()),
                resource_id: resource_id.clone(),
                incarnation: incarnation.clone(),
                cause: cause.to_owned(),
            };
            (self.resource_manager.address().to_owned(), request)
        });
        let registered = self
            .jobs
            .iter()
            .filter(|(_, known)| known.connection.is_registered());
        let job_masters = registered
            .map(|(&job, known)| {
                let request = pb::DisconnectTaskManagerRequest {
                    sender: Some(known.connection.sender()),
                    job: Some(scope(job, known)),
                    resource_id: resource_id.clone(),
                    incarnation: incarnation.clone(),
                    cause: cause.to_owned(),
                    nothing_runs: self.lifecycle.is_stopping() && !known.executions.is_running(),
                };
                (job, known.connection.address().to_owned(), request)
            })
            .collect();
        DisconnectMessages {
            resource_manager,
            job_masters,
        }
    }

    /// Ends what is left of a job and frees its slots. The job is forgotten once nothing runs any more.
    fn end_job(&mut self, now: Uptime, job: JobId, cause: &str) {
        let Some(known) = self.jobs.get_mut(&job).filter(|known| !known.is_ending) else {
            return;
        };
        self.output.log(LogLine::JobEnds {
            job,
            cause: cause.to_owned(),
        });
        known.is_ending = true;
        known.disconnect();
        known.to_offer.clear();
        self.output
            .effect(Effect::StopRegistering(Target::JobMaster(job)));
        self.cancel_tasks_of(now, job);
        let held: Vec<SlotHolder> = self
            .slots
            .held_by(job)
            .filter_map(|(_, slot)| slot.holder())
            .collect();
        for holder in held {
            self.slots.release(holder.allocation);
        }
        self.settle(job);
    }

    /// Ends the tasks in a slot, then frees it.
    fn release_slot(&mut self, now: Uptime, job: JobId, allocation: AllocationId) {
        if !self.slots.release(allocation) {
            return;
        }
        let timeouts = self.cancellation_timeouts(now);
        if let Some(known) = self.jobs.get_mut(&job) {
            known.to_offer.remove(&allocation);
            let cancelled = known.executions.cancel_in(allocation, timeouts);
            self.output.cancel(job, cancelled);
        }
        self.settle(job);
    }

    /// Timeouts for tasks that are cancelled.
    fn cancellation_timeouts(&self, now: Uptime) -> CancellationTimeouts {
        CancellationTimeouts {
            from: now,
            deadline: now + self.options.task_cancellation_timeout,
            interval: self.options.task_cancellation_interval,
        }
    }

    fn cancel_tasks_of(&mut self, now: Uptime, job: JobId) {
        let timeouts = self.cancellation_timeouts(now);
        if let Some(known) = self.jobs.get_mut(&job) {
            let cancelled = known.executions.cancel_all(timeouts);
            self.output.cancel(job, cancelled);
        }
    }

    /// Frees the slots in which nothing runs any more, and forgets the job if it has ended.
    fn settle(&mut self, job: JobId) {
        let jobs = &self.jobs;
        let is_in_use = |holder: SlotHolder| {
            let known = jobs.get(&holder.job);
            known.is_some_and(|known| known.executions.is_in_use(holder.allocation))
        };
        let freed = self.slots.free_released(is_in_use);
        if !freed.is_empty() {
            let statuses = self.slots.statuses(&freed);
            self.notify_slots(statuses, false);
        }
        let Some(known) = self.jobs.get_mut(&job) else {
            return;
        };
        if self.slots.is_used_by(job) {
            return;
        }
        if std::mem::take(&mut known.has_files) {
            self.output.effect(Effect::ReleaseFiles(job));
        }
        if known.is_ending && !known.executions.is_running() {
            self.jobs.remove(&job);
            self.output.effect(Effect::Release(job));
        }
    }

    fn identity(&self) -> (String, String) {
        let location = &self.description.location;
        (location.resource_id.clone(), location.incarnation.clone())
    }
}

/// Messages with which a TaskExecutor disconnects, and their addresses.
#[derive(Debug)]
pub struct DisconnectMessages {
    /// To the ResourceManager.
    pub resource_manager: Option<(String, pb::DisconnectTaskExecutorRequest)>,
    /// To JobMasters.
    pub job_masters: Vec<(JobId, String, pb::DisconnectTaskManagerRequest)>,
}

fn scope(job: JobId, known: &Job) -> pb::JobScope {
    pb::JobScope {
        job_id: job.to_string(),
        job_incarnation: known.incarnation,
    }
}

/// Above every generation.
pub const ALL_GENERATIONS: Generation = Generation::new(u64::MAX);
