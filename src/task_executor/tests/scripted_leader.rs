//! A leader controlled by a test of the TaskExecutor: waits for the messages it receives, and sends requests under
//! the registrations that it received last. Its answers are in [`super::scripted_gateways`].

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tanist_gateway::fencing::sender_of;
use tanist_gateway::{GatewayResult, LocalConnector, TaskExecutorGateway};
use tanist_ha::election::{ClusterIncarnation, Epoch, LeaderInformation, ProcessId, TermHolder};
use tanist_proto::v1 as pb;
use tokio::sync::mpsc;

use super::scripted_gateways::{Heard, Script};
use super::testing::{BOUND, JOB, TE, VERTEX, graph, scope};

/// A ResourceManager and a JobMaster of [`JOB`] at one address, in one term.
#[derive(Debug)]
pub(crate) struct Leader {
    pub epoch: u64,
    address: String,
    connector: LocalConnector,
    heard: tokio::sync::Mutex<mpsc::Receiver<Heard>>,
    /// The present registrations at the ResourceManager and at the JobMaster.
    pub registrations: Mutex<(u64, u64)>,
}

impl Leader {
    /// Starts to listen at `address`.
    pub(crate) fn start(
        connector: &LocalConnector,
        address: &str,
        epoch: u64,
    ) -> (Arc<Script>, Leader) {
        let (sender, heard) = mpsc::channel(1024);
        let script = Arc::new(Script::new(epoch, sender));
        connector.put_resource_manager(address, script.clone());
        connector.put_job_master(address, JOB, script.clone());
        let leader = Leader {
            epoch,
            address: address.to_owned(),
            connector: connector.clone(),
            heard: tokio::sync::Mutex::new(heard),
            registrations: Mutex::new((0, 0)),
        };
        (script, leader)
    }

    /// Waits for the next message that `take` accepts; drops all others.
    pub(crate) async fn wait_for<T>(
        &self,
        what: &str,
        mut take: impl FnMut(Heard) -> Option<T>,
    ) -> T {
        let search = async {
            loop {
                let heard = self
                    .heard
                    .lock()
                    .await
                    .recv()
                    .await
                    .expect("the leader listens");
                match &heard {
                    Heard::AtResourceManager(request) => {
                        self.registrations.lock().0 =
                            request.sender.as_ref().expect("a sender").registration;
                    }
                    Heard::AtJobMaster(request) => {
                        self.registrations.lock().1 =
                            request.sender.as_ref().expect("a sender").registration;
                    }
                    _ => {}
                }
                if let Some(found) = take(heard) {
                    return found;
                }
            }
        };
        tokio::time::timeout(BOUND, search)
            .await
            .unwrap_or_else(|_| panic!("no {what} came"))
    }

    pub(crate) async fn registered(&self) -> pb::RegisterTaskExecutorRequest {
        let take = |heard| match heard {
            Heard::AtResourceManager(request) => Some(*request),
            _ => None,
        };
        self.wait_for("registration at the ResourceManager", take)
            .await
    }

    pub(crate) async fn registered_job(&self) -> pb::RegisterTaskManagerRequest {
        let take = |heard| match heard {
            Heard::AtJobMaster(request) => Some(request),
            _ => None,
        };
        self.wait_for("registration at the JobMaster", take).await
    }

    pub(crate) async fn offered(&self) -> pb::OfferSlotsRequest {
        let take = |heard| match heard {
            Heard::Offer(request) => Some(request),
            _ => None,
        };
        self.wait_for("offer", take).await
    }

    /// Waits for the report of an execution in this state.
    pub(crate) async fn updated(&self, state: pb::ExecutionState) -> pb::ExecutionReport {
        let take = |heard| match heard {
            Heard::Update(request) => request
                .executions
                .into_iter()
                .find(|execution| execution.state() == state),
            _ => None,
        };
        self.wait_for(state.as_str_name(), take).await
    }

