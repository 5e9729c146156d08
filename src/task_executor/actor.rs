//! The loop of a TaskExecutor: feeds the core, holds the running tasks, and disconnects when it stops. Decides nothing
//! itself; the core's effects are run in [`effects`].
//!
//! Calls run in tasks that end with the actor. Each registration attempt asks the actor for its message, so that
//! number and report are of that moment.

mod attempts;
mod batch_registration;
mod confirmations;
mod coordinator_replies;
mod effects;
pub(crate) mod faults;
mod graph_fetches;
mod restores;
mod snapshot_storage;
mod snapshot_writes;
mod triggers;

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_gateway::blobs::BlobFetcher;
use tanist_gateway::{Connector, GatewayResult, NoAnswer, StoredJobs};
use tanist_ha::clock::{Started, Uptime};
use tanist_ha::retrieval::LeaderView;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::batch_registration::{BatchOutcome, metrics_of};
use self::confirmations::Unconfirmed;
use self::coordinator_replies::CoordinatorReplies;
use self::effects::Registering;
use self::graph_fetches::GraphFetches;
use self::restores::{Restored, Restoring};
use self::snapshot_storage::SnapshotStorage;
use self::snapshot_writes::SnapshotWrites;
use self::triggers::OpenTriggers;
use super::core::{
    DisconnectMessages, Event, GraphKey, LeaderlessTimer, Status, Target, TaskExecutorCore, TaskKey,
};
use super::launcher::{CheckpointStatus, CoordinatorRequest, RunningTask, TaskStatus};
use super::{Fatal, Options, Presence, TaskExecutorServices, log};

/// Capacity of the mailbox, in messages.
pub(super) const MAILBOX: usize = 1024;

/// Receives the answer to a request.
pub(super) type Reply<T> = oneshot::Sender<GatewayResult<T>>;

tanist_proto::task_executor_methods! { tanist_gateway::requests! {
    /// A request over the gateway.
    Request, Reply;
} }

/// A message to the actor.
#[derive(Debug)]
pub(super) enum Message {
    Request(Request),
    PrepareResourceManager {
        run: u64,
        reply: Reply<pb::RegisterTaskExecutorRequest>,
    },
    PrepareJobMaster {
        job: JobId,
        run: u64,
        reply: Reply<pb::RegisterTaskManagerRequest>,
    },
    /// A leader has seen a registration of this number.
    RegistrationSeen(u64),
    Task(TaskKey, TaskStatus),
    Checkpoint(TaskKey, CheckpointStatus),
    /// The snapshot from which a task is restored can't be read at present, for this reason.
    Unread(TaskKey, String),
    /// All notices of a task for users.
    Notices(TaskKey, Vec<String>),
    Stop(String, oneshot::Sender<()>),
}

/// The result of a call.
#[derive(Debug)]
enum Called {
    Event(Event),
    AtJobMasters(Vec<BatchOutcome>),
    Confirmed(Box<Unconfirmed>, Result<StoredJobs, NoAnswer>),
    Fetched(GraphKey, GatewayResult<Arc<pb::JobGraph>>),
    Restored(TaskKey, Box<Restored>),
    /// A write for tasks of a job has ended. The number is that of a write of small snapshots; a write for one task has
    /// none.
    Written(JobId, Option<u64>, Vec<Event>),
    /// Nothing is to be done.
    Done,
}

/// What ends a wait of the loop.
enum Input {
    Leaders(Result<(), watch::error::RecvError>),
    Term,
    Called(Result<Called, tokio::task::JoinError>),
    Deadline,
    KeptOutputs,
    CoordinatorRequest(CoordinatorRequest),
    Message(Message),
}

/// The actor's channels.
pub(super) struct Channels {
    mailbox: mpsc::Sender<Message>,
    messages: mpsc::Receiver<Message>,
    fatal: watch::Sender<Option<Fatal>>,
    presence: watch::Sender<Presence>,
    cancel: CancellationToken,
}

impl Channels {
    /// The ends that the actor has.
    pub(super) fn new(
        mailbox: mpsc::Sender<Message>,
        messages: mpsc::Receiver<Message>,
        fatal: watch::Sender<Option<Fatal>>,
        presence: watch::Sender<Presence>,
        cancel: CancellationToken,
    ) -> Channels {
        Channels {
            mailbox,
            messages,
            fatal,
            presence,
            cancel,
        }
    }
}

