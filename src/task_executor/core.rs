//! Decisions of a TaskExecutor: which tasks end and when, which slots become free, which jobs are ended, which
//! connections are lost. Pure except for the epoch, which it shares with its process, and the clock of isolated
//! jobs.
//!
//! Its other parts: [`super::registering`] (the leader it follows and its registrations), [`super::requests`]
//! (requests of the leader), [`super::deployments`] (which tasks start), [`super::outbox`] (messages to the
//! leader), [`super::generation_check`] (the stored state of its jobs). Output is collected as [`Effect`]s.
//!
//! - A slot becomes free only when nothing runs in it.
//! - It ends its jobs without leader only if no leader was heard of and the store did not answer for
//!   `job-manager-failover-timeout`, and a question to the store that began after that also failed.

use std::collections::BTreeMap;

use tanist_ha::clock::Moment;
use tanist_ha::clock::millis;
use tanist_ha::election::Epoch;
use tanist_proto::id::{AllocationId, Generation, JobId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ask_coordinator_response::Answer;
use tokio::time::Instant;

use super::connection::Connection;
use super::executions::{CancellationTimeouts, ExecutionKey};
use super::generation_check::Asking;
use super::isolation::IsolationGuard;
use super::job::Job;
use super::launcher::{TaskStart, TaskStatus};
use super::slot_table::{SlotHolder, SlotTable};
use super::{Fatal, Options, TaskExecutorDescription};
use crate::gateway::fencing::{Contradicted, HighestEpoch};

/// The component a connection leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The ResourceManager.
    ResourceManager,
    /// The JobMaster of a job.
    JobMaster(JobId),
}

/// A task of this TaskExecutor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskKey {
    /// The job.
    pub job: JobId,
    /// The execution.
    pub execution: ExecutionKey,
}

/// Something to do.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Start attempts to register, in place of those that run.
    Register {
        /// The component.
        target: Target,
        /// Its address.
        address: String,
        /// Run of attempts, to be named with the result.
        run: u64,
    },
    /// End a delay between attempts.
    Wake(Target),
    /// Stop the attempts.
    StopRegistering(Target),
    /// Notify the ResourceManager of slots.
    NotifySlots {
        /// Its address.
        address: String,
        /// Run of the connection, to be named with the result.
        run: u64,
        /// The notification.
        request: pb::NotifySlotsAvailableRequest,
    },
    /// Offer slots to a JobMaster.
    Offer {
        /// The job.
        job: JobId,
        /// The JobMaster's address.
        address: String,
        /// Run of the connection, to be named with the result.
        run: u64,
        /// The offer.
        request: pb::OfferSlotsRequest,
    },
    /// Report executions to a JobMaster.
    Update {
        /// The job.
        job: JobId,
        /// The JobMaster's address.
        address: String,
        /// Run of the connection, to be named with the result.
        run: u64,
        /// The report.
        request: pb::UpdateTaskExecutionStatesRequest,
    },
    /// Send an operator's request to its coordinator.
    AskCoordinator {
        /// The job.
        job: JobId,
        /// The JobMaster's address.
        address: String,
        /// Run of the connection, to be named with the result.
        run: u64,
        /// Number of the request, to be named with the result.
        request_id: u64,
        /// The request.
        request: pb::AskCoordinatorRequest,
    },
    /// Answer an operator's request, or end it without answer.
    AnswerCoordinatorRequest {
        /// Number of the request.
        request_id: u64,
        /// The answer, or why there is none.
        answer: Result<Answer, String>,
    },
    /// Ask the store for the state of these jobs.
    AskStore(Vec<JobId>),
    /// Set the time at which tasks of an isolated job have ended unless it is extended again.
    Extend(JobId, Moment),
    /// Start a task.
    Start(TaskKey, Box<TaskStart>),
    /// Cancel a task.
    Cancel(TaskKey),
    /// End the source of a task.
    Stop(TaskKey),
    /// Release the output of this execution and older ones of its subtask: no consumer takes it.
    ReleaseTask(TaskKey),
    /// Release the files kept for the next tasks of a job that has no slot here.
    ReleaseFiles(JobId),
    /// Release everything of a job.
    Release(JobId),
    /// Report that this process can't continue.
    Fatal(Fatal),
}

/// The leader that it follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leader {
    pub(super) epoch: Epoch,
    pub(super) address: String,
}

