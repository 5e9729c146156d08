//! The JobMaster's loop: feeds the core, runs its effects, and monitors TaskManagers. It decides nothing
//! about the job.
//!
//! Handlers are synchronous. Each effect that waits (a write, a call, a commit) is a task of this actor,
//! whose result comes back as an event. All tasks end with the actor. Stopping discards the state and
//! notifies no process.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::channel::mpsc;
use rand::Rng as _;
use tanist_gateway::fencing::OnHigherEpoch;
use tanist_gateway::{Adoption, Detail, GatewayError, GatewayResult, GoneTaskManager, Verdict};
use tanist_ha::clock::{millis, wall_clock_ms};
use tanist_ha::election::Epoch;
use tanist_ha::failpoint::failpoint_of;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::calls::{Calls, Done};
use super::checkpointing::{self, Checkpoints, Exchange, Unread};
use super::core::{
    BuildError, Effect, Event, JobMasterCore, Needs, Refusal, RestorePoints, checkpoints,
    failed_initialization,
};
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
        let seen = ProgressWriter::default();
        let handle = JobMasterHandle::new(job_id(&context.graph.job_id), mailbox, seen.0.clone());
        // There may be ten thousand JobMasters: large values are kept once, not in every state of the task.
        // Boxed, so that it is freed after the ExecutionGraph is built.
        let beginning = Box::pin(begin(options, Box::new(context), seen));
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
        Ok(Begun::Failed(result, seen)) => serve_failed(&result, messages, &seen).await,
        Ok(Begun::Unfit | Begun::Stopped) => {}
        Err(error) => tracing::error!(%job, %error, "JobMaster broke"),
    }
}

/// The result of building the ExecutionGraph.
enum Begun {
    Actor(Box<JobMasterActor>),
    /// The job can't be initialized.
    Failed(Arc<pb::JobResult>, ProgressWriter),
    /// The job can't be initialized, but it could before: its records are damaged. That ends no job.
    Unfit,
    /// The JobMaster was stopped before it got its permit to start.
    Stopped,
}

