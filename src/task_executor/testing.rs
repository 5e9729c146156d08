//! A scripted leader and a scripted launcher around a TaskExecutor, for its tests on paused time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tanist_ha::election::{ClusterIncarnation, Epoch, LeaderInformation, ProcessId};
use tanist_proto::id::{Generation, JobId};
use tanist_proto::v1 as pb;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::gateway::{
    GatewayResult, JobMasterGateway, LocalConnector, ResourceManagerGateway, TaskExecutorGateway,
};

/// How long a test waits for anything.
pub const BOUND: Duration = Duration::from_secs(3600);
pub const JOB: JobId = JobId::from_bits(0xA);
pub const VERTEX: &str = "00000000000000000000000000000001";
pub const TE: &str = "tm:1";

/// Lets (paused) time pass, and everything that is due in it happen.
pub async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// What a leader hears.
#[derive(Debug)]
pub enum Heard {
    AtResourceManager(pb::RegisterTaskExecutorRequest),
    AtJobMaster(pb::RegisterTaskManagerRequest),
    Slots(pb::NotifySlotsAvailableRequest),
    Offer(pb::OfferSlotsRequest),
    Update(pb::UpdateTaskExecutionStatesRequest),
    GoodbyeResourceManager(pb::DisconnectTaskExecutorRequest),
    GoodbyeJobMaster(pb::DisconnectTaskManagerRequest),
}

/// A ResourceManager and a JobMaster of [`JOB`] at one address, in one term.
#[derive(Debug)]
pub struct Leader {
    pub epoch: u64,
    address: String,
    connector: LocalConnector,
    heard: tokio::sync::Mutex<mpsc::Receiver<Heard>>,
    /// The registrations at the ResourceManager and at the JobMaster that count.
    pub registrations: Mutex<(u64, u64)>,
}

#[derive(Debug)]
pub struct Script {
    epoch: u64,
    heard: mpsc::Sender<Heard>,
    pub is_rejecting_offers: Mutex<bool>,
    /// Offers are heard and never answered.
    pub is_ignoring_offers: Mutex<bool>,
    pub rejection: Mutex<Option<String>>,
}

