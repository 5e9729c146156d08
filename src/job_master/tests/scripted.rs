//! The environment of a JobMaster for tests of its actor: TaskExecutors that run their tasks until the test
//! changes them, and a ResourceManager and a committer that record their calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_gateway::blobs::{BlobGateway, ServedBlobs};
use tanist_gateway::fencing::OnHigherEpoch;
use tanist_gateway::persistence::MemoryJobStateStore;
use tanist_gateway::refusals::Refusals;
use tanist_gateway::{
    Connector, Departure, Detail, DispatcherGateway, GatewayError, GatewayResult, JobMasterGateway,
    JobMasterRegistration, ResourceManagerGateway, ResourceOverview, ResourceRequirements,
    ResourceRequirementsGateway, TaskExecutorGateway,
};
use tanist_ha::blob::BlobStore;
use tanist_ha::election::Epoch;
use tanist_model::CommitError;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use crate::RestartStrategy;
use crate::core::tests::testing::{graph_of, submitted};
use crate::{JobMaster, JobMasterContext, JobMasterHandle, JobMasterOptions, StartLimiter};
use crate::{SinkCommitter, Superseded};

/// How a TaskExecutor answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mood {
    #[default]
    Well,
    Silent,
    Unreachable,
    StartedAgain,
    RegistersAgain,
}

/// A TaskExecutor that runs its tasks until the test changes them.
#[derive(Debug, Default)]
pub(super) struct TaskExecutor {
    pub(super) mood: Mutex<Mood>,
    pub(super) running: Mutex<BTreeMap<(String, u32), pb::ExecutionReport>>,
    pub(super) slots: Mutex<Vec<String>>,
    /// What it has to report of checkpoints.
    pub(super) checkpoints: Mutex<Vec<pb::CheckpointReport>>,
    /// What the tasks are restored from, in the order of their deployments.
    pub(super) restored: Mutex<Vec<pb::TaskDeployment>>,
    /// The last trigger.
    pub(super) triggered: Mutex<Option<pb::TriggerCheckpointRequest>>,
    pub(super) calls: Mutex<Vec<String>>,
}

impl TaskExecutor {
    async fn answer(&self, call: String) -> GatewayResult<pb::Ack> {
        let mood = *self.mood.lock();
        match mood {
            Mood::Well => {
                self.calls.lock().push(call);
                Ok(pb::Ack {})
            }
            Mood::Silent => std::future::pending().await,
            Mood::Unreachable => Err(GatewayError::gone("the TaskExecutor")),
            Mood::StartedAgain => {
                let reason = "no such registration".to_owned();
                Err(GatewayError::Outdated { epoch: 3, reason })
            }
            Mood::RegistersAgain => Err(GatewayError::NotYet("registering again".to_owned())),
        }
    }

    pub(super) fn was_called(&self, call: &str) -> bool {
        self.calls.lock().iter().any(|made| made == call)
    }

    pub(super) fn reports(&self) -> Vec<pb::ExecutionReport> {
        self.running.lock().values().cloned().collect()
    }

    /// Moves all running tasks to a state and returns their reports.
    pub(super) fn all_become(&self, state: ExecutionState) -> Vec<pb::ExecutionReport> {
        for report in self.running.lock().values_mut() {
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
            self.restored.lock().push(task.clone());
            let report = pb::ExecutionReport {
                vertex_id: task.vertex_id.clone(),
                subtask: task.subtask,
                generation: task.generation,
                state: ExecutionState::Running.into(),
                allocation_id: task.allocation_id,
                ..pb::ExecutionReport::default()
            };
            self.running
                .lock()
                .insert((task.vertex_id, task.subtask), report);
        }
        Ok(pb::SubmitTasksResponse::default())
    }

    async fn cancel_tasks(&self, _: pb::CancelTasksRequest) -> GatewayResult<pb::Ack> {
        self.answer("cancel".to_owned()).await
    }

    async fn trigger_checkpoint(
        &self,
        request: pb::TriggerCheckpointRequest,
    ) -> GatewayResult<pb::TriggerCheckpointResponse> {
        let number = request.barrier.unwrap_or_default().number;
        *self.triggered.lock() = Some(request.clone());
        self.answer(format!("trigger {number}")).await?;
        let injected = pb::TriggerAnswer {
            answer: Some(pb::trigger_answer::Answer::Injected(pb::Ack {})),
        };
        let answers = request.sources.iter().map(|_| injected.clone()).collect();
        Ok(pb::TriggerCheckpointResponse { answers })
    }

    async fn abort_checkpoint(
        &self,
        request: pb::AbortCheckpointRequest,
    ) -> GatewayResult<pb::Ack> {
        self.answer(format!("abort {}", request.number)).await
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
        let allocation_ids = self.slots.lock().clone();
        Ok(pb::HeartbeatFromJobMasterResponse {
            outputs: Vec::new(),
            checkpoints: self.checkpoints.lock().clone(),
            executions: self.reports(),
            allocation_ids,
        })
    }

