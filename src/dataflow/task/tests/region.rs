//! A region for tests of checkpoints: two subtasks of a source, fed by the test, and one task that collects their
//! records, on the real exchange.

use std::collections::BTreeSet;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow_array::cast::AsArray as _;
use arrow_array::types::Int64Type;
use tanist_proto::v1::{
    InputChannel, InputGate, JobEdge, Partitioning, SubtaskSnapshot, TaskRestore,
};
use tokio::sync::Notify;

use super::*;
use crate::state::{Restored, Snapshot};

/// Names of the operators' state in snapshots.
pub(super) const FEED_UID: &str = "the feed";
pub(super) const COLLECTED: &str = "collected";

/// How a source waits for more.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) enum Waiting {
    #[default]
    Notified,
    ForAnHour,
    Pending,
}

#[derive(Debug, Default)]
struct Fed {
    waiting: Waiting,
    /// Number of records that it may emit.
    allowed: i64,
    /// Records in a batch; 0: one.
    rows: i64,
    is_over: bool,
    is_open: bool,
    emitted: i64,
}

/// A source of the numbers from `first` on. The test says up to where.
#[derive(Debug, Clone, Default)]
pub(super) struct Feed {
    first: i64,
    fed: Arc<Mutex<Fed>>,
    more: Arc<Notify>,
}

impl Feed {
    pub(super) fn waiting(first: i64, waiting: Waiting) -> Feed {
        let feed = Feed {
            first,
            ..Feed::default()
        };
        feed.fed.lock().waiting = waiting;
        feed
    }

    /// Lets it emit this number of further records.
    pub(super) fn feed(&self, records: i64) {
        self.fed.lock().allowed += records;
        self.more.notify_one();
    }

    /// Has it emit this number of records in a batch.
    pub(super) fn in_batches_of(&self, rows: i64) {
        self.fed.lock().rows = rows;
    }

    /// Lets it end once it has emitted what it may.
    pub(super) fn end(&self) {
        self.fed.lock().is_over = true;
        self.more.notify_one();
    }

    pub(super) fn is_open(&self) -> bool {
        self.fed.lock().is_open
    }

    /// The first records of this source.
    pub(super) fn records(&self, count: i64) -> impl Iterator<Item = i64> {
        self.first..self.first + count
    }
}

impl Source for Feed {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let position = restored.position().expect("it was saved");
        let position = i64::from_le_bytes(position.try_into().expect("a number"));
        let mut fed = self.fed.lock();
        assert!(!fed.is_open, "it is restored before it is opened");
        fed.emitted = position;
        fed.allowed += position;
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        snapshot.save_position(self.fed.lock().emitted.to_le_bytes().to_vec());
        Ok(())
    }

    fn open(&mut self) -> Result<(), OperatorError> {
        self.fed.lock().is_open = true;
        Ok(())
    }

    fn next(&mut self, now: Instant) -> Result<SourceState, OperatorError> {
        let mut fed = self.fed.lock();
        if fed.emitted < fed.allowed {
            let first = self.first + fed.emitted;
            let rows = fed.rows.max(1).min(fed.allowed - fed.emitted);
            fed.emitted += rows;
            let numbers: Vec<i64> = (first..first + rows).collect();
            return Ok(SourceState::Batch(batch([("n", ints(&numbers))])));
        }
        Ok(match fed.waiting {
            _ if fed.is_over => SourceState::End,
            Waiting::Notified => SourceState::WaitFor(Arc::clone(&self.more)),
            Waiting::ForAnHour => SourceState::Wait(now + Duration::from_secs(3600)),
            Waiting::Pending => SourceState::Pending,
        })
    }

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

#[derive(Debug, Default)]
struct Collected {
    records: Vec<i64>,
    can_not_save: bool,
}

/// Collects all records.
#[derive(Debug, Clone, Default)]
pub(super) struct Collector(Arc<Mutex<Collected>>);

impl Collector {
    pub(super) fn fail_to_save(&self, can_not_save: bool) {
        self.0.lock().can_not_save = can_not_save;
    }

    pub(super) async fn has(&self, records: usize) {
        let what = format!("{records} records");
        wait_until(&what, || self.0.lock().records.len() >= records).await;
    }

    /// All records, each of which came once.
    pub(super) fn records(&self) -> BTreeSet<i64> {
        let records = &self.0.lock().records;
        let set: BTreeSet<i64> = records.iter().copied().collect();
        assert_eq!(set.len(), records.len(), "a record came twice");
        set
    }
}

