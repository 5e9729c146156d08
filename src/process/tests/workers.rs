//! TaskManagers that a driver starts, while leaders die: none is started twice, given up, or left over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_config::LoadOptions;
use tanist_ha::election::ClusterIncarnation;
use tanist_proto::id::{JobId, ResourceId};
use tanist_resource_manager::{
    DriverError, Found, RecordedWorker, ResourceManagerDriver, WorkerRequest,
};
use tanist_telemetry::ExitCode;
use tokio::sync::watch;

use crate::testing::cluster::{TestCluster, graph};

const JOB: JobId = JobId::from_bits(0xA);
/// Longer than a worker may be idle.
const IDLE: Duration = Duration::from_secs(60);

/// Records which workers should run; the test starts and ends the TaskManagers.
#[derive(Debug, Default)]
struct ScriptedDriver {
    live: watch::Sender<BTreeSet<ResourceId>>,
    started: Mutex<Vec<ResourceId>>,
    stopped: Mutex<Vec<ResourceId>>,
}

impl ScriptedDriver {
    fn started(&self) -> Vec<String> {
        let started = self.started.lock();
        started.iter().map(ToString::to_string).collect()
    }

    fn stopped(&self) -> Vec<String> {
        let stopped = self.stopped.lock();
        stopped.iter().map(ToString::to_string).collect()
    }

    fn ended(&self, worker: &str) {
        let worker = worker.parse().expect("an id");
        self.live.send_if_modified(|live| live.remove(&worker));
    }

    fn live(&self) -> usize {
        self.live.borrow().len()
    }
}

#[async_trait]
impl ResourceManagerDriver for ScriptedDriver {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn place(&self) -> String {
        "here".to_owned()
    }

    async fn start_worker(&self, request: &WorkerRequest) -> Result<(), DriverError> {
        let worker = request.worker.clone();
        self.started.lock().push(worker.clone());
        self.live.send_if_modified(|live| live.insert(worker));
        Ok(())
    }

    async fn recover_workers(
        &self,
        _cluster: &ClusterIncarnation,
        recorded: &[RecordedWorker],
    ) -> Result<Vec<(ResourceId, Found)>, DriverError> {
        let live = self.live.borrow();
        let recorded = recorded.iter().map(|it| &it.worker);
        let all: BTreeSet<&ResourceId> = recorded.chain(live.iter()).collect();
        let found = all.into_iter().map(|id| match live.contains(id) {
            true => (id.clone(), Found::Running),
            false => (id.clone(), Found::Gone),
        });
        Ok(found.collect())
    }

    async fn worker_ended(&self, worker: &ResourceId) -> String {
        let mut live = self.live.subscribe();
        let _driver_lives = live.wait_for(|live| !live.contains(worker)).await;
        "it is gone".to_owned()
    }

    async fn stop_worker(&self, worker: &ResourceId) -> Result<(), DriverError> {
        self.stopped.lock().push(worker.clone());
        self.live.send_if_modified(|live| live.remove(worker));
        Ok(())
    }
}

async fn start(job_managers: u32, slots: u32) -> (TestCluster, Arc<ScriptedDriver>) {
    let driver = Arc::new(ScriptedDriver::default());
    let mut cluster = TestCluster::start_with(LoadOptions::default(), 0, 0, slots).await;
    cluster.driver = Some(driver.clone());
    for number in 1..=job_managers {
        cluster.start_job_manager(&format!("jm{number}"));
    }
    (cluster, driver)
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_starts_while_its_leader_dies_is_expected_by_the_next_one() {
    let (mut cluster, driver) = start(2, 2).await;
    let submitted = cluster.client.submit(&graph(JOB, 1), "t").await;
    submitted.expect("accepted");
    cluster
        .until("a worker is started", || driver.live() == 1)
        .await;
    let leader = cluster.leader().await;
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(1).await;
    // No other worker is started while it has not registered.
    tokio::time::sleep(IDLE).await;
    let started = driver.started();
    assert_eq!(started.len(), 1, "{started:?}");
    cluster.start_task_manager(&started[0]);
    cluster.until_running(JOB, 2).await;

    // Adopted; it is not released and no other worker is started while the job runs.
    let leader = cluster.leader().await;
    cluster.start_job_manager("jm3");
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(2).await;
    assert_eq!(cluster.until_running(JOB, 2).await, 1, "adopted");
    tokio::time::sleep(IDLE).await;
    assert_eq!((driver.started().len(), driver.live()), (1, 1));
    assert_eq!(driver.stopped(), Vec::<String>::new());

    cluster.world.finish_tasks(JOB);
    cluster.until_clean(JOB).await;
    // It is asked to leave, and does; only then its record is removed.
    let code = cluster.end_of_task_manager(&started[0]).await;
    assert_eq!(code, ExitCode::Ended);
    driver.ended(&started[0]);
    cluster
        .until("nothing of it is left", || driver.stopped() == started)
        .await;
    tokio::time::sleep(IDLE).await;
    assert_eq!(driver.started().len(), 1);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_does_not_register_in_time_is_stopped_and_asked_for_again() {
    let (mut cluster, driver) = start(1, 2).await;
    let submitted = cluster.client.submit(&graph(JOB, 1), "t").await;
    submitted.expect("accepted");
    cluster
        .until("a second one is started", || driver.started().len() == 2)
        .await;
    let started = driver.started();
    assert_eq!(driver.stopped(), started[..1], "the first one");
    // Too late: it is not wanted any more.
    cluster.start_task_manager(&started[0]);
    let code = cluster.end_of_task_manager(&started[0]).await;
    assert_eq!(code, ExitCode::Refused);
    cluster.start_task_manager(&started[1]);
    cluster.until_running(JOB, 2).await;
    // A worker that dies is replaced.
    cluster.kill_task_manager(&started[1]).await;
    driver.ended(&started[1]);
    cluster
        .until("a third one is started", || driver.started().len() == 3)
        .await;
    cluster.start_task_manager(&driver.started()[2]);
    assert!(cluster.until_running(JOB, 2).await > 1, "restarted");
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_a_record_is_ended_by_the_next_leader_and_refused() {
    let (mut cluster, driver) = start(1, 1).await;
    cluster.leader().await;
    let late: ResourceId = "worker-0-late".parse().expect("an id");
    driver.live.send_if_modified(|live| live.insert(late));
    cluster.start_job_manager("jm2");
    cluster.kill_job_manager("jm1").await;
    cluster.leader_above(1).await;
    cluster
        .until("it is stopped", || driver.stopped() == ["worker-0-late"])
        .await;
    cluster.start_task_manager("worker-0-late");
    let code = cluster.end_of_task_manager("worker-0-late").await;
    assert_eq!(code, ExitCode::Refused);
}