async fn begin(
    options: Arc<JobMasterOptions>,
    mut context: Box<JobMasterContext>,
    seen: ProgressWriter,
) -> GatewayResult<Begun> {
    let mut permit = None;
    if context.is_recovered {
        tokio::select! {
            biased;
            () = seen.to_stop() => return Ok(Begun::Stopped),
            acquired = context.start_limiter.acquire() => permit = Some(acquired),
        }
        failpoint_of("job.recover", &context.graph.job_id).await;
    }
    let found = {
        let mut finding = std::pin::pin!(checkpointing::find(&options.checkpoints, &context));
        loop {
            let permit_ends = async {
                match &permit {
                    Some(permit) => tokio::time::sleep_until(permit.until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = seen.to_stop() => return Ok(Begun::Stopped),
                found = &mut finding => break found,
                // An object that can't be read at present delays this job alone.
                () = permit_ends => permit = None,
            }
        }
    };
    let found = match found {
        Ok(found) => found,
        Err(Unread::TermOver) => return Ok(Begun::Stopped),
        Err(Unread::Unfit(reason)) => return Ok(unfit(&seen, reason)),
    };
    let clock = WallClock::start();
    let epoch = Epoch::new(context.sender.epoch);
    let had_a_job_master = context.is_recovered && context.state.job_incarnation > 0;
    let points = found.as_ref().map(checkpointing::Found::points);
    let core = build(&options, &mut context, points, epoch, clock.now_ms());
    match core {
        Ok(core) => {
            let (graph, now_ms) = (&context.graph, clock.now_ms());
            let is_first = !had_a_job_master;
            let begun = checkpointing::begin(found, &core, graph, is_first, epoch, now_ms);
            let checkpoints = match begun {
                Ok(checkpoints) => checkpoints,
                Err(unreadable) => return Ok(unfit(&seen, unreadable.to_string())),
            };
            let calls = Calls::new(
                &options,
                &context,
                core.graph().clone(),
                core.job_incarnation(),
            )
            .await?;
            Ok(Begun::Actor(Box::new(JobMasterActor {
                calls,
                clock,
                core,
                checkpoints,
                exchange: Exchange::default(),
                ending: None,
                seen,
                io: JoinSet::new(),
                peers: Peers::new(Instant::now() + first_heartbeat(options.heartbeat_interval)),
                replies: Replies::default(),
                wanted: None,
                verdict: Verdict::default(),
                is_declaring: false,
                is_registered: false,
                permit,
                options,
                on_higher_epoch: context.on_higher_epoch.clone(),
            })))
        }
        Err(unbuilt) if had_a_job_master => Ok(unfit(&seen, unbuilt.error.to_string())),
        Err(Unbuilt { result, .. }) => {
            let retained = found.and_then(|found| found.retained(result.status()));
            seen.0.change(|seen| {
                seen.reconciled = Some(Adoption::default());
                seen.retained = retained;
                seen.outcome = Some(result.clone());
            });
            Ok(Begun::Failed(result, seen))
        }
    }
}

/// Says why no JobMaster can be built from the job's records.
fn unfit(seen: &ProgressWriter, reason: String) -> Begun {
    seen.0.change(|seen| {
        seen.reconciled = Some(Adoption::default());
        seen.unfit = Some(reason.into());
    });
    Begun::Unfit
}

/// A job for which no ExecutionGraph can be built.
struct Unbuilt {
    error: BuildError,
    /// The job's result, used if it never had an ExecutionGraph.
    result: Arc<pb::JobResult>,
}

/// Builds the core with the state from the context.
fn build(
    options: &JobMasterOptions,
    context: &mut JobMasterContext,
    points: Option<Arc<RestorePoints>>,
    epoch: Epoch,
    now_ms: u64,
) -> Result<Box<JobMasterCore>, Unbuilt> {
    let state = Arc::new(std::mem::take(&mut context.state));
    let mut core = JobMasterCore::build_from(
        (context.graph.clone(), state.clone(), points),
        context.is_recovered,
        options.core_options(),
        (epoch, now_ms),
    );
    if let Ok(core) = &mut core {
        let lines = core.take_log();
        lines
            .into_iter()
            .for_each(|line| log::write(&context.graph.job_id, line));
    }
    core.map(Box::new).map_err(|error| {
        let cause = format!("the job can't be initialized: {error}");
        tracing::warn!(job = context.graph.job_id, %error, "job can't be initialized");
        let result = failed_initialization(&context.graph, &state, cause, epoch, now_ms);
        let result = Arc::new(result);
        Unbuilt { error, result }
    })
}

/// Wall-clock time that never goes back: read once, then advanced by tokio's clock.
#[derive(Debug, Clone, Copy)]
struct WallClock {
    start_ms: u64,
    start: Instant,
}

impl WallClock {
    fn start() -> WallClock {
        WallClock {
            start_ms: wall_clock_ms(),
            start: Instant::now(),
        }
    }

    fn now_ms(&self) -> u64 {
        self.start_ms.saturating_add(millis(self.start.elapsed()))
    }

    fn instant(&self, at_ms: u64) -> Instant {
        self.start + Duration::from_millis(at_ms.saturating_sub(self.start_ms))
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
    pub(super) seen: ProgressWriter,
    pub(super) io: JoinSet<Done>,
    pub(super) peers: Peers,
    pub(super) replies: Replies,
    wanted: Option<Arc<Needs>>,
    /// The ResourceManager's verdict as this actor last took it.
    verdict: Verdict,
    is_declaring: bool,
    /// Whether the ResourceManager accepted the last declaration.
    is_registered: bool,
    /// Its permit to start, until it has started.
    permit: Option<StartPermit>,
}

/// How the loop goes on.
pub(super) enum Next {
    Continue,
    Forget,
    Close(Reply<()>),
}

impl JobMasterActor {
    /// Takes the ResourceManager's verdict if it has changed since this actor last took it.
    fn check_verdict(&mut self) -> Next {
        let verdict = self
            .calls
            .verdict
            .look(|verdict| (*verdict != self.verdict).then(|| verdict.clone()));
        match verdict {
            Some(verdict) => self.take_verdict(verdict),
            None => Next::Continue,
        }
    }

    /// Passes on the changed parts of the ResourceManager's verdict.
    fn take_verdict(&mut self, verdict: Verdict) -> Next {
        if verdict.is_superseded {
            tracing::warn!(job = self.calls.job.job_id, "replaced by another JobMaster");
            return Next::Forget;
        }
        // The room is not taken from this copy, which may be out of date by now.
        let taken = Verdict {
            has_room: self.verdict.has_room,
            room_changes: self.verdict.room_changes,
            // These are taken from the cell.
            gone: Vec::new(),
            ..verdict.clone()
        };
        let before = std::mem::replace(&mut self.verdict, taken);
        self.take_room();
        self.take_gone();
        if verdict.leaving != before.leaving {
            self.note(Event::Leaving(verdict.leaving));
        }
        if verdict.unfulfillable != before.unfulfillable {
            self.note(Event::Unfulfillable(verdict.unfulfillable));
        }
        Next::Continue
    }

    /// Takes whether the cluster has room for the job, as the ResourceManager says at this moment.
    fn take_room(&mut self) {
        let room = |verdict: &Verdict| (verdict.has_room, verdict.room_changes);
        let (has_room, room_changes) = self.calls.verdict.look(room);
        if room_changes == self.verdict.room_changes {
            return;
        }
        self.verdict.room_changes = room_changes;
        let had_room = std::mem::replace(&mut self.verdict.has_room, has_room);
        // There was room in between: the time without room begins at its end.
        let missed = (!had_room && !has_room).then_some(true);
        for has_room in missed.into_iter().chain([has_room]) {
            if let Err(refusal) = self.apply_one(Event::HasRoom(has_room)) {
                tracing::error!(job = self.calls.job.job_id, %refusal, "a change of the room was refused, which is a bug");
            }
        }
    }

    /// Takes the TaskManagers that the ResourceManager found gone, and gives those up.
    fn take_gone(&mut self) {
        let mut gone = Vec::new();
        let take = |verdict: &mut Verdict| gone = std::mem::take(&mut verdict.gone);
        self.calls.verdict.change_quietly(take);
        for GoneTaskManager {
            id,
            incarnation,
            cause,
        } in gone
        {
            let location = self.core.location(&id);
            // Another process may have registered under its id.
            let is_registered = location.is_some_and(|it| it.incarnation == incarnation);
            match self.core.connection(&id).filter(|_| is_registered) {
                Some(connection) => self.lose(connection, cause),
                // Its executions may be awaited.
                None => self.note(Event::TaskManagerGone {
                    task_manager: id,
                    incarnation,
                }),
            }
        }
    }

    fn write_log(&mut self) {
        let job = &self.calls.job.job_id;
        let lines = self.core.take_log();
        lines.into_iter().for_each(|line| log::write(job, line));
    }

    async fn run(mut self: Box<Self>, mut messages: mpsc::Receiver<Box<Message>>) {
        // First, so that what this core knows of the checkpoints is true when it decides.
        self.note_checkpoints([checkpoints::Event::TimePassed]);
        if let Err(refusal) = self.apply(Event::Started) {
            tracing::error!(%refusal, "the first event was refused, which is a bug");
        }
        self.declare();
        let closing = loop {
            let wakeup = self.next_wakeup();
            let next = tokio::select! {
                biased;
                () = self.seen.to_stop() => Next::Forget,
                verdict = self.calls.verdict.find(|verdict| (*verdict != self.verdict).then(|| verdict.clone())) => {
                    self.take_verdict(verdict)
                }
                Some(done) = self.io.join_next() => match done {
                    Ok(done) => self.note_done(done),
                    // It is unknown which effect was lost, so this state can't be used any more.
                    Err(error) => {
                        tracing::error!(job = self.calls.job.job_id, %error, "JobMaster broke");
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
                () = self.seen.to_stop() => {}
                () = closing => {}
            }
            // A caller that is gone needs no answer.
            let _ = reply.send(Ok(()));
        }
    }

    /// Whether the job can't be executed from its records.
    fn is_unfit(&self) -> bool {
        self.seen.0.look(|seen| seen.unfit.is_some())
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
                    self.seen.0.change(|seen| {
                        seen.reconciled.get_or_insert_default();
                        seen.unfit = Some(reason.into());
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

    /// Publishes the result, once no write of the checkpoints is under way: the result is written by the Dispatcher,
    /// and replaces their record.
    pub(super) fn publish_end(&mut self) {
        let is_writing = |it: &Checkpoints| it.is_writing();
        if self.checkpoints.as_deref().is_some_and(is_writing) {
            return;
        }
        let Some(mut result) = self.ending.take() else {
            return;
        };
        if let Some(checkpoints) = &self.checkpoints {
            let failed = checkpoints.failed_savepoints();
            result.remove.get_or_insert_default().savepoints = failed;
        }
        let (status, cause) = (result.status(), result.cause.as_str());
        tracing::info!(job = result.job_id, ?status, cause, "job ended");
        let result: Arc<pb::JobResult> = Arc::from(self.described(result));
        // Nothing of them is written after it.
        let checkpoints = self.checkpoints.take();
        let retained = checkpoints.and_then(|it| it.end(result.status()));
        self.seen.0.change(|seen| {
            seen.retained = retained;
            seen.outcome = Some(result);
        });
    }

    /// The description of the job.
    pub(super) fn details(&self, detail: Detail) -> pb::JobDetails {
        let mut details = self.core.details();
        details.checkpoints = self.checkpoint_details(detail);
        details
    }

    /// A result, with the description of the job's checkpoints.
    fn described(&self, mut result: Box<pb::JobResult>) -> Box<pb::JobResult> {
        let status = result.status();
        let kept = self.checkpoints.as_ref();
        let kept = kept.map_or(0, |checkpoints| checkpoints.kept_after(status));
        if let Some(details) = &mut result.details {
            details.checkpoints = self.checkpoint_details(Detail::Full);
            if let Some(checkpoints) = &mut details.checkpoints {
                checkpoints.kept = kept;
                checkpointing::end_open(checkpoints);
            }
        }
        result
    }

    fn checkpoint_details(&self, detail: Detail) -> Option<pb::CheckpointDetails> {
        let checkpoints = self.checkpoints.as_ref()?;
        Some(checkpoints.details(&self.core, detail))
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    pub(super) fn instant(&self, at_ms: u64) -> Instant {
        self.clock.instant(at_ms)
    }

    /// Publishes, once, that the record names this JobMaster.
    fn publish_begun(&mut self) {
        if self.core.is_durable() && self.seen.0.look(|seen| seen.begun.is_none()) {
            self.permit = None;
            let incarnation = self.core.job_incarnation();
            self.seen.0.change(|seen| seen.begun = Some(incarnation));
        }
    }

    /// Publishes, once, that nothing is awaited any more.
    fn publish_reconciled(&self) {
        let is_published = self.seen.0.look(|seen| seen.reconciled.is_some());
        if !is_published && let Some(adoption) = self.core.adoption() {
            self.seen.0.change(|seen| seen.reconciled = Some(adoption));
        }
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
            Done::FilesLeft { regions } => self.note_files_left(&regions),
            Done::CheckpointCalled {
                called,
                connection,
                events,
                reports,
            } => {
                self.note_checkpoints(events);
                // First what it says of executions.
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

    fn declare(&mut self) {
        if !self.is_declaring {
            self.is_declaring = true;
            let (wanted, is_registered) = (self.wanted.clone(), self.is_registered);
            self.calls.declare(&mut self.io, wanted, is_registered);
        }
    }
}

fn texts<T: std::fmt::Display>(ids: &[T]) -> Vec<String> {
    ids.iter().map(T::to_string).collect()
}

/// Delay of the first heartbeat. It is random: all jobs of a term start together, and their heartbeats would
/// otherwise coincide forever.
fn first_heartbeat(interval: Duration) -> Duration {
    interval.mul_f64(rand::rng().random_range(0.5..=1.0))
}

/// Parses the id of a graph's job.
pub(super) fn job_id(text: &str) -> JobId {
    text.parse().unwrap_or(JobId::from_bits(0))
}