impl Operator for Collector {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        self.0.lock().records = decode(restored.state(COLLECTED).expect("it was saved"));
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let collected = self.0.lock();
        if collected.can_not_save {
            return Err(OperatorError::unavailable("the disk is full"));
        }
        let content = collected.records.iter().flat_map(|it| it.to_le_bytes());
        snapshot.save(COLLECTED, content.collect());
        Ok(())
    }

    fn process(&mut self, batch: RecordBatch, _: &mut Output) -> Result<(), OperatorError> {
        let numbers = batch.column(0).as_primitive::<Int64Type>();
        self.0.lock().records.extend(numbers.values());
        Ok(())
    }
}

fn decode(content: &[u8]) -> Vec<i64> {
    let (numbers, []) = content.as_chunks::<8>() else {
        panic!("{} bytes", content.len());
    };
    numbers.iter().copied().map(i64::from_le_bytes).collect()
}

/// The position that a source saved.
pub(super) fn position_in(snapshot: &SubtaskSnapshot) -> i64 {
    let position = Restored::of(FEED_UID, snapshot).position();
    let position = position.expect("it was saved").try_into();
    i64::from_le_bytes(position.expect("a number"))
}

/// The records that the collector saved.
pub(super) fn records_in(snapshot: &SubtaskSnapshot) -> BTreeSet<i64> {
    let content = Restored::of("collect", snapshot).state(COLLECTED);
    decode(content.expect("it was saved")).into_iter().collect()
}

/// Builds the operators of a region.
#[derive(Debug, Clone)]
struct Operators {
    feeds: [Feed; 2],
    collector: Collector,
}

#[async_trait]
impl OperatorFactory for Operators {
    fn output_schema(
        &self,
        spec: &OperatorSpec,
        _: Option<&SchemaRef>,
    ) -> Result<Option<SchemaRef>, OperatorError> {
        Ok(spec.is_source().then(|| number(0).schema()))
    }

    fn build(&self, spec: &OperatorSpec, at: &OperatorContext) -> Result<Built, OperatorError> {
        Ok(match spec.is_source() {
            true => Built::Source(Box::new(self.feeds[at.subtask as usize].clone())),
            false => Built::Operator(Box::new(self.collector.clone())),
        })
    }

    fn uses_artifacts(&self, _: &OperatorSpec) -> bool {
        false
    }

    async fn fetch_artifacts(&self, _: JobId, _: &JobGraph) -> Result<(), OperatorError> {
        Ok(())
    }

    fn may_run_until(&self, _: JobId, _: Moment) {}

    fn remove_limit(&self, _: JobId) {}

    fn release_files(&self, _: JobId) -> Option<ReleasedFiles> {
        None
    }
}

/// The running tasks.
pub(super) struct Region {
    managers: [TaskManager; 2],
    pub(super) feeds: [Feed; 2],
    pub(super) collector: Collector,
    pub(super) sources: Vec<RunningTask>,
    pub(super) sink: RunningTask,
}

/// Where the collecting task runs, seen from the sources.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum At {
    SameTaskManager,
    OtherTaskManager,
}

pub(super) const BOTH: [At; 2] = [At::SameTaskManager, At::OtherTaskManager];

impl Region {
    pub(super) async fn start(at: At) -> Region {
        Region::restore(at, Waiting::default(), None).await
    }

