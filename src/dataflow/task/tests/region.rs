//! A region for tests of checkpoints: two subtasks of a source that is chained with an operator, and one task that
//! collects their records, on the real exchange.

use std::collections::BTreeSet;
use std::time::Duration;

use tanist_proto::v1::{
    InputChannel, InputGate, JobEdge, Partitioning, SubtaskSnapshot, TaskRestore,
};

use super::scripted::{Collector, Counter, FEED_UID, Feed, Waiting};
use super::*;

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
        Ok((!spec.is_sink()).then(|| number(0).schema()))
    }

    fn build(&self, spec: &OperatorSpec, at: &OperatorContext) -> Result<Built, OperatorError> {
        let feed = || self.feeds[at.subtask as usize].clone();
        Ok(match (spec.is_source(), spec.is_sink()) {
            (true, _) => Built::Source(Box::new(feed())),
            (false, true) => Built::Operator(Box::new(self.collector.clone())),
            (false, false) => Built::Operator(Box::new(Counter::default())),
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
                ..TaskRestore::default()
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
        ..CheckpointBarrier::default()
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

/// A graph of two subtasks of a source and a sink behind a global edge.
fn region_graph() -> TaskSpec {
    let chained = chained();
    let mut source = chained.graph.vertices[0].clone();
    let mut sink = source.clone();
    source.operators.truncate(1);
    source.operators[0].uid = FEED_UID.to_owned();
    let count = operators::Count {
        keys: Vec::new(),
        emit: Some(operators::Emit::Updates),
    };
    source.operators.push(GraphOperator {
        name: "count".to_owned(),
        spec: OperatorSpec::from(count).to_json(),
        ..source.operators[0].clone()
    });
    source.operators[1].uid = String::new();
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
