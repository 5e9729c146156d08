//! Decisions of a TaskExecutor: which tasks start and end and when, which slots become free, which jobs are ended,
//! which connections are lost. Pure except for the accepted term, which it shares with its process. Two times are
//! arguments: `now`, the time since the start of the TaskExecutor, and `at`, the time of the clock of isolated jobs,
//! which also runs while the host is suspended.
//!
//! The state is in objects, each of which alone changes its fields. Handlers decide; they borrow the objects that they
//! need. [`TaskExecutorCore`] connects them.
//!
//! | object | what it holds |
//! |---|---|
//! | [`leader_tracker`] | the followed leader, the accepted term, the numbers of registrations |
//! | [`connection`] | one registration, at the ResourceManager or a JobMaster |
//! | [`jobs`], [`job`] | the jobs: executions, connection, messages to the JobMaster ([`outbox`]) |
//! | [`checkpoints`] | the checkpoint states of a job's executions |
//! | [`slot_table`] | slots, their holders and reserved resources |
//! | [`isolation`] | until when the tasks of isolated jobs may run |
//! | [`generation_check`] | reads of the stored generations |
//! | [`lifecycle`] | whether it is drained, has left or stops |
//! | [`lateness`] | how late the process wakes up |
//! | [`output`] | effects and lines of the log |
//!
//! Handlers: [`connections`], [`slot_allocation`], [`deployments`]. Inputs: [`event`] and [`requests`].
//!
//! While no leader is reached, it ends its jobs only if the store did not answer either for
//! `job-manager-failover-timeout`, and a read of the store that began after that also failed.

mod budget;
mod checkpoints;
mod connection;
mod connections;
mod deployments;
mod effect;
mod event;
mod executions;
mod generation_check;
mod graphs;
mod isolation;
mod job;
mod jobs;
mod lateness;
mod leader_tracker;
mod leaderless_timer;
mod lifecycle;
mod log_line;
mod messages;
mod outbox;
mod output;
mod regions;
mod registrations;
mod requests;
mod slot_allocation;
mod slot_table;
#[cfg(test)]
mod tests;

use std::time::Duration;

use tanist_gateway::fencing::{HighestEpoch, Proof};
use tanist_gateway::{GatewayError, GatewayResult, NoAnswer, StoredJobs};
use tanist_ha::clock::{Moment, Uptime};
use tanist_proto::id::{Generation, JobId};
use tanist_proto::v1 as pb;

pub(crate) use self::checkpoints::{NO_PLACE, Pieces, SnapshotPlace};
use self::connection::Connection;
pub(crate) use self::effect::{Effect, JobMasterAddress, Target, TaskKey, TriggeredSource};
pub(crate) use self::event::{Event, WrittenSnapshot};
use self::executions::CancellationTimeouts;
pub(crate) use self::executions::ExecutionKey;
pub(crate) use self::generation_check::PAUSE;
use self::generation_check::{GenerationCheck, Verdict};
pub(crate) use self::graphs::GraphKey;
use self::graphs::KnownGraph;
use self::isolation::IsolatedJobs;
use self::jobs::Jobs;
use self::lateness::Lateness;
use self::leader_tracker::{Leader, LeaderTracker};
pub(crate) use self::leaderless_timer::LeaderlessTimer;
use self::lifecycle::Lifecycle;
pub(crate) use self::log_line::LogLine;
use self::output::Output;
use self::slot_table::SlotTable;
use crate::launcher::TaskStatus;
use crate::{Options, Presence, TaskExecutorDescription};

/// Above every generation.
pub(crate) const ALL_GENERATIONS: Generation = Generation::new(u64::MAX);

/// See the module.
#[derive(Debug)]
pub(crate) struct TaskExecutorCore {
    options: Options,
    description: TaskExecutorDescription,
    leader: LeaderTracker,
    resource_manager: Connection,
    jobs: Jobs,
    slots: SlotTable,
    isolated: IsolatedJobs,
    generation_check: GenerationCheck,
    lifecycle: Lifecycle,
    lateness: Lateness,
    output: Output,
}