/// See the module.
#[derive(Debug)]
pub struct Core {
    pub(super) options: Options,
    pub(super) description: TaskExecutorDescription,
    pub(super) highest: HighestEpoch,
    pub(super) last_registration: u64,
    pub(super) leader: Option<Leader>,
    /// The last epoch that was believed but that the store contradicted.
    pub(super) contradicted: Option<Contradicted>,
    /// When a leader last sent a message or was last named.
    pub(super) heard_of_leader: Instant,
    /// Whether the store, or a leader itself, names a leader to follow.
    pub(super) is_led: bool,
    /// When the store last answered a question about jobs.
    pub(super) heard_of_store: Instant,
    pub(super) asking: Asking,
    pub(super) guard: IsolationGuard,
    pub(super) is_store_believed: bool,
    pub(super) resource_manager: Connection,
    pub(super) slots: SlotTable,
    /// Version of the slots that the last registration reported.
    pub(super) reported_slots: u64,
    pub(super) jobs: BTreeMap<JobId, Job>,
    pub(super) is_stopping: bool,
    pub(super) is_draining: bool,
    /// Whether it must leave in any case once it is unused.
    pub(super) is_releasing: bool,
    /// Whether it has been open for slots at some time, so that it leaves when it has drained.
    pub(super) may_leave: bool,
    pub(super) has_left: bool,
    pub(super) effects: Vec<Effect>,
}

impl Core {
    /// Follows no leader yet. Registrations get numbers above `first_registration`.
    pub fn new(
        now: Instant,
        options: Options,
        description: TaskExecutorDescription,
        highest: HighestEpoch,
        first_registration: u64,
        guard: IsolationGuard,
    ) -> Core {
        let slots = SlotTable::new(&description.worker);
        Core {
            options,
            description,
            highest,
            last_registration: first_registration,
            leader: None,
            contradicted: None,
            heard_of_leader: now,
            is_led: true,
            heard_of_store: now,
            asking: Asking::Quiet,
            guard,
            is_store_believed: true,
            resource_manager: Connection::idle(),
            slots,
            reported_slots: 0,
            jobs: BTreeMap::new(),
            is_stopping: false,
            is_draining: false,
            is_releasing: false,
            may_leave: false,
            has_left: false,
            effects: Vec::new(),
        }
    }

