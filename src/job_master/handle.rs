//! The handle of a running JobMaster: the calls of TaskManagers, as [`JobMasterGateway`], and those of the
//! Dispatcher.
//!
//! Cheap to clone. Decides nothing: every call is a message to the actor.

use std::sync::Arc;

use async_trait::async_trait;
use futures::SinkExt as _;
use futures::channel::mpsc;
use tanist_compact::WatchCell;
use tanist_gateway::{Adoption, Detail, GatewayError, GatewayResult, JobMasterGateway};
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::v1 as pb;
use tokio::sync::oneshot;

pub(super) type Reply<T> = oneshot::Sender<GatewayResult<T>>;

tanist_proto::job_master_methods! { tanist_gateway::requests! {
    /// A request of a TaskManager.
    Request, Reply;
} }

/// A message to the actor, with the channel for its answer.
#[derive(Debug)]
pub(super) enum Message {
    Request(Request),
    /// This incarnation of a TaskManager is gone.
    Gone(ResourceId, String),
    Cancel(Reply<()>),
    StopJob(Reply<()>),
    TriggerSavepoint(Box<pb::TriggerSavepointRequest>, Reply<()>),
    Describe(Detail, Reply<pb::JobDetails>),
    ResultWritten(Reply<()>),
}

/// The states that callers may wait for. One cell for all of them: there may be thousands of JobMasters.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The job's result. The JobMaster writes nothing after it.
    pub(super) outcome: Option<Arc<pb::JobResult>>,
    /// What stays of the job's checkpoints after it.
    pub(super) retained: Option<Arc<pb::JobCheckpoints>>,
    /// The outcome of the adoption, once nothing that the record places is awaited.
    pub(super) reconciled: Option<Adoption>,
    /// The incarnation of this JobMaster, once the record names it.
    pub(super) begun: Option<u64>,
    /// Why no JobMaster could be built from the records of a job that had one before, or why none can go on.
    pub(super) unfit: Option<Box<str>>,
    /// The JobMaster has to stop.
    is_to_stop: bool,
    /// None of its tasks runs any more.
    is_over: bool,
}

/// The JobMaster's end of its progress. Marks it as over when dropped.
#[derive(Debug, Default)]
pub(super) struct ProgressWriter(pub(super) WatchCell<Progress>);

impl ProgressWriter {
    /// Waits until the JobMaster has to stop.
    pub(super) async fn to_stop(&self) {
        let is_to_stop = |progress: &Progress| progress.is_to_stop.then_some(());
        self.0.find(is_to_stop).await;
    }
}

impl Drop for ProgressWriter {
    fn drop(&mut self) {
        self.0.change(|progress| progress.is_over = true);
    }
}

/// A running JobMaster.
#[derive(Debug, Clone)]
pub struct JobMasterHandle {
    shared: Arc<Shared>,
}

/// The shared part of all handles of a JobMaster.
#[derive(Debug)]
struct Shared {
    job: JobId,
    /// Boxed messages, because the channel keeps room for one more.
    mailbox: mpsc::Sender<Box<Message>>,
    progress: WatchCell<Progress>,
}

impl JobMasterHandle {
    pub(super) fn new(
        job: JobId,
        mailbox: mpsc::Sender<Box<Message>>,
        progress: WatchCell<Progress>,
    ) -> JobMasterHandle {
        let shared = Arc::new(Shared {
            job,
            mailbox,
            progress,
        });
        JobMasterHandle { shared }
    }

    pub(super) fn job(&self) -> JobId {
        self.shared.job
    }

    /// Cancels the job. Returns once the cancellation is durable; [`GatewayError::Conflict`] if the job ends
    /// in another way.
    pub async fn cancel(&self) -> GatewayResult<()> {
        self.ask(Message::Cancel).await
    }

    /// Ends the job's sources, so that it finishes. Returns once that decision is durable;
    /// [`GatewayError::Conflict`] if the job ends in another way.
    pub async fn stop_job(&self) -> GatewayResult<()> {
        self.ask(Message::StopJob).await
    }

    /// Takes a savepoint of the job, and with it stops the job if the request says so. Returns once the request is
    /// durable; [`GatewayError::Conflict`] if the job ends, or can have no savepoint.
    pub async fn trigger_savepoint(
        &self,
        request: pb::TriggerSavepointRequest,
    ) -> GatewayResult<()> {
        let request = Box::new(request);
        self.ask(|reply| Message::TriggerSavepoint(request, reply))
            .await
    }