/// State of a TaskExecutor after an event.
#[derive(Debug)]
pub(crate) struct Status {
    /// Time by which isolated tasks must have ended, for the [`crate::IsolationGuard`].
    pub isolated_until: Option<Moment>,
    /// Whether it is registered, and whether it is in use.
    pub presence: Presence,
}

/// Messages with which a TaskExecutor disconnects, and their addresses.
#[derive(Debug)]
pub(crate) struct DisconnectMessages {
    /// To the ResourceManager.
    pub resource_manager: Option<(String, pb::DisconnectTaskExecutorRequest)>,
    /// To JobMasters.
    pub job_masters: Vec<(JobId, String, pb::DisconnectTaskManagerRequest)>,
}

impl TaskExecutorCore {
    /// Follows no leader yet. Registrations get numbers above `first_registration`.
    pub(crate) fn new(
        now: Uptime,
        options: Options,
        description: TaskExecutorDescription,
        terms: HighestEpoch,
        first_registration: u64,
    ) -> TaskExecutorCore {
        TaskExecutorCore {
            leader: LeaderTracker::new(now, terms.clone(), first_registration),
            resource_manager: Connection::idle(0),
            jobs: Jobs::default(),
            slots: SlotTable::new(&description.worker),
            isolated: IsolatedJobs::default(),
            generation_check: GenerationCheck::new(now, terms),
            lifecycle: Lifecycle::new(),
            lateness: Lateness::new(now),
            output: Output::default(),
            options,
            description,
        }
    }

    /// Handles an event. [`TaskExecutorCore::after_event`] follows.
    pub(crate) fn handle(&mut self, now: Uptime, event: Event) {
        match event {
            Event::LeaderShown(view) => {
                if let Some(leader) = self.leader.record_view(view, &mut self.output) {
                    self.follow(now, leader);
                }
            }
            Event::RegistrationSeen(number) => self.leader.raise_registration(number),
            Event::RegisteredAtResourceManager { run, result } => {
                self.registered_at_resource_manager(now, run, result);
            }
            Event::RegisteredAtJobMaster { job, run, result } => {
                self.registered_at_job_master(now, job, run, result);
            }
            Event::SlotsNotified { run, answer } => self.slots_notified(run, &answer),
            Event::SlotsOffered { job, run, answer } => {
                let retry_at = now + self.options.retry_delay;
                let mut slots = self.slot_allocation(now);
                let failure = slots.offer_answered(job, run, answer, retry_at);
                self.call_ended(job, failure);
            }
            Event::ExecutionsReported { job, run, answer } => {
                let failure = answer.err();
                let retry_at = now + self.options.retry_delay;
                if let Some(known) = self.jobs.in_run(job, run) {
                    known.finish_report(failure.is_some().then_some(retry_at));
                    self.call_ended(job, failure);
                }
            }
            Event::CoordinatorAsked {
                request_id,
                requester,
                number,
            } => match self.jobs.get_mut(requester.job) {
                Some(known) => known.ask_coordinator(request_id, requester, number),
                None => {
                    let answer = Err("its job is not on this TaskManager".to_owned());
                    self.output
                        .effect(Effect::AnswerCoordinatorRequest { request_id, answer });
                }
            },
            Event::CoordinatorAnswered {
                job,
                run,
                request_id,
                answer,
            } => {
                let retry_at = now + self.options.retry_delay;
                if let Some(known) = self.jobs.in_run(job, run) {
                    let output = &mut self.output;
                    let failure = known.coordinator_answered(request_id, answer, retry_at, output);
                    self.call_ended(job, failure);
                }
            }
            Event::GenerationsRead(answer) => self.generations_read(now, answer),
            Event::GraphFetched(key, graph) => {
                if let Some(known) = self.jobs.get_mut(key.job()) {
                    known.keep_graph(KnownGraph::new(key, graph));
                }
            }
            Event::TaskChanged {
                task,
                status,
                metrics,
            } => self.task_changed(now, task, status, metrics),
            Event::StateUnread { task, reason } => {
                if let Some(known) = self.jobs.get_mut(task.job) {
                    known.note_unread_state(task.execution, reason);
                }
            }
            Event::NoticesChanged { task, notices } => {
                if let Some(known) = self.jobs.get_mut(task.job) {
                    known.set_notices(task.execution, notices);
                }
            }
            Event::CheckpointChanged { task, status } => {
                let has_storage = self.options.checkpoints.is_some();
                if let Some(known) = self.jobs.get_mut(task.job) {
                    let output = &mut self.output;
                    known.checkpoint_changed(task.execution, status, has_storage, output);
                }
            }
            Event::SnapshotWritten {
                task,
                number,
                written,
                took,
            } => {
                if let Some(known) = self.jobs.get_mut(task.job) {
                    known.note_writing(task.execution, number, took);
                    known.snapshot_written(task.execution, number, written, &mut self.output);
                }
            }
            Event::CheckpointsReported {
                job,
                run,
                call,
                answer,
            } => {
                let failure = answer.err();
                let retry_at = now + self.options.retry_delay;
                if let Some(known) = self.jobs.in_run(job, run) {
                    let retry_at = failure.is_some().then_some(retry_at);
                    known.finish_checkpoint_report(call, retry_at);
                    self.call_ended(job, failure);
                }
            }
            Event::DeadlineReached => self.deadline_reached(now),
            Event::Stopped => {
                self.lifecycle.stop();
                self.connections().stop_registering();
                let timeouts = self.cancellation_timeouts(now);
                for job in self.jobs.iter_mut() {
                    job.cancel_all(timeouts, &mut self.output);
                }
            }
        }
    }

