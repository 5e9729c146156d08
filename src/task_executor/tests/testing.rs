//! Test environment of a TaskExecutor: a launcher controlled by the test, and leaders that come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_dataflow::{CheckpointProgress, CheckpointStatus};
use tanist_gateway::{LocalConnector, NoAnswer, StoredGenerations, StoredJobs};
use tanist_ha::clock::Clock;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_ha::retrieval::LeaderView;
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::pieces::{Piece, pieces};
use tanist_proto::resources::{CpuCores, Resources, WorkerResourceSpec};
use tanist_proto::v1 as pb;
use tanist_proto::v1::trigger_answer::Answer;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::scripted_gateways::Script;
use super::scripted_leader::Leader;
use crate::*;

/// How long a test waits for anything.
pub(crate) const BOUND: Duration = Duration::from_secs(3600);
pub(crate) const JOB: JobId = JobId::from_bits(0xA);
pub(crate) const VERTEX: &str = "00000000000000000000000000000001";
pub(crate) const TE: &str = "tm:1";
pub(crate) const A1: &str = "000000000000000000000000000000a1";
pub(crate) const A2: &str = "000000000000000000000000000000a2";

/// Lets (paused) time pass, and everything that is due happen.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Ten records, counted and dropped.
pub(crate) fn graph() -> pb::JobGraph {
    let columns = ["seq", "key", "value"].map(|name| pb::Column {
        name: name.to_owned(),
        r#type: pb::ColumnType::Int64.into(),
        nullable: false,
    });
    let datagen = pb::Operator {
        name: "numbers".to_owned(),
        spec: r#"{"type":"datagen","count":10,"seed":1,"keys":3}"#.to_owned(),
        output: columns.to_vec(),
        uid: String::new(),
    };
    let discard = pb::Operator {
        name: "drop".to_owned(),
        spec: r#"{"type":"discard"}"#.to_owned(),
        output: Vec::new(),
        uid: String::new(),
    };
    let vertex = pb::JobVertex {
        id: VERTEX.to_owned(),
        name: "numbers".to_owned(),
        operators: vec![datagen, discard],
        parallelism: 1,
        max_parallelism: 1,
        ..pb::JobVertex::default()
    };
    pb::JobGraph {
        job_id: JOB.to_string(),
        name: "test".to_owned(),
        vertices: vec![vertex],
        ..pb::JobGraph::default()
    }
}

pub(crate) fn scope() -> Option<pb::JobScope> {
    Some(pb::JobScope {
        job_id: JOB.to_string(),
        job_incarnation: 1,
    })
}

/// A task controlled by the test.
#[derive(Debug)]
pub(crate) struct Started {
    pub start: TaskStart,
    pub status: watch::Sender<TaskStatus>,
    pub checkpoints: watch::Sender<CheckpointStatus>,
    /// What the task receives about checkpoints.
    pub told: Arc<Mutex<Vec<String>>>,
}

/// Hands started tasks to the test. A cancelled task is canceled at once, unless the test does that itself.
#[derive(Debug)]
pub(crate) struct ScriptedLauncher {
    started: mpsc::Sender<Started>,
    pub released: Mutex<Vec<JobId>>,
    pub released_files: Mutex<Vec<JobId>>,
    /// Subtask and generation.
    pub released_tasks: Mutex<Vec<(u32, u64)>>,
    pub is_slow_to_cancel: bool,
    /// Number of cancellations of tasks.
    pub cancellations: Arc<AtomicU32>,
    /// Number of outputs that consumers have not taken yet.
    pub kept_outputs: watch::Sender<usize>,
}

#[derive(Debug)]
struct ScriptedTask {
    status: watch::Sender<TaskStatus>,
    checkpoints: watch::Sender<CheckpointStatus>,
    told: Arc<Mutex<Vec<String>>>,
    is_slow_to_cancel: bool,
    cancellations: Arc<AtomicU32>,
}

impl TaskLauncher for ScriptedLauncher {
    fn start(&self, start: TaskStart) -> Box<dyn RunningTask> {
        let status = watch::Sender::new(TaskStatus::Deploying);
        let checkpoints = watch::Sender::new(CheckpointStatus::default());
        let told = Arc::<Mutex<Vec<String>>>::default();
        let started = Started {
            start,
            status: status.clone(),
            checkpoints: checkpoints.clone(),
            told: told.clone(),
        };
        self.started
            .try_send(started)
            .expect("the test takes what starts");
        Box::new(ScriptedTask {
            status,
            checkpoints,
            told,
            is_slow_to_cancel: self.is_slow_to_cancel,
            cancellations: self.cancellations.clone(),
        })
    }

    fn release_task(&self, _: JobId, _: JobVertexId, subtask: u32, up_to: Generation) {
        let mut released = self.released_tasks.lock();
        released.push((subtask, up_to.get()));
    }

    fn release_files(&self, job: JobId) {
        let mut released = self.released_files.lock();
        released.push(job);
    }

    fn release_job(&self, job: JobId, _up_to: Generation) {
        self.released.lock().push(job);
    }