    async fn disconnect_job_master(
        &self,
        request: pb::DisconnectJobMasterRequest,
    ) -> GatewayResult<pb::Ack> {
        let goodbye = format!("disconnect, ended: {}", request.job_ended);
        if *self.mood.lock() != Mood::Well {
            // The call is recorded even if it fails.
            self.calls.lock().push(goodbye.clone());
        }
        self.answer(goodbye).await
    }

    async fn disconnect_resource_manager(
        &self,
        _: pb::DisconnectResourceManagerRequest,
    ) -> GatewayResult<pb::Ack> {
        Err(GatewayError::Internal("JobMasters don't".to_owned()))
    }

    async fn announce_leader(
        &self,
        _: pb::AnnounceLeaderRequest,
    ) -> GatewayResult<pb::AnnounceLeaderResponse> {
        Err(GatewayError::Internal("JobMasters don't".to_owned()))
    }
}

/// The environment of a JobMaster.
#[derive(Debug, Default)]
pub(super) struct Environment {
    pub(super) task_executors: BTreeMap<String, Arc<TaskExecutor>>,
    pub(super) declared: Mutex<Vec<u32>>,
    pub(super) registered: Mutex<Vec<JobMasterRegistration>>,
    /// Errors for the next declarations, the last one first.
    pub(super) refusals: Mutex<Vec<GatewayError>>,
    pub(super) committed: Mutex<Vec<pb::Committable>>,
    /// What was committed with checkpoints, by their numbers.
    pub(super) committed_checkpoints: Mutex<Vec<(u64, Vec<pb::CheckpointCommittable>)>>,
    /// Up to which numbers marks were removed.
    pub(super) forgotten_marks: Mutex<Vec<u64>>,
    /// What was removed as superseded.
    pub(super) superseded: Mutex<Vec<Superseded>>,
    pub(super) failing_commits: Mutex<u32>,
    /// Number of removals, of marks or files, that fail next.
    pub(super) failing_removals: Mutex<u32>,
    pub(super) is_occupied: Mutex<bool>,
    /// Whether refused calls don't count, as this process is cut off.
    pub(super) is_cut_off: Mutex<bool>,
}

impl Connector for Environment {
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

    fn blobs(&self, _: &str) -> Arc<dyn BlobGateway> {
        unreachable!("a JobMaster fetches nothing")
    }
}

#[async_trait]
impl ResourceRequirementsGateway for Environment {
    async fn register_job_master(&self, registration: JobMasterRegistration) -> GatewayResult<()> {
        self.registered.lock().push(registration);
        Ok(())
    }

    async fn disconnect_job_master(&self, _: JobId, _: Departure) -> GatewayResult<()> {
        self.declared.lock().push(0);
        Ok(())
    }

    async fn declare_required_resources(
        &self,
        requirements: ResourceRequirements,
    ) -> GatewayResult<()> {
        if let Some(refusal) = self.refusals.lock().pop() {
            return Err(refusal);
        }
        let needed = requirements
            .resources
            .iter()
            .map(|resource| resource.minimum)
            .sum();
        self.declared.lock().push(needed);
        Ok(())
    }

    async fn resource_overview(&self) -> GatewayResult<ResourceOverview> {
        Ok(ResourceOverview::default())
    }
}

#[async_trait]
impl Refusals for Environment {
    async fn count(&self, _: &str) -> bool {
        !*self.is_cut_off.lock()
    }
}

#[async_trait]
impl SinkCommitter for Environment {
    async fn commit(&self, committables: &[pb::Committable]) -> Result<(), CommitError> {
        self.next_commit()?;
        self.committed.lock().extend_from_slice(committables);
        Ok(())
    }

    async fn commit_checkpoint(
        &self,
        number: u64,
        committables: &[pb::CheckpointCommittable],
    ) -> Result<(), CommitError> {
        self.next_commit()?;
        let mut committed = self.committed_checkpoints.lock();
        committed.push((number, committables.to_vec()));
        Ok(())
    }

    async fn forget_marks(
        &self,
        _: &pb::SinkDirectories,
        _: JobId,
        up_to: u64,
    ) -> Result<(), String> {
        self.next_removal()?;
        self.forgotten_marks.lock().push(up_to);
        Ok(())
    }

    async fn remove_superseded(
        &self,
        _: &pb::SinkDirectories,
        _: JobId,
        superseded: &Superseded,
    ) -> Result<(), String> {
        self.next_removal()?;
        self.superseded.lock().push(superseded.clone());
        Ok(())
    }
}

impl Environment {
    fn next_removal(&self) -> Result<(), String> {
        let mut failing = self.failing_removals.lock();
        if *failing == 0 {
            return Ok(());
        }
        *failing -= 1;
        Err("no permission".to_owned())
    }

    /// The answer to the next commit.
    fn next_commit(&self) -> Result<(), CommitError> {
        let mut failing = self.failing_commits.lock();
        if *failing > 0 {
            *failing -= 1;
            return Err(CommitError::Failed("no space".to_owned()));
        }
        if *self.is_occupied.lock() {
            return Err(CommitError::Refused("/out/part-0 is there".to_owned()));
        }
        Ok(())
    }
}