    /// Handles a change of the term that this process accepts. Returns whether the followed leader was dropped: then
    /// the leader that the store shows is to be followed.
    pub(crate) fn term_changed(&mut self, proof: &Proof) -> bool {
        let is_dropped = self.leader.record_proof(proof, &mut self.output);
        if is_dropped {
            self.connections().disconnect_all();
        }
        is_dropped
    }

    /// Updates all that depends on the state after an event or a request. To be called after each, before the effects
    /// are taken. `unread`: number of outputs that consumers have not read to their end.
    pub(crate) fn after_event(&mut self, now: Uptime, at: Moment, unread: usize) -> Status {
        // First: a job is forgotten, and a drained TaskExecutor leaves, only when its slots are free.
        self.free_released_slots(now);
        // Here, not in each handler: it depends on the leader and the connection whether a slot can be accepted.
        self.review_slot_timeouts(now);
        // After the event, whose answer of the store may have confirmed the generations.
        let isolated_until = self.review_isolation(now, at);
        // After the event, which may have begun or ended the silence of a JobMaster.
        self.review_generations(now, at);
        // After slots were freed: the last one may have been in use until this event.
        let is_unused =
            self.kept_outputs(unread) == 0 && self.slots.is_free() && self.jobs.are_acknowledged();
        self.lifecycle.leave_if_drained(is_unused, &mut self.output);
        self.review_declines(now);
        // Last: messages report what the event and the steps above have changed.
        self.send_messages(now);
        Status {
            isolated_until,
            presence: Presence {
                is_registered: self.resource_manager.is_registered(),
                is_unused,
            },
        }
    }

    /// Frees released slots in which nothing runs any more, and forgets jobs that are over.
    fn free_released_slots(&mut self, now: Uptime) {
        let freed = self.slot_allocation(now).free_released();
        if !freed.is_empty() {
            self.notify_slots(freed, false);
        }
        self.slot_allocation(now).forget_ended_jobs();
    }

    fn review_slot_timeouts(&mut self, now: Uptime) {
        let (leader, jobs) = (&self.leader, &self.jobs);
        let can_be_accepted = |job| leader.is_named() && jobs.is_registered(job);
        let timeout = self.options.slot_timeout;
        self.slots.review_timeouts(now, timeout, can_be_accepted);
    }

    fn review_isolation(&mut self, now: Uptime, at: Moment) -> Option<Moment> {
        if self.lifecycle.is_stopping() {
            return None;
        }
        let timeouts = self.cancellation_timeouts(now);
        let (jobs, output) = (&mut self.jobs, &mut self.output);
        self.isolated.review(at, timeouts, jobs, output)
    }

