//! The JobMaster's loop: feeds the cores of the job and of its checkpoints, runs their effects, and monitors
//! TaskManagers. It owns both cores and decides nothing about the job. `initialization` builds it, `verdict` passes on
//! what the ResourceManager says, `publishing` shows the state of the job to callers.
//!
//! Handlers are synchronous. Each effect that waits (a write, a call, a commit) is a task of this actor,
//! whose result comes back as an event. All tasks end with the actor. Stopping discards the state and
//! notifies no process. If a task panics, it is unknown which effect was lost: the whole JobMaster ends, without a
//! result.

mod initialization;
mod publishing;
mod verdict;
mod wall_clock;

use std::pin::Pin;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::channel::mpsc;
use tanist_gateway::fencing::OnHigherEpoch;
use tanist_gateway::{GatewayError, GatewayResult, Verdict};
use tanist_ha::election::Epoch;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::initialization::{Begun, begin};
use self::wall_clock::WallClock;
use super::calls::{Calls, Done};
use super::checkpointing::{Checkpoints, Exchange};
use super::core::{Effect, Event, JobMasterCore, Needs, Refusal, checkpoints};
use super::failed_job::serve_failed;
use super::handle::{JobMasterHandle, Message, ProgressWriter, Reply};
use super::log;
use super::options::{JobMasterContext, JobMasterOptions};
use super::requests::Replies;
use super::start_limiter::StartPermit;
use super::watch::Peers;

/// The JobMaster of one job in one term.
#[derive(Debug)]
pub struct JobMaster;

impl JobMaster {
    /// Starts it. The ExecutionGraph is built in the actor's own task. If that fails, the job ends as FAILED
    /// with the cause.
    pub fn start(
        options: impl Into<Arc<JobMasterOptions>>,
        context: JobMasterContext,
    ) -> JobMasterHandle {
        let options = options.into();
        // Not tokio's channel: that allocates room for 32 messages, and there may be thousands of JobMasters.
        let (mailbox, messages) = mpsc::channel(options.mailbox_capacity);
        let progress = ProgressWriter::default();
        let handle =
            JobMasterHandle::new(job_id(&context.graph.job_id), mailbox, progress.0.clone());
        // There may be ten thousand JobMasters: large values are kept once, not in every state of the task.
        // Boxed, so that it is freed after the ExecutionGraph is built.
        let beginning = Box::pin(begin(options, Box::new(context), progress));
        tokio::spawn(run(handle.job(), beginning, messages));
        handle
    }
}

async fn run(
    job: JobId,
    beginning: Pin<Box<impl Future<Output = GatewayResult<Begun>>>>,
    messages: mpsc::Receiver<Box<Message>>,
) {
    match beginning.await {
        Ok(Begun::Actor(actor)) => actor.run(messages).await,
        Ok(Begun::Failed(result, progress)) => serve_failed(&result, messages, &progress).await,
        Ok(Begun::Unfit | Begun::Stopped) => {}
        Err(error) => {
            tracing::error!(%job, %error, "JobMaster broke: the Dispatcher starts another one");
        }
    }
}

pub(super) struct JobMasterActor {
    pub(super) options: Arc<JobMasterOptions>,
    pub(super) on_higher_epoch: OnHigherEpoch,
    pub(super) calls: Calls,
    clock: WallClock,
    pub(super) core: Box<JobMasterCore>,
    /// None: the job takes no checkpoints, or it has ended.
    pub(super) checkpoints: Option<Box<Checkpoints>>,
    pub(super) exchange: Exchange,
    /// The result, until the last write of the checkpoints has ended.
    pub(super) ending: Option<Box<pb::JobResult>>,
    pub(super) progress: ProgressWriter,
    pub(super) io: JoinSet<Done>,
    pub(super) peers: Peers,
    pub(super) replies: Replies,
    /// The needs to declare; None: the core has named none yet.
    wanted: Option<Arc<Needs>>,
    /// The ResourceManager's verdict as this actor last took it.
    verdict: Verdict,
    /// Whether a declaration is in flight.
    is_declaring: bool,
    /// Whether the ResourceManager accepted the last declaration.
    is_registered: bool,
    /// Its permit to start, until it has started.
    permit: Option<StartPermit>,
}

/// Whether the loop continues.
pub(super) enum Next {
    Continue,
    /// Ends the actor and notifies no process.
    Forget,
    /// The result of the job is durable: releases TaskManagers and slots, answers, and ends the actor.
    Close(Reply<()>),
}

impl JobMasterActor {
    fn write_log(&mut self) {
        let job = &self.calls.job.job_id;
        let lines = self.core.take_log();
        lines.into_iter().for_each(|line| log::write(job, line));
    }

