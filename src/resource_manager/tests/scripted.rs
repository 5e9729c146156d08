//! Test environment of a ResourceManager: TaskExecutors that grant every slot and report the requests they got,
//! messages of TaskExecutors and JobMasters, and a ResourceManager of epoch 5 without drivers. Decides nothing;
//! has no tests.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_compact::WatchCell;
use tanist_gateway::refusals::{Refusals, RefusalsCount};
use tanist_gateway::{
    GatewayError, GatewayResult, JobMasterId, JobMasterRegistration, LocalConnector,
    ResourceRequirement, ResourceRequirements, ResourceRequirementsGateway as _, SubmissionNumber,
    TaskExecutorGateway, Verdict,
};
use tanist_ha::election::{ClusterIncarnation, Epoch, ProcessId, TermHolder};
use tanist_proto::id::JobId;
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;
use tokio::sync::mpsc;

use crate::drains::DrainsServices;
use crate::{Options, ResourceManager, ResourceManagerHandle, ResourceManagerServices, Term};

pub(crate) const BOUND: Duration = Duration::from_secs(600);

/// A TaskExecutor that grants every slot, remembers what it granted, and reports the requests it got.
#[derive(Debug)]
pub(crate) struct ScriptedTaskExecutor {
    pub(crate) slots: Mutex<Vec<Option<pb::SlotAllocation>>>,
    requests: mpsc::Sender<pb::RequestSlotRequest>,
    disconnects: mpsc::Sender<pb::DisconnectResourceManagerRequest>,
    freed: mpsc::Sender<pb::FreeSlotsRequest>,
}

/// The requests that a [`ScriptedTaskExecutor`] got.
pub(crate) struct Asked {
    pub(crate) requests: mpsc::Receiver<pb::RequestSlotRequest>,
    pub(crate) disconnects: mpsc::Receiver<pb::DisconnectResourceManagerRequest>,
    pub(crate) freed: mpsc::Receiver<pb::FreeSlotsRequest>,
}

impl ScriptedTaskExecutor {
    pub(crate) fn start(
        connector: &LocalConnector,
        address: &str,
        slots: usize,
    ) -> (Arc<Self>, Asked) {
        let (requests, asked_requests) = mpsc::channel(64);
        let (disconnects, asked_disconnects) = mpsc::channel(64);
        let (freed, asked_freed) = mpsc::channel(64);
        let slots = Mutex::new(vec![None; slots]);
        let executor = Arc::new(ScriptedTaskExecutor {
            slots,
            requests,
            disconnects,
            freed,
        });
        connector.put_task_executor(address, executor.clone());
        let asked = Asked {
            requests: asked_requests,
            disconnects: asked_disconnects,
            freed: asked_freed,
        };
        (executor, asked)
    }

    pub(crate) fn report(&self) -> pb::SlotReport {
        let slots = self.slots.lock();
        let status = |(slot, allocation): (usize, &Option<pb::SlotAllocation>)| pb::SlotStatus {
            slot: u32::try_from(slot).expect("few slots"),
            allocation: allocation.clone(),
            ..pb::SlotStatus::default()
        };
        pb::SlotReport {
            slots: slots.iter().enumerate().map(status).collect(),
            version: 0,
        }
    }
}

#[async_trait]
impl TaskExecutorGateway for ScriptedTaskExecutor {
    async fn request_slot(
        &self,
        request: pb::RequestSlotRequest,
    ) -> GatewayResult<pb::RequestSlotResponse> {
        use pb::request_slot_response::Answer;
        let wanted = pb::SlotAllocation {
            allocation_id: request.allocation_id.clone(),
            job_id: request.job_id.clone(),
        };
        let index = usize::try_from(request.slot).expect("a slot number");
        let answer = {
            let mut slots = self.slots.lock();
            let holder = slots[index].get_or_insert_with(|| wanted.clone());
            if *holder == wanted {
                Answer::Allocated(pb::Ack {})
            } else {
                Answer::Occupied(holder.clone())
            }
        };
        self.requests.send(request).await.expect("the test listens");
        Ok(pb::RequestSlotResponse {
            answer: Some(answer),
            slots_version: 0,
        })
    }

    async fn free_slots(&self, request: pb::FreeSlotsRequest) -> GatewayResult<pb::Ack> {
        self.freed.send(request).await.expect("the test listens");
        Ok(pb::Ack {})
    }

    async fn heartbeat_from_resource_manager(
        &self,
        _request: pb::HeartbeatFromResourceManagerRequest,
    ) -> GatewayResult<pb::HeartbeatFromResourceManagerResponse> {
        let slot_report = Some(self.report());
        Ok(pb::HeartbeatFromResourceManagerResponse {
            slot_report,
            kept_outputs: 0,
        })
    }

    async fn disconnect_resource_manager(
        &self,
        request: pb::DisconnectResourceManagerRequest,
    ) -> GatewayResult<pb::Ack> {
        self.disconnects
            .send(request)
            .await
            .expect("the test listens");
        Ok(pb::Ack {})
    }

    async fn submit_tasks(
        &self,
        _: pb::SubmitTasksRequest,
    ) -> GatewayResult<pb::SubmitTasksResponse> {
        Err(not_asked())
    }

    async fn announce_leader(
        &self,
        _: pb::AnnounceLeaderRequest,
    ) -> GatewayResult<pb::AnnounceLeaderResponse> {
        Err(not_asked())
    }

