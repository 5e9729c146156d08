//! The order in which a task uses its factory and its operators, and the status with which it ends. Tasks of real
//! operators are tested in the crate of those.

mod checkpoints;
mod encoding;
mod faults;
mod pauses;
mod region;
mod scripted;

use std::thread::{self, ThreadId};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use tanist_model::{OperatorSpec, operators};
use tanist_proto::id::JobVertexId;
use tanist_proto::v1::{
    Ack, CheckpointBarrier, CheckpointCommittable, Column, ColumnType, JobVertex,
    Operator as GraphOperator,
};
use tokio::time::Instant;

use super::*;
use crate::operator::{
    Built, Operator, OperatorContext, OperatorError, Output, PrepareCommit, ReleasedFiles, Source,
    SourceState,
};
use crate::state::{Snapshot, UnencodedSnapshot};
use crate::testing::{TaskManager, batch, cluster, ints, wait_until};

/// What happened, in order.
type Calls = Arc<Mutex<Vec<String>>>;

fn call(calls: &Calls, what: impl Into<String>) {
    calls.lock().push(what.into());
}

fn number(number: i64) -> RecordBatch {
    batch([("n", ints(&[number]))])
}

/// A source of two records.
struct Numbers(Calls, i64);

impl Source for Numbers {
    fn open(&mut self) -> Result<(), OperatorError> {
        call(&self.0, "open source");
        Ok(())
    }

    fn next(&mut self, _now: Instant) -> Result<SourceState, OperatorError> {
        self.1 += 1;
        Ok(match self.1 {
            1 | 2 => SourceState::Batch(number(self.1)),
            _ => SourceState::End,
        })
    }
}

/// A sink that uses artifacts.
struct Sink(Calls);

impl Operator for Sink {
    fn open(&mut self) -> Result<(), OperatorError> {
        call(&self.0, "open sink");
        Ok(())
    }

    fn process(&mut self, batch: RecordBatch, _: &mut Output) -> Result<(), OperatorError> {
        let rows = batch.num_rows();
        call(&self.0, format!("process {rows}"));
        Ok(())
    }

    fn close(&mut self) {
        call(&self.0, "close sink");
    }
}

/// Builds [`Numbers`] and [`Sink`].
#[derive(Debug, Default)]
struct Recording {
    calls: Calls,
    has_no_artifacts: bool,
    /// The threads that asked for the columns of an operator.
    planning: Arc<Mutex<Vec<ThreadId>>>,
}

#[async_trait]
impl OperatorFactory for Recording {
    fn output_schema(
        &self,
        spec: &OperatorSpec,
        _: Option<&SchemaRef>,
    ) -> Result<Option<SchemaRef>, OperatorError> {
        self.planning.lock().push(thread::current().id());
        Ok(spec.is_source().then(|| number(0).schema()))
    }

    fn build(&self, spec: &OperatorSpec, _: &OperatorContext) -> Result<Built, OperatorError> {
        let calls = Arc::clone(&self.calls);
        Ok(match spec.is_source() {
            true => Built::Source(Box::new(Numbers(calls, 0))),
            false => Built::Operator(Box::new(Sink(calls))),
        })
    }

    fn uses_artifacts(&self, spec: &OperatorSpec) -> bool {
        spec.is_sink()
    }

    async fn fetch_artifacts(&self, _: JobId, _: &JobGraph) -> Result<(), OperatorError> {
        call(&self.calls, "fetch");
        match self.has_no_artifacts {
            true => Err(OperatorError::unavailable("there is no blob")),
            false => Ok(()),
        }
    }

    fn may_run_until(&self, _: JobId, _: Moment) {}

    fn remove_limit(&self, _: JobId) {}

    fn release_files(&self, _: JobId) -> Option<ReleasedFiles> {
        None
    }
}

/// A task of a source and a sink in one chain.
fn chained() -> TaskSpec {
    let operator = |name: &str, spec: &OperatorSpec, output: Vec<Column>| GraphOperator {
        name: name.to_owned(),
        spec: spec.to_json(),
        output,
        uid: String::new(),
    };
    let source = OperatorSpec::Datagen(operators::Datagen {
        rate: None,
        count: None,
        seed: 0,
        keys: 1,
    });
    let column = Column {
        name: "n".to_owned(),
        r#type: ColumnType::Int64.into(),
        nullable: false,
    };
    let vertex = JobVertex {
        id: JobVertexId::from_bits(1).to_string(),
        operators: vec![
            operator("source", &source, vec![column]),
            operator(
                "sink",
                &OperatorSpec::Discard(operators::Discard {}),
                Vec::new(),
            ),
        ],
        parallelism: 1,
        max_parallelism: 128,
        ..JobVertex::default()
    };
    TaskSpec {
        deployment: TaskDeployment {
            vertex_id: vertex.id.clone(),
            generation: 1,
            ..TaskDeployment::default()
        },
        graph: Arc::new(JobGraph {
            job_id: JobId::from_bits(1).to_string(),
            vertices: vec![vertex],
            ..JobGraph::default()
        }),
        cluster_incarnation: cluster(),
        epoch: Epoch::new(1),
        job_incarnation: 1,
        external_resources: BTreeMap::new(),
        managed_memory: 0,
    }
}