/// See the module.
pub(super) struct Actor {
    options: Options,
    /// Converts between tokio's clock and the time of the core.
    started: Started,
    services: TaskExecutorServices,
    core: TaskExecutorCore,
    channels: Channels,
    calls: JoinSet<Called>,
    registering: BTreeMap<Target, Registering>,
    running: BTreeMap<TaskKey, Box<dyn RunningTask>>,
    fetches: GraphFetches,
    fetcher: BlobFetcher,
    replies: CoordinatorReplies,
    triggers: OpenTriggers,
    storage: Arc<SnapshotStorage>,
    writes: SnapshotWrites,
    restoring: BTreeMap<TaskKey, Restoring>,
}

impl Actor {
    pub(super) fn new(
        options: Options,
        services: TaskExecutorServices,
        core: TaskExecutorCore,
        channels: Channels,
        started: Started,
    ) -> Actor {
        let fetcher = BlobFetcher::new(services.connector.clone(), options.rpc_timeout);
        Actor {
            storage: Arc::new(SnapshotStorage::new(options.checkpoints.clone())),
            writes: SnapshotWrites::default(),
            restoring: BTreeMap::new(),
            fetches: GraphFetches::default(),
            fetcher,
            options,
            started,
            services,
            core,
            channels,
            calls: JoinSet::new(),
            registering: BTreeMap::new(),
            running: BTreeMap::new(),
            replies: CoordinatorReplies::default(),
            triggers: OpenTriggers::default(),
        }
    }

    pub(super) async fn run(mut self) {
        let mut leaders = self.services.store.leaders();
        let mut terms = self.services.highest_epoch.subscribe();
        let highest = self.services.highest_epoch.clone();
        self.calls.spawn(async move {
            highest.recheck().await;
            Called::Done
        });
        self.follow_leader(&mut leaders);
        let mut is_followed = true;
        let mut leaderless_timer =
            LeaderlessTimer::new(self.options.registration_timeout, self.started.uptime());
        let mut coordinator_requests = self.services.launcher.coordinator_requests();
        let mut kept_outputs = self.services.launcher.kept_outputs();
        let stopped = loop {
            let unread = *kept_outputs.borrow_and_update();
            let status = self.after_event(unread);
            self.services.guard.set(status.isolated_until);
            let (now, is_registered) = (self.started.uptime(), status.presence.is_registered);
            if let Some(lasts) = leaderless_timer.review(now, is_registered) {
                warn!(
                    ?lasts,
                    "registered at no ResourceManager: there is no leader, or it can't be reached; tasks continue"
                );
            }
            status.presence.publish(&self.channels.presence);
            self.run_effects();
            let (now, at) = (self.started.uptime(), self.services.guard.now());
            let deadlines = [self.core.arm_deadline(now, at), leaderless_timer.deadline()];
            let due = self
                .started
                .sleep_until(deadlines.into_iter().flatten().min());
            let cancel = self.channels.cancel.clone();
            // In this order: many messages delay neither the end of the actor, nor a change of the leader or the term,
            // nor results of calls, nor deadlines.
            let input = tokio::select! {
                biased;
                () = cancel.cancelled() => break None,
                changed = leaders.changed(), if is_followed => Input::Leaders(changed),
                Ok(()) = terms.changed() => Input::Term,
                Some(called) = self.calls.join_next() => Input::Called(called),
                () = due => Input::Deadline,
                Ok(()) = kept_outputs.changed(), if self.core.is_draining() => Input::KeptOutputs,
                Some(request) = next_coordinator_request(&mut coordinator_requests) => {
                    Input::CoordinatorRequest(request)
                }
                Some(message) = self.channels.messages.recv() => Input::Message(message),
            };
            let now = self.started.uptime();
            self.core.woke_up(now);
            match input {
                Input::Leaders(Ok(())) => self.follow_leader(&mut leaders),
                Input::Leaders(Err(_ended)) => is_followed = false,
                Input::Term => {
                    // The believed leader may have been dropped: then the store's leader is followed.
                    if self.core.term_changed(&terms.borrow_and_update()) {
                        self.follow_leader(&mut leaders);
                    }
                }
                Input::Called(called) => self.called(called),
                Input::Deadline => self.core.handle(now, Event::DeadlineReached),
                // The loop reads the number before each wait.
                Input::KeptOutputs => {}
                Input::CoordinatorRequest(request) => self.coordinator_asked(request),
                Input::Message(message) => {
                    if let Some(stop) = self.handle(message) {
                        break Some(stop);
                    }
                }
            }
        };
        if let Some((cause, done)) = stopped {
            self.stop(&cause).await;
            let _caller_is_gone = done.send(());
        }
        self.calls.shutdown().await;
    }

