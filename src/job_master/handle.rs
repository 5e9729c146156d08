//! The handle of a running JobMaster: what TaskManagers ask of it, as [`JobMasterGateway`], and what the Dispatcher does.
//!
//! Cheap to clone. Decides nothing: every call is a message to the actor.

use std::sync::Arc;

use async_trait::async_trait;
use futures::SinkExt as _;
use futures::channel::mpsc;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::v1 as pb;
use tokio::sync::oneshot;

use crate::gateway::{Adoption, GatewayError, GatewayResult, JobMasterGateway};
use crate::notice::Notice;

pub(super) type Reply<T> = oneshot::Sender<GatewayResult<T>>;

/// A message to the actor, with where its answer goes.
#[derive(Debug)]
pub(super) enum Message {
    Register(
        pb::RegisterTaskManagerRequest,
        Reply<pb::RegisterTaskManagerResponse>,
    ),
    Offer(pb::OfferSlotsRequest, Reply<pb::OfferSlotsResponse>),
    Update(
        pb::UpdateTaskExecutionStatesRequest,
        Reply<pb::UpdateTaskExecutionStatesResponse>,
    ),
    FailSlot(pb::FailSlotRequest, Reply<pb::Ack>),
    AskCoordinator(pb::AskCoordinatorRequest, Reply<pb::AskCoordinatorResponse>),
    Disconnect(pb::DisconnectTaskManagerRequest, Reply<pb::Ack>),
    Gone(ResourceId, String),
    Cancel(Reply<()>),
    StopJob(Reply<()>),
    Describe(Reply<pb::JobDetails>),
    ResultWritten(Reply<()>),
}

/// What others may wait for. One notice for all of it: there may be thousands of JobMasters.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) outcome: Option<Arc<pb::JobResult>>,
    pub(super) reconciled: Option<Adoption>,
    pub(super) begun: Option<u64>,
    /// Why the records of a job that had a JobMaster before make none.
    pub(super) unfit: Option<Box<str>>,
    /// It is to forget everything.
    is_to_stop: bool,
    /// Nothing of it runs any more.
    is_over: bool,
}

/// The JobMaster's end of its progress. Tells that it is over when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Telling(pub(super) Notice<Progress>);

impl Telling {
    /// Waits until it is to forget everything.
    pub(super) async fn to_stop(&self) {
        let is_to_stop = |progress: &Progress| progress.is_to_stop.then_some(());
        self.0.find(is_to_stop).await;
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.change(|progress| progress.is_over = true);
    }
}

/// A running JobMaster.
#[derive(Debug, Clone)]
pub struct JobMasterHandle {
    reached: Arc<Reached>,
}

/// How a JobMaster is reached.
#[derive(Debug)]
struct Reached {
    job: JobId,
    /// Boxed: the channel keeps room for one more.
    mailbox: mpsc::Sender<Box<Message>>,
    progress: Notice<Progress>,
}

impl JobMasterHandle {
    pub(super) fn new(
        job: JobId,
        mailbox: mpsc::Sender<Box<Message>>,
        progress: Notice<Progress>,
    ) -> JobMasterHandle {
        let reached = Arc::new(Reached {
            job,
            mailbox,
            progress,
        });
        JobMasterHandle { reached }
    }

    pub(super) fn job(&self) -> JobId {
        self.reached.job
    }

    /// Cancels the job. Answered once it is durable that the job is canceled; [`GatewayError::Conflict`] if it ends
    /// otherwise.
    pub async fn cancel(&self) -> GatewayResult<()> {
        self.ask(Message::Cancel).await
    }

    /// Has the job's sources end, so that it finishes. Answered once that is durable; [`GatewayError::Conflict`] if it ends
    /// otherwise.
    pub async fn stop_job(&self) -> GatewayResult<()> {
        self.ask(Message::StopJob).await
    }

    /// The job as it is right now.
    pub async fn describe(&self) -> GatewayResult<pb::JobDetails> {
        self.ask(Message::Describe).await
    }

    /// Waits for the job's result, which is for the caller to write; it is dirty. `None`: the JobMaster was stopped, or
    /// its term is over (the job goes on elsewhere), or it broke (a new one may be started from the stored record).
    pub async fn ended(&self) -> Option<Arc<pb::JobResult>> {
        self.told(|progress| progress.outcome.clone()).await
    }

