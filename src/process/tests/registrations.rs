//! TaskManagers that a cluster accepts or refuses, and jobs without a JobMaster.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tanist_compact::WatchCell;
use tanist_config::{Configuration, LoadOptions};
use tanist_gateway::fencing::{HighestEpoch, OwnStore};
use tanist_gateway::refusals::RefusalsCount;
use tanist_gateway::{
    Components, Connector as _, DispatcherGateway, GatewayError, GatewayResult, JobMasterGateway,
    JobMasterId, JobMasterRegistration, LocalConnector, ResourceManagerGateway,
    ResourceRequirement, ResourceRequirements, ResourceRequirementsGateway as _, SubmissionNumber,
};
use tanist_ha::election::{ClusterIncarnation, Epoch, LeaderInformation, ProcessId, TermHolder};
use tanist_ha::memory::MemoryCluster;
use tanist_ha::records::store::RecordStore;
use tanist_ha::retrieval::LeaderView;
use tanist_proto::PROTOCOL_VERSION;
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;
use tanist_resource_manager::DrainsServices;
use tanist_resource_manager::{
    Options, ResourceManager, ResourceManagerHandle, ResourceManagerServices, Term,
};
use tanist_task_executor::{
    IsolationGuard, RunningTask, TaskExecutor, TaskExecutorServices, TaskLauncher, TaskStart,
    first_registration,
};
use tanist_telemetry::ExitCode;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::job_records::StoredJobRecords;
use crate::taskmanager::describe;
use crate::testing::cluster::{TestCluster, graph};
use crate::testing::running::{JOB, running};

async fn task_managers(cluster: &TestCluster) -> Vec<String> {
    let leader = cluster.leader().await;
    let dispatcher = cluster.connector().dispatcher(&format!("{leader}:1"));
    let request = pb::ListTaskManagersRequest::default();
    let list = dispatcher.list_task_managers(request).await;
    let list = list.map(|list| list.task_managers).unwrap_or_default();
    let locations = list.into_iter().filter_map(|info| info.location);
    locations.map(|location| location.resource_id).collect()
}

