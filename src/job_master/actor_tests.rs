//! The actor on paused time, with scripted TaskExecutors.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tanist_ha::election::Epoch;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState, JobStatus};

use super::testing::{graph_of, submitted};
use super::{JobMaster, JobMasterContext, JobMasterHandle, JobMasterOptions, RestartStrategy};
use super::{SinkCommitter, options::OnHigherEpoch};
use crate::gateway::persistence::{MemoryJobStateStore, PersistError};
use crate::gateway::{
    Connector, DispatcherGateway, GatewayError, GatewayResult, JobMasterGateway,
    ResourceManagerGateway, ResourceOverview, ResourceRequirements, ResourceRequirementsGateway,
    TaskExecutorGateway,
};

/// How a TaskExecutor answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Mood {
    #[default]
    Well,
    Silent,
    Unreachable,
}

/// A TaskExecutor that runs what it is given until the test says otherwise.
#[derive(Debug, Default)]
struct TaskExecutor {
    mood: Mutex<Mood>,
    running: Mutex<BTreeMap<(String, u32), pb::ExecutionReport>>,
    slots: Mutex<Vec<String>>,
    calls: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TaskExecutor {
    async fn answer(&self, call: String) -> GatewayResult<pb::Ack> {
        let mood = *lock(&self.mood);
        match mood {
            Mood::Well => {
                lock(&self.calls).push(call);
                Ok(pb::Ack {})
            }
            Mood::Silent => std::future::pending().await,
            Mood::Unreachable => Err(GatewayError::gone("the TaskExecutor")),
        }
    }

    fn was_called(&self, call: &str) -> bool {
        lock(&self.calls).iter().any(|made| made == call)
    }

    fn reports(&self) -> Vec<pb::ExecutionReport> {
        lock(&self.running).values().cloned().collect()
    }

    /// Moves all that runs to a state and gives the reports of it.
    fn all_become(&self, state: ExecutionState) -> Vec<pb::ExecutionReport> {
        for report in lock(&self.running).values_mut() {
            report.set_state(state);
            if state == ExecutionState::Finished {
                let name = format!("{}-{}", report.subtask, report.generation);
                report.committables = vec![pb::Committable {
                    pending_path: format!("/out/.pending/{name}"),
                    final_path: format!("/out/{name}"),
                }];
            }
        }
        self.reports()
    }
}

#[async_trait]
impl TaskExecutorGateway for TaskExecutor {
    async fn request_slot(
        &self,
        _: pb::RequestSlotRequest,
    ) -> GatewayResult<pb::RequestSlotResponse> {
        Err(GatewayError::Internal("JobMasters don't".to_owned()))
    }

    async fn free_slots(&self, request: pb::FreeSlotsRequest) -> GatewayResult<pb::Ack> {
        self.answer(format!("free {}", request.allocation_ids.len()))
            .await
    }

    async fn submit_tasks(
        &self,
        request: pb::SubmitTasksRequest,
    ) -> GatewayResult<pb::SubmitTasksResponse> {
        self.answer("submit".to_owned()).await?;
        for task in request.tasks {
            let report = pb::ExecutionReport {
                vertex_id: task.vertex_id.clone(),
                subtask: task.subtask,
                generation: task.generation,
                state: ExecutionState::Running.into(),
                allocation_id: task.allocation_id,
                ..pb::ExecutionReport::default()
            };
            lock(&self.running).insert((task.vertex_id, task.subtask), report);
        }
        Ok(pb::SubmitTasksResponse::default())
    }

    async fn cancel_tasks(&self, _: pb::CancelTasksRequest) -> GatewayResult<pb::Ack> {
        self.answer("cancel".to_owned()).await
    }

    async fn acknowledge_executions(
        &self,
        request: pb::AcknowledgeExecutionsRequest,
    ) -> GatewayResult<pb::Ack> {
        self.answer(format!("acknowledge {}", request.executions.len()))
            .await
    }

    async fn heartbeat_from_resource_manager(
        &self,
        _: pb::HeartbeatFromResourceManagerRequest,
    ) -> GatewayResult<pb::HeartbeatFromResourceManagerResponse> {
        Err(GatewayError::Internal("JobMasters don't".to_owned()))
    }

    async fn heartbeat_from_job_master(
        &self,
        _: pb::HeartbeatFromJobMasterRequest,
    ) -> GatewayResult<pb::HeartbeatFromJobMasterResponse> {
        self.answer("heartbeat".to_owned()).await?;
        let allocation_ids = lock(&self.slots).clone();
        Ok(pb::HeartbeatFromJobMasterResponse {
            executions: self.reports(),
            allocation_ids,
        })
    }

