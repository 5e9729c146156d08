//! Gateways of a ResourceManager and a JobMaster for tests of the TaskExecutor: they answer as the test says, and
//! report all messages to their [`super::scripted_leader::Leader`]. They send nothing themselves.

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_gateway::registration::Answer;
use tanist_gateway::{GatewayError, GatewayResult, JobMasterGateway, ResourceManagerGateway};
use tanist_proto::v1 as pb;
use tokio::sync::mpsc;

/// A message that a leader receives.
#[derive(Debug)]
pub(crate) enum Heard {
    AtResourceManager(Box<pb::RegisterTaskExecutorRequest>),
    AtJobMaster(pb::RegisterTaskManagerRequest),
    Slots(pb::NotifySlotsAvailableRequest),
    Offer(pb::OfferSlotsRequest),
    Update(pb::UpdateTaskExecutionStatesRequest),
    Checkpoints(pb::ReportCheckpointsRequest),
    DisconnectedResourceManager(pb::DisconnectTaskExecutorRequest),
    DisconnectedJobMaster(pb::DisconnectTaskManagerRequest),
}

/// Scripted answers of the ResourceManager and the JobMaster of one leader.
#[derive(Debug)]
pub(crate) struct Script {
    epoch: u64,
    heard: mpsc::Sender<Heard>,
    pub is_rejecting_offers: Mutex<bool>,
    /// Offers are received and never answered.
    pub is_ignoring_offers: Mutex<bool>,
    pub rejection: Mutex<Option<String>>,
    /// The cluster incarnation that its ResourceManager and JobMaster name.
    pub incarnation: Mutex<String>,
    /// The highest registrations that ResourceManager and JobMaster have seen.
    pub highest: Mutex<(u64, u64)>,
}

impl Script {
    /// Accepts everything, and reports it to `heard`.
    pub(crate) fn new(epoch: u64, heard: mpsc::Sender<Heard>) -> Script {
        Script {
            epoch,
            heard,
            is_rejecting_offers: Mutex::new(false),
            is_ignoring_offers: Mutex::new(false),
            rejection: Mutex::new(None),
            incarnation: Mutex::new("c1".to_owned()),
            highest: Mutex::new((0, 0)),
        }
    }

    async fn hear(&self, heard: Heard) {
        // The test may have dropped the leader.
        let _gone = self.heard.send(heard).await;
    }

    fn answer(&self, sender: Option<&pb::Sender>, highest: u64) -> pb::RegistrationResponse {
        let rejection = self.rejection.lock().clone();
        let number = sender.expect("a sender").registration;
        let answer = match rejection {
            Some(reason) => Answer::Rejection(reason),
            None if number <= highest => Answer::TooLow { highest },
            None => Answer::Success(pb::RegistrationSuccess {
                resource_id: "leader".to_owned(),
                cluster_id: "test".to_owned(),
                cluster_incarnation: "c1".to_owned(),
                epoch: self.epoch,
                heartbeat_interval_ms: 10_000,
                heartbeat_timeout_ms: 50_000,
                draining: false,
            }),
        };
        answer.into_message(&self.incarnation.lock())
    }
}

#[async_trait]
impl ResourceManagerGateway for Script {
    async fn register_task_executor(
        &self,
        request: pb::RegisterTaskExecutorRequest,
    ) -> GatewayResult<pb::RegistrationResponse> {
        let highest = self.highest.lock().0;
        let answer = self.answer(request.sender.as_ref(), highest);
        self.hear(Heard::AtResourceManager(Box::new(request))).await;
        Ok(answer)
    }

    async fn notify_slots_available(
        &self,
        request: pb::NotifySlotsAvailableRequest,
    ) -> GatewayResult<pb::Ack> {
        self.hear(Heard::Slots(request)).await;
        Ok(pb::Ack {})
    }

    async fn disconnect_task_executor(
        &self,
        request: pb::DisconnectTaskExecutorRequest,
    ) -> GatewayResult<pb::Ack> {
        self.hear(Heard::DisconnectedResourceManager(request)).await;
        Ok(pb::Ack {})
    }
}

#[async_trait]
impl JobMasterGateway for Script {
    async fn register_task_manager(
        &self,
        request: pb::RegisterTaskManagerRequest,
    ) -> GatewayResult<pb::RegisterTaskManagerResponse> {
        let highest = self.highest.lock().1;
        let registration = Some(self.answer(request.sender.as_ref(), highest));
        self.hear(Heard::AtJobMaster(request)).await;
        Ok(pb::RegisterTaskManagerResponse {
            registration,
            job_incarnation: 1,
        })
    }

    async fn offer_slots(
        &self,
        request: pb::OfferSlotsRequest,
    ) -> GatewayResult<pb::OfferSlotsResponse> {
        let ids = request
            .offers
            .iter()
            .map(|offer| offer.allocation_id.clone())
            .collect();
        self.hear(Heard::Offer(request)).await;
        if *self.is_ignoring_offers.lock() {
            std::future::pending::<()>().await;
        }
        let mut answer = pb::OfferSlotsResponse::default();
        if *self.is_rejecting_offers.lock() {
            answer.rejected_allocation_ids = ids;
        } else {
            answer.accepted_allocation_ids = ids;
        }
        Ok(answer)
    }

    async fn update_task_execution_states(
        &self,
        request: pb::UpdateTaskExecutionStatesRequest,
    ) -> GatewayResult<pb::UpdateTaskExecutionStatesResponse> {
        self.hear(Heard::Update(request)).await;
        Ok(pb::UpdateTaskExecutionStatesResponse {})
    }

    async fn report_checkpoints(
        &self,
        request: pb::ReportCheckpointsRequest,
    ) -> GatewayResult<pb::ReportCheckpointsResponse> {
        self.hear(Heard::Checkpoints(request)).await;
        Ok(pb::ReportCheckpointsResponse {})
    }

    async fn fail_slot(&self, _: pb::FailSlotRequest) -> GatewayResult<pb::Ack> {
        Ok(pb::Ack {})
    }

    async fn ask_coordinator(
        &self,
        _: pb::AskCoordinatorRequest,
    ) -> GatewayResult<pb::AskCoordinatorResponse> {
        Err(GatewayError::Internal("nothing asks".to_owned()))
    }

    async fn disconnect_task_manager(
        &self,
        request: pb::DisconnectTaskManagerRequest,
    ) -> GatewayResult<pb::Ack> {
        self.hear(Heard::DisconnectedJobMaster(request)).await;
        Ok(pb::Ack {})
    }
}