    /// Waits for the report of an execution that has ended.
    pub(crate) async fn ended(&self) -> pb::ExecutionReport {
        let final_states = [
            pb::ExecutionState::Finished,
            pb::ExecutionState::Canceled,
            pb::ExecutionState::Failed,
        ];
        let take = |heard| match heard {
            Heard::Update(request) => {
                let mut executions = request.executions.into_iter();
                executions.find(|execution| final_states.contains(&execution.state()))
            }
            _ => None,
        };
        self.wait_for("end of an execution", take).await
    }

    pub(crate) async fn freed(&self, slot: u32) {
        let take = |heard| match heard {
            Heard::Slots(request) => request
                .slots
                .iter()
                .any(|status| status.slot == slot && status.allocation.is_none())
                .then_some(()),
            _ => None,
        };
        self.wait_for("freed slot", take).await;
    }

    pub(crate) fn resource_manager_sender(&self) -> Option<pb::Sender> {
        Some(self.sender(self.registrations.lock().0))
    }

    pub(crate) fn job_master_sender(&self) -> Option<pb::Sender> {
        Some(self.sender(self.registrations.lock().1))
    }

    pub(crate) fn task_executor(&self) -> Arc<dyn TaskExecutorGateway> {
        use tanist_gateway::Connector as _;
        self.connector.task_executor(TE)
    }

    /// The holder of its term.
    pub(crate) fn holder(&self) -> TermHolder {
        TermHolder {
            process: ProcessId::new(self.address.as_str()),
            start: "1".to_owned(),
        }
    }

    pub(crate) fn information(&self) -> LeaderInformation {
        LeaderInformation {
            epoch: Epoch::new(self.epoch),
            process: ProcessId::new(self.address.as_str()),
            addresses: BTreeMap::from([("rpc".to_owned(), self.address.clone())]),
            since_ms: 0,
        }
    }

    /// Announces itself to the TaskExecutor.
    pub(crate) async fn announce(&self) -> GatewayResult<pb::AnnounceLeaderResponse> {
        let request = pb::AnnounceLeaderRequest {
            sender: Some(self.sender(0)),
            leader_rpc_address: self.address.clone(),
            process: self.address.clone(),
            jobs: Vec::new(),
        };
        self.task_executor().announce_leader(request).await
    }

    pub(crate) async fn request_slot(
        &self,
        slot: u32,
        allocation: &str,
    ) -> pb::RequestSlotResponse {
        let request = pb::RequestSlotRequest {
            sender: self.resource_manager_sender(),
            slot,
            job_id: JOB.to_string(),
            allocation_id: allocation.to_owned(),
            profile: None,
            job_master_address: self.address.clone(),
        };
        self.task_executor()
            .request_slot(request)
            .await
            .expect("is registered")
    }

    pub(crate) async fn submit(
        &self,
        generation: u64,
        allocation: &str,
    ) -> GatewayResult<pb::SubmitTasksResponse> {
        let request = self.deployment(0, generation, allocation);
        self.task_executor().submit_tasks(request).await
    }

    /// Deploys subtask 0 of another graph.
    pub(crate) async fn submit_graph(
        &self,
        graph: &pb::JobGraph,
        generation: u64,
        allocation: &str,
    ) -> GatewayResult<pb::SubmitTasksResponse> {
        let request = pb::SubmitTasksRequest {
            graph: Some(graph.clone()),
            ..self.deployment(0, generation, allocation)
        };
        self.task_executor().submit_tasks(request).await
    }

    /// A deployment of a subtask, with its graph.
    pub(crate) fn deployment(
        &self,
        subtask: u32,
        generation: u64,
        allocation: &str,
    ) -> pb::SubmitTasksRequest {
        let deployment = pb::TaskDeployment {
            vertex_id: VERTEX.to_owned(),
            subtask,
            generation,
            allocation_id: allocation.to_owned(),
            takes_checkpoints: true,
            ..pb::TaskDeployment::default()
        };
        pb::SubmitTasksRequest {
            sender: self.job_master_sender(),
            job: scope(),
            graph: Some(graph()),
            tasks: vec![deployment],
            graph_reference: None,
            stopping: false,
            stop_first: None,
        }
    }

