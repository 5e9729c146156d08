//! Components in one process, on paused time, connected through [`LocalConnector`]; and in [`programs`],
//! tasks that run programs.

mod programs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_compact::WatchCell;
use tanist_gateway::fencing::{HighestEpoch, OwnStore};
use tanist_gateway::refusals::RefusalsCount;
use tanist_gateway::{
    GatewayError, GatewayResult, JobMasterGateway, JobMasterId, JobMasterRegistration, JobRecords,
    LocalConnector, NoAnswer, ResourceRequirement, ResourceRequirements,
    ResourceRequirementsGateway as _, StoredJobs, SubmissionNumber,
};
use tanist_ha::election::{ClusterIncarnation, Epoch, LeaderInformation, ProcessId, TermHolder};
use tanist_ha::retrieval::LeaderView;
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::resources::{ResourceProfile, Resources, WorkerResourceSpec};
use tanist_proto::v1 as pb;
use tanist_resource_manager::DrainsServices;
use tanist_resource_manager::{
    self, ResourceManager, ResourceManagerHandle, ResourceManagerServices, Term,
};
use tanist_task_executor::{
    self, IsolationGuard, RunningTask, TaskExecutor, TaskExecutorDescription, TaskExecutorServices,
    TaskLauncher, TaskStart,
};
use tokio::sync::watch;
use tokio::time::Instant;

const BOUND: Duration = Duration::from_secs(600);

/// A store that can't be reached.
#[derive(Debug)]
struct NoStore;

#[async_trait]
impl JobRecords for NoStore {
    async fn stored_jobs(&self, _: &[JobId]) -> Result<StoredJobs, NoAnswer> {
        Err(NoAnswer("there is none".to_owned()))
    }
}

/// A JobMaster that accepts every slot and records its TaskManager.
#[derive(Debug, Default)]
struct TakingJobMaster {
    /// TaskManager and slot, by allocation.
    slots: Mutex<BTreeMap<String, (String, u32)>>,
    goodbyes: Mutex<Vec<String>>,
    epoch: u64,
}

#[async_trait]
impl JobMasterGateway for TakingJobMaster {
    async fn register_task_manager(
        &self,
        request: pb::RegisterTaskManagerRequest,
    ) -> GatewayResult<pb::RegisterTaskManagerResponse> {
        use pb::registration_response::Answer;
        let sender = request.sender.unwrap_or_default();
        let location = request.location.unwrap_or_default();
        let held = request.slots.into_iter();
        let held = held.map(|slot| {
            let at = (location.resource_id.clone(), slot.slot);
            (slot.allocation_id, at)
        });
        self.slots.lock().extend(held);
        let success = pb::RegistrationSuccess {
            epoch: self.epoch,
            // A very long timeout, because this JobMaster sends no heartbeats.
            heartbeat_timeout_ms: 3_600_000,
            ..pb::RegistrationSuccess::default()
        };
        let registration = pb::RegistrationResponse {
            answer: Some(Answer::Success(success)),
            cluster_incarnation: sender.cluster_incarnation,
        };
        let registration = Some(registration);
        Ok(pb::RegisterTaskManagerResponse {
            registration,
            job_incarnation: 1,
        })
    }

    async fn offer_slots(
        &self,
        request: pb::OfferSlotsRequest,
    ) -> GatewayResult<pb::OfferSlotsResponse> {
        let mut slots = self.slots.lock();
        let mut accepted_allocation_ids = Vec::new();
        for offer in request.offers {
            slots.insert(
                offer.allocation_id.clone(),
                (request.resource_id.clone(), offer.slot),
            );
            accepted_allocation_ids.push(offer.allocation_id);
        }
        Ok(pb::OfferSlotsResponse {
            accepted_allocation_ids,
            ..Default::default()
        })
    }

    async fn update_task_execution_states(
        &self,
        _: pb::UpdateTaskExecutionStatesRequest,
    ) -> GatewayResult<pb::UpdateTaskExecutionStatesResponse> {
        Ok(pb::UpdateTaskExecutionStatesResponse {})
    }