pub(super) struct Fixture {
    pub(super) environment: Arc<Environment>,
    pub(super) store: MemoryJobStateStore,
    pub(super) deposed_by: Arc<Mutex<Option<Epoch>>>,
    pub(super) graph: pb::JobGraph,
    pub(super) job_master: JobMasterHandle,
}

pub(super) fn sender(registration: u64) -> pb::Sender {
    pb::Sender {
        cluster_incarnation: "c".to_owned(),
        epoch: 3,
        registration,
        ..pb::Sender::default()
    }
}

pub(super) fn options(restart_strategy: RestartStrategy) -> JobMasterOptions {
    JobMasterOptions {
        restart_strategy,
        ..JobMasterOptions::default()
    }
}

impl Fixture {
    /// The full description of the job.
    pub(super) async fn details(&self) -> pb::JobDetails {
        self.job_master.describe(Detail::Full).await.expect("alive")
    }

    pub(super) fn start(options: JobMasterOptions) -> Fixture {
        Fixture::start_of(options, graph_of(&[("a", 1), ("b", 2)], &[(0, 1)]))
    }

    fn start_of(options: JobMasterOptions, graph: pb::JobGraph) -> Fixture {
        let state = submitted(&graph);
        Fixture::start_with(options, graph, state, MemoryJobStateStore::default())
    }

    pub(super) fn start_with(
        options: JobMasterOptions,
        graph: pb::JobGraph,
        state: pb::JobState,
        store: MemoryJobStateStore,
    ) -> Fixture {
        Fixture::start_in_turn(options, graph, state, store, StartLimiter::default())
    }

    pub(super) fn start_in_turn(
        options: JobMasterOptions,
        graph: pb::JobGraph,
        state: pb::JobState,
        store: MemoryJobStateStore,
        start_limiter: StartLimiter,
    ) -> Fixture {
        Fixture::start_in((options, graph), state, store, start_limiter, None)
    }

    /// The same with a place for objects of checkpoints.
    pub(super) fn start_in(
        (options, graph): (JobMasterOptions, pb::JobGraph),
        state: pb::JobState,
        store: MemoryJobStateStore,
        start_limiter: StartLimiter,
        checkpoint_objects: Option<Arc<BlobStore>>,
    ) -> Fixture {
        let task_executors = ["tm1:1", "tm2:1"].map(|address| (address.to_owned(), Arc::default()));
        let environment = Environment {
            task_executors: task_executors.into_iter().collect(),
            ..Environment::default()
        };
        let environment = Arc::new(environment);
        let deposed_by = Arc::new(Mutex::new(None));
        let heard = deposed_by.clone();
        let on_higher_epoch: OnHigherEpoch = Arc::new(move |epoch, _| *heard.lock() = Some(epoch));
        let context = JobMasterContext {
            graph: graph.clone().into(),
            is_recovered: !state.regions.is_empty(),
            state,
            sender: Arc::new(sender(0)),
            rpc_address: "jm:1".into(),
            state_store: Arc::new(store.clone()),
            resources: environment.clone(),
            connector: environment.clone(),
            refusals: environment.clone(),
            committer: environment.clone(),
            checkpoint_objects,
            on_higher_epoch,
            blobs: ServedBlobs::new("jm:2"),
            start_limiter,
        };
        let job_master = JobMaster::start(options, context);
        Fixture {
            environment,
            store,
            deposed_by,
            graph,
            job_master,
        }
    }

    /// A JobMaster whose three tasks run, and `tm1`, which runs them all.
    pub(super) async fn running(options: JobMasterOptions) -> (Fixture, Arc<TaskExecutor>) {
        Fixture::running_with(options, graph_of(&[("a", 1), ("b", 2)], &[(0, 1)])).await
    }

    /// The same of this graph, which has three tasks.
    pub(super) async fn running_with(
        options: JobMasterOptions,
        graph: pb::JobGraph,
    ) -> (Fixture, Arc<TaskExecutor>) {
        let fixture = Fixture::start_of(options, graph);
        let task_executor = fixture.task_executor("tm1");
        fixture.register("tm1", 1).await.expect("admitted");
        wait_until("three tasks run", || task_executor.reports().len() == 3).await;
        (fixture, task_executor)
    }

    pub(super) fn task_executor(&self, name: &str) -> Arc<TaskExecutor> {
        self.environment.task_executors[&format!("{name}:1")].clone()
    }

    /// Registers a TaskManager with two slots.
    pub(super) async fn register(
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
        *self.task_executor(name).slots.lock() = offers
            .iter()
            .map(|offer| offer.allocation_id.clone())
            .collect();
        let request = pb::RegisterTaskManagerRequest {
            outputs: Vec::new(),
            checkpoints: self.task_executor(name).checkpoints.lock().clone(),
            takes_checkpoints: true,
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

    pub(super) async fn report(
        &self,
        name: &str,
        registration: u64,
        executions: Vec<pb::ExecutionReport>,
    ) {
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

    pub(super) fn stored(&self) -> pb::JobState {
        self.store.state(&self.graph.job_id).unwrap_or_default()
    }
}

/// Waits, in the test's own time, until a claim holds.
pub(super) async fn wait_until(what: &str, claim: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if claim() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 1000 s: {what}");
}