async fn until_registered(cluster: &TestCluster, wanted: &[&str]) {
    let start = Instant::now();
    while task_managers(cluster).await != wanted {
        assert!(start.elapsed() < Duration::from_secs(600), "not {wanted:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_of_another_version_ends_with_the_code_for_the_refused() {
    let mut cluster = TestCluster::start(1, 1, 1).await;
    cluster.start_task_manager_as("tm2", first_registration(), PROTOCOL_VERSION + 1);
    assert_eq!(cluster.end_of_task_manager("tm2").await, ExitCode::Refused);
    until_registered(&cluster, &["tm1"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_is_refused_stops_its_tasks() {
    let mut cluster = running(1, 1, 2).await;
    // A JobManager is started for another cluster on the same store.
    cluster.start_job_manager_of("jm2", "other");
    cluster.kill_job_manager("jm1").await;
    assert_eq!(cluster.end_of_task_manager("tm1").await, ExitCode::Refused);
    cluster
        .until("nothing runs", || cluster.world.tasks.of(JOB).is_empty())
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_finds_no_leader_keeps_its_tasks() {
    let mut cluster = running(1, 1, 2).await;
    cluster.kill_job_manager("jm1").await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(cluster.world.tasks.of(JOB).len(), 4);
    cluster.start_job_manager("jm1");
    until_registered(&cluster, &["tm1"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_whose_clock_was_set_back_is_registered_at_once() {
    let mut cluster = TestCluster::start(1, 0, 1).await;
    cluster.leader().await;
    cluster.start_task_manager("tm1");
    until_registered(&cluster, &["tm1"]).await;
    cluster.stop_task_manager("tm1").await;
    until_registered(&cluster, &[]).await;

    let start = Instant::now();
    cluster.start_task_manager_as("tm1", 7, PROTOCOL_VERSION);
    until_registered(&cluster, &["tm1"]).await;
    assert!(
        start.elapsed() < Duration::from_millis(50),
        "{:?}",
        start.elapsed()
    );
    // It can be used like any other.
    cluster
        .client
        .submit(&graph(JOB, 1), "t")
        .await
        .expect("accepted");
    cluster.until_running(JOB, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_gives_slots_only_to_the_registration_that_counts() {
    let cluster = TestCluster::start(1, 1, 1).await;
    until_registered(&cluster, &["tm1"]).await;
    let request = pb::RequestSlotRequest {
        sender: Some(pb::Sender {
            registration: 1,
            ..cluster.leaders_sender()
        }),
        slot: 0,
        job_id: JOB.to_string(),
        allocation_id: "000000000000000000000000000000aa".to_owned(),
        ..pb::RequestSlotRequest::default()
    };
    let executor = cluster.connector().task_executor("tm1:1");
    let refused = executor.request_slot(request).await;
    assert!(
        matches!(refused, Err(GatewayError::Outdated { .. })),
        "{refused:?}"
    );
    // The slot is free for the job to which the ResourceManager gives it.
    cluster
        .client
        .submit(&graph(JOB, 1), "t")
        .await
        .expect("accepted");
    cluster.until_running(JOB, 2).await;
}

/// A leader of which only the ResourceManager has started.
#[derive(Debug)]
struct Recovering(ResourceManagerHandle);

fn not_yet<T>() -> GatewayResult<T> {
    Err(GatewayError::NotYet("recovering".to_owned()))
}

#[async_trait]
impl Components for Recovering {
    fn dispatcher(&self) -> GatewayResult<Arc<dyn DispatcherGateway>> {
        not_yet()
    }

    fn resource_manager(&self) -> GatewayResult<Arc<dyn ResourceManagerGateway>> {
        Ok(Arc::new(self.0.clone()))
    }

    async fn job_master(&self, _: JobId) -> GatewayResult<Arc<dyn JobMasterGateway>> {
        not_yet()
    }
}

/// Nothing is deployed.
#[derive(Debug)]
struct NoTasks;

impl TaskLauncher for NoTasks {
    fn start(&self, start: TaskStart) -> Box<dyn RunningTask> {
        panic!("nothing is deployed here: {start:?}")
    }

    fn release_task(&self, _: JobId, _: JobVertexId, _: u32, _: Generation) {}

    fn release_job(&self, _: JobId, _: Generation) {}

    fn kept_outputs(&self) -> watch::Receiver<usize> {
        watch::channel(0).1
    }
}

#[tokio::test(start_paused = true)]
async fn slots_of_a_job_without_job_master_are_given_to_others_after_the_job_timeout() {
    let connector = LocalConnector::default();
    let (incarnation, epoch) = (ClusterIncarnation::new("c1"), Epoch::new(5));
    let holder = TermHolder::starting(ProcessId::new("jm"));
    let options = Options::default();
    let (job_timeout, silence) = (options.job_timeout, options.heartbeat_timeout);
    let services = ResourceManagerServices {
        connector: Arc::new(connector.clone()),
        refusals: Arc::new(RefusalsCount),
        term: Term {
            cluster_id: "default".to_owned(),
            incarnation: incarnation.clone(),
            epoch,
            holder: holder.clone(),
            store: None,
        },
        on_higher_epoch: Arc::new(|epoch, _| panic!("no process is in epoch {epoch}")),
        workers: None,
        drains: DrainsServices::default(),
    };
    let manager = ResourceManager::start(options, services);
    let resources = manager.handle();
    connector.put_job_manager("jm:1", Arc::new(Recovering(resources.clone())));

    let leader = LeaderInformation {
        process: ProcessId::new("jm"),
        epoch,
        addresses: [("rpc".to_owned(), "jm:1".to_owned())].into(),
        since_ms: 0,
    };
    let leaders = watch::Sender::new(LeaderView {
        incarnation: Some(incarnation),
        epoch,
        holder: Some(holder),
        store: None,
        leader: Some(leader),
    });
    let location = pb::TaskManagerLocation {
        resource_id: "tm".to_owned(),
        incarnation: "1".to_owned(),
        rpc_address: "tm:1".to_owned(),
        data_address: "tm:2".to_owned(),
    };
    let load = LoadOptions::default().with("taskmanager.numberOfTaskSlots", "2");
    let configuration = Configuration::load(load).expect("valid");
    let empty = Arc::new(MemoryCluster::default().store());
    let services = TaskExecutorServices {
        records: Arc::new(StoredJobRecords::opened(RecordStore::new(empty, None, 0))),
        connector: Arc::new(connector.clone()),
        store: OwnStore::never_late(leaders),
        highest_epoch: HighestEpoch::default(),
        launcher: Arc::new(NoTasks),
        description: describe(location, configuration.options()).expect("it adds up"),
        first_registration: first_registration(),
        guard: IsolationGuard::default(),
    };
    let executor = TaskExecutor::start(tanist_task_executor::Options::default(), services);
    connector.put_task_executor("tm:1", Arc::new(executor.handle()));

    let job_master = JobMasterId {
        epoch,
        incarnation: 1,
    };
    let needs = |job| ResourceRequirements {
        job,
        job_master,
        job_master_address: "jm:1".to_owned(),
        resources: vec![ResourceRequirement {
            profile: ResourceProfile::Unknown,
            minimum: 2,
            maximum: 2,
        }],
        held: Arc::default(),
        submission: SubmissionNumber::default(),
        is_bounded: true,
    };
    let speak = async |job| {
        let registration = JobMasterRegistration {
            job,
            job_master,
            verdict: WatchCell::default(),
        };
        resources.register_job_master(registration).await?;
        resources.declare_required_resources(needs(job)).await
    };
    speak(JOB).await.expect("it is the first");
    let other = JobId::from_bits(0xB);
    let start = Instant::now();
    // The second job has a JobMaster and waits: it gets both slots when the first job has been without one for
    // the timeout.
    let mut shortages = resources.shortages();
    loop {
        speak(other).await.expect("it has no other JobMaster");
        tokio::time::sleep(Duration::from_secs(1)).await;
        if start.elapsed() > silence && !shortages.borrow_and_update().contains_key(&other) {
            break;
        }
        let overview = resources.resource_overview().await.expect("it runs");
        assert_eq!(
            overview.task_managers[0].free_slots,
            0,
            "{:?}",
            start.elapsed()
        );
        assert!(
            start.elapsed() < job_timeout * 3,
            "the slots are never freed"
        );
    }
    assert!(
        start.elapsed() >= silence + job_timeout,
        "{:?}",
        start.elapsed()
    );
    executor.stop("the test is over").await;
    manager.stop().await;
}