    async fn disconnect_job_master(
        &self,
        request: pb::DisconnectJobMasterRequest,
    ) -> GatewayResult<pb::Ack> {
        self.answer(format!("disconnect, ended: {}", request.job_ended))
            .await
    }

    async fn disconnect_resource_manager(
        &self,
        _: pb::DisconnectResourceManagerRequest,
    ) -> GatewayResult<pb::Ack> {
        Err(GatewayError::Internal("JobMasters don't".to_owned()))
    }
}

/// All that surrounds a JobMaster.
#[derive(Debug, Default)]
struct Surroundings {
    task_executors: BTreeMap<String, Arc<TaskExecutor>>,
    declared: Mutex<Vec<u32>>,
    committed: Mutex<Vec<pb::Committable>>,
    failing_commits: Mutex<u32>,
}

impl Connector for Surroundings {
    fn dispatcher(&self, _: &str) -> Arc<dyn DispatcherGateway> {
        unreachable!("a JobMaster has its Dispatcher's handle")
    }

    fn resource_manager(&self, _: &str) -> Arc<dyn ResourceManagerGateway> {
        unreachable!("a JobMaster is given its ResourceManager")
    }

    fn job_master(&self, _: &str, _: JobId) -> Arc<dyn JobMasterGateway> {
        unreachable!("JobMasters don't call each other")
    }

    fn task_executor(&self, address: &str) -> Arc<dyn TaskExecutorGateway> {
        self.task_executors[address].clone()
    }
}

#[async_trait]
impl ResourceRequirementsGateway for Surroundings {
    async fn declare_required_resources(
        &self,
        requirements: ResourceRequirements,
    ) -> GatewayResult<()> {
        let needed = requirements
            .resources
            .iter()
            .map(|resource| resource.minimum)
            .sum();
        lock(&self.declared).push(needed);
        Ok(())
    }

    async fn resource_overview(&self) -> GatewayResult<ResourceOverview> {
        Ok(ResourceOverview::default())
    }
}

#[async_trait]
impl SinkCommitter for Surroundings {
    async fn commit(&self, committables: &[pb::Committable]) -> Result<(), String> {
        let mut failing = lock(&self.failing_commits);
        if *failing > 0 {
            *failing -= 1;
            return Err("no space".to_owned());
        }
        lock(&self.committed).extend_from_slice(committables);
        Ok(())
    }
}

struct Fixture {
    surroundings: Arc<Surroundings>,
    store: MemoryJobStateStore,
    deposed_by: Arc<Mutex<Option<Epoch>>>,
    graph: pb::JobGraph,
    job_master: JobMasterHandle,
}

fn sender(registration: u64) -> pb::Sender {
    pb::Sender {
        cluster_incarnation: "c".to_owned(),
        epoch: 3,
        registration,
    }
}

fn options(restart_strategy: RestartStrategy) -> JobMasterOptions {
    JobMasterOptions {
        restart_strategy,
        ..JobMasterOptions::default()
    }
}

impl Fixture {
    fn start(options: JobMasterOptions) -> Fixture {
        let graph = graph_of(&[("a", 1), ("b", 2)], &[(0, 1)]);
        let state = submitted(&graph);
        Fixture::start_with(options, graph, state, MemoryJobStateStore::default())
    }

    fn start_with(
        options: JobMasterOptions,
        graph: pb::JobGraph,
        state: pb::JobState,
        store: MemoryJobStateStore,
    ) -> Fixture {
        let task_executors = ["tm1:1", "tm2:1"].map(|address| (address.to_owned(), Arc::default()));
        let surroundings = Surroundings {
            task_executors: task_executors.into_iter().collect(),
            ..Surroundings::default()
        };
        let surroundings = Arc::new(surroundings);
        let deposed_by = Arc::new(Mutex::new(None));
        let heard = deposed_by.clone();
        let on_higher_epoch: OnHigherEpoch = Arc::new(move |epoch| *lock(&heard) = Some(epoch));
        let context = JobMasterContext {
            graph: graph.clone(),
            is_recovered: !state.regions.is_empty(),
            state,
            sender: sender(0),
            rpc_address: "jm:1".to_owned(),
            state_store: Arc::new(store.clone()),
            resources: surroundings.clone(),
            connector: surroundings.clone(),
            committer: surroundings.clone(),
            on_higher_epoch,
        };
        let job_master = JobMaster::start(options, context);
        Fixture {
            surroundings,
            store,
            deposed_by,
            graph,
            job_master,
        }
    }