    fn follow_leader(&mut self, leaders: &mut watch::Receiver<LeaderView>) {
        let view = leaders.borrow_and_update().clone();
        let shown = Event::LeaderShown(view);
        self.core.handle(self.started.uptime(), shown);
    }

    fn after_event(&mut self, unread: usize) -> Status {
        let (now, at) = (self.started.uptime(), self.services.guard.now());
        self.core.after_event(now, at, unread)
    }

    fn handle(&mut self, message: Message) -> Option<(String, oneshot::Sender<()>)> {
        let now = self.started.uptime();
        let running = &self.running;
        match message {
            Message::Request(request) => self.request(now, request),
            Message::PrepareResourceManager { run, reply } => {
                let prepared = self.core.prepare_resource_manager(run);
                self.answer(reply, prepared);
            }
            Message::PrepareJobMaster { job, run, reply } => {
                let metrics = |execution: &_| metrics_of(running, job, execution);
                let prepared = self.core.prepare_job_master(now, job, run, &metrics);
                self.answer(reply, prepared);
            }
            Message::RegistrationSeen(number) => {
                self.core.handle(now, Event::RegistrationSeen(number));
            }
            Message::Task(task, status) => {
                let metrics = running.get(&task).map(|running| running.metrics());
                if status.is_terminal() {
                    self.running.remove(&task);
                }
                let changed = Event::TaskChanged {
                    task,
                    status,
                    metrics,
                };
                self.core.handle(now, changed);
            }
            Message::Checkpoint(task, status) => {
                let changed = Event::CheckpointChanged { task, status };
                self.core.handle(now, changed);
            }
            Message::Unread(task, reason) => {
                self.core.handle(now, Event::StateUnread { task, reason });
            }
            Message::Notices(task, notices) => {
                self.core
                    .handle(now, Event::NoticesChanged { task, notices });
            }
            Message::Stop(cause, done) => return Some((cause, done)),
        }
        None
    }

    fn request(&mut self, now: Uptime, request: Request) {
        let core = &mut self.core;
        match request {
            Request::RequestSlot(request, reply) => {
                let answer = core.request_slot(now, &request);
                self.answer(reply, answer);
            }
            Request::FreeSlots(request, reply) => {
                let answer = core.free_slots(now, &request);
                self.answer(reply, answer);
            }
            Request::SubmitTasks(request, reply) => self.submit_tasks(now, *request, reply),
            Request::CancelTasks(request, reply) => {
                let answer = core.cancel_tasks(now, &request);
                self.answer(reply, answer);
            }
            Request::TriggerCheckpoint(request, reply) => {
                self.trigger_requested(now, &request, reply);
            }
            Request::AbortCheckpoint(request, reply) => {
                let answer = core.abort_checkpoint(now, &request);
                self.answer(reply, answer);
            }
            Request::AcknowledgeExecutions(request, reply) => {
                let answer = core.acknowledge_executions(now, &request);
                self.answer(reply, answer);
            }
            Request::HeartbeatFromResourceManager(request, reply) => {
                let unread = *self.services.launcher.kept_outputs().borrow();
                let answer = core.heartbeat_from_resource_manager(now, &request, unread);
                self.answer(reply, answer);
            }
            Request::HeartbeatFromJobMaster(request, reply) => {
                let job = request
                    .job
                    .as_ref()
                    .and_then(|scope| scope.job_id.parse().ok());
                let running = &self.running;
                let metrics =
                    |execution: &_| job.and_then(|job| metrics_of(running, job, execution));
                let answer = core.heartbeat_from_job_master(now, &request, &metrics);
                self.answer(reply, answer);
            }
            Request::AnnounceLeader(request, reply) => {
                let answer = core.announce_leader(now, &request);
                self.answer(reply, answer);
            }
            Request::DisconnectJobMaster(request, reply) => {
                let answer = core.disconnect_job_master(now, &request);
                self.answer(reply, answer);
            }
            Request::DisconnectResourceManager(request, reply) => {
                let answer = core.disconnect_resource_manager(now, &request);
                self.answer(reply, answer);
            }
        }
    }