    /// Reads the stored generations of jobs whose JobMaster is silent, or may no longer lead.
    fn review_generations(&mut self, now: Uptime, at: Moment) {
        let is_stopping = self.lifecycle.is_stopping();
        let doubted = self.jobs.active().filter(|job| {
            let doubted_at = job.connection().doubted_at();
            let is_silent = !self.leader.is_named() || doubted_at.is_none_or(|at| at <= now);
            !is_stopping && (is_silent || self.isolated.must_be_confirmed(at, job))
        });
        let doubted = doubted.map(|job| (job.id(), job.connection().run()));
        let check = &mut self.generation_check;
        check.review(now, at, doubted, &mut self.output);
    }

    /// Has tasks decline the checkpoint for which they block inputs, if they have been without JobMaster for a while.
    fn review_declines(&mut self, now: Uptime) {
        let is_led = self.leader.is_named();
        for job in self.jobs.iter_mut() {
            job.review_decline(now, is_led, &mut self.output);
        }
    }

    fn send_messages(&mut self, now: Uptime) {
        if self.lifecycle.is_stopping() {
            return;
        }
        let location = &self.description.location;
        for job in self.jobs.iter_mut() {
            job.send(now, location, &self.slots, &mut self.output);
        }
    }

    /// Begins the wait for the next input. Returns when [`Event::DeadlineReached`] is due.
    /// [`TaskExecutorCore::woke_up`] ends the wait.
    pub(crate) fn arm_deadline(&mut self, now: Uptime, at: Moment) -> Option<Uptime> {
        self.woke_up(now);
        let deadline = self.next_deadline(now, at);
        self.lateness.arm(now, deadline);
        deadline
    }

    /// Extends cancellation deadlines if this process stood still: tasks could not end meanwhile. Not those of
    /// isolated jobs: other processes rely on the time by which their tasks have ended. To be called first after the
    /// wait for an input.
    pub(crate) fn woke_up(&mut self, now: Uptime) {
        let interval = self.options.task_cancellation_interval;
        let Some(late) = self.lateness.take(now, interval) else {
            return;
        };
        self.output.log(LogLine::StoodStill { late });
        let jobs = self.jobs.iter_mut();
        jobs.filter(|job| !self.isolated.contains(job.id()))
            .for_each(|job| job.extend_deadlines(late));
    }

