//! Runs the effects of a TaskExecutor's core: registers, calls, starts and ends tasks. Decides nothing, and does
//! not wait: long work runs in a task of the actor, and its result comes back to the loop in [`super`].
//!
//! At most one run of attempts to register is active for a target: a new run ends the old one.

use std::sync::Arc;

use rand::Rng as _;
use tanist_gateway::{GatewayError, GatewayResult, JobMasterGateway, NoAnswer};
use tanist_ha::failpoint::failpoint;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::attempts::Attempts;
use super::{Actor, Called, Message};
use crate::Fatal;
use crate::core::{ALL_GENERATIONS, Effect, Event, JobMasterAddress, PAUSE, Target, TaskKey};
use crate::launcher::{TaskStart, TaskStatus};

/// A run of attempts to register.
#[derive(Debug)]
pub(super) struct Registering {
    task: AbortHandle,
    wake: Arc<Notify>,
}

impl Actor {
    /// Runs the effects in their order, except registrations at JobMasters. These are collected and run last, so that
    /// many that are due at the same moment go into few messages. An effect of the same turn may have ended or replaced
    /// a run by then: such a run is skipped.
    pub(super) fn run_effects(&mut self) {
        self.write_log();
        let mut at_job_masters = Vec::new();
        for effect in self.core.take_effects() {
            match effect {
                Effect::Register {
                    target: Target::JobMaster(job),
                    address,
                    run,
                } => at_job_masters.push((job, address, run)),
                effect => self.run_effect(effect),
            }
        }
        self.register_at_job_masters(at_job_masters);
    }