#[tokio::test]
async fn artifacts_are_fetched_before_operators_are_opened_and_the_sink_opens_first() {
    let operators = Recording::default();
    let calls = Arc::clone(&operators.calls);
    let manager = TaskManager::start_with("tm", operators).await;
    let ended = manager.runtime.start(chained()).ended().await;
    let committables = Vec::new();
    assert_eq!(ended, TaskStatus::finished(committables));
    let expected = [
        "fetch",
        "open sink",
        "open source",
        "process 1",
        "process 1",
        "close sink",
    ];
    assert_eq!(*calls.lock(), expected);
}

#[tokio::test]
async fn a_task_without_its_artifacts_opens_nothing_and_may_be_restarted() {
    let operators = Recording {
        has_no_artifacts: true,
        ..Recording::default()
    };
    let calls = Arc::clone(&operators.calls);
    let manager = TaskManager::start_with("tm", operators).await;
    let ended = manager.runtime.start(chained()).ended().await;
    assert_eq!(ended, TaskStatus::failed("there is no blob"));
    assert_eq!(*calls.lock(), ["fetch"]);
}

#[tokio::test]
async fn the_columns_of_operators_are_not_computed_on_a_thread_of_the_runtime() {
    let operators = Recording::default();
    let planning = Arc::clone(&operators.planning);
    let manager = TaskManager::start_with("tm", operators).await;
    manager.runtime.start(chained()).ended().await;
    let planning = planning.lock();
    assert_eq!(planning.len(), 2);
    assert!(!planning.contains(&thread::current().id()));
}

#[tokio::test]
async fn a_panic_fails_the_task_and_not_the_process() {
    let (sender, status) = watch::channel(TaskStatus::Running);
    let panicking = async {
        tokio::task::yield_now().await;
        panic!("an operator's mistake")
    };
    let (_, end_waiter) = EndGuard::new();
    supervise(
        "task".to_owned(),
        panicking,
        sender,
        CancellationToken::new(),
        end_waiter,
    )
    .await;
    let cause = "panicked: an operator's mistake".to_owned();
    assert_eq!(*status.borrow(), TaskStatus::failed(cause));
}

/// A sink whose output becomes visible with a checkpoint.
struct Committing;

impl Operator for Committing {
    fn process(&mut self, _: RecordBatch, _: &mut Output) -> Result<(), OperatorError> {
        Ok(())
    }

    fn prepare_commit(&mut self) -> Option<PrepareCommit> {
        let committable = CheckpointCommittable {
            kind: "file".to_owned(),
            ..CheckpointCommittable::default()
        };
        Some(Box::new(move || {
            Ok(SinkOutput {
                checkpoint_committables: vec![committable],
                ..SinkOutput::default()
            })
        }))
    }
}

#[test]
fn the_last_output_of_a_sink_names_the_sink() {
    let mut commits = chain::Chain::of(vec![Box::new(Committing)]).commits();
    let output = commits.remove(0).prepare().expect("prepared");
    let committable = &output.checkpoint_committables[0];
    assert_eq!((&*committable.uid, &*committable.kind), ("tested", "file"));
}

/// Has output of this kind committed, with a snapshot and at its end.
struct Undeclared(&'static str);

impl Operator for Undeclared {
    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        snapshot.add_committable(self.0, Vec::new());
        Ok(())
    }

    fn process(&mut self, _: RecordBatch, _: &mut Output) -> Result<(), OperatorError> {
        Ok(())
    }

    fn prepare_commit(&mut self) -> Option<PrepareCommit> {
        let mut output = SinkOutput::default();
        output.add_committable(self.0, Vec::new());
        Some(Box::new(move || Ok(output)))
    }
}

#[test]
fn output_of_a_kind_that_a_step_does_not_declare_fails_its_task_before_it_is_in_a_checkpoint() {
    for (kind, is_declared) in [("file", true), ("topic", false)] {
        let mut chain = chain::Chain::of(vec![Box::new(Undeclared(kind))]);
        let mut saved = UnencodedSnapshot::default();
        let barrier = CheckpointBarrier::default();
        let snapshot = chain.snapshot(barrier, None, None, &mut saved);
        let end = chain.commits().remove(0).prepare();
        for problem in [snapshot.err(), end.err()] {
            assert_eq!(problem.is_none(), is_declared);
            let Some(problem) = problem else { continue };
            assert!(problem.is_unrecoverable());
            let problem = problem.to_string();
            assert!(
                problem.contains("tested") && problem.contains("`topic`"),
                "{problem}"
            );
        }
    }
}
