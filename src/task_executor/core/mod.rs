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
        }
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
        let held: Vec<AllocationId> = self.slots.held_by(job).collect();
        for allocation in held {
            self.slots.release(allocation);
        }
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

    /// Does what follows from the state after an event or a request. To be called after each, before the effects are
    /// taken. `unread`: number of outputs that consumers have not read to their end.
    pub fn after_event(&mut self, now: Uptime, at: Moment, unread: usize) -> Status {
        // First: a job is forgotten, and a drained TaskExecutor leaves, only when its slots are free.
        self.free_released();
        // Before the steps that look at all jobs: a job that is over has no effects any more.
        self.forget_ended_jobs();
        // Here, not in each handler: it depends on the leader and the connection whether a slot can be accepted.
        let (leader, jobs) = (&self.leader, &self.jobs);
        let is_registered = |job| {
            jobs.get(&job)
                .is_some_and(|it| it.connection.is_registered())
        };
        let can_be_accepted = |job| leader.is_named() && is_registered(job);
        let slot_timeout = self.options.slot_timeout;
        self.slots
            .review_timeouts(now, slot_timeout, can_be_accepted);
        // After the event, whose answer of the store may have confirmed the generations.
        let mut isolated_until = None;
        if !self.lifecycle.is_stopping() {
            isolated_until = self.review_isolation(now, at);
        }
        // After the event, which may have begun or ended the silence of a JobMaster.
        self.review_generations(now, at);
        // After slots were freed: the last one may have been in use until this event.
        let has_ended = |known: &Job| known.executions.is_empty();
        let is_unused = self.kept_outputs(unread) == 0
            && self.slots.is_free()
            && self.jobs.values().all(has_ended);
        self.lifecycle.leave_if_drained(is_unused, &mut self.output);
        // Last: messages report what the event and the steps above have changed.
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        for job in jobs {
            self.send_messages(now, job);
        }
        Status {
            isolated_until,
            presence: Presence {
                is_registered: self.resource_manager.is_registered(),
                is_unused,
            },
        }
    }

    /// Frees slots that are being released and in which nothing runs any more, with the files of jobs that have no
    /// other slot.
    fn free_released(&mut self) {
        let jobs = &self.jobs;
        let is_in_use = |holder: SlotHolder| {
            let known = jobs.get(&holder.job);
            known.is_some_and(|known| known.executions.is_in_use(holder.allocation))
        };
        let freed = self.slots.free_released(is_in_use);
        if freed.is_empty() {
            return;
        }
        for (_, holder) in &freed {
            let job = holder.job;
            let known = self.jobs.get_mut(&job);
            if let Some(known) = known.filter(|_| !self.slots.is_used_by(job))
                && std::mem::take(&mut known.has_files)
            {
                self.output.effect(Effect::ReleaseFiles(job));
            }
        }
        let numbers = freed.into_iter().map(|(number, _)| number);
        let statuses = self.slots.statuses(numbers);
        self.notify_slots(statuses, false);
    }

    /// Forgets jobs that have ended, whose tasks have ended, and that have no slot.
    fn forget_ended_jobs(&mut self) {
        self.jobs.retain(|&job, known| {
            let is_running = known.executions.is_running();
            let is_over = known.is_ending && !is_running && !self.slots.is_used_by(job);
            if is_over {
                self.output.effect(Effect::Release(job));
            }
            !is_over
        });
    }

    fn identity(&self) -> (String, String) {
        let location = &self.description.location;
        (location.resource_id.clone(), location.incarnation.clone())
    }
}

/// State of a TaskExecutor after an event.
#[derive(Debug)]
pub struct Status {
    /// Time by which isolated tasks must have ended, for the [`crate::IsolationGuard`].
    pub isolated_until: Option<Moment>,
    /// Whether it is registered, and whether it is in use.
    pub presence: Presence,
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
