//! A TaskExecutor whose answers to its leaders are recorded.

use std::sync::Arc;

use async_trait::async_trait;
use tanist_gateway::{GatewayError, GatewayResult, TaskExecutorGateway};
use tanist_proto::v1 as pb;

use super::history::Event;
use super::reached::Landmark;
use super::world::World;

/// One life of a TaskManager, as its leaders call it.
#[derive(Debug)]
pub(super) struct ObservedExecutor {
    pub inner: Arc<dyn TaskExecutorGateway>,
    pub world: World,
    pub life: String,
}

impl ObservedExecutor {
    fn note<T>(&self, method: &str, epoch: u64, before: u64, answer: &GatewayResult<T>) {
        let reached = &self.world.reached;
        match answer {
            Ok(_) => {
                let accepted = Event::Accepted {
                    task_manager: self.life.clone(),
                    epoch,
                    before,
                };
                if self.world.accepts(&self.life, epoch) != epoch || epoch < before {
                    self.world.note(accepted);
                }
            }
            Err(GatewayError::Outdated { epoch: heard, .. }) => {
                let is_deployment = method == "submit_tasks";
                if epoch < *heard {
                    reached.note(Landmark::OldEpochRefused);
                    if is_deployment {
                        reached.note(Landmark::DeploymentRefusedByEpoch);
                    }
                } else if is_deployment {
                    reached.note(Landmark::DeploymentRefusedByRegistration);
                }
            }
            Err(_) => {}
        }
    }
}

macro_rules! observed {
    ($($method:ident($request:ident) -> $answer:ident;)*) => {
        #[async_trait]
        impl TaskExecutorGateway for ObservedExecutor {
            $(async fn $method(&self, request: pb::$request) -> GatewayResult<pb::$answer> {
                let epoch = request.sender.as_ref().map_or(0, |sender| sender.epoch);
                let before = self.world.accepts(&self.life, 0);
                let answer = self.inner.$method(request).await;
                self.note(stringify!($method), epoch, before, &answer);
                answer
            })*
        }
    };
}

observed! {
    request_slot(RequestSlotRequest) -> RequestSlotResponse;
    free_slots(FreeSlotsRequest) -> Ack;
    submit_tasks(SubmitTasksRequest) -> SubmitTasksResponse;
    cancel_tasks(CancelTasksRequest) -> Ack;
    trigger_checkpoint(TriggerCheckpointRequest) -> TriggerCheckpointResponse;
    abort_checkpoint(AbortCheckpointRequest) -> Ack;
    acknowledge_executions(AcknowledgeExecutionsRequest) -> Ack;
    heartbeat_from_resource_manager(HeartbeatFromResourceManagerRequest) -> HeartbeatFromResourceManagerResponse;
    heartbeat_from_job_master(HeartbeatFromJobMasterRequest) -> HeartbeatFromJobMasterResponse;
    disconnect_job_master(DisconnectJobMasterRequest) -> Ack;
    disconnect_resource_manager(DisconnectResourceManagerRequest) -> Ack;
    announce_leader(AnnounceLeaderRequest) -> AnnounceLeaderResponse;
}