    fn task_executor(&self, name: &str) -> Arc<TaskExecutor> {
        self.surroundings.task_executors[&format!("{name}:1")].clone()
    }

    /// Registers a TaskManager with two slots.
    async fn register(
        &self,
        name: &str,
        registration: u64,
    ) -> GatewayResult<pb::RegisterTaskManagerResponse> {
        let offers = (0..2u32).map(|slot| pb::SlotOffer {
            allocation_id: format!("{:031x}{slot}", registration),
            slot,
            profile: None,
        });
        let offers: Vec<pb::SlotOffer> = offers.collect();
        *lock(&self.task_executor(name).slots) = offers
            .iter()
            .map(|offer| offer.allocation_id.clone())
            .collect();
        let request = pb::RegisterTaskManagerRequest {
            sender: Some(sender(registration)),
            job_id: self.graph.job_id.clone(),
            location: Some(pb::TaskManagerLocation {
                resource_id: name.to_owned(),
                incarnation: "1".to_owned(),
                rpc_address: format!("{name}:1"),
                data_address: format!("{name}:2"),
            }),
            executions: self.task_executor(name).reports(),
            slots: offers,
        };
        self.job_master.register_task_manager(request).await
    }

    async fn report(&self, name: &str, registration: u64, executions: Vec<pb::ExecutionReport>) {
        let request = pb::UpdateTaskExecutionStatesRequest {
            sender: Some(sender(registration)),
            job: None,
            resource_id: name.to_owned(),
            incarnation: "1".to_owned(),
            executions,
        };
        self.job_master
            .update_task_execution_states(request)
            .await
            .expect("registered");
    }

    fn stored(&self) -> pb::JobState {
        self.store.state(&self.graph.job_id).unwrap_or_default()
    }
}

/// Waits, in the test's own time, until a claim holds.
async fn wait_until(what: &str, claim: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if claim() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 1000 s: {what}");
}

#[tokio::test(start_paused = true)]
async fn a_job_is_placed_deployed_committed_and_let_go() {
    let fixture = Fixture::start(options(RestartStrategy::None));
    let task_executor = fixture.task_executor("tm1");
    *lock(&fixture.surroundings.failing_commits) = 2;
    fixture.register("tm1", 1).await.expect("admitted");
    wait_until("three tasks run", || task_executor.reports().len() == 3).await;
    assert_eq!(fixture.stored().regions[0].placements.len(), 3);
    fixture.report("tm1", 1, task_executor.reports()).await;
    let details = fixture.job_master.describe().await.expect("alive");
    assert_eq!(details.status(), JobStatus::Running);
    let subtask = &details.vertices[1].subtasks[1];
    assert_eq!(
        (subtask.state(), subtask.attempt),
        (ExecutionState::Running, 1)
    );
    assert_eq!(subtask.host, "tm1:1");

    let finished = task_executor.all_become(ExecutionState::Finished);
    fixture.report("tm1", 1, finished).await;
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Finished, "{}", result.cause);
    assert!(result.dirty);
    assert_eq!(lock(&fixture.surroundings.committed).len(), 3);
    wait_until("acknowledged", || task_executor.was_called("acknowledge 3")).await;
    let error = fixture.job_master.cancel().await.expect_err("too late");
    assert!(matches!(error, GatewayError::Conflict(_)), "{error}");

    fixture
        .job_master
        .result_written()
        .await
        .expect("there is a result");
    assert!(task_executor.was_called("disconnect, ended: true"));
    assert_eq!(lock(&fixture.surroundings.declared).first(), Some(&2));
    assert_eq!(lock(&fixture.surroundings.declared).last(), Some(&0));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_is_acknowledged_after_it_is_durable_and_ends_a_job_that_waits_for_slots() {
    let fixture = Fixture::start(options(RestartStrategy::None));
    wait_until("the start is durable", || {
        fixture.stored().job_incarnation == 1
    })
    .await;
    fixture.store.set_delay(Duration::from_secs(5));
    let before = tokio::time::Instant::now();
    fixture.job_master.cancel().await.expect("canceled");
    assert!(before.elapsed() >= Duration::from_secs(5));
    assert_eq!(fixture.stored().wanted(), pb::WantedStatus::Canceled);
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Canceled);
    assert!(before.elapsed() < Duration::from_secs(6));
    fixture.job_master.cancel().await.expect("canceled already");
}