    /// Why the records of a job that had a JobMaster before make none, where this one ended for that.
    pub fn unfit(&self) -> Option<String> {
        let progress = &self.reached.progress;
        progress.look(|progress| progress.unfit.as_deref().map(str::to_owned))
    }

    /// This incarnation of a TaskManager is gone for certain: what the record places there is not waited for any longer.
    pub fn task_manager_gone(&self, resource_id: ResourceId, incarnation: String) {
        let message = Box::new(Message::Gone(resource_id, incarnation));
        // There is room for one message of each sender. If it has ended, nothing is waited for.
        let _ = self.reached.mailbox.clone().try_send(message);
    }

    /// Waits until nothing that the record places is waited for any more. `None`: it stopped before that.
    pub async fn reconciled(&self) -> Option<Adoption> {
        self.told(|progress| progress.reconciled).await
    }

    /// Waits until it is durable that this JobMaster has the job: as which incarnation, above those of all earlier ones for which
    /// that was. `None`: it stopped before that.
    pub async fn begun(&self) -> Option<u64> {
        // One that could not be initialized has an outcome, and never begins.
        let begun = |progress: &Progress| match (progress.begun, &progress.outcome) {
            (None, None) => None,
            (begun, _) => Some(begun),
        };
        self.told(begun).await.flatten()
    }

    /// The job's result is durable: tells the TaskManagers, gives all slots back and ends. Returns when that is done.
    pub async fn result_written(&self) -> GatewayResult<()> {
        self.ask(Message::ResultWritten).await
    }

    /// Ends the JobMaster, not the job: it forgets everything and tells nobody. Returns when nothing of it runs any more.
    pub async fn stop(&self) {
        let progress = &self.reached.progress;
        progress.change(|progress| progress.is_to_stop = true);
        progress
            .find(|progress| progress.is_over.then_some(()))
            .await;
    }

    /// Waits until something is found in its progress. `None`: it is over before that.
    async fn told<T>(&self, find: impl Fn(&Progress) -> Option<T>) -> Option<T> {
        let found = self.reached.progress.find(|progress| match find(progress) {
            None if !progress.is_over => None,
            found => Some(found),
        });
        found.await
    }

    /// Not an `async fn`: what waits for the answer keeps no room for the message.
    fn ask<T>(
        &self,
        message: impl FnOnce(Reply<T>) -> Message,
    ) -> impl Future<Output = GatewayResult<T>> {
        let (reply, answer) = oneshot::channel();
        let message = Box::new(message(reply));
        async move {
            let name = || format!("the JobMaster of {}", self.reached.job);
            let sent = self.reached.mailbox.clone().send(message).await;
            sent.map_err(|_| GatewayError::gone(name()))?;
            let unknown = || GatewayError::Unknown(format!("{} has stopped", name()));
            answer.await.unwrap_or_else(|_| Err(unknown()))
        }
    }
}

#[async_trait]
impl JobMasterGateway for JobMasterHandle {
    async fn register_task_manager(
        &self,
        request: pb::RegisterTaskManagerRequest,
    ) -> GatewayResult<pb::RegisterTaskManagerResponse> {
        self.ask(|reply| Message::Register(request, reply)).await
    }

    async fn offer_slots(
        &self,
        request: pb::OfferSlotsRequest,
    ) -> GatewayResult<pb::OfferSlotsResponse> {
        self.ask(|reply| Message::Offer(request, reply)).await
    }

    async fn update_task_execution_states(
        &self,
        request: pb::UpdateTaskExecutionStatesRequest,
    ) -> GatewayResult<pb::UpdateTaskExecutionStatesResponse> {
        self.ask(|reply| Message::Update(request, reply)).await
    }

    async fn fail_slot(&self, request: pb::FailSlotRequest) -> GatewayResult<pb::Ack> {
        self.ask(|reply| Message::FailSlot(request, reply)).await
    }

    async fn ask_coordinator(
        &self,
        request: pb::AskCoordinatorRequest,
    ) -> GatewayResult<pb::AskCoordinatorResponse> {
        self.ask(|reply| Message::AskCoordinator(request, reply))
            .await
    }

    async fn disconnect_task_manager(
        &self,
        request: pb::DisconnectTaskManagerRequest,
    ) -> GatewayResult<pb::Ack> {
        self.ask(|reply| Message::Disconnect(request, reply)).await
    }
}
