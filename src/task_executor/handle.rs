//! Handle to the TaskExecutor of this process; cheap to clone.
//!
//! A leader's message waits here until its term is proven, so that the actor only compares epochs: no message of an
//! unproven term reaches it.

use async_trait::async_trait;
use tanist_gateway::fencing::HighestEpoch;
use tanist_gateway::{GatewayError, GatewayResult, TaskExecutorGateway};
use tanist_ha::ask::{Unanswered, ask};
use tanist_proto::v1 as pb;
use tokio::sync::{mpsc, oneshot};

use super::actor::{Message, Reply, Request};

/// See the module.
#[derive(Debug, Clone)]
pub struct TaskExecutorHandle {
    mailbox: mpsc::Sender<Message>,
    terms: HighestEpoch,
}

impl TaskExecutorHandle {
    pub(super) fn new(mailbox: mpsc::Sender<Message>, terms: HighestEpoch) -> TaskExecutorHandle {
        TaskExecutorHandle { mailbox, terms }
    }

    pub(super) async fn send<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<T>) -> Message,
    ) -> Result<T, Unanswered> {
        ask(&self.mailbox, message).await
    }

    async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> GatewayResult<T> {
        let message = |reply| Message::Request(Box::new(request(reply)));
        let answer = self.send(message).await;
        answer.map_err(|_| GatewayError::gone("TaskExecutor"))?
    }
}

/// Implements each method by asking the actor, once the message is valid and its term is proven.
macro_rules! ask {
    ($($method:ident($request:ident) -> $answer:ident = $variant:ident $(if $check:ident)?;)*) => {
        #[async_trait]
        impl TaskExecutorGateway for TaskExecutorHandle {
            $(async fn $method(&self, request: pb::$request) -> GatewayResult<pb::$answer> {
                $($check(&request)?;)?
                self.terms.prove(request.sender.as_ref()).await?;
                self.ask(|reply| Request::$variant(request.into(), reply)).await
            })*
        }
    };
}

ask! {
    request_slot(RequestSlotRequest) -> RequestSlotResponse = AllocateSlot;
    free_slots(FreeSlotsRequest) -> Ack = FreeSlots;
    submit_tasks(SubmitTasksRequest) -> SubmitTasksResponse = SubmitTasks;
    cancel_tasks(CancelTasksRequest) -> Ack = CancelTasks;
    acknowledge_executions(AcknowledgeExecutionsRequest) -> Ack = Acknowledge;
    heartbeat_from_resource_manager(HeartbeatFromResourceManagerRequest)
        -> HeartbeatFromResourceManagerResponse = ResourceManagerHeartbeat;
    heartbeat_from_job_master(HeartbeatFromJobMasterRequest)
        -> HeartbeatFromJobMasterResponse = JobMasterHeartbeat;
    announce_leader(AnnounceLeaderRequest) -> AnnounceLeaderResponse = AnnounceLeader if names_address;
    disconnect_job_master(DisconnectJobMasterRequest) -> Ack = DisconnectJobMaster;
    disconnect_resource_manager(DisconnectResourceManagerRequest) -> Ack = DisconnectResourceManager;
}

/// A leader that can't be reached is not followed, in any term.
fn names_address(request: &pb::AnnounceLeaderRequest) -> GatewayResult<()> {
    if request.leader_rpc_address.is_empty() {
        let reason = "the leader names no address".to_owned();
        return Err(GatewayError::Invalid(reason));
    }
    Ok(())
}
