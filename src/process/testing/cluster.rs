//! The cluster: named JobManagers and TaskManagers that are started, killed, stopped, cut off and started
//! again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tanist_config::{ClusterOptions, Configuration, LoadOptions};
use tanist_gateway::LocalConnector;
use tanist_gateway::blobs::ServedBlobs;
use tanist_gateway::fencing::{HighestEpoch, OwnStore, sender_of};
use tanist_ha::blob::BlobStore;
use tanist_ha::clock::Clock;
use tanist_ha::election::core::Timing;
use tanist_ha::election::{ElectionDriver, ElectionOptions, LeaderElection, ProcessId};
use tanist_ha::memory::{MemoryCluster, MemoryElection};
use tanist_ha::records::store::RecordStore;
use tanist_ha::retrieval::{self, LeaderView};
use tanist_leadership::ha::HaServices;
use tanist_leadership::{Contender, ContenderOptions, Sinks, WorkersSetup};
use tanist_proto::PROTOCOL_VERSION;
use tanist_proto::v1 as pb;
use tanist_resource_manager::ResourceManagerDriver;
use tanist_task_executor::{
    IsolationGuard, TaskExecutor, TaskExecutorDescription, TaskExecutorServices, first_registration,
};
use tanist_telemetry::ExitCode;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::client::Client;
use super::election::{StoppableElection, note_grants};
use super::executor::ObservedExecutor;
pub(crate) use super::graphs::{graph, graph_of_files, graph_of_regions};
use super::invariants;
use super::sinks::{recorded_sinks, sinks_of};
use super::store::ObservedStore;
use super::tasks::ScriptedTasks;
use super::world::{Step, World, process_of};
use crate::graph_checks::graph_checks;
use crate::job_records::StoredJobRecords;
use crate::taskmanager::{describe, exit_code, follow_driver, read_with, until_it_ends};
use crate::{ApplicationSetup, settings};

/// Timeout of every wait of a test, in its paused time.
pub(super) const TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct JobManagerLife {
    pub(super) life: String,
    stop: CancellationToken,
    run: JoinHandle<ExitCode>,
    pub(super) driver: Arc<MemoryElection>,
    /// Does not keep the election running.
    pub(super) election: LeaderElection,
}

#[derive(Debug)]
struct TaskManagerLife {
    life: String,
    executor: TaskExecutor,
}

/// The store of a process, as seen through this driver.
fn own_store(driver: Arc<dyn ElectionDriver>) -> OwnStore {
    let known = watch::Sender::new(LeaderView::default());
    let opened = watch::channel(Some(driver.clone())).1;
    let store = OwnStore::start(known.clone(), read_with(opened));
    tokio::spawn(async move {
        tokio::select! {
            () = follow_driver(&*driver, &known) => {}
            () = known.closed() => {}
        }
    });
    store
}

/// See the module.
#[derive(Debug)]
pub(crate) struct TestCluster {
    pub world: World,
    pub memory: MemoryCluster,
    pub client: Client,
    /// Driver of JobManagers that are started later; TaskManagers are then its workers.
    pub driver: Option<Arc<dyn ResourceManagerDriver>>,
    /// Application of JobManagers that are started later.
    pub application: Option<ApplicationSetup>,
    /// Blob store of JobManagers that are started later.
    pub blobs: Option<Arc<BlobStore>>,
    options: Arc<ClusterOptions>,
    connector: LocalConnector,
    sinks: Sinks,
    lives: u32,
    pub(super) job_managers: BTreeMap<String, JobManagerLife>,
    task_managers: BTreeMap<String, TaskManagerLife>,
    _observer: MemoryElection,
}

impl TestCluster {
    /// Starts JobManagers `jm1`.. and TaskManagers `tm1`.., these with `slots` slots each and two cores.
    pub(crate) async fn start(job_managers: u32, task_managers: u32, slots: u32) -> TestCluster {
        let load = LoadOptions::default()
            .with("restart-strategy.type", "fixed-delay")
            .with("restart-strategy.fixed-delay.attempts", "1000000")
            .with("restart-strategy.fixed-delay.delay", "100 ms");
        TestCluster::start_with(load, job_managers, task_managers, slots).await
    }