    async fn report_checkpoints(
        &self,
        _: pb::ReportCheckpointsRequest,
    ) -> GatewayResult<pb::ReportCheckpointsResponse> {
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
        self.goodbyes.lock().push(request.cause);
        Ok(pb::Ack {})
    }
}

/// These tests deploy no tasks.
#[derive(Debug)]
struct NoTasks;

impl TaskLauncher for NoTasks {
    fn start(&self, task: TaskStart) -> Box<dyn RunningTask> {
        panic!("{task:?} was deployed")
    }

    fn release_task(&self, _: JobId, _: JobVertexId, _: u32, _: Generation) {}

    fn release_job(&self, _: JobId, _: Generation) {}

    fn kept_outputs(&self) -> watch::Receiver<usize> {
        watch::channel(0).1
    }
}

/// One leader at a time, and TaskExecutors that follow it.
struct Cluster {
    connector: LocalConnector,
    leaders: watch::Sender<LeaderView>,
    highest: HighestEpoch,
}

impl Cluster {
    fn new() -> Cluster {
        Cluster {
            connector: LocalConnector::default(),
            leaders: watch::Sender::default(),
            highest: HighestEpoch::default(),
        }
    }

    /// Starts a ResourceManager and a JobMaster of `job` in their own term, and publishes them as the leader.
    fn lead(&self, epoch: u64, job: JobId) -> (ResourceManager, Arc<TakingJobMaster>) {
        let address = format!("jm{epoch}:1");
        let incarnation = ClusterIncarnation::new("c1");
        let holder = TermHolder::starting(ProcessId::new(address.as_str()));
        let services = ResourceManagerServices {
            connector: Arc::new(self.connector.clone()),
            refusals: Arc::new(RefusalsCount),
            term: Term {
                cluster_id: "test".to_owned(),
                incarnation: incarnation.clone(),
                epoch: Epoch::new(epoch),
                holder: holder.clone(),
                store: None,
            },
            on_higher_epoch: Arc::new(|_, _| {}),
            workers: None,
            drains: DrainsServices::default(),
        };
        let manager = ResourceManager::start(tanist_resource_manager::Options::default(), services);
        let job_master = Arc::new(TakingJobMaster {
            epoch,
            ..TakingJobMaster::default()
        });
        self.connector
            .put_resource_manager(&address, Arc::new(manager.handle()));
        self.connector
            .put_job_master(&address, job, job_master.clone());
        let leader = LeaderInformation {
            epoch: Epoch::new(epoch),
            process: ProcessId::new(address.as_str()),
            addresses: BTreeMap::from([("rpc".to_owned(), address)]),
            since_ms: 0,
        };
        self.leaders.send_replace(LeaderView {
            incarnation: Some(incarnation),
            epoch: Epoch::new(epoch),
            holder: Some(holder),
            store: None,
            leader: Some(leader),
        });
        (manager, job_master)
    }

    fn task_executor(&self, name: &str, slots: u32) -> TaskExecutor {
        let address = format!("{name}:1");
        let services = TaskExecutorServices {
            connector: Arc::new(self.connector.clone()),
            store: OwnStore::never_late(self.leaders.clone()),
            highest_epoch: self.highest.clone(),
            records: Arc::new(NoStore),
            launcher: Arc::new(NoTasks),
            description: TaskExecutorDescription {
                location: pb::TaskManagerLocation {
                    resource_id: name.to_owned(),
                    incarnation: "1".to_owned(),
                    rpc_address: address.clone(),
                    data_address: format!("{name}:2"),
                },
                hardware: pb::HardwareDescription::default(),
                worker: WorkerResourceSpec::new(Resources::ZERO, slots),
                memory_configuration: pb::MemoryConfiguration::default(),
                cluster_id: "test".to_owned(),
                version: String::new(),
                protocol_version: tanist_proto::PROTOCOL_VERSION,
                worker_of: String::new(),
            },
            first_registration: tanist_task_executor::first_registration(),
            guard: IsolationGuard::default(),
        };
        let executor = TaskExecutor::start(tanist_task_executor::Options::default(), services);
        self.connector
            .put_task_executor(&address, Arc::new(executor.handle()));
        executor
    }
}