    /// Starts the tasks from these snapshots: of the sources, then of the collecting task.
    pub(super) async fn restore(
        at: At,
        waiting: Waiting,
        from: Option<(u64, [SubtaskSnapshot; 3])>,
    ) -> Region {
        let feeds = [0, 1_000_000].map(|first| Feed::waiting(first, waiting));
        let collector = Collector::default();
        let operators = Operators {
            feeds: feeds.clone(),
            collector: collector.clone(),
        };
        let managers = [
            TaskManager::start_with("tm0", operators.clone()).await,
            TaskManager::start_with("tm1", operators).await,
        ];
        let restore = |index: usize| {
            let (number, snapshots) = from.as_ref()?;
            Some(TaskRestore {
                number: *number,
                snapshot: Some(snapshots[index].clone()),
            })
        };
        let spec = region_graph();
        let [source, sink] = [0, 1].map(|vertex: usize| spec.graph.vertices[vertex].id.clone());
        let deploy = |manager: usize, deployment: TaskDeployment| {
            let runtime = &managers[manager].runtime;
            runtime.start(TaskSpec {
                deployment,
                ..spec.clone()
            })
        };
        let sources = [0, 1].map(|subtask| {
            let deployment = TaskDeployment {
                vertex_id: source.clone(),
                subtask,
                generation: 1,
                restore: restore(subtask as usize),
                ..TaskDeployment::default()
            };
            deploy(0, deployment)
        });
        let channel = |source_subtask| InputChannel {
            source_vertex_id: source.clone(),
            source_subtask,
            generation: 1,
            location: Some(managers[0].location.clone()),
        };
        let deployment = TaskDeployment {
            vertex_id: sink,
            generation: 1,
            inputs: vec![InputGate {
                edge: 0,
                channels: vec![channel(0), channel(1)],
            }],
            restore: restore(2),
            ..TaskDeployment::default()
        };
        let sink = deploy(usize::from(at == At::OtherTaskManager), deployment);
        for task in sources.iter().chain([&sink]) {
            let mut status = task.status();
            let begun = status.wait_for(|it| *it == TaskStatus::Running || it.is_terminal());
            begun.await.expect("its task lives");
        }
        Region {
            managers,
            feeds,
            collector,
            sources: sources.into(),
            sink,
        }
    }

    /// Triggers a checkpoint at a source.
    pub(super) fn trigger(&self, source: usize, number: u64) -> Answer {
        self.sources[source].trigger(barrier(number))
    }

    /// Triggers a checkpoint at a source and waits until it has saved its state.
    pub(super) async fn cut(&self, source: usize, number: u64) -> Arc<SubtaskSnapshot> {
        assert_eq!(self.trigger(source, number), Answer::Injected(Ack {}));
        saved(&self.sources[source], number).await
    }

    /// The records of both sources up to these positions.
    pub(super) fn records(&self, positions: [i64; 2]) -> BTreeSet<i64> {
        let sources = self.feeds.iter().zip(positions);
        sources
            .flat_map(|(feed, count)| feed.records(count))
            .collect()
    }

    /// Number of partitions that the sources' TaskManager holds.
    pub(super) fn partitions(&self) -> usize {
        self.managers[0].runtime.exchange().partition_count()
    }
}

pub(super) fn barrier(number: u64) -> CheckpointBarrier {
    CheckpointBarrier {
        number,
        newest: 0,
        floor: 1,
    }
}

/// Waits until a task has this progress.
pub(super) async fn reached(
    task: &RunningTask,
    wanted: impl Fn(&CheckpointStatus) -> bool,
) -> CheckpointStatus {
    let mut status = task.checkpoints();
    let waiting = tokio::time::timeout(Duration::from_secs(60), status.wait_for(&wanted));
    match waiting.await {
        Ok(reached) => reached.expect("the task is held").clone(),
        Err(_) => panic!("it stays at {:?}", task.checkpoints().borrow()),
    }
}

/// Waits until a task has saved its state for a number.
pub(super) async fn saved(task: &RunningTask, number: u64) -> Arc<SubtaskSnapshot> {
    let is_saved = |it: &CheckpointStatus| {
        it.highest == number && matches!(it.progress, CheckpointProgress::Saved(_))
    };
    match reached(task, is_saved).await.progress {
        CheckpointProgress::Saved(snapshot) => snapshot,
        other => panic!("{other:?}"),
    }
}

/// Waits until a task blocks channels for a number.
pub(super) async fn blocked(task: &RunningTask, number: u64) {
    let is_blocked = |it: &CheckpointStatus| {
        (it.highest, &it.progress) == (number, &CheckpointProgress::Blocked)
    };
    reached(task, is_blocked).await;
}

/// A graph of two sources and a sink behind a global edge.
fn region_graph() -> TaskSpec {
    let chained = chained();
    let mut source = chained.graph.vertices[0].clone();
    let mut sink = source.clone();
    source.operators.truncate(1);
    source.operators[0].uid = FEED_UID.to_owned();
    source.parallelism = 2;
    sink.operators.remove(0);
    sink.operators[0].name = "collect".to_owned();
    sink.id = JobVertexId::from_bits(2).to_string();
    let edge = JobEdge {
        source: source.id.clone(),
        target: sink.id.clone(),
        partitioning: Partitioning::Global.into(),
        ..JobEdge::default()
    };
    TaskSpec {
        graph: Arc::new(JobGraph {
            vertices: vec![source, sink],
            edges: vec![edge],
            ..(*chained.graph).clone()
        }),
        ..chained
    }
}
