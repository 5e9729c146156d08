//! The loop of a ResourceManager: feeds the core and runs its effects. Decides nothing itself.
//!
//! Owns the core, the gateways of TaskExecutors, and the cells that notify JobMasters. Calls to TaskExecutors, writes
//! and acts of the driver run in tasks that end with the actor. Their results go to the core, which drops those of a
//! registration that has ended.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::fencing::sender_of;
use tanist_gateway::refusals::{self, RefusalCheck};
use tanist_gateway::{
    Departure, GatewayError, GatewayResult, GoneTaskManager, JobMasterRegistration, Leaving,
    ResourceOverview, ResourceRequirements, TaskExecutorGateway, Unfulfillable, Verdict,
};
use tanist_ha::clock::{Started, Uptime, wall_clock_ms};
use tanist_ha::failpoint::failpoint;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::v1 as pb;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::core::slot_manager::{Shortage, SlotRequest, Turn};
use super::core::workers;
use super::core::{Connection, Contact, Effect, Event, ResourceManagerCore};
use super::drains::DrainChange;
use super::{Options, ResourceManagerServices, log};

/// Capacity of the mailbox, in messages.
pub(super) const MAILBOX: usize = 256;

/// Receives the answer to a message.
pub(super) type Reply<T> = oneshot::Sender<GatewayResult<T>>;

tanist_proto::resource_manager_methods! { tanist_gateway::requests! {
    /// A request of a TaskExecutor.
    Request, Reply;
} }

/// A message to the actor.
#[derive(Debug)]
pub(super) enum Message {
    Request(Request),
    RegisterJobMaster(JobMasterRegistration, Reply<()>),
    Declare(ResourceRequirements, Reply<()>),
    DisconnectJobMaster(JobId, Departure, Reply<()>),
    Drain(Box<pb::DrainTaskManagerRequest>, Reply<()>),
    DismissWorkers(Reply<()>),
    Overview(Reply<ResourceOverview>),
    Contacts(Reply<Vec<Contact>>),
}

/// The result of a call.
#[derive(Debug)]
enum Called {
    /// It is for the core.
    Event(Event),
    /// A TaskExecutor was sent something that it only acknowledges.
    Told {
        to: Connection,
        answer: GatewayResult<pb::Ack>,
    },
    /// A decision about drains was written, or writing it failed.
    DrainWritten {
        change: DrainChange,
        answer: GatewayResult<()>,
        reply: Reply<()>,
    },
}

/// See the module.
pub(super) struct Actor {
    options: Options,
    /// Converts between tokio's clock and the time of the core.
    started: Started,
    services: ResourceManagerServices,
    core: ResourceManagerCore,
    messages: mpsc::Receiver<Message>,
    shortages: watch::Sender<BTreeMap<JobId, Shortage>>,
    cancel: CancellationToken,
    calls: JoinSet<Called>,
    /// Registered JobMasters, each with the cell that notifies it.
    job_masters: BTreeMap<JobId, JobMasterRegistration>,
    /// Drain requests that are not decided yet, in order.
    drains_asked: VecDeque<(Box<pb::DrainTaskManagerRequest>, Reply<()>)>,
    /// Whether a drain decision is being written.
    is_deciding_drain: bool,
    ended_connections: Option<broadcast::Receiver<Arc<str>>>,
    /// The gateways of registered TaskExecutors, with their addresses. Held, so that their connections stay open: the
    /// end of one shows that its process may be gone.
    gateways: BTreeMap<ResourceId, (String, Arc<dyn TaskExecutorGateway>)>,
}

/// Waits for the next connection that ends. Returns its address; `None`: some were missed.
async fn next_ended(ended: &mut Option<broadcast::Receiver<Arc<str>>>) -> Option<Arc<str>> {
    let received = match ended {
        Some(ended) => ended.recv().await,
        None => std::future::pending().await,
    };
    match received {
        Ok(address) => Some(address),
        Err(RecvError::Lagged(_)) => None,
        Err(RecvError::Closed) => {
            *ended = None;
            None
        }
    }
}

impl Actor {
    pub(super) fn new(
        options: Options,
        services: ResourceManagerServices,
        core: ResourceManagerCore,
        messages: mpsc::Receiver<Message>,
        shortages: watch::Sender<BTreeMap<JobId, Shortage>>,
        cancel: CancellationToken,
        started: Started,
    ) -> Actor {
        let ended_connections = services.connector.ended_connections();
        Actor {
            ended_connections,
            gateways: BTreeMap::new(),
            options,
            started,
            services,
            core,
            messages,
            shortages,
            cancel,
            calls: JoinSet::new(),
            job_masters: BTreeMap::new(),
            drains_asked: VecDeque::new(),
            is_deciding_drain: false,
        }
    }