    async fn cancel_tasks(&self, _: pb::CancelTasksRequest) -> GatewayResult<pb::Ack> {
        Err(not_asked())
    }

    async fn trigger_checkpoint(
        &self,
        _: pb::TriggerCheckpointRequest,
    ) -> GatewayResult<pb::TriggerCheckpointResponse> {
        Err(not_asked())
    }

    async fn abort_checkpoint(&self, _: pb::AbortCheckpointRequest) -> GatewayResult<pb::Ack> {
        Err(not_asked())
    }

    async fn acknowledge_executions(
        &self,
        _: pb::AcknowledgeExecutionsRequest,
    ) -> GatewayResult<pb::Ack> {
        Err(not_asked())
    }

    async fn heartbeat_from_job_master(
        &self,
        _: pb::HeartbeatFromJobMasterRequest,
    ) -> GatewayResult<pb::HeartbeatFromJobMasterResponse> {
        Err(not_asked())
    }

    async fn disconnect_job_master(
        &self,
        _: pb::DisconnectJobMasterRequest,
    ) -> GatewayResult<pb::Ack> {
        Err(not_asked())
    }
}

fn not_asked() -> GatewayError {
    GatewayError::Internal("a ResourceManager does not ask this".to_owned())
}

pub(crate) struct Cluster {
    pub(crate) connector: LocalConnector,
    pub(crate) manager: ResourceManager,
    pub(crate) higher_epochs: mpsc::Receiver<Epoch>,
}

pub(crate) fn start() -> Cluster {
    start_with(Arc::new(RefusalsCount))
}

pub(crate) fn start_with(refusals: Arc<dyn Refusals>) -> Cluster {
    let connector = LocalConnector::default();
    let (sender, higher_epochs) = mpsc::channel(8);
    let services = ResourceManagerServices {
        connector: Arc::new(connector.clone()),
        refusals,
        term: Term {
            cluster_id: "test".to_owned(),
            incarnation: ClusterIncarnation::new("c1"),
            epoch: Epoch::new(5),
            holder: TermHolder::starting(ProcessId::new("jm")),
            store: None,
        },
        on_higher_epoch: Arc::new(move |epoch, _| sender.try_send(epoch).expect("there is room")),
        workers: None,
        drains: DrainsServices::default(),
    };
    Cluster {
        connector,
        manager: ResourceManager::start(Options::default(), services),
        higher_epochs,
    }
}

pub(crate) fn registration(
    epoch: u64,
    number: u64,
    report: pb::SlotReport,
) -> pb::RegisterTaskExecutorRequest {
    pb::RegisterTaskExecutorRequest {
        sender: Some(pb::Sender {
            cluster_incarnation: "c1".to_owned(),
            epoch,
            registration: number,
            ..pb::Sender::default()
        }),
        location: Some(pb::TaskManagerLocation {
            resource_id: "tm".to_owned(),
            incarnation: "1".to_owned(),
            rpc_address: "tm:1".to_owned(),
            data_address: "tm:2".to_owned(),
        }),
        protocol_version: tanist_proto::PROTOCOL_VERSION,
        cluster_id: "test".to_owned(),
        number_of_slots: u32::try_from(report.slots.len()).expect("few slots"),
        slot_report: Some(report),
        ..pb::RegisterTaskExecutorRequest::default()
    }
}

/// Registers the JobMaster of a job. Returns the cell that notifies it.
pub(crate) async fn job_master(
    handle: &ResourceManagerHandle,
    job: JobId,
    incarnation: u64,
) -> GatewayResult<WatchCell<Verdict>> {
    let verdict = WatchCell::default();
    let registration = JobMasterRegistration {
        job,
        job_master: id(incarnation),
        verdict: verdict.clone(),
    };
    handle.register_job_master(registration).await?;
    Ok(verdict)
}

pub(crate) fn id(incarnation: u64) -> JobMasterId {
    JobMasterId {
        epoch: Epoch::new(5),
        incarnation,
    }
}

/// Requirements of a JobMaster: minimum and maximum number of slots of each profile.
pub(crate) fn declared(
    job: JobId,
    job_master: JobMasterId,
    profiles: impl IntoIterator<Item = (ResourceProfile, u32, u32)>,
) -> ResourceRequirements {
    let resources = profiles
        .into_iter()
        .map(|(profile, minimum, maximum)| ResourceRequirement {
            profile,
            minimum,
            maximum,
        });
    ResourceRequirements {
        job,
        job_master,
        job_master_address: "jm:1".to_owned(),
        resources: resources.collect(),
        held: Arc::default(),
        submission: SubmissionNumber::default(),
        is_bounded: true,
    }
}

pub(crate) fn needs(job: JobId, slots: u32) -> ResourceRequirements {
    declared(job, id(1), [(ResourceProfile::Unknown, slots, slots)])
}

pub(crate) async fn task_managers(handle: &ResourceManagerHandle) -> Vec<pb::TaskManagerInfo> {
    handle
        .resource_overview()
        .await
        .expect("the manager runs")
        .task_managers
}

pub(crate) async fn next<T>(receiver: &mut mpsc::Receiver<T>) -> T {
    let next = tokio::time::timeout(BOUND, receiver.recv()).await;
    next.expect("it comes within the bound")
        .expect("the sender lives")
}