    /// Answers a request. The caller may have gone: then the answer is dropped.
    fn answer<T>(&mut self, reply: Reply<T>, answer: GatewayResult<T>) {
        // First, so that the log has the reason when the caller has the answer.
        self.write_log();
        let _caller_is_gone = reply.send(answer);
    }

    fn write_log(&mut self) {
        self.core.take_log().into_iter().for_each(log::write);
    }

    fn called(&mut self, called: Result<Called, tokio::task::JoinError>) {
        let now = self.started.uptime();
        match called {
            Ok(Called::Event(event)) => self.core.handle(now, event),
            Ok(Called::AtJobMasters(outcomes)) => self.registered_in_batch(now, outcomes),
            Ok(Called::Confirmed(waiting, answer)) => self.confirmed(now, *waiting, answer),
            Ok(Called::Fetched(key, graph)) => self.graph_fetched(now, key, graph),
            Ok(Called::Restored(task, restored)) => self.restored(task, *restored),
            Ok(Called::Written(job, write, written)) => {
                let events = written.into_iter();
                events.for_each(|event| self.core.handle(now, event));
                self.write_ended(job, write);
            }
            Ok(Called::Done) => {}
            Err(error) if error.is_cancelled() => {}
            Err(error) => tracing::error!(%error, "a call ended without result"),
        }
    }

    async fn stop(&mut self, cause: &str) {
        tracing::info!(cause, "stopping");
        self.core.handle(self.started.uptime(), Event::Stopped);
        let stopped_by = self.started.uptime() + self.options.stop_timeout;
        loop {
            let unread = *self.services.launcher.kept_outputs().borrow();
            self.after_event(unread);
            self.run_effects();
            if !self.core.is_running() {
                break;
            }
            tokio::select! {
                biased;
                () = self.started.sleep_until(Some(stopped_by)) => {
                    tracing::warn!(tasks = self.running.len(), "tasks did not end in time");
                    break;
                }
                // The end of a task that was still being restored is one of them.
                Some(called) = self.calls.join_next() => self.called(called),
                Some(message) = self.channels.messages.recv() => {
                    self.handle(message);
                }
            }
        }
        let connector = self.services.connector.clone();
        let disconnected = disconnect(connector, self.core.disconnect_messages(cause));
        let disconnected = timeout(self.options.stop_timeout, disconnected).await;
        if disconnected.is_err() {
            tracing::warn!("not all disconnect messages were acknowledged in time");
        }
    }
}

async fn disconnect(connector: Arc<dyn Connector>, messages: DisconnectMessages) {
    let resource_manager = async {
        if let Some((address, request)) = messages.resource_manager {
            let gateway = connector.resource_manager(&address);
            log_failure(gateway.disconnect_task_executor(request).await);
        }
    };
    let job_masters = messages
        .job_masters
        .into_iter()
        .map(|(job, address, request)| {
            let gateway = connector.job_master(&address, job);
            async move { log_failure(gateway.disconnect_task_manager(request).await) }
        });
    tokio::join!(resource_manager, futures::future::join_all(job_masters));
}

fn log_failure(answer: GatewayResult<pb::Ack>) {
    if let Err(error) = answer {
        tracing::debug!(%error, "a disconnect message failed");
    }
}

async fn next_coordinator_request(
    coordinator_requests: &mut Option<mpsc::Receiver<CoordinatorRequest>>,
) -> Option<CoordinatorRequest> {
    match coordinator_requests {
        Some(coordinator_requests) => coordinator_requests.recv().await,
        None => std::future::pending().await,
    }
}
