//! Runs the effects of a TaskExecutor's core: registers, calls, starts and ends tasks. Decides nothing, and does
//! not wait: long work runs in a task of the actor, and its result comes back to the loop in [`super`].
//!
//! At most one run of attempts to register is active for a target: a new run ends the old one.

use std::sync::Arc;

use rand::Rng as _;
use tanist_gateway::{GatewayError, GatewayResult, NoAnswer};
use tanist_proto::id::JobId;
use tokio::sync::Notify;
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
            Effect::Offer { to, request } => {
                let JobMasterAddress { job, address, run } = to;
                let gateway = self.services.connector.job_master(&address, job);
                let call = async move { gateway.offer_slots(request).await };
                self.call(address, call, move |answer| Event::SlotsOffered {
                    job,
                    run,
                    answer,
                });
            }
            Effect::Update { to, request } => {
                let JobMasterAddress { job, address, run } = to;
                let gateway = self.services.connector.job_master(&address, job);
                let call = async move { gateway.update_task_execution_states(request).await };
                self.call(address, call, move |answer| Event::ExecutionsReported {
                    job,
                    run,
                    answer,
                });
            }
            Effect::AskCoordinator {
                to,
                request_id,
                request,
            } => {
                let JobMasterAddress { job, address, run } = to;
                let gateway = self.services.connector.job_master(&address, job);
                let call = async move { gateway.ask_coordinator(request).await };
                self.call(address, call, move |answer| Event::CoordinatorAnswered {
                    job,
                    run,
                    request_id,
                    answer,
                });
            }
            Effect::AnswerCoordinatorRequest { request_id, answer } => {
                self.replies.answer(request_id, answer);
            }
            Effect::ReadGenerations(jobs) => self.read_generations(jobs),
            Effect::Extend(job, ends) => self.services.launcher.may_run_until(job, ends),
            Effect::Start(task, start) => self.start(task, *start),
            Effect::Cancel(task) => {
                if let Some(running) = self.running.get(&task) {
                    running.cancel();
                }
            }
            Effect::Stop(task) => {
                if let Some(running) = self.running.get(&task) {
                    running.stop();
                }
            }
            Effect::ReleaseTask(TaskKey { job, execution: of }) => {
                self.services
                    .launcher
                    .release_task(job, of.vertex, of.subtask, of.generation);
            }
            Effect::ReleaseFiles(job) => self.services.launcher.release_files(job),
            Effect::Release(job) => self.services.launcher.release_job(job, ALL_GENERATIONS),
            Effect::Fatal(cause) => {
                match &cause {
                    Fatal::Drained => tracing::info!("drained: the task executor ends"),
                    Fatal::Refused(_) | Fatal::CancellationTimedOut(_) | Fatal::Broken(_) => {
                        tracing::error!(%cause, "the task executor can't continue, its process ends");
                    }
                }
                self.channels.fatal.send_if_modified(|fatal| {
                    let is_first = fatal.is_none();
                    fatal.get_or_insert(cause);
                    is_first
                });
            }
        }
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

    fn start(&mut self, task: TaskKey, start: TaskStart) {
        let running = self.services.launcher.start(start);
        let mut status = running.status();
        self.running.insert(task, running);
        let mailbox = self.channels.mailbox.clone();
        self.calls.spawn(async move {
            loop {
                let present = status.borrow_and_update().clone();
                let is_final = present.is_terminal();
                if mailbox.send(Message::Task(task, present)).await.is_err() || is_final {
                    return Called::Done;
                }
                if status.changed().await.is_err() && !status.borrow().is_terminal() {
                    let cause = "the task ended without a result".to_owned();
                    let failed = Message::Task(task, TaskStatus::failed(cause));
                    let _it_ended = mailbox.send(failed).await;
                    return Called::Done;
                }
            }
        });
    }
}