    fn kept_outputs(&self) -> watch::Receiver<usize> {
        self.kept_outputs.subscribe()
    }
}

impl RunningTask for ScriptedTask {
    fn cancel(&self) {
        self.cancellations.fetch_add(1, Ordering::Relaxed);
        let is_slow = self.is_slow_to_cancel;
        let status = if is_slow {
            TaskStatus::Canceling
        } else {
            TaskStatus::Canceled
        };
        self.status.send_replace(status);
    }

    fn stop(&self) {
        let committables = Vec::new();
        self.status.send_replace(TaskStatus::finished(committables));
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

    fn trigger(&self, barrier: pb::CheckpointBarrier) -> Answer {
        self.told.lock().push(format!("trigger {}", barrier.number));
        Answer::Injected(pb::Ack {})
    }

    fn abort_checkpoint(&self, number: u64) {
        self.told.lock().push(format!("abort {number}"));
    }

    fn release_snapshot(&self, number: u64, written: Option<Arc<pb::SubtaskSnapshot>>) {
        let written = written.as_deref().map(pieces);
        let places = written.map(|it| it.filter_map(Piece::object).count());
        self.told.lock().push(match places {
            Some(places) => format!("written {number} in {places} places"),
            None => format!("release {number}"),
        });
    }

    fn decline_blocked(&self, reason: &str) {
        self.told.lock().push(format!("decline: {reason}"));
        self.checkpoints.send_modify(|status| {
            status.progress = CheckpointProgress::Declined(reason.to_owned());
        });
    }

    fn checkpoints(&self) -> watch::Receiver<CheckpointStatus> {
        self.checkpoints.subscribe()
    }
}

/// A store with scripted answers about [`JOB`]; at first it can't be reached.
#[derive(Debug, Default)]
pub(crate) struct ScriptedRecords {
    answer: Mutex<Option<(u64, StoredGenerations)>>,
    /// Reads begin and are never answered.
    is_silent: Mutex<bool>,
    /// How long an answer takes.
    latency: Mutex<Duration>,
    /// When the last answered read began.
    answered: Mutex<Option<Instant>>,
    pub reads: Mutex<Vec<Instant>>,
}

impl ScriptedRecords {
    /// Sets the answer and its epoch. `None`: no answer.
    pub(crate) fn say(&self, answer: Option<(u64, StoredGenerations)>) {
        *self.answer.lock() = answer;
        *self.is_silent.lock() = false;
    }

    /// Makes it answer nothing.
    pub(crate) fn be_silent(&self) {
        *self.is_silent.lock() = true;
    }

    /// Sets the latency of answers.
    pub(crate) fn answer_after(&self, latency: Duration) {
        *self.latency.lock() = latency;
    }

    /// When the last answered read began.
    pub(crate) fn last_answered(&self) -> Instant {
        let answered = *self.answered.lock();
        answered.expect("one was answered")
    }

    /// Sets the generation of the job's only region as the answer.
    pub(crate) fn say_generation(&self, epoch: u64, generation: u64) {
        let regions = vec![Generation::new(generation)];
        self.say(Some((epoch, StoredGenerations::Present(regions))));
    }

    pub(crate) fn reads(&self) -> usize {
        self.reads.lock().len()
    }
}

#[async_trait]
impl JobRecords for ScriptedRecords {
    async fn stored_jobs(&self, jobs: &[JobId]) -> Result<StoredJobs, NoAnswer> {
        self.reads.lock().push(Instant::now());
        if *self.is_silent.lock() {
            std::future::pending::<()>().await;
        }
        let began = Instant::now();
        let latency = *self.latency.lock();
        if !latency.is_zero() {
            pass(latency).await;
        }
        let answer = self.answer.lock().clone();
        if answer.is_some() {
            *self.answered.lock() = Some(began);
        }
        let (epoch, stored_generations) =
            answer.ok_or_else(|| NoAnswer("a test says so".to_owned()))?;
        Ok(StoredJobs {
            incarnation: ClusterIncarnation::new("c1"),
            epoch: Epoch::new(epoch),
            jobs: jobs
                .iter()
                .map(|&job| (job, stored_generations.clone()))
                .collect(),
        })
    }
}

/// What linearizable reads of the store show.
#[derive(Debug)]
pub(crate) enum Reads {
    /// The same as the watch.
    AsWatched,
    /// More, or less, than the watch.
    Show(LeaderView),
}

/// A TaskExecutor with two slots, and its environment.
pub(crate) struct World {
    pub connector: LocalConnector,
    pub executor: TaskExecutor,
    leaders: watch::Sender<LeaderView>,
    pub reads: watch::Sender<Reads>,
    pub highest: HighestEpoch,
    pub launcher: Arc<ScriptedLauncher>,
    pub records: Arc<ScriptedRecords>,
    pub started: mpsc::Receiver<Started>,
    pub guard: IsolationGuard,
}

impl World {
    pub(crate) fn start(is_slow_to_cancel: bool) -> World {
        World::start_with(is_slow_to_cancel, None)
    }