    fn next_deadline(&self, now: Uptime, at: Moment) -> Option<Uptime> {
        let doubted_at = self.jobs.active();
        let doubted_at = doubted_at.filter_map(|job| job.connection().doubted_at());
        let deadlines = [
            self.jobs.next_deadline(),
            self.slots.next_deadline(),
            self.resource_manager.lost_at(),
            self.generation_check.next_deadline(doubted_at.min()),
            self.isolated.next_deadline(now, at, &self.jobs),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Handles everything that is due.
    fn deadline_reached(&mut self, now: Uptime) {
        // Before slots are freed: without registration, freed slots are in the report of the next one.
        self.connections().reconnect_silent(now);
        // Before cancellations are repeated: those of the freed slots are new.
        self.slot_allocation(now).free_expired(now);
        let timeout = self.options.task_cancellation_timeout;
        for job in self.jobs.iter_mut() {
            job.review_cancellations(now, timeout, &mut self.output);
        }
    }

    fn follow(&mut self, now: Uptime, leader: Leader) {
        if !self.lifecycle.is_stopping() {
            self.connections().follow(now, leader);
        }
    }

    /// Handles the end of a call to a JobMaster.
    fn call_ended(&mut self, job: JobId, failure: Option<GatewayError>) {
        if let Some(error) = failure {
            self.connections().call_failed(job, &error);
        }
    }

    /// Handles the answer to a slot notification. If it failed, the next heartbeat reports the slots.
    fn slots_notified(&mut self, run: u64, answer: &GatewayResult<pb::Ack>) {
        if self.resource_manager.run() == run
            && let Err(error @ (GatewayError::Outdated { .. } | GatewayError::NotFound(_))) = answer
        {
            let error = error.to_string();
            self.output.log(LogLine::RegistrationUnknown { error });
            self.connections().connect(Target::ResourceManager);
        }
    }

    fn generations_read(&mut self, now: Uptime, answer: Result<StoredJobs, NoAnswer>) {
        let last_contact = self.leader.last_contact();
        let timeout = self.options.job_manager_failover_timeout;
        let check = &mut self.generation_check;
        let verdict = check.finish(now, answer, last_contact, timeout, &mut self.output);
        let mut slots = self.slot_allocation(now);
        match verdict {
            None => {}
            Some(Verdict::Stored(stored)) => {
                stored.into_iter().for_each(|job| slots.apply_stored(job));
            }
            Some(Verdict::Unreachable) => slots.end_all_jobs(
                "neither a leader nor the store was reached for job-manager-failover-timeout",
            ),
        }
    }

    fn task_changed(
        &mut self,
        now: Uptime,
        task: TaskKey,
        status: TaskStatus,
        metrics: Option<pb::TaskMetrics>,
    ) {
        let TaskKey { job, execution } = task;
        if let TaskStatus::Failed { cause, .. } = &status {
            self.output.log(LogLine::TaskFailed {
                job,
                vertex: execution.vertex,
                subtask: execution.subtask,
                generation: execution.generation,
                cause: cause.clone(),
            });
        }
        if let Some(known) = self.jobs.get_mut(job) {
            known.task_changed(now, execution, status, metrics, &mut self.output);
        }
    }

    /// Takes the collected lines for the log, which precede the effects.
    pub(crate) fn take_log(&mut self) -> Vec<LogLine> {
        self.output.take_log()
    }

    /// Takes the collected effects.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        self.output.take_effects()
    }

    /// Whether any task runs.
    pub(crate) fn is_running(&self) -> bool {
        self.jobs.is_running()
    }

    /// Whether it accepts no more slots.
    pub(crate) fn is_draining(&self) -> bool {
        self.lifecycle.is_draining()
    }

    /// Timeout of a read of the stored generations.
    pub(crate) fn read_timeout(&self) -> Duration {
        self.isolated.read_timeout(self.options.rpc_timeout)
    }

    /// The messages with which it disconnects, after it has stopped.
    pub(crate) fn disconnect_messages(&self, cause: &str) -> DisconnectMessages {
        let location = &self.description.location;
        let resource_manager = self.resource_manager.is_registered().then(|| {
            let request = pb::DisconnectTaskExecutorRequest {
                sender: Some(self.resource_manager.sender()),
                resource_id: location.resource_id.clone(),
                incarnation: location.incarnation.clone(),
                cause: cause.to_owned(),
            };
            (self.resource_manager.address().to_owned(), request)
        });
        let jobs = self.jobs.iter();
        let registered = jobs.filter(|job| job.connection().is_registered());
        let job_masters = registered.map(|job| {
            let (address, request) = job.disconnect_message(location, cause);
            (job.id(), address, request)
        });
        DisconnectMessages {
            resource_manager,
            job_masters: job_masters.collect(),
        }
    }

    /// Number of outputs that may still be read here: `unread`, those that consumers have not read to their end,
    /// known to the exchange, plus those of blocking edges, which stay until they are released.
    fn kept_outputs(&self, unread: usize) -> usize {
        unread + self.jobs.output_count()
    }

    /// Every slot with the number of tasks that run in it.
    fn slot_report(&self) -> pb::SlotReport {
        let tasks = self.jobs.tasks_by_allocation();
        let tasks = |allocation| tasks.get(&allocation).copied();
        self.slots.report(|of| tasks(of).unwrap_or_default())
    }

    /// Timeouts for tasks that are cancelled.
    fn cancellation_timeouts(&self, now: Uptime) -> CancellationTimeouts {
        CancellationTimeouts {
            from: now,
            timeout: self.options.task_cancellation_timeout,
            interval: self.options.task_cancellation_interval,
        }
    }
}