#[tokio::test(start_paused = true)]
async fn running_tasks_are_cancelled_and_waited_for_before_the_job_is_canceled() {
    let fixture = Fixture::start(options(RestartStrategy::None));
    let task_executor = fixture.task_executor("tm1");
    fixture.register("tm1", 1).await.expect("admitted");
    wait_until("three tasks run", || task_executor.reports().len() == 3).await;
    fixture.job_master.cancel().await.expect("canceled");
    wait_until("told", || task_executor.was_called("cancel")).await;
    assert_eq!(
        fixture.job_master.describe().await.expect("alive").status(),
        JobStatus::Cancelling
    );
    let canceled = task_executor.all_become(ExecutionState::Canceled);
    fixture.report("tm1", 1, canceled).await;
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Canceled);
    assert!(lock(&fixture.surroundings.committed).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_silent_task_manager_is_lost_and_its_region_restarts_elsewhere() {
    let fixture = Fixture::start(options(RestartStrategy::default()));
    fixture.register("tm1", 1).await.expect("admitted");
    let (first, second) = (fixture.task_executor("tm1"), fixture.task_executor("tm2"));
    wait_until("three tasks run", || first.reports().len() == 3).await;
    *lock(&first.mood) = Mood::Silent;
    let before = tokio::time::Instant::now();
    wait_until("a new generation", || {
        fixture.stored().regions[0].generation == 2
    })
    .await;
    assert!(
        before.elapsed() >= Duration::from_secs(40),
        "{:?}",
        before.elapsed()
    );
    assert!(
        before.elapsed() <= Duration::from_secs(61),
        "{:?}",
        before.elapsed()
    );
    fixture.register("tm2", 2).await.expect("admitted");
    wait_until("three tasks run elsewhere", || second.reports().len() == 3).await;
    let details = fixture.job_master.describe().await.expect("alive");
    assert_eq!(
        (details.restarts, details.vertices[0].subtasks[0].attempt),
        (1, 2)
    );
    let failure = details.failures.last().expect("one failure");
    assert_eq!(failure.task, "a (1/1)");
    assert_eq!(
        failure.cause,
        "TaskManager tm1 (tm1:1) was lost: no heartbeat for 50000 ms"
    );
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_can_not_be_reached_is_lost_before_its_heartbeat_times_out() {
    let fixture = Fixture::start(options(RestartStrategy::None));
    let task_executor = fixture.task_executor("tm1");
    fixture.register("tm1", 1).await.expect("admitted");
    wait_until("three tasks run", || task_executor.reports().len() == 3).await;
    *lock(&task_executor.mood) = Mood::Unreachable;
    let before = tokio::time::Instant::now();
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Failed);
    assert!(
        result.cause.contains("TaskManager tm1 (tm1:1) was lost"),
        "{}",
        result.cause
    );
    assert!(
        before.elapsed() <= Duration::from_secs(21),
        "{:?}",
        before.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn slots_that_don_t_come_fail_the_job_with_what_is_missing() {
    let fixture = Fixture::start(options(RestartStrategy::None));
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Failed);
    assert!(
        result.cause.contains("the job needs 2, 0 are there"),
        "{}",
        result.cause
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_that_can_not_be_initialized_ends_as_failed_with_its_cause() {
    let mut graph = graph_of(&[("a", 1)], &[]);
    graph.vertices[0].parallelism = 0;
    let state = submitted(&graph);
    let store = MemoryJobStateStore::default();
    let fixture = Fixture::start_with(JobMasterOptions::default(), graph, state, store);
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Failed);
    assert!(result.cause.contains("parallelism 0"), "{}", result.cause);
    let details = fixture.job_master.describe().await.expect("alive");
    assert_eq!(details.status(), JobStatus::Failed);
    fixture
        .job_master
        .result_written()
        .await
        .expect("there is a result");
}

#[tokio::test(start_paused = true)]
async fn a_term_that_is_over_is_forgotten_and_nobody_is_told() {
    let fixture = Fixture::start(options(RestartStrategy::default()));
    let task_executor = fixture.task_executor("tm1");
    fixture.register("tm1", 1).await.expect("admitted");
    wait_until("three tasks run", || task_executor.reports().len() == 3).await;
    fixture.store.end_term();
    let calls = lock(&task_executor.calls).len();
    let error = fixture.job_master.cancel().await.expect_err("nobody knows");
    assert!(matches!(error, GatewayError::Unknown(_)), "{error}");
    assert_eq!(fixture.job_master.ended().await, None);
    assert_eq!(lock(&task_executor.calls).len(), calls);
    assert!(fixture.job_master.describe().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn stopping_forgets_and_tells_nobody() {
    let fixture = Fixture::start(options(RestartStrategy::default()));
    let task_executor = fixture.task_executor("tm1");
    fixture.register("tm1", 1).await.expect("admitted");
    wait_until("three tasks run", || task_executor.reports().len() == 3).await;
    fixture.job_master.stop().await;
    assert_eq!(fixture.job_master.ended().await, None);
    assert!(!task_executor.was_called("disconnect, ended: true"));
}

#[tokio::test(start_paused = true)]
async fn messages_of_other_terms_are_refused_and_a_younger_term_is_told() {
    let fixture = Fixture::start(options(RestartStrategy::default()));
    let offer = |epoch: u64| pb::OfferSlotsRequest {
        sender: Some(pb::Sender { epoch, ..sender(1) }),
        resource_id: "tm1".to_owned(),
        ..pb::OfferSlotsRequest::default()
    };
    let error = fixture
        .job_master
        .offer_slots(offer(2))
        .await
        .expect_err("older");
    assert!(matches!(error, GatewayError::Outdated { .. }), "{error}");
    assert_eq!(*lock(&fixture.deposed_by), None);
    let error = fixture
        .job_master
        .offer_slots(offer(4))
        .await
        .expect_err("younger");
    assert!(matches!(error, GatewayError::Outdated { .. }), "{error}");
    assert_eq!(*lock(&fixture.deposed_by), Some(Epoch::new(4)));
    let error = fixture
        .job_master
        .offer_slots(offer(3))
        .await
        .expect_err("not registered");
    assert!(matches!(error, GatewayError::NotFound(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_is_not_the_youngest_is_refused() {
    let fixture = Fixture::start(options(RestartStrategy::default()));
    fixture.register("tm1", 2).await.expect("admitted");
    let answer = fixture.register("tm1", 2).await.expect("admitted");
    let answer = answer
        .registration
        .and_then(|registration| registration.answer);
    assert!(
        matches!(answer, Some(pb::registration_response::Answer::Failure(_))),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_record_that_the_store_refuses_fails_the_job_with_the_reason() {
    let store = MemoryJobStateStore::default();
    store.refuse(PersistError::TooLarge { size: 9, limit: 8 });
    let graph = graph_of(&[("a", 1)], &[]);
    let state = submitted(&graph);
    let fixture = Fixture::start_with(options(RestartStrategy::None), graph, state, store);
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Failed);
    assert!(
        result.cause.contains("9 bytes is more than the 8 bytes"),
        "{}",
        result.cause
    );
}

#[tokio::test(start_paused = true)]
async fn a_recovered_job_whose_tasks_have_all_finished_is_committed_and_not_run() {
    let graph = graph_of(&[("a", 1)], &[]);
    let committable = pb::Committable {
        pending_path: "p".to_owned(),
        final_path: "f".to_owned(),
    };
    let mut state = submitted(&graph);
    state.regions = vec![pb::RegionState {
        generation: 2,
        epoch: 1,
        placements: Vec::new(),
    }];
    state.terminal = vec![pb::TerminalExecution {
        vertex_id: graph.vertices[0].id.clone(),
        generation: 2,
        state: ExecutionState::Finished.into(),
        committables: vec![committable.clone()],
        ..pb::TerminalExecution::default()
    }];
    let store = MemoryJobStateStore::default();
    let fixture = Fixture::start_with(options(RestartStrategy::None), graph, state, store);
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Finished, "{}", result.cause);
    assert_eq!(*lock(&fixture.surroundings.committed), [committable]);
}

#[tokio::test(start_paused = true)]
async fn a_recovered_job_restarts_under_a_new_generation_without_counting_a_failure() {
    let graph = graph_of(&[("a", 1), ("b", 2)], &[(0, 1)]);
    let mut state = submitted(&graph);
    state.regions = vec![pb::RegionState {
        generation: 4,
        epoch: 1,
        placements: Vec::new(),
    }];
    let store = MemoryJobStateStore::default();
    let fixture = Fixture::start_with(options(RestartStrategy::None), graph, state, store);
    let task_executor = fixture.task_executor("tm1");
    fixture.register("tm1", 1).await.expect("admitted");
    wait_until("three tasks run", || task_executor.reports().len() == 3).await;
    assert!(
        task_executor
            .reports()
            .iter()
            .all(|report| report.generation == 5)
    );
    let region = &fixture.stored().regions[0];
    assert_eq!((region.generation, region.epoch), (5, 3));
    assert_eq!(
        fixture.job_master.describe().await.expect("alive").restarts,
        0
    );
}