    pub(crate) async fn start_with(
        load: LoadOptions,
        job_managers: u32,
        task_managers: u32,
        slots: u32,
    ) -> TestCluster {
        let load = load
            .with("taskmanager.numberOfTaskSlots", &slots.to_string())
            .with("taskmanager.cpu.cores", &(2 * slots).to_string());
        let configuration = Configuration::load(load).expect("valid");
        let memory = MemoryCluster::default();
        let world = World::new(memory.clone());
        let connector = LocalConnector::default();
        connector.set_network_model(Arc::new(world.clone()));
        let observer = memory.observer();
        let client = Client {
            connector: connector.from_host("client#0"),
            leaders: retrieval::follow(ElectionDriver::observed(&observer)),
            world: world.clone(),
        };
        let sinks = recorded_sinks(&world);
        let mut cluster = TestCluster {
            world,
            memory,
            client,
            driver: None,
            application: None,
            blobs: None,
            options: Arc::new(configuration.options().clone()),
            connector,
            sinks,
            lives: 0,
            job_managers: BTreeMap::new(),
            task_managers: BTreeMap::new(),
            _observer: observer,
        };
        for number in 1..=job_managers {
            cluster.start_job_manager(&format!("jm{number}"));
        }
        for number in 1..=task_managers {
            cluster.start_task_manager(&format!("tm{number}"));
        }
        cluster
    }

    fn next_life(&mut self, name: &str) -> String {
        self.lives += 1;
        format!("{name}#{}", self.lives)
    }

    /// Starts a JobManager; it must not run.
    pub(crate) fn start_job_manager(&mut self, name: &str) {
        let options = self.options.clone();
        self.start_job_manager_with(name, options);
    }

    /// Starts a JobManager that is configured for another cluster.
    pub(crate) fn start_job_manager_of(&mut self, name: &str, cluster_id: &str) {
        let mut options = (*self.options).clone();
        options.ha.cluster_id = cluster_id.parse().expect("a name");
        self.start_job_manager_with(name, Arc::new(options));
    }

    fn start_job_manager_with(&mut self, name: &str, options: Arc<ClusterOptions>) {
        let life = self.next_life(name);
        self.world.begins(&life);
        let process = ProcessId::new(name);
        let address = format!("{name}:1");
        let blob_address = format!("{name}:2");
        let blobs = ServedBlobs::new(blob_address.as_str());
        let workers = self.driver.clone().map(|driver| WorkersSetup {
            driver,
            options: settings::worker_limits(&options),
        });
        let application = self.application.as_ref();
        let contender = Contender::new(ContenderOptions {
            options,
            process: process.clone(),
            store: "memory",
            addresses: BTreeMap::from([("rpc".to_owned(), address.clone())]),
            connector: Arc::new(self.connector.from_host(&life)),
            checks: graph_checks(),
            sinks: sinks_of(&self.sinks, &self.world, &life),
            peers: None,
            blobs: blobs.clone(),
            application: application.map(ApplicationSetup::application),
            workers,
        });
        self.connector.put_blobs(&blob_address, Arc::new(blobs));
        self.connector
            .put_job_manager(&address, contender.components());
        let clock = Clock::tokio();
        let driver = Arc::new(self.memory.election(process.clone(), clock));
        let election = ElectionOptions {
            process: process.clone(),
            start: life.clone(),
            timing: Timing::default(),
            clock,
        };
        let stoppable = StoppableElection::new(driver.clone(), self.world.clone(), process.clone());
        let election = LeaderElection::start(Arc::new(stoppable), election);
        let watched = election.detached();
        tokio::spawn(note_grants(
            election.leadership(),
            self.world.clone(),
            life.clone(),
        ));
        let opened = HaServices {
            election,
            store: Arc::new(ObservedStore {
                inner: self.memory.store_of(process),
                late: Arc::new(self.memory.store()),
                world: self.world.clone(),
                life: life.clone(),
            }),
            blobs: self.blobs.clone(),
        };
        let stop = CancellationToken::new();
        let asked = stop.clone();
        let run = tokio::spawn(async move { contender.run(opened, &asked).await });
        let running = JobManagerLife {
            life,
            stop,
            run,
            driver,
            election: watched,
        };
        assert!(
            self.job_managers
                .insert(name.to_owned(), running)
                .is_none_or(|earlier| earlier.run.is_finished()),
            "{name} runs already"
        );
    }