impl Leader {
    /// Starts to listen at `address`.
    pub fn start(connector: &LocalConnector, address: &str, epoch: u64) -> (Arc<Script>, Leader) {
        let (sender, heard) = mpsc::channel(1024);
        let script = Arc::new(Script {
            epoch,
            heard: sender,
            is_rejecting_offers: Mutex::new(false),
            is_ignoring_offers: Mutex::new(false),
            rejection: Mutex::new(None),
        });
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

    /// The next that it hears and that `take` takes; what it does not take is dropped.
    pub async fn wait_for<T>(&self, what: &str, mut take: impl FnMut(Heard) -> Option<T>) -> T {
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
                        self.lock().0 = request.sender.as_ref().expect("a sender").registration;
                    }
                    Heard::AtJobMaster(request) => {
                        self.lock().1 = request.sender.as_ref().expect("a sender").registration;
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

    pub async fn registered(&self) -> pb::RegisterTaskExecutorRequest {
        let take = |heard| match heard {
            Heard::AtResourceManager(request) => Some(request),
            _ => None,
        };
        self.wait_for("registration at the ResourceManager", take)
            .await
    }

    pub async fn registered_job(&self) -> pb::RegisterTaskManagerRequest {
        let take = |heard| match heard {
            Heard::AtJobMaster(request) => Some(request),
            _ => None,
        };
        self.wait_for("registration at the JobMaster", take).await
    }

    pub async fn offered(&self) -> pb::OfferSlotsRequest {
        let take = |heard| match heard {
            Heard::Offer(request) => Some(request),
            _ => None,
        };
        self.wait_for("offer", take).await
    }

    /// Waits until an execution is reported in this state.
    pub async fn updated(&self, state: pb::ExecutionState) -> pb::ExecutionReport {
        let take = |heard| match heard {
            Heard::Update(request) => request
                .executions
                .into_iter()
                .find(|execution| execution.state() == state),
            _ => None,
        };
        self.wait_for(state.as_str_name(), take).await
    }

    pub async fn freed(&self, slot: u32) {
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

    pub fn resource_manager_sender(&self) -> Option<pb::Sender> {
        Some(self.sender(self.lock().0))
    }

    pub fn job_master_sender(&self) -> Option<pb::Sender> {
        Some(self.sender(self.lock().1))
    }

    pub fn task_executor(&self) -> Arc<dyn TaskExecutorGateway> {
        use crate::gateway::Connector as _;
        self.connector.task_executor(TE)
    }

    pub fn information(&self) -> LeaderInformation {
        LeaderInformation {
            epoch: Epoch::new(self.epoch),
            process: ProcessId::new(self.address.as_str()),
            addresses: BTreeMap::from([("rpc".to_owned(), self.address.clone())]),
            since_ms: 0,
        }
    }

    pub async fn request_slot(&self, slot: u32, allocation: &str) -> pb::RequestSlotResponse {
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

    pub async fn submit(
        &self,
        generation: u64,
        allocation: &str,
    ) -> GatewayResult<pb::SubmitTasksResponse> {
        let deployment = pb::TaskDeployment {
            vertex_id: VERTEX.to_owned(),
            subtask: 0,
            generation,
            allocation_id: allocation.to_owned(),
            inputs: Vec::new(),
        };
        let request = pb::SubmitTasksRequest {
            sender: self.job_master_sender(),
            job: scope(),
            graph: Some(pb::JobGraph::default()),
            tasks: vec![deployment],
        };
        self.task_executor().submit_tasks(request).await
    }

    pub async fn cancel(&self, up_to_generation: u64) {
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

    pub async fn acknowledge(&self, generation: u64) {
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

    pub async fn job_heartbeat(
        &self,
        allocations: &[&str],
    ) -> GatewayResult<pb::HeartbeatFromJobMasterResponse> {
        let request = pb::HeartbeatFromJobMasterRequest {
            sender: self.job_master_sender(),
            job: scope(),
            allocation_ids: allocations.iter().map(ToString::to_string).collect(),
            full_report: false,
        };
        self.task_executor()
            .heartbeat_from_job_master(request)
            .await
    }

    pub async fn slot_report(&self) -> GatewayResult<Vec<pb::SlotStatus>> {
        let sender = self.resource_manager_sender();
        let request = pb::HeartbeatFromResourceManagerRequest { sender };
        let answer = self
            .task_executor()
            .heartbeat_from_resource_manager(request)
            .await?;
        Ok(answer.slot_report.unwrap_or_default().slots)
    }

    fn sender(&self, registration: u64) -> pb::Sender {
        pb::Sender {
            cluster_incarnation: "c1".to_owned(),
            epoch: self.epoch,
            registration,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (u64, u64)> {
        self.registrations.lock().expect("not poisoned")
    }
}

pub fn scope() -> Option<pb::JobScope> {
    Some(pb::JobScope {
        job_id: JOB.to_string(),
        job_incarnation: 1,
    })
}

impl Script {
    async fn hear(&self, heard: Heard) {
        // A leader that the test has dropped hears nothing.
        let _gone = self.heard.send(heard).await;
    }

    fn success(&self) -> pb::RegistrationResponse {
        use pb::registration_response::Answer;
        let rejection = self.rejection.lock().expect("not poisoned").clone();
        let answer = match rejection {
            Some(reason) => Answer::Rejection(pb::RegistrationRejection { reason }),
            None => Answer::Success(pb::RegistrationSuccess {
                resource_id: "leader".to_owned(),
                cluster_id: "test".to_owned(),
                cluster_incarnation: "c1".to_owned(),
                epoch: self.epoch,
                heartbeat_interval_ms: 10_000,
                heartbeat_timeout_ms: 50_000,
            }),
        };
        pb::RegistrationResponse {
            answer: Some(answer),
        }
    }
}

#[async_trait]
impl ResourceManagerGateway for Script {
    async fn register_task_executor(
        &self,
        request: pb::RegisterTaskExecutorRequest,
    ) -> GatewayResult<pb::RegistrationResponse> {
        self.hear(Heard::AtResourceManager(request)).await;
        Ok(self.success())
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
        self.hear(Heard::GoodbyeResourceManager(request)).await;
        Ok(pb::Ack {})
    }
}

#[async_trait]
impl JobMasterGateway for Script {
    async fn register_task_manager(
        &self,
        request: pb::RegisterTaskManagerRequest,
    ) -> GatewayResult<pb::RegisterTaskManagerResponse> {
        self.hear(Heard::AtJobMaster(request)).await;
        let registration = Some(self.success());
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
        if *self.is_ignoring_offers.lock().expect("not poisoned") {
            std::future::pending::<()>().await;
        }
        let mut answer = pb::OfferSlotsResponse::default();
        if *self.is_rejecting_offers.lock().expect("not poisoned") {
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

    async fn fail_slot(&self, _: pb::FailSlotRequest) -> GatewayResult<pb::Ack> {
        Ok(pb::Ack {})
    }

    async fn disconnect_task_manager(
        &self,
        request: pb::DisconnectTaskManagerRequest,
    ) -> GatewayResult<pb::Ack> {
        self.hear(Heard::GoodbyeJobMaster(request)).await;
        Ok(pb::Ack {})
    }
}

/// A task that does what the test says.
#[derive(Debug)]
pub struct Started {
    pub start: TaskStart,
    pub status: watch::Sender<TaskStatus>,
}

/// Hands what it starts to the test. Told to end, a task is canceled at once, unless the test wants to do that itself.
#[derive(Debug)]
pub struct ScriptedLauncher {
    started: mpsc::Sender<Started>,
    pub released: Mutex<Vec<JobId>>,
    pub is_slow_to_cancel: bool,
}

#[derive(Debug)]
struct ScriptedTask {
    status: watch::Sender<TaskStatus>,
    is_slow_to_cancel: bool,
}

impl TaskLauncher for ScriptedLauncher {
    fn start(&self, start: TaskStart) -> Box<dyn RunningTask> {
        let status = watch::Sender::new(TaskStatus::Deploying);
        let started = Started {
            start,
            status: status.clone(),
        };
        self.started
            .try_send(started)
            .expect("the test takes what starts");
        Box::new(ScriptedTask {
            status,
            is_slow_to_cancel: self.is_slow_to_cancel,
        })
    }

    fn release_job(&self, job: JobId, _up_to: Generation) {
        self.released.lock().expect("not poisoned").push(job);
    }
}

impl RunningTask for ScriptedTask {
    fn cancel(&self) {
        let is_slow = self.is_slow_to_cancel;
        let status = if is_slow {
            TaskStatus::Canceling
        } else {
            TaskStatus::Canceled
        };
        self.status.send_replace(status);
    }

    fn metrics(&self) -> pb::TaskMetrics {
        pb::TaskMetrics {
            records_in: 7,
            ..pb::TaskMetrics::default()
        }
    }

    fn status(&self) -> watch::Receiver<TaskStatus> {
        self.status.subscribe()
    }
}

/// A TaskExecutor with two slots, and what surrounds it.
pub struct World {
    pub connector: LocalConnector,
    pub executor: TaskExecutor,
    pub leader: watch::Sender<Option<LeaderInformation>>,
    pub highest: HighestEpoch,
    pub launcher: Arc<ScriptedLauncher>,
    pub started: mpsc::Receiver<Started>,
}

impl World {
    pub fn start(is_slow_to_cancel: bool) -> World {
        let connector = LocalConnector::default();
        let (leader, followed) = watch::channel(None);
        let highest = HighestEpoch::default();
        let (sender, started) = mpsc::channel(64);
        let released = Mutex::new(Vec::new());
        let launcher = Arc::new(ScriptedLauncher {
            started: sender,
            released,
            is_slow_to_cancel,
        });
        let services = TaskExecutorServices {
            connector: Arc::new(connector.clone()),
            leader: followed,
            highest_epoch: highest.clone(),
            launcher: launcher.clone(),
            description: description(),
        };
        let executor = TaskExecutor::start(Options::default(), services);
        connector.put_task_executor(TE, Arc::new(executor.handle()));
        World {
            connector,
            executor,
            leader,
            highest,
            launcher,
            started,
        }
    }

    /// The store names this leader.
    pub fn lead(&self, leader: &Leader) {
        let cluster = ClusterIncarnation::new("c1");
        self.highest
            .observe(&cluster, Epoch::new(leader.epoch))
            .expect("a younger leader");
        self.leader.send_replace(Some(leader.information()));
    }

    /// Starts a leader and waits until the TaskExecutor is registered there.
    pub async fn with_leader(&self, address: &str, epoch: u64) -> (Arc<Script>, Leader) {
        let (script, leader) = Leader::start(&self.connector, address, epoch);
        self.lead(&leader);
        leader.registered().await;
        (script, leader)
    }

    pub async fn next_started(&mut self) -> Started {
        let next = tokio::time::timeout(BOUND, self.started.recv()).await;
        next.expect("a task starts within the bound")
            .expect("the launcher lives")
    }
}

pub fn description() -> TaskExecutorDescription {
    TaskExecutorDescription {
        location: pb::TaskManagerLocation {
            resource_id: "tm".to_owned(),
            incarnation: "1".to_owned(),
            rpc_address: TE.to_owned(),
            data_address: "tm:2".to_owned(),
        },
        hardware: pb::HardwareDescription {
            cpu_cores: 2,
            physical_memory_bytes: 1000,
        },
        total_profile: pb::ResourceProfile {
            cpu_cores: 2.0,
            memory_bytes: 200,
        },
        default_slot_profile: pb::ResourceProfile {
            cpu_cores: 1.0,
            memory_bytes: 100,
        },
        slots: 2,
        version: "0.1.0".to_owned(),
    }
}