    /// Takes the collected effects.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Handles a change of a task's status.
    pub fn task_changed(
        &mut self,
        now: Instant,
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
            tracing::warn!(job = %task.job, %vertex, subtask, %generation, cause, "task failed");
        }
        let Some(job) = self.jobs.get_mut(&task.job) else {
            return;
        };
        if job.executions.update(&task.execution, status, metrics, now) && is_final {
            if job.executions.was_told_to_end(&task.execution) {
                self.effects.push(Effect::ReleaseTask(task));
            }
            self.settle(task.job);
        }
        self.flush(now, task.job);
    }

    /// When [`Core::on_time`] must be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.jobs
            .values()
            .filter_map(Job::next_deadline)
            .chain(self.slots.next_deadline())
            .chain(self.resource_manager.deadline())
            .chain(self.doubt_deadline())
            .chain(self.isolation_deadline())
            .min()
    }

    /// Extends cancellation deadlines after this process stood still (it was stopped, or its host gave it no CPU
    /// time): tasks could not end meanwhile. Not those of isolated jobs: other processes rely on the time by which
    /// their tasks have ended.
    fn credit_standstill(&mut self, now: Instant) {
        let due = self.next_deadline().unwrap_or(now);
        let late = now.saturating_duration_since(due);
        if late < self.options.task_cancellation_interval {
            return;
        }
        tracing::warn!(
            ?late,
            "this process stood still, extending the deadlines of cancelled tasks"
        );
        let jobs = self.jobs.values_mut();
        jobs.filter(|job| job.isolation.is_none())
            .for_each(|job| job.executions.put_off(late));
    }

    /// Handles everything that is due.
    pub fn on_time(&mut self, now: Instant) {
        self.credit_standstill(now);
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        if self
            .resource_manager
            .deadline()
            .is_some_and(|deadline| deadline <= now)
        {
            tracing::warn!("the resource manager is silent, registering again");
            self.connect(Target::ResourceManager);
        }
        for holder in self.slots.expired(now) {
            tracing::warn!(job = %holder.job, allocation = %holder.allocation, "no JobMaster accepted a slot in time, freeing it");
            self.release_slot(now, holder.job, holder.allocation);
        }
        for job in jobs {
            let Some(known) = self.jobs.get_mut(&job) else {
                continue;
            };
            for (execution, since) in known.executions.take_reminders(now) {
                let ExecutionKey {
                    vertex, subtask, ..
                } = execution;
                let ms = millis(now - since);
                tracing::warn!(%job, %vertex, subtask, ms, "a cancelled task has not ended yet, cancelling it again");
                self.effects.push(cancel(job, execution));
            }
            if let Some(ExecutionKey {
                vertex, subtask, ..
            }) = known.executions.take_overdue(now)
            {
                let timeout = self.options.task_cancellation_timeout;
                self.effects.push(Effect::Fatal(Fatal::Stuck(format!(
                    "task {vertex}/{subtask} of job {job} did not end within {timeout:?} after its \
                     cancellation"
                ))));
            }
            if known
                .connection
                .deadline()
                .is_some_and(|deadline| deadline <= now)
            {
                tracing::warn!(%job, "the job master is silent, registering again");
                self.connect(Target::JobMaster(job));
            }
            self.flush(now, job);
        }
    }

    /// Cancels all tasks, and accepts nothing more.
    pub fn begin_stop(&mut self, now: Instant) {
        self.is_stopping = true;
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        for job in jobs {
            self.cancel_tasks_of(now, job);
        }
    }

    /// Whether no task runs.
    pub fn is_quiet(&self) -> bool {
        !self.jobs.values().any(|job| job.executions.is_running())
    }

    /// The goodbyes to send, by address.
    pub fn goodbyes(&self, cause: &str) -> Goodbyes {
        let (resource_id, incarnation) = self.identity();
        let resource_manager = self.resource_manager.is_registered().then(|| {
            let request = pb::DisconnectTaskExecutorRequest {
                sender: Some(self.resource_manager.sender()),
                resource_id: resource_id.clone(),
                incarnation: incarnation.clone(),
                cause: cause.to_owned(),
            };
            (self.resource_manager.address.clone(), request)
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
                    nothing_runs: self.is_stopping && !known.executions.is_running(),
                };
                (job, known.connection.address.clone(), request)
            })
            .collect();
        Goodbyes {
            resource_manager,
            job_masters,
        }
    }

    /// Ends what is left of a job and frees its slots. The job is forgotten once nothing runs any more.
    pub(super) fn end_job(&mut self, now: Instant, job: JobId, cause: &str) {
        let Some(known) = self.jobs.get_mut(&job).filter(|known| !known.is_ending) else {
            return;
        };
        tracing::info!(%job, cause, "ending the job here");
        known.is_ending = true;
        known.disconnect();
        known.to_offer.clear();
        self.effects
            .push(Effect::StopRegistering(Target::JobMaster(job)));
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
    pub(super) fn release_slot(&mut self, now: Instant, job: JobId, allocation: AllocationId) {
        if !self.slots.release(allocation) {
            return;
        }
        let timeouts = self.cancellation_timeouts(now);
        if let Some(known) = self.jobs.get_mut(&job) {
            known.to_offer.remove(&allocation);
            let told = known.executions.cancel_in(allocation, timeouts);
            self.effects
                .extend(told.into_iter().map(|key| cancel(job, key)));
        }
        self.settle(job);
    }

    /// Timeouts for tasks that are cancelled.
    pub(super) fn cancellation_timeouts(&self, now: Instant) -> CancellationTimeouts {
        CancellationTimeouts {
            from: now,
            deadline: now + self.options.task_cancellation_timeout,
            interval: self.options.task_cancellation_interval,
        }
    }

    pub(super) fn cancel_tasks_of(&mut self, now: Instant, job: JobId) {
        let timeouts = self.cancellation_timeouts(now);
        if let Some(known) = self.jobs.get_mut(&job) {
            let told = known.executions.cancel_all(timeouts);
            self.effects
                .extend(told.into_iter().map(|key| cancel(job, key)));
        }
    }

    /// Frees the slots in which nothing runs any more, and forgets the job if it has ended.
    pub(super) fn settle(&mut self, job: JobId) {
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
            self.effects.push(Effect::ReleaseFiles(job));
        }
        if known.is_ending && !known.executions.is_running() {
            self.jobs.remove(&job);
            self.effects.push(Effect::Release(job));
        }
    }

    pub(super) fn identity(&self) -> (String, String) {
        let location = &self.description.location;
        (location.resource_id.clone(), location.incarnation.clone())
    }
}

/// Goodbyes and their addresses.
#[derive(Debug, Default)]
pub struct Goodbyes {
    /// To the ResourceManager.
    pub resource_manager: Option<(String, pb::DisconnectTaskExecutorRequest)>,
    /// To JobMasters.
    pub job_masters: Vec<(JobId, String, pb::DisconnectTaskManagerRequest)>,
}

pub(super) fn cancel(job: JobId, execution: ExecutionKey) -> Effect {
    Effect::Cancel(TaskKey { job, execution })
}

pub(super) fn scope(job: JobId, known: &Job) -> pb::JobScope {
    pb::JobScope {
        job_id: job.to_string(),
        job_incarnation: known.incarnation,
    }
}

/// Above every generation.
pub const ALL_GENERATIONS: Generation = Generation::new(u64::MAX);