    /// With another launcher than the scripted one.
    pub(crate) fn start_with(
        is_slow_to_cancel: bool,
        runs: Option<Arc<dyn TaskLauncher>>,
    ) -> World {
        World::start_as(is_slow_to_cancel, runs, Options::default())
    }

    /// With other options, too.
    pub(crate) fn start_as(
        is_slow_to_cancel: bool,
        runs: Option<Arc<dyn TaskLauncher>>,
        options: Options,
    ) -> World {
        let connector = LocalConnector::default();
        let leaders = watch::Sender::new(LeaderView::default());
        let reads = watch::Sender::new(Reads::AsWatched);
        let store = OwnStore::start(leaders.clone(), {
            let (reads, leaders) = (reads.clone(), leaders.clone());
            move || {
                let answer = match &*reads.borrow() {
                    Reads::AsWatched => leaders.borrow().clone(),
                    Reads::Show(view) => view.clone(),
                };
                std::future::ready(Ok(answer))
            }
        });
        let highest = HighestEpoch::default();
        let (sender, started) = mpsc::channel(64);
        let launcher = Arc::new(ScriptedLauncher {
            started: sender,
            released: Mutex::new(Vec::new()),
            released_files: Mutex::new(Vec::new()),
            released_tasks: Mutex::new(Vec::new()),
            is_slow_to_cancel,
            cancellations: Arc::default(),
            kept_outputs: watch::Sender::new(0),
        });
        let records = Arc::new(ScriptedRecords::default());
        let runs = runs.unwrap_or_else(|| launcher.clone());
        let guard = IsolationGuard::new(Clock::tokio());
        let services = TaskExecutorServices {
            connector: Arc::new(connector.clone()),
            store,
            highest_epoch: highest.clone(),
            records: records.clone(),
            launcher: runs,
            description: description(),
            first_registration: first_registration(),
            guard: guard.clone(),
        };
        let executor = TaskExecutor::start(options, services);
        connector.put_task_executor(TE, Arc::new(executor.handle()));
        World {
            connector,
            executor,
            leaders,
            reads,
            highest,
            launcher,
            records,
            started,
            guard,
        }
    }

    /// The store names this leader, in this incarnation of the cluster.
    pub(crate) fn lead_in(&self, incarnation: &str, leader: &Leader) {
        let view = LeaderView {
            incarnation: Some(ClusterIncarnation::new(incarnation)),
            epoch: Epoch::new(leader.epoch),
            holder: Some(leader.holder()),
            store: None,
            leader: Some(leader.information()),
        };
        self.leaders.send_replace(view);
    }

    /// This leader has taken its epoch; a read of the store shows it, but the watch does not yet.
    pub(crate) fn takes(&self, leader: &Leader) {
        self.reads.send_replace(Reads::Show(LeaderView {
            incarnation: Some(ClusterIncarnation::new("c1")),
            epoch: Epoch::new(leader.epoch),
            holder: Some(leader.holder()),
            ..LeaderView::default()
        }));
    }

    /// The store names this leader.
    pub(crate) fn lead(&self, leader: &Leader) {
        self.lead_in("c1", leader);
    }

    /// The store names no leader.
    pub(crate) fn no_leader(&self) {
        self.leaders.send_modify(|view| view.leader = None);
    }

    /// Starts a leader and waits until the TaskExecutor is registered there.
    pub(crate) async fn with_leader(&self, address: &str, epoch: u64) -> (Arc<Script>, Leader) {
        let (script, leader) = Leader::start(&self.connector, address, epoch);
        self.lead(&leader);
        leader.registered().await;
        (script, leader)
    }

    pub(crate) async fn next_started(&mut self) -> Started {
        let next = tokio::time::timeout(BOUND, self.started.recv()).await;
        next.expect("a task starts within the bound")
            .expect("the launcher lives")
    }
}

/// A TaskExecutor whose slot 0 is active for the job, with generation 1 running in it.
pub(crate) async fn running(is_slow_to_cancel: bool) -> (World, Leader, Started) {
    let mut world = World::start(is_slow_to_cancel);
    let (_, leader) = world.with_leader("jm1:1", 1).await;
    leader.request_slot(0, A1).await;
    leader.registered_job().await;
    leader.offered().await;
    let answer = leader.submit(1, A1).await.expect("is registered");
    assert_eq!(answer.refused, []);
    let task = world.next_started().await;
    assert_eq!(
        (
            task.start.job,
            task.start.epoch.get(),
            task.start.job_incarnation
        ),
        (JOB, 1, 1)
    );
    task.status.send_replace(TaskStatus::Running);
    leader.updated(pb::ExecutionState::Running).await;
    (world, leader, task)
}

pub(crate) fn description() -> TaskExecutorDescription {
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
        worker: WorkerResourceSpec::new(
            Resources {
                cpu: CpuCores::whole(2),
                task_memory: 200,
                ..Resources::ZERO
            },
            2,
        ),
        memory_configuration: pb::MemoryConfiguration::default(),
        cluster_id: "test".to_owned(),
        version: "0.1.0".to_owned(),
        protocol_version: tanist_proto::PROTOCOL_VERSION,
        worker_of: String::new(),
    }
}