    pub(super) async fn run(mut self) {
        self.run_effects();
        loop {
            let due = self.started.sleep_until(self.core.next_deadline());
            // In this order: an answer that is there counts before a deadline, so that no TaskExecutor is lost that has
            // answered.
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => break,
                Some(called) = self.calls.join_next() => match called {
                    Ok(called) => self.called(called),
                    // The lost event is unknown, so this state can't be trusted any more.
                    Err(failure) => {
                        tracing::error!(%failure, "a call of the ResourceManager panicked");
                        break;
                    }
                },
                address = next_ended(&mut self.ended_connections) => {
                    self.core.handle(self.started.uptime(), Event::ConnectionEnded(address));
                }
                () = due => self.core.handle(self.started.uptime(), Event::TimePassed),
                message = self.messages.recv() => match message {
                    Some(message) => self.handle(message),
                    None => break,
                },
            }
            self.run_effects();
        }
        self.calls.shutdown().await;
    }

    fn request(&mut self, now: Uptime, request: Request) {
        match request {
            Request::RegisterTaskExecutor(request, reply) => {
                let answer = self.core.register(now, *request);
                let cluster = self.core.term().incarnation.to_string();
                self.answer(reply, answer.map(|answer| answer.into_message(&cluster)));
            }
            Request::NotifySlotsAvailable(request, reply) => {
                let answer = self.core.slots_available(now, *request);
                self.answer(reply, answer);
            }
            Request::DisconnectTaskExecutor(request, reply) => {
                let answer = self.core.goodbye(now, &request);
                if answer.is_ok()
                    && let Ok(id) = request.resource_id.parse::<ResourceId>()
                {
                    self.gateways.remove(&id);
                }
                self.answer(reply, answer);
            }
        }
    }

    fn handle(&mut self, message: Message) {
        let now = self.started.uptime();
        self.core.credit_standstill(now);
        match message {
            Message::Request(request) => self.request(now, request),
            Message::RegisterJobMaster(registration, reply) => {
                let answer = self.register_job_master(now, registration);
                self.answer(reply, answer);
            }
            Message::Declare(requirements, reply) => {
                let answer = self.core.declare(now, requirements);
                self.answer(reply, answer);
            }
            Message::DisconnectJobMaster(job, departure, reply) => {
                if self.core.disconnect_job_master(now, job, departure) {
                    self.job_masters.remove(&job);
                }
                self.answer(reply, Ok(()));
            }
            Message::Drain(request, reply) => {
                self.drains_asked.push_back((request, reply));
                self.decide_drains();
            }
            Message::DismissWorkers(reply) => {
                self.core.handle(now, Event::ClusterEnds);
                self.answer(reply, Ok(()));
            }
            Message::Overview(reply) => {
                let wall_clock_ms = wall_clock_ms();
                let overview = ResourceOverview {
                    task_managers: self.core.overview(now, wall_clock_ms),
                    unmatched_drains: self.core.unmatched_drains(now),
                    workers: self.core.workers_overview(now, wall_clock_ms),
                };
                self.answer(reply, Ok(overview));
            }
            Message::Contacts(reply) => {
                let contacts = self.core.contacts(now);
                self.answer(reply, Ok(contacts));
            }
        }
    }

    fn register_job_master(
        &mut self,
        now: Uptime,
        registration: JobMasterRegistration,
    ) -> GatewayResult<()> {
        let (job, job_master) = (registration.job, registration.job_master);
        let replaced = self.core.register_job_master(now, job, job_master)?;
        let before = self.job_masters.insert(job, registration);
        if let Some(older) = before.filter(|_| replaced.is_some()) {
            older.verdict.change(|verdict| verdict.is_superseded = true);
        }
        self.tell_unfulfillable(job, self.core.unfulfillable(job).cloned());
        self.tell_room(job, self.core.has_room(job));
        self.tell_leaving(job, self.core.leaving(job));
        Ok(())
    }

    /// Decides drain requests one after the other: each decision depends on the state that the last one left in
    /// the store.
    fn decide_drains(&mut self) {
        while !self.is_deciding_drain
            && let Some((request, reply)) = self.drains_asked.pop_front()
        {
            match self.core.decide_drain(wall_clock_ms(), &request) {
                Ok(None) => self.answer(reply, Ok(())),
                Ok(Some(change)) => {
                    self.is_deciding_drain = true;
                    let pipeline = self.services.drains.pipeline.clone();
                    self.calls.spawn(async move {
                        failpoint("drain.deciding").await;
                        let answer = change.commit(pipeline.as_ref()).await;
                        failpoint("drain.decided").await;
                        Called::DrainWritten {
                            change,
                            answer,
                            reply,
                        }
                    });
                }
                Err(error) => self.answer(reply, Err(error)),
            }
        }
    }

    /// Notifies a JobMaster of the TaskManagers that its job must leave.
    fn tell_leaving(&self, job: JobId, leaving: Arc<Leaving>) {
        if let Some(job_master) = self.job_masters.get(&job) {
            let verdict = &job_master.verdict;
            if verdict.look(|known| known.leaving != leaving) {
                verdict.change(|known| known.leaving = leaving);
            }
        }
    }

    /// Notifies a JobMaster of a TaskManager that is gone.
    fn tell_gone(&self, job: JobId, gone: GoneTaskManager) {
        if let Some(job_master) = self.job_masters.get(&job) {
            job_master.verdict.change(|known| known.gone.push(gone));
        }
    }

    /// Notifies a JobMaster whether the cluster has room for its job.
    fn tell_room(&self, job: JobId, has_room: bool) {
        if let Some(job_master) = self.job_masters.get(&job) {
            let verdict = &job_master.verdict;
            if verdict.look(|known| known.has_room != has_room) {
                let change = |known: &mut Verdict| {
                    known.has_room = has_room;
                    known.room_changes += 1;
                };
                match has_room {
                    // The JobMaster has nothing to do: it takes this before its next event, and then fails no region.
                    true => verdict.change_quietly(change),
                    false => verdict.change(change),
                }
            }
        }
    }

    /// Notifies a JobMaster of the requirement that no TaskExecutor can fulfil, or that there is none.
    fn tell_unfulfillable(&self, job: JobId, unfulfillable: Option<Unfulfillable>) {
        if let Some(job_master) = self.job_masters.get(&job) {
            let verdict = &job_master.verdict;
            if verdict.look(|known| known.unfulfillable.as_deref() != unfulfillable.as_ref()) {
                verdict.change(|known| known.unfulfillable = unfulfillable.map(Box::new));
            }
        }
    }

    fn called(&mut self, called: Called) {
        let now = self.started.uptime();
        match called {
            Called::Event(event) => self.core.handle(now, event),
            Called::Told { to, answer } => {
                if let Err(error) = answer {
                    tracing::debug!(task_manager = %to.worker, %error, "a call failed");
                }
            }
            Called::DrainWritten {
                change,
                answer,
                reply,
            } => {
                if answer.is_ok() {
                    let wall_ms = wall_clock_ms();
                    let event = Event::DrainDecided { change, wall_ms };
                    self.core.handle(now, event);
                }
                self.answer(reply, answer);
                self.is_deciding_drain = false;
                self.decide_drains();
            }
        }
    }

    /// Answers a request. The caller may have gone: then the answer is dropped.
    fn answer<T>(&mut self, reply: Reply<T>, answer: GatewayResult<T>) {
        // First, so that the log has the reason when the caller has the answer.
        self.write_log();
        let _ = reply.send(answer);
    }

    fn write_log(&mut self) {
        self.core.take_log().into_iter().for_each(log::write);
    }

    fn run_effects(&mut self) {
        self.write_log();
        for effect in self.core.take_effects() {
            match effect {
                Effect::Heartbeat {
                    to,
                    asked_at,
                    is_draining,
                    is_releasing,
                } => self.heartbeat(to, asked_at, is_draining, is_releasing),
                Effect::RequestSlot { to, request } => self.request_slot(to, request),
                Effect::FreeSlots {
                    to,
                    allocations,
                    cause,
                } => {
                    let allocation_ids = allocations.iter().map(ToString::to_string).collect();
                    let sender = Some(self.sender(&to));
                    let request = pb::FreeSlotsRequest {
                        sender,
                        allocation_ids,
                        cause,
                    };
                    self.tell(to, async move |gateway| gateway.free_slots(request).await);
                }
                Effect::Disconnect { to, cause } => {
                    self.gateways.remove(&to.worker);
                    let sender = Some(self.sender(&to));
                    let request = pb::DisconnectResourceManagerRequest { sender, cause };
                    self.tell(to, async move |gateway| {
                        gateway.disconnect_resource_manager(request).await
                    });
                }
                Effect::CheckLost { to, reason, check } => self.check_lost(to, reason, check),
                Effect::Worker(effect) => self.act(effect),
                Effect::Unfulfillable { job, verdict } => self.tell_unfulfillable(job, verdict),
                Effect::Room { job, has_room } => self.tell_room(job, has_room),
                Effect::Leaving { job, leaving } => self.tell_leaving(job, leaving),
                Effect::Gone { job, gone } => self.tell_gone(job, gone),
                Effect::HigherEpoch { epoch, teller } => {
                    (self.services.on_higher_epoch)(epoch, &teller);
                }
            }
        }
        let changed = self.core.take_changed_shortages();
        if !changed.is_empty() {
            self.shortages.send_modify(|shortages| {
                for (job, shortage) in changed {
                    match shortage {
                        Some(shortage) => shortages.insert(job, shortage),
                        None => shortages.remove(&job),
                    };
                }
            });
        }
    }

    /// The gateway of a registered TaskExecutor.
    fn gateway(&mut self, to: &Connection) -> Arc<dyn TaskExecutorGateway> {
        if let Some((address, gateway)) = self.gateways.get(&to.worker)
            && *address == to.address
        {
            return gateway.clone();
        }
        let gateway = self.services.connector.task_executor(&to.address);
        let held = (to.address.clone(), gateway.clone());
        self.gateways.insert(to.worker.clone(), held);
        gateway
    }

    fn heartbeat(&mut self, to: Connection, asked_at: Turn, draining: bool, releasing: bool) {
        let gateway = self.gateway(&to);
        let sender = Some(self.sender(&to));
        let timeout = self.options.heartbeat_timeout;
        self.calls.spawn(async move {
            let request = pb::HeartbeatFromResourceManagerRequest {
                sender,
                draining,
                releasing,
            };
            let call = gateway.heartbeat_from_resource_manager(request);
            let answer = bounded(timeout, &to, call).await;
            Called::Event(Event::HeartbeatAnswered {
                to,
                asked_at,
                answer,
            })
        });
    }

    fn request_slot(&mut self, to: Connection, request: SlotRequest) {
        let gateway = self.services.connector.task_executor(&to.address);
        let message = pb::RequestSlotRequest {
            sender: Some(self.sender(&to)),
            slot: request.slot,
            job_id: request.holder.job.to_string(),
            allocation_id: request.holder.allocation.to_string(),
            profile: request.profile.to_message(),
            job_master_address: request.job_master_address.clone(),
        };
        let timeout = self.options.rpc_timeout;
        self.calls.spawn(async move {
            let answer = bounded(timeout, &to, gateway.request_slot(message)).await;
            Called::Event(Event::SlotAnswered {
                to,
                request,
                answer,
            })
        });
    }

    fn act(&mut self, effect: workers::Effect) {
        use workers::Effect;
        let Some(acts) = self.services.acts() else {
            return;
        };
        let record = |id: &ResourceId| self.core.worker_record(id);
        let calls = &mut self.calls;
        match effect {
            Effect::Recover(recorded) => calls
                .spawn(async move { Called::Event(Event::Worker(acts.recover(recorded).await)) }),
            Effect::Start(id) => {
                let Some(record) = record(&id) else { return };
                calls.spawn(
                    async move { Called::Event(Event::Worker(acts.start(id, record).await)) },
                )
            }
            Effect::Watch(id) => {
                calls.spawn(async move { Called::Event(Event::Worker(acts.watch(id).await)) })
            }
            Effect::Release(id) => {
                let Some(record) = record(&id) else { return };
                calls.spawn(
                    async move { Called::Event(Event::Worker(acts.release(id, record).await)) },
                )
            }
            Effect::RemoveRecord(id) => calls
                .spawn(async move { Called::Event(Event::Worker(acts.remove_record(id).await)) }),
            Effect::Stop(id) => {
                calls.spawn(async move { Called::Event(Event::Worker(acts.stop(id).await)) })
            }
            // Not passed on by the core: it sends a heartbeat instead.
            Effect::AskToLeave(_) => return,
        };
    }

    fn check_lost(&mut self, to: Connection, reason: String, check: RefusalCheck) {
        let connector = self.services.connector.clone();
        let refusals = self.services.refusals.clone();
        self.calls.spawn(async move {
            let checking = refusals::is_lost(&*connector, &*refusals, &to.address, check);
            let is_lost = checking.await;
            Called::Event(Event::LossChecked {
                to,
                reason,
                is_lost,
            })
        });
    }

    fn tell<F>(
        &mut self,
        to: Connection,
        call: impl FnOnce(Arc<dyn TaskExecutorGateway>) -> F + Send + 'static,
    ) where
        F: Future<Output = GatewayResult<pb::Ack>> + Send,
    {
        let gateway = self.services.connector.task_executor(&to.address);
        let timeout = self.options.rpc_timeout;
        self.calls.spawn(async move {
            let answer = bounded(timeout, &to, call(gateway)).await;
            Called::Told { to, answer }
        });
    }

    fn sender(&self, to: &Connection) -> pb::Sender {
        let term = self.core.term();
        pb::Sender {
            registration: to.registration,
            ..sender_of(
                &term.incarnation,
                term.epoch,
                &term.holder,
                term.store.as_ref(),
            )
        }
    }
}

async fn bounded<T>(
    timeout: Duration,
    to: &Connection,
    call: impl Future<Output = GatewayResult<T>>,
) -> GatewayResult<T> {
    tokio::time::timeout(timeout, call)
        .await
        .unwrap_or_else(|_elapsed| {
            Err(GatewayError::NoAnswer {
                target: format!("TaskExecutor {} at {}", to.worker, to.address),
                reason: format!("nothing within {timeout:?}"),
            })
        })
}