    pub(crate) async fn cancel(&self, up_to_generation: u64) {
        let vertex_id = VERTEX.to_owned();
        let tasks = vec![pb::TaskCancellation {
            vertex_id,
            subtask: 0,
            up_to_generation,
        }];
        let sender = self.job_master_sender();
        let request = pb::CancelTasksRequest {
            sender,
            job: scope(),
            tasks,
        };
        self.task_executor()
            .cancel_tasks(request)
            .await
            .expect("is registered");
    }

    pub(crate) async fn acknowledge(&self, generation: u64) {
        let vertex_id = VERTEX.to_owned();
        let executions = vec![pb::ExecutionId {
            vertex_id,
            subtask: 0,
            generation,
        }];
        let sender = self.job_master_sender();
        let request = pb::AcknowledgeExecutionsRequest {
            sender,
            job: scope(),
            executions,
        };
        self.task_executor()
            .acknowledge_executions(request)
            .await
            .expect("is registered");
    }

    pub(crate) async fn job_heartbeat(
        &self,
        allocations: &[&str],
    ) -> GatewayResult<pb::HeartbeatFromJobMasterResponse> {
        self.job_heartbeat_of(allocations, false).await
    }

    /// The same, for a job that is or is not being stopped.
    pub(crate) async fn job_heartbeat_of(
        &self,
        allocations: &[&str],
        stopping: bool,
    ) -> GatewayResult<pb::HeartbeatFromJobMasterResponse> {
        let request = pb::HeartbeatFromJobMasterRequest {
            sender: self.job_master_sender(),
            job: scope(),
            allocation_ids: allocations.iter().map(ToString::to_string).collect(),
            full_report: false,
            stopping,
        };
        self.task_executor()
            .heartbeat_from_job_master(request)
            .await
    }

    /// Starts draining it.
    pub(crate) async fn drain(&self) {
        let request = pb::HeartbeatFromResourceManagerRequest {
            sender: self.resource_manager_sender(),
            draining: true,
            releasing: false,
        };
        let answer = self
            .task_executor()
            .heartbeat_from_resource_manager(request)
            .await;
        answer.expect("is registered");
    }

    /// Frees a slot of the job, as JobMaster.
    pub(crate) async fn free(&self, allocation: &str) {
        let request = pb::FreeSlotsRequest {
            sender: self.job_master_sender(),
            allocation_ids: vec![allocation.to_owned()],
            cause: "a test says so".to_owned(),
        };
        let answer = self.task_executor().free_slots(request).await;
        answer.expect("is registered");
    }

    /// Sends a heartbeat as ResourceManager.
    pub(crate) async fn heartbeat(
        &self,
    ) -> GatewayResult<pb::HeartbeatFromResourceManagerResponse> {
        let sender = self.resource_manager_sender();
        let request = pb::HeartbeatFromResourceManagerRequest {
            sender,
            draining: false,
            releasing: false,
        };
        self.task_executor()
            .heartbeat_from_resource_manager(request)
            .await
    }

    pub(crate) async fn slot_report(&self) -> GatewayResult<Vec<pb::SlotStatus>> {
        let answer = self.heartbeat().await?;
        Ok(answer.slot_report.unwrap_or_default().slots)
    }

    /// Number of held slots.
    pub(crate) async fn held_slots(&self) -> usize {
        let slots = self.slot_report().await.expect("is registered");
        let held = slots.iter().filter(|slot| slot.allocation.is_some());
        held.count()
    }

    /// The JobMaster gives it up.
    pub(crate) async fn let_go(&self) {
        let request = pb::DisconnectJobMasterRequest {
            sender: self.job_master_sender(),
            job: scope(),
            job_ended: false,
            cause: "a test says so".to_owned(),
        };
        let answer = self.task_executor().disconnect_job_master(request).await;
        answer.expect("is registered");
    }

    fn sender(&self, registration: u64) -> pb::Sender {
        let incarnation = ClusterIncarnation::new("c1");
        pb::Sender {
            registration,
            ..sender_of(&incarnation, Epoch::new(self.epoch), &self.holder(), None)
        }
    }
}