    fn run_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Register {
                target,
                address,
                run,
            } => self.register(target, address, run),
            Effect::Wake(target) => {
                if let Some(registering) = self.registering.get(&target) {
                    registering.wake.notify_one();
                }
            }
            Effect::StopRegistering(target) => self.stop_registering(target),
            Effect::NotifySlots {
                address,
                run,
                request,
            } => {
                let gateway = self.services.connector.resource_manager(&address);
                let call = async move { gateway.notify_slots_available(request).await };
                self.call(address, call, move |answer| Event::SlotsNotified {
                    run,
                    answer,
                });
            }
            Effect::Offer { to, request } => self.call_job_master(
                to,
                |gateway| async move { gateway.offer_slots(request).await },
                |job, run, answer| Event::SlotsOffered { job, run, answer },
            ),
            Effect::Update { to, request } => self.call_job_master(
                to,
                |gateway| async move { gateway.update_task_execution_states(request).await },
                |job, run, answer| Event::ExecutionsReported { job, run, answer },
            ),
            Effect::AskCoordinator {
                to,
                request_id,
                request,
            } => self.call_job_master(
                to,
                |gateway| async move { gateway.ask_coordinator(request).await },
                move |job, run, answer| Event::CoordinatorAnswered {
                    job,
                    run,
                    request_id,
                    answer,
                },
            ),
            Effect::AnswerCoordinatorRequest { request_id, answer } => {
                self.replies.answer(request_id, answer);
            }
            Effect::ReadGenerations(jobs) => self.read_generations(jobs),
            Effect::Extend(job, ends) => self.services.launcher.may_run_until(job, ends),
            Effect::ReportCheckpoints { to, call, request } => {
                self.report_checkpoints(to, call, request);
            }
            Effect::WriteSnapshot {
                task,
                number,
                place,
                snapshot,
            } => self.write_snapshot(task, number, place, snapshot),
            Effect::DropSnapshot(task) => self.drop_snapshot(&task),
            Effect::ReleaseSnapshot(task, number, written) => {
                if let Some(running) = self.running.get(&task) {
                    running.release_snapshot(number, written);
                }
            }
            Effect::TriggerCheckpoint {
                request_id,
                barrier,
                sources,
            } => self.trigger_sources(request_id, barrier, sources),
            Effect::AbortCheckpoint(task, number) => self.abort_checkpoint(&task, number),
            Effect::DeclineBlocked(task) => {
                if let Some(running) = self.running.get(&task) {
                    running.decline_blocked("its TaskManager has had no JobMaster for 1 s");
                }
            }
            Effect::Start(task, start) => self.start_or_restore(task, *start),
            Effect::Cancel(task) => self.cancel(task),
            Effect::Stop(task) => self.stop_source(&task),
            Effect::ReleaseTask(TaskKey { job, execution: of }) => {
                self.services
                    .launcher
                    .release_task(job, of.vertex, of.subtask, of.generation);
            }
            Effect::ReleaseFiles(job) => self.services.launcher.release_files(job),
            Effect::Release(job) => {
                self.drop_snapshots_of(job);
                self.services.launcher.release_job(job, ALL_GENERATIONS);
            }
            Effect::Fatal(cause) => self.end_process(cause),
        }
    }

    /// Publishes why the process ends. The first cause stays.
    fn end_process(&self, cause: Fatal) {
        match &cause {
            Fatal::Drained => tracing::info!("drained: the TaskExecutor ends"),
            Fatal::Refused(_) | Fatal::CancellationTimedOut(_) | Fatal::Broken(_) => {
                tracing::error!(%cause, "the TaskExecutor can't continue, its process ends");
            }
        }
        self.channels.fatal.send_if_modified(|fatal| {
            let is_first = fatal.is_none();
            fatal.get_or_insert(cause);
            is_first
        });
    }

    fn report_checkpoints(
        &mut self,
        to: JobMasterAddress,
        call: u64,
        request: pb::ReportCheckpointsRequest,
    ) {
        let acknowledges = request.reports.iter().any(|it| it.snapshot.is_some());
        let report = |gateway: Arc<dyn JobMasterGateway>| async move {
            let answer = gateway.report_checkpoints(request).await;
            if acknowledges {
                failpoint("checkpoint.acknowledged").await;
            }
            answer
        };
        self.call_job_master(to, report, move |job, run, answer| {
            Event::CheckpointsReported {
                job,
                run,
                call,
                answer,
            }
        });
    }

    /// Makes a call to the JobMaster of a job.
    fn call_job_master<T, F>(
        &mut self,
        to: JobMasterAddress,
        call: impl FnOnce(Arc<dyn JobMasterGateway>) -> F,
        answered: impl FnOnce(JobId, u64, GatewayResult<T>) -> Event + Send + 'static,
    ) where
        F: Future<Output = GatewayResult<T>> + Send + 'static,
    {
        let JobMasterAddress { job, address, run } = to;
        let call = call(self.services.connector.job_master(&address, job));
        self.call(address, call, move |answer| answered(job, run, answer));
    }

    /// Makes a call. Its answer, or the timeout, comes back to the loop.
    fn call<T>(
        &mut self,
        address: String,
        call: impl Future<Output = GatewayResult<T>> + Send + 'static,
        answered: impl FnOnce(GatewayResult<T>) -> Event + Send + 'static,
    ) {
        let rpc_timeout = self.options.rpc_timeout;
        self.calls.spawn(async move {
            let answer = timeout(rpc_timeout, call).await;
            Called::Event(answered(answer.unwrap_or_else(|elapsed| {
                Err(GatewayError::NoAnswer {
                    target: address,
                    reason: elapsed.to_string(),
                })
            })))
        });
    }

    pub(super) fn register(&mut self, target: Target, address: String, run: u64) {
        let wake = Arc::new(Notify::new());
        let options = self.options.registration.clone();
        let mailbox = self.channels.mailbox.clone();
        let task = match target {
            Target::ResourceManager => {
                let gateway = self.services.connector.resource_manager(&address);
                let attempts = Attempts::new(options, mailbox, wake.clone(), address, run);
                self.calls.spawn(attempts.at_resource_manager(gateway))
            }
            Target::JobMaster(job) => {
                let gateway = self.services.connector.job_master(&address, job);
                let attempts = Attempts::new(options, mailbox, wake.clone(), address, run);
                self.calls.spawn(attempts.at_job_master(job, gateway))
            }
        };
        if let Some(earlier) = self.registering.insert(target, Registering { task, wake }) {
            earlier.task.abort();
        }
    }

    /// Ends the separate attempts to register at a target.
    pub(super) fn stop_registering(&mut self, target: Target) {
        if let Some(registering) = self.registering.remove(&target) {
            registering.task.abort();
        }
    }

    fn read_generations(&mut self, jobs: Vec<JobId>) {
        let records = self.services.records.clone();
        let read_timeout = self.core.read_timeout();
        // Keeps many TaskExecutors that lost the same leader from asking at the same moment.
        let jitter = PAUSE.mul_f64(rand::rng().random_range(0.0..=1.0 / 3.0));
        self.calls.spawn(async move {
            tokio::time::sleep(jitter).await;
            let late = |_| Err(NoAnswer(format!("none within {read_timeout:?}")));
            let answer = timeout(read_timeout, records.stored_jobs(&jobs)).await;
            Called::Event(Event::GenerationsRead(answer.unwrap_or_else(late)))
        });
    }

    /// This TaskManager, for messages.
    pub(super) fn host(&self) -> String {
        let location = &self.services.description.location;
        format!("{} at {}", location.resource_id, location.rpc_address)
    }

    /// Starts a task, and follows its status, checkpoint status and notices until it ends.
    pub(super) fn start(&mut self, task: TaskKey, start: TaskStart) {
        let running = self.services.launcher.start(start);
        let mut status = running.status();
        let mut checkpoints = running.checkpoints();
        let mut notices = running.notices();
        self.running.insert(task, running);
        let mailbox = self.channels.mailbox.clone();
        self.calls.spawn(async move {
            let (mut has_status, mut has_checkpoints, mut has_notices) = (true, true, true);
            let (mut follows_checkpoints, mut follows_notices) = (true, true);
            loop {
                // The status is taken first and sent last: the end of a task follows all its checkpoints and notices.
                let present = take(&mut status, &mut has_status);
                let is_final = present.is_terminal();
                let checkpoint = take(&mut checkpoints, &mut has_checkpoints);
                let all_notices = take(&mut notices, &mut has_notices);
                let mut changes = Vec::new();
                if std::mem::take(&mut has_notices) && !all_notices.is_empty() {
                    changes.push(Message::Notices(task, all_notices));
                }
                if std::mem::take(&mut has_checkpoints) {
                    changes.push(Message::Checkpoint(task, checkpoint));
                }
                if std::mem::take(&mut has_status) {
                    changes.push(Message::Task(task, present));
                }
                for message in changes {
                    if mailbox.send(message).await.is_err() {
                        return Called::Done;
                    }
                }
                if is_final {
                    return Called::Done;
                }
                let has_result = tokio::select! {
                    changed = status.changed() => {
                        has_status = true;
                        changed.is_ok() || status.borrow().is_terminal()
                    }
                    changed = checkpoints.changed(), if follows_checkpoints => {
                        follows_checkpoints = changed.is_ok();
                        has_checkpoints = follows_checkpoints;
                        true
                    }
                    changed = notices.changed(), if follows_notices => {
                        follows_notices = changed.is_ok();
                        has_notices = follows_notices;
                        true
                    }
                };
                if !has_result {
                    let cause = "the task ended without a result".to_owned();
                    let failed = Message::Task(task, TaskStatus::failed(cause));
                    let _it_ended = mailbox.send(failed).await;
                    return Called::Done;
                }
            }
        });
    }
}

/// The present value of a watch. Sets `is_unsent` if it was not taken before.
fn take<T: Clone>(watched: &mut watch::Receiver<T>, is_unsent: &mut bool) -> T {
    let present = watched.borrow_and_update();
    *is_unsent |= present.has_changed();
    present.clone()
}