async fn declare(handle: &ResourceManagerHandle, job: JobId, epoch: u64, slots: u32) {
    let job_master = JobMasterId {
        epoch: Epoch::new(epoch),
        incarnation: 1,
    };
    let registration = JobMasterRegistration {
        job,
        job_master,
        verdict: WatchCell::default(),
    };
    handle
        .register_job_master(registration)
        .await
        .expect("nobody else speaks for it");
    let requirements = ResourceRequirements {
        job,
        job_master,
        job_master_address: format!("jm{epoch}:1"),
        resources: vec![ResourceRequirement {
            profile: ResourceProfile::Unknown,
            minimum: slots,
            maximum: slots,
        }],
        held: Arc::default(),
        submission: SubmissionNumber::default(),
        is_bounded: true,
    };
    handle
        .declare_required_resources(requirements)
        .await
        .expect("the manager runs");
}

/// Waits until the JobMaster has this number of slots.
async fn slots_of(job_master: &TakingJobMaster, number: usize) -> BTreeMap<String, (String, u32)> {
    let start = Instant::now();
    loop {
        let slots = job_master.slots.lock().clone();
        if slots.len() == number {
            return slots;
        }
        assert!(
            start.elapsed() < BOUND,
            "{number} slots wanted, has {slots:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn free_slots(handle: &ResourceManagerHandle) -> u32 {
    let overview = handle.resource_overview().await.expect("the manager runs");
    overview
        .task_managers
        .iter()
        .map(|info| info.free_slots)
        .sum()
}

#[tokio::test(start_paused = true)]
async fn declared_requirements_become_slots_of_the_job_master_and_survive_a_change_of_leader() {
    let cluster = Cluster::new();
    let job = JobId::random();
    let _executors = [
        cluster.task_executor("tm1", 2),
        cluster.task_executor("tm2", 2),
    ];
    let (manager, job_master) = cluster.lead(1, job);
    declare(&manager.handle(), job, 1, 3).await;
    let held = slots_of(&job_master, 3).await;
    assert_eq!(free_slots(&manager.handle()).await, 1);

    manager.stop().await;
    cluster.connector.remove("jm1:1");
    let (manager, job_master) = cluster.lead(2, job);
    declare(&manager.handle(), job, 2, 3).await;
    assert_eq!(slots_of(&job_master, 3).await, held);
    assert_eq!(free_slots(&manager.handle()).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_task_executor_that_says_goodbye_is_replaced_at_once() {
    let cluster = Cluster::new();
    let job = JobId::random();
    let first = cluster.task_executor("tm1", 1);
    let (manager, job_master) = cluster.lead(1, job);
    declare(&manager.handle(), job, 1, 1).await;
    slots_of(&job_master, 1).await;
    let _second = cluster.task_executor("tm2", 1);
    let start = Instant::now();
    first.stop("SIGTERM").await;
    assert_eq!(*job_master.goodbyes.lock(), ["SIGTERM"]);
    let slots = slots_of(&job_master, 2).await;
    assert!(slots.values().any(|(name, _)| name == "tm2"), "{slots:?}");
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_task_executor_that_vanishes_is_replaced_when_it_does_not_answer_any_more() {
    let cluster = Cluster::new();
    let job = JobId::random();
    let first = cluster.task_executor("tm1", 1);
    let (manager, job_master) = cluster.lead(1, job);
    declare(&manager.handle(), job, 1, 1).await;
    slots_of(&job_master, 1).await;
    let _second = cluster.task_executor("tm2", 1);
    drop(first);
    let slots = slots_of(&job_master, 2).await;
    assert!(slots.values().any(|(name, _)| name == "tm2"), "{slots:?}");
}