    async fn run(mut self: Box<Self>, mut messages: mpsc::Receiver<Box<Message>>) {
        // The checkpoints first: the core of the job decides by what they say, e.g. whether its result has to wait.
        self.note_checkpoints([checkpoints::Event::TimePassed]);
        if let Err(refusal) = self.apply(Event::Started) {
            tracing::error!(%refusal, "the first event was refused, which is a bug");
        }
        self.declare();
        let closing = loop {
            let wakeup = self.next_wakeup();
            let next = tokio::select! {
                biased;
                () = self.progress.to_stop() => Next::Forget,
                verdict = self.calls.verdict.find(|verdict| (*verdict != self.verdict).then(|| verdict.clone())) => {
                    self.take_verdict(verdict)
                }
                Some(done) = self.io.join_next() => match done {
                    Ok(done) => self.note_done(done),
                    // It is unknown which effect was lost, so this state can't be used any more.
                    Err(error) => {
                        let job = &self.calls.job.job_id;
                        tracing::error!(job, %error, "JobMaster broke: the Dispatcher starts another one");
                        Next::Forget
                    }
                },
                message = messages.next() => match message {
                    // `has_room` wakes no JobMaster when it is set, but descriptions show it.
                    Some(message) => match self.check_verdict() {
                        Next::Continue => self.answer(*message),
                        ended => ended,
                    },
                    None => Next::Forget,
                },
                () = tokio::time::sleep_until(wakeup) => {
                    self.tick();
                    Next::Continue
                }
            };
            match next {
                Next::Continue if self.is_unfit() => break None,
                Next::Continue => {}
                Next::Forget => break None,
                Next::Close(reply) => break Some(reply),
            }
        };
        self.io.shutdown().await;
        if let Some(reply) = closing {
            let closing = Box::pin(self.calls.close(self.core.connections()));
            tokio::select! {
                () = self.progress.to_stop() => {}
                () = closing => {}
            }
            // A caller that is gone needs no answer.
            let _ = reply.send(Ok(()));
        }
    }

    /// Whether the job can't be executed from its records.
    fn is_unfit(&self) -> bool {
        self.progress.0.look(|progress| progress.unfit.is_some())
    }

    /// Gives an event to the core and starts its effects. Returns the answer to an offer.
    pub(super) fn apply(&mut self, event: Event) -> Result<pb::OfferSlotsResponse, Refusal> {
        // `has_room` wakes no JobMaster when it is set. It is taken before every event, since the core fails no region
        // while it is set.
        self.take_room();
        self.apply_one(event)
    }