    /// Kills a JobManager. Its lease ends at once, as if it had expired.
    pub(crate) async fn kill_job_manager(&mut self, name: &str) {
        self.kill_job_manager_keeping_its_lease(name).await;
        self.memory.expire(&ProcessId::new(name));
    }

    /// Kills a JobManager; its lease goes on until it expires.
    pub(crate) async fn kill_job_manager_keeping_its_lease(&mut self, name: &str) {
        let running = self.job_managers.remove(name).expect("it runs");
        self.world.kill(&running.life);
        self.remove_addresses(name);
        running.run.abort();
        // Its election may outlive it while a task still waits for an answer of the dead process: without a
        // session it takes no leadership, and cut off it releases none.
        ElectionDriver::close(&*running.driver).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.memory.heal(&ProcessId::new(name));
    }

    /// Stops a JobManager in order.
    pub(crate) async fn stop_job_manager(&mut self, name: &str) {
        let running = self.job_managers.remove(name).expect("it runs");
        running.stop.cancel();
        let code = running.run.await.expect("it ends in order");
        assert_eq!(code, ExitCode::Ended);
        self.remove_addresses(name);
    }

    /// Waits until a JobManager ends by itself; returns its exit code.
    pub(crate) async fn end_of_job_manager(&mut self, name: &str) -> ExitCode {
        let running = self.job_managers.remove(name).expect("it runs");
        let ended = tokio::time::timeout(TIMEOUT, running.run).await;
        self.remove_addresses(name);
        match ended {
            Ok(code) => code.expect("it ends in order"),
            Err(_) => panic!("{name} did not end: {:#?}", self.world.stored()),
        }
    }

    /// Removes the listeners of this JobManager.
    fn remove_addresses(&self, name: &str) {
        for port in [1, 2] {
            self.connector.remove(&format!("{name}:{port}"));
        }
    }

    /// Waits until a JobManager was struck, and removes what is left of it. Returns its name.
    pub(crate) async fn after_strike(&mut self) -> String {
        let struck = tokio::time::timeout(TIMEOUT, self.world.struck()).await;
        let life = struck
            .unwrap_or_else(|_| panic!("no JobManager was struck: {:#?}", self.world.stored()));
        let name = process_of(&life).to_owned();
        self.kill_job_manager(&name).await;
        name
    }

