//! The handle of a running JobMaster: what TaskManagers ask of it, as [`JobMasterGateway`], and what the Dispatcher does.
//!
//! Cheap to clone. Decides nothing: every call is a message to the actor.

use std::sync::Arc;

use async_trait::async_trait;
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::gateway::{Adoption, GatewayError, GatewayResult, JobMasterGateway};

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

/// What others may wait for. One channel for all of it: there may be thousands of JobMasters.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) outcome: Option<Arc<pb::JobResult>>,
    pub(super) reconciled: Option<Adoption>,
    pub(super) begun: Option<u64>,
    pub(super) unfit: Option<Box<str>>,
}

/// A running JobMaster.
#[derive(Debug, Clone)]
pub struct JobMasterHandle {
    pub(super) name: Arc<str>,
    /// Boxed: a channel sets memory aside for 32 messages, and there may be thousands of JobMasters.
    pub(super) mailbox: mpsc::Sender<Box<Message>>,
    pub(super) progress: watch::Receiver<Progress>,
    pub(super) stop: CancellationToken,
}

impl JobMasterHandle {
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
        let mut progress = self.progress.clone();
        let ended = progress.wait_for(|progress| progress.outcome.is_some());
        let ended = ended.await.ok();
        ended.and_then(|progress| progress.outcome.clone())
    }

    /// Why the records of a job that had a JobMaster before make none, where this one ended for that.
    pub fn unfit(&self) -> Option<String> {
        let progress = self.progress.borrow();
        progress.unfit.as_deref().map(str::to_owned)
    }

    /// This incarnation of a TaskManager is gone for certain: what the record places there is not waited for any longer.
    /// Must be called within a runtime.
    pub fn task_manager_gone(&self, resource_id: ResourceId, incarnation: String) {
        let message = Box::new(Message::Gone(resource_id, incarnation));
        if let Err(TrySendError::Full(message)) = self.mailbox.try_send(message) {
            let mailbox = self.mailbox.clone();
            tokio::spawn(async move {
                // If it ended meanwhile, nothing is waited for.
                let _ = mailbox.send(message).await;
            });
        }
    }

    /// Waits until nothing that the record places is waited for any more. `None`: it stopped before that.
    pub async fn reconciled(&self) -> Option<Adoption> {
        let mut progress = self.progress.clone();
        let reconciled = progress.wait_for(|progress| progress.reconciled.is_some());
        let reconciled = reconciled.await.ok();
        reconciled.and_then(|progress| progress.reconciled)
    }

    /// Waits until it is durable that this JobMaster has the job: as which incarnation, above those of all earlier ones for which
    /// that was. `None`: it stopped before that.
    pub async fn begun(&self) -> Option<u64> {
        let mut progress = self.progress.clone();
        let begun = progress.wait_for(|progress| progress.begun.is_some());
        let begun = begun.await.ok();
        begun.and_then(|progress| progress.begun)
    }

    /// The job's result is durable: tells the TaskManagers, gives all slots back and ends. Returns when that is done.
    pub async fn result_written(&self) -> GatewayResult<()> {
        self.ask(Message::ResultWritten).await
    }

    /// Ends the JobMaster, not the job: it forgets everything and tells nobody. Returns when nothing of it runs any more.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.mailbox.closed().await;
    }

    async fn ask<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> GatewayResult<T> {
        let (reply, answer) = oneshot::channel();
        self.mailbox
            .send(Box::new(message(reply)))
            .await
            .map_err(|_| GatewayError::gone(&self.name))?;
        let unknown = || GatewayError::Unknown(format!("{} has stopped", self.name));
        answer.await.unwrap_or_else(|_| Err(unknown()))
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