    fn apply_one(&mut self, event: Event) -> Result<pb::OfferSlotsResponse, Refusal> {
        self.credit_standstill();
        let is_registration = matches!(event, Event::Registered { .. });
        let effects = self.core.handle(self.clock.now_ms(), event);
        self.write_log();
        let effects = effects?;
        self.take_news(is_registration);
        let mut answer = pb::OfferSlotsResponse::default();
        self.follow_peers();
        for effect in effects {
            match effect {
                Effect::AnswerOffer { accepted, rejected } => {
                    answer.accepted_allocation_ids = texts(&accepted);
                    answer.rejected_allocation_ids = texts(&rejected);
                }
                Effect::Declare(needs) => {
                    self.wanted = Some(needs);
                    self.declare();
                }
                Effect::Quarantine(reason) => {
                    let job = &self.calls.job.job_id;
                    tracing::error!(job, reason, "state is damaged: the job is quarantined");
                    self.progress.0.change(|progress| {
                        progress.reconciled.get_or_insert_default();
                        progress.unfit = Some(reason.into());
                    });
                }
                Effect::AnswerCancels(answer) => self.replies.answer_cancels(&answer),
                Effect::AnswerStops(answer) => self.replies.answer_stops(&answer),
                Effect::AnswerCoordinator { token, answer } => {
                    self.replies.answer_ask(token, answer)
                }
                Effect::End(result) => {
                    self.ending = Some(result);
                    self.publish_end();
                }
                Effect::Deploy {
                    connection,
                    mut tasks,
                } => {
                    if self.restore_tasks(&mut tasks) {
                        let deploy = Effect::Deploy { connection, tasks };
                        self.calls.start(&mut self.io, &self.core, deploy);
                    }
                }
                effect @ (Effect::Persist { .. }
                | Effect::Prepare { .. }
                | Effect::Cancel { .. }
                | Effect::Acknowledge { .. }
                | Effect::FreeSlots { .. }
                | Effect::AskReport(_)
                | Effect::Disconnect { .. }
                | Effect::CommitSinks(_)) => {
                    self.calls.start(&mut self.io, &self.core, effect);
                }
            }
        }
        self.settle_checkpoints();
        self.publish_begun();
        self.publish_reconciled();
        Ok(answer)
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    pub(super) fn instant(&self, at_ms: u64) -> Instant {
        self.clock.instant(at_ms)
    }

    /// Like [`JobMasterActor::apply`], for events whose refusal (the connection is gone meanwhile) needs no
    /// answer.
    pub(super) fn note(&mut self, event: Event) {
        if let Err(refusal) = self.apply(event) {
            tracing::debug!(job = self.calls.job.job_id, %refusal, "late event dropped");
        }
    }

    fn note_done(&mut self, done: Done) -> Next {
        match done {
            Done::TermOver => {
                tracing::info!(
                    job = self.calls.job.job_id,
                    "the term is over, its JobMaster stops"
                );
                return Next::Forget;
            }
            Done::Local(event) => self.note(event),
            Done::Checkpoint(event) if self.ending.is_some() => self.note_last_write(event),
            Done::Checkpoint(event) => {
                self.note_recorded(&event);
                self.note_checkpoints([event]);
            }
            Done::CheckpointCommitted { number, progress } => self.note_committed(number, progress),
            Done::CheckpointStorage { event, problem } => {
                self.note_storage(problem);
                return self.note_done(Done::Checkpoint(event));
            }
            Done::Nothing => {}
            Done::MarksLeft => self.note_marks_left(),
            Done::FilesLeft { regions, received } => self.note_files_left(&regions, received),
            Done::CheckpointCalled {
                called,
                connection,
                events,
                reports,
            } => {
                self.note_checkpoints(events);
                // The answer itself first: it may report executions. Then the reports about their checkpoints.
                let next = self.note_done(*called);
                self.note_full_report(&connection, reports);
                return next;
            }
            Done::LossChecked {
                connection,
                cause,
                is_lost,
            } => self.apply_check(connection, cause, is_lost),
            Done::Declared { wanted, answer } => {
                self.is_declaring = false;
                self.is_registered = answer.is_ok();
                if let Err(error @ GatewayError::Outdated { .. }) = &answer {
                    tracing::warn!(job = self.calls.job.job_id, %error, "replaced by another JobMaster");
                    return Next::Forget;
                }
                if answer.is_err() || self.wanted != wanted {
                    self.declare();
                }
            }
            Done::Called {
                connection,
                event,
                error,
                is_heartbeat,
            } => {
                let lost = self.note_called(&connection, error.as_ref(), is_heartbeat);
                if let Some(GatewayError::Outdated { epoch, .. }) = &error
                    && *epoch > self.calls.sender.epoch
                {
                    let teller = format!("TaskManager {}", connection.task_manager);
                    (self.on_higher_epoch)(Epoch::new(*epoch), &teller);
                }
                if let Some(event) = event {
                    self.note(event);
                }
                if let Some(cause) = lost {
                    self.lose(connection, cause);
                }
            }
        }
        Next::Continue
    }

    fn next_wakeup(&mut self) -> Instant {
        let core = self
            .core
            .next_deadline_ms()
            .map(|at_ms| self.clock.instant(at_ms));
        let permit = self.permit.as_ref().map(|permit| permit.until);
        let checkpoints = self.checkpoints_due();
        let due = [core, permit, checkpoints].into_iter().flatten();
        due.fold(self.peers.next_deadline(), Instant::min)
    }

    fn tick(&mut self) {
        self.credit_standstill();
        self.lose_silent();
        let now = Instant::now();
        self.permit.take_if(|permit| permit.until <= now);
        let interval = self.options.heartbeat_interval;
        if self.peers.take_heartbeats_due(now, interval) {
            for (connection, location, allocations) in self.core.connections() {
                if self.peers.begin_heartbeat(&connection) {
                    let as_of = (self.core.turn(), self.core.tells_to_stop());
                    self.calls
                        .heartbeat(&mut self.io, connection, &location, &allocations, as_of);
                }
            }
            self.declare();
        }
        self.note(Event::TimePassed);
        self.note_checkpoints([checkpoints::Event::TimePassed]);
    }
}

fn texts<T: std::fmt::Display>(ids: &[T]) -> Vec<String> {
    ids.iter().map(T::to_string).collect()
}

/// Parses the id of a graph's job.
pub(super) fn job_id(text: &str) -> JobId {
    text.parse().unwrap_or(JobId::from_bits(0))
}