    /// Makes the next JobManager that takes such a step die; [`after_strike`](Self::after_strike) waits for
    /// that.
    pub(crate) fn strike_at(&self, strike: impl FnMut(&Step<'_>) -> bool + Send + 'static) {
        self.world.strike_at(strike);
    }

    /// Starts a TaskManager with the resource id `name`; it must not run.
    pub(crate) fn start_task_manager(&mut self, name: &str) {
        self.start_task_manager_as(name, first_registration(), PROTOCOL_VERSION);
    }

    /// Like [`start_task_manager`](Self::start_task_manager), with registrations above this number, and of this
    /// protocol version.
    pub(crate) fn start_task_manager_as(
        &mut self,
        name: &str,
        first_registration: u64,
        protocol_version: u32,
    ) {
        let life = self.next_life(name);
        let launcher = Arc::new(ScriptedTasks {
            world: self.world.clone(),
            life: life.clone(),
        });
        let location = pb::TaskManagerLocation {
            resource_id: name.to_owned(),
            incarnation: life.clone(),
            rpc_address: format!("{name}:1"),
            data_address: "-:0".to_owned(),
        };
        let description = TaskExecutorDescription {
            protocol_version,
            worker_of: self.driver.iter().map(|it| it.name()).collect(),
            ..describe(location, &self.options).expect("the memory adds up")
        };
        let process = ProcessId::new(name);
        let observer: Arc<dyn ElectionDriver> = Arc::new(self.memory.observer_of(process.clone()));
        let store = Arc::new(self.memory.store_of(process));
        let records = StoredJobRecords::opened(RecordStore::new(store, None, 0));
        let services = TaskExecutorServices {
            description,
            highest_epoch: HighestEpoch::default(),
            store: own_store(observer),
            records: Arc::new(records),
            connector: Arc::new(self.connector.from_host(&life)),
            launcher,
            first_registration,
            guard: IsolationGuard::new(Clock::tokio()),
        };
        let executor = TaskExecutor::start(settings::task_executor(&self.options), services);
        let observed = ObservedExecutor {
            inner: Arc::new(executor.handle()),
            world: self.world.clone(),
            life: life.clone(),
        };
        self.connector
            .put_task_executor(&format!("{name}:1"), Arc::new(observed));
        let running = TaskManagerLife { life, executor };
        assert!(
            self.task_managers
                .insert(name.to_owned(), running)
                .is_none(),
            "{name} runs already"
        );
    }

    /// Kills a TaskManager, and all its tasks with it.
    pub(crate) async fn kill_task_manager(&mut self, name: &str) {
        let running = self.task_managers.remove(name).expect("it runs");
        self.world.kill(&running.life);
        self.connector.remove(&format!("{name}:1"));
        drop(running);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    /// Waits until a TaskManager ends by itself; returns its exit code.
    pub(crate) async fn end_of_task_manager(&mut self, name: &str) -> ExitCode {
        let running = self.task_managers.remove(name).expect("it runs");
        let never = CancellationToken::new();
        let end = until_it_ends(running.executor, &never);
        let ended = tokio::time::timeout(TIMEOUT, end).await;
        self.connector.remove(&format!("{name}:1"));
        match ended {
            Ok(Ok(())) => ExitCode::Ended,
            Ok(Err(cause)) => exit_code(&cause),
            Err(_) => panic!("{name} did not end: {:#?}", self.world.stored()),
        }
    }

    /// Stops a TaskManager in order: it disconnects.
    pub(crate) async fn stop_task_manager(&mut self, name: &str) {
        let running = self.task_managers.remove(name).expect("it runs");
        running.executor.stop("a test stops it").await;
        self.connector.remove(&format!("{name}:1"));
    }

    /// The network to all processes, for the test itself.
    pub(crate) fn connector(&self) -> &LocalConnector {
        &self.client.connector
    }

    pub(crate) fn runs(&self, name: &str) -> bool {
        self.job_managers.contains_key(name) || self.task_managers.contains_key(name)
    }

    /// What is known of the leader.
    pub(crate) fn leader_view(&self) -> LeaderView {
        self.client.leaders.borrow().clone()
    }

    /// Waits for a confirmed leader above an epoch; returns its name.
    pub(crate) async fn leader_above(&self, epoch: u64) -> String {
        let mut leaders: watch::Receiver<LeaderView> = self.client.leaders.clone();
        let is_there = |view: &LeaderView| {
            let leader = view.leader.as_ref();
            leader.is_some_and(|leader| leader.epoch.get() > epoch)
        };
        let found = tokio::time::timeout(TIMEOUT, leaders.wait_for(is_there)).await;
        let view =
            found.unwrap_or_else(|_| panic!("no leader above {epoch}: {:?}", self.leader_view()));
        let view = view.expect("the retrieval lives");
        let leader = view.leader.as_ref().expect("it is there");
        leader.process.as_str().to_owned()
    }

    pub(crate) async fn leader(&self) -> String {
        self.leader_above(0).await
    }

    /// The sender in the leader's messages to a TaskManager that has not registered yet.
    pub(crate) fn leaders_sender(&self) -> pb::Sender {
        let view = self.leader_view();
        let incarnation = view.incarnation.expect("there is a leader");
        let holder = view.holder.expect("there is a leader");
        sender_of(&incarnation, view.epoch, &holder, view.store.as_ref())
    }

    /// The epoch of the leader.
    pub(crate) fn epoch(&self) -> u64 {
        self.leader_view().epoch.get()
    }

    /// Checks all invariants.
    pub(crate) fn check(&self) {
        let broken = invariants::broken(&self.world.events());
        assert!(broken.is_empty(), "{broken:#?}\n{:#?}", self.world.events());
    }
}

impl fmt::Display for TestCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#?}", self.world.events())
    }
}