    /// The present state of the job.
    pub async fn describe(&self, detail: Detail) -> GatewayResult<pb::JobDetails> {
        self.ask(|reply| Message::Describe(detail, reply)).await
    }

    /// Waits for the job's result. The caller writes it, *dirty*: the cleanup after the job is still to be done.
    /// `None`: the JobMaster was stopped, its term is over (the job goes on elsewhere), or it broke (another one may
    /// be started from the stored record).
    pub async fn ended(&self) -> Option<Arc<pb::JobResult>> {
        self.wait_for(|progress| progress.outcome.clone()).await
    }

    /// After [`JobMasterHandle::ended`]: the record of the checkpoints that stay after the job. `None`: none stays.
    pub fn retained_checkpoints(&self) -> Option<Arc<pb::JobCheckpoints>> {
        self.shared
            .progress
            .look(|progress| progress.retained.clone())
    }

    /// If this JobMaster ended because none could be built from the records of a job that had one before, or because
    /// the state of a region is damaged: the reason.
    pub fn unfit(&self) -> Option<String> {
        let progress = &self.shared.progress;
        progress.look(|progress| progress.unfit.as_deref().map(str::to_owned))
    }

    /// Reports that this incarnation of a TaskManager is known to be gone. The JobMaster no longer waits for
    /// executions that the record places there.
    pub fn report_task_manager_lost(&self, resource_id: ResourceId, incarnation: String) {
        let message = Box::new(Message::Gone(resource_id, incarnation));
        // Each sender has room for one message. A JobMaster that has ended waits for nothing.
        let _ = self.shared.mailbox.clone().try_send(message);
    }

    /// Waits until nothing that the record places is awaited any more. `None`: the JobMaster stopped before.
    pub async fn reconciled(&self) -> Option<Adoption> {
        self.wait_for(|progress| progress.reconciled).await
    }

    /// Waits until it is durable that this JobMaster has the job. Returns its incarnation, which is above
    /// that of every earlier JobMaster that got so far. `None`: it stopped before.
    pub async fn begun(&self) -> Option<u64> {
        // A job that could not be initialized has an outcome; its JobMaster never begins.
        let begun = |progress: &Progress| match (progress.begun, &progress.outcome) {
            (None, None) => None,
            (begun, _) => Some(begun),
        };
        self.wait_for(begun).await.flatten()
    }

    /// Tells the JobMaster that the job's result is durable. It informs the TaskManagers, gives all slots
    /// back and ends; this returns when that is done.
    pub async fn result_written(&self) -> GatewayResult<()> {
        self.ask(Message::ResultWritten).await
    }

    /// Ends the JobMaster, not the job: it discards its state and notifies no process. Returns when none of
    /// its tasks runs any more.
    pub async fn stop(&self) {
        let progress = &self.shared.progress;
        progress.change(|progress| progress.is_to_stop = true);
        progress
            .find(|progress| progress.is_over.then_some(()))
            .await;
    }

    /// Waits until `find` returns a value. `None`: the JobMaster is over before.
    async fn wait_for<T>(&self, find: impl Fn(&Progress) -> Option<T>) -> Option<T> {
        let found = self.shared.progress.find(|progress| match find(progress) {
            None if !progress.is_over => None,
            found => Some(found),
        });
        found.await
    }

    /// Not an `async fn`, so that the future that waits for the answer has no room for the message.
    fn ask<T>(
        &self,
        message: impl FnOnce(Reply<T>) -> Message,
    ) -> impl Future<Output = GatewayResult<T>> {
        let (reply, answer) = oneshot::channel();
        let message = Box::new(message(reply));
        async move {
            let name = || format!("the JobMaster of {}", self.shared.job);
            let sent = self.shared.mailbox.clone().send(message).await;
            sent.map_err(|_| GatewayError::gone(name()))?;
            let unknown = || GatewayError::Unknown(format!("{} has stopped", name()));
            answer.await.unwrap_or_else(|_| Err(unknown()))
        }
    }
}

tanist_proto::job_master_methods! { tanist_gateway::ask_actor! {
    JobMasterGateway for JobMasterHandle, Message, Request;
} }

/// Implements the refusal of any request.
macro_rules! refusal {
    ($($(#[$doc:meta])* $variant:ident $method:ident($message:ident) -> $answer:ident;)*) => {
        impl Request {
            /// Answers with an error. A caller that is gone needs no answer.
            pub(super) fn refuse(self, error: GatewayError) {
                match self {
                    $(Request::$variant(_, reply) => drop(reply.send(Err(error))),)*
                }
            }
        }
    };
}

tanist_proto::job_master_methods! { refusal! {} }
