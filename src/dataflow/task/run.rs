//! The loop of a task. Cancelling drops the future: there is an await point at least once a batch.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;
use futures::FutureExt as _;
use tanist_proto::v1::Committable;
use tokio::sync::watch;
use tokio::task::{self, JoinError};
use tokio::time::Instant;

use super::chain::{Chain, Place};
use super::externals::{self, Until};
use super::plan::{Plan, PlanError, PlannedOutput};
use super::status::{Counters, TaskStatus};
use super::{TaskSpec, panic_message};
use crate::dataflow::exchange::{Exchange, Input, InputError, InputGate, PartitionWriter};
use crate::dataflow::host::{Lingering, TaskHost};
use crate::dataflow::operator::{EndOfInput, OperatorError, Source, SourceState};
use crate::dataflow::partitioner::Partitioner;
use crate::dataflow::record::size_of;

/// How long a record waits for others that go the same way while the task is busy.
const LONGEST_LINGER: Duration = Duration::from_millis(10);

/// Why a task failed.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The deployment can't be run.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An operator says so.
    #[error("operator {operator:?} ({number}/{parallelism}): {source}")]
    Operator {
        /// The operator's name in the job file.
        operator: String,
        /// The subtask, counted from one.
        number: u32,
        /// Out of how many.
        parallelism: u32,
        /// What it said.
        source: Box<OperatorError>,
    },
    /// A producer did not give everything.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The result partition was closed from outside.
    #[error("its result partition was closed: {0}")]
    Output(String),
    /// A batch could not be shared out among the targets.
    #[error("can't partition a batch: {0}")]
    Partition(#[from] ArrowError),
    /// Blocking work panicked or the runtime ends.
    #[error("{0}")]
    Aborted(String),
}

impl From<JoinError> for TaskError {
    fn from(error: JoinError) -> TaskError {
        TaskError::Aborted(match error.try_into_panic() {
            Ok(panic) => format!("panicked: {}", panic_message(&*panic)),
            Err(error) => format!("its runtime ends: {error}"),
        })
    }
}

/// A task on its way.
pub(super) struct Run {
    pub(super) spec: TaskSpec,
    pub(super) exchange: Exchange,
    pub(super) host: Arc<TaskHost>,
    pub(super) lingering: Lingering,
    pub(super) counters: Arc<Counters>,
    pub(super) status: watch::Sender<TaskStatus>,
}

impl Run {
    /// The task as logs name it.
    pub(super) fn name(&self) -> String {
        let TaskSpec {
            graph, deployment, ..
        } = &self.spec;
        let vertex = graph
            .vertices
            .iter()
            .find(|vertex| vertex.id == deployment.vertex_id);
        let (name, of) = vertex.map_or(("?", 0), |vertex| (&*vertex.name, vertex.parallelism));
        format!(
            "{name} ({}/{of}) attempt {}",
            deployment.subtask + 1,
            deployment.generation
        )
    }

    pub(super) async fn run(self) -> Result<Vec<Committable>, TaskError> {
        let mut plan = Plan::of(&self.spec, &self.host, &self.lingering)?;
        // Consumers of a task that can't even open hear its reason.
        let mut outputs = Outputs::register(&self.exchange, &mut plan, &self.counters)?;
        let result = self.run_with(plan, &mut outputs).await;
        match &result {
            Ok(_) => outputs.finish(),
            Err(error) => outputs.fail(&error.to_string()),
        }
        result
    }

    async fn run_with(
        &self,
        mut plan: Plan,
        outputs: &mut Outputs,
    ) -> Result<Vec<Committable>, TaskError> {
        self.status.send_replace(TaskStatus::Initializing);
        let chain = Chain::build(&mut plan)?;
        let mut chain = task::spawn_blocking(move || chain.open()).await??;
        self.status.send_replace(TaskStatus::Running);
        match chain.take_source() {
            Some((place, source)) => self.poll(&place, source, &mut chain, outputs).await?,
            None => {
                let term = (self.spec.cluster_incarnation.clone(), self.spec.epoch);
                let gate = self.exchange.open(plan.inputs, &term);
                self.read(gate, &mut chain, outputs).await?;
            }
        }
        for index in 0..chain.len() {
            loop {
                make_room(&mut chain, outputs).await?;
                let mut emitted = Vec::new();
                let end = chain.end_input(index, &mut emitted)?;
                outputs.send(emitted).await?;
                if end == EndOfInput::Done {
                    break;
                }
                task::yield_now().await;
                if chain.is_external(index) {
                    outputs.flush().await?;
                    let emitted = externals::wait(&mut chain, Until::DoneBy(index)).await?;
                    outputs.send(emitted).await?;
                }
            }
        }
        outputs.flush().await?;
        let commits = chain.commits();
        let preparing = task::spawn_blocking(move || {
            commits
                .into_iter()
                .map(|commit| commit.prepare())
                .collect::<Result<Vec<_>, _>>()
        });
        let committables = preparing.await??;
        chain.close();
        Ok(committables.concat())
    }

    /// Runs a source to its end.
    async fn poll(
        &self,
        place: &Place,
        mut source: Box<dyn Source>,
        chain: &mut Chain,
        outputs: &mut Outputs,
    ) -> Result<(), TaskError> {
        loop {
            make_room(chain, outputs).await?;
            match source
                .next(Instant::now())
                .map_err(|error| place.error(error))?
            {
                SourceState::Batch(batch) => {
                    let mut emitted = Vec::new();
                    chain.process(0, batch, &mut emitted)?;
                    outputs.send(emitted).await?;
                    task::yield_now().await;
                }
                SourceState::Wait(until) => {
                    outputs.flush().await?;
                    let emitted = tokio::select! {
                        () = tokio::time::sleep_until(until) => Vec::new(),
                        emitted = externals::wait(chain, Until::Emission) => emitted?,
                    };
                    outputs.send(emitted).await?;
                }
                SourceState::Pending => {
                    outputs.flush().await?;
                    let emitted = tokio::select! {
                        () = poll_fn(|cx| source.poll_ready(cx)) => Vec::new(),
                        emitted = externals::wait(chain, Until::Emission) => emitted?,
                    };
                    outputs.send(emitted).await?;
                }
                SourceState::End => {
                    source.close();
                    return Ok(());
                }
            }
        }
    }

    /// Takes all input to its end.
    async fn read(
        &self,
        mut gate: InputGate,
        chain: &mut Chain,
        outputs: &mut Outputs,
    ) -> Result<(), TaskError> {
        loop {
            make_room(chain, outputs).await?;
            match gate.poll()? {
                Input::Batch(batch) => {
                    self.counters.count_in(&batch);
                    let mut emitted = Vec::new();
                    chain.process(0, batch, &mut emitted)?;
                    outputs.send(emitted).await?;
                    task::yield_now().await;
                }
                Input::Idle => {
                    outputs.flush().await?;
                    let emitted = tokio::select! {
                        () = gate.readable() => Vec::new(),
                        emitted = externals::wait(chain, Until::Emission) => emitted?,
                    };
                    outputs.send(emitted).await?;
                }
                Input::Ended => return Ok(()),
            }
        }
    }
}

/// Returns when all operators take another batch; hands on what they emit by themselves until then.
async fn make_room(chain: &mut Chain, outputs: &mut Outputs) -> Result<(), TaskError> {
    loop {
        let emitted = match externals::wait(chain, Until::Room).now_or_never() {
            Some(emitted) => emitted?,
            None => {
                outputs.flush().await?;
                externals::wait(chain, Until::Room).await?
            }
        };
        if emitted.is_empty() {
            return Ok(());
        }
        outputs.send(emitted).await?;
    }
}

/// An edge out of the task.
struct OutputEdge {
    partitioner: Partitioner,
    writer: PartitionWriter,
}

/// All edges out of the task.
struct Outputs {
    edges: Vec<OutputEdge>,
    counters: Arc<Counters>,
    flushed_at: Instant,
}

impl Outputs {
    fn register(
        exchange: &Exchange,
        plan: &mut Plan,
        counters: &Arc<Counters>,
    ) -> Result<Outputs, TaskError> {
        let attempt = plan.attempt;
        let edges = plan.outputs.drain(..).map(|output| {
            let PlannedOutput {
                partition,
                targets,
                partitioner,
            } = output;
            let writer = exchange.register(partition, attempt, targets);
            let writer = writer.map_err(|closed| TaskError::Output(closed.to_string()))?;
            Ok(OutputEdge {
                partitioner,
                writer,
            })
        });
        let edges = edges.collect::<Result<_, TaskError>>()?;
        Ok(Outputs {
            edges,
            counters: Arc::clone(counters),
            flushed_at: Instant::now(),
        })
    }

    /// Hands batches to the partitioners and what is ready to the consumers.
    async fn send(&mut self, batches: Vec<RecordBatch>) -> Result<(), TaskError> {
        for batch in batches {
            for edge in &mut self.edges {
                edge.partitioner.add(batch.clone())?;
            }
            self.push_ready().await?;
        }
        if self.flushed_at.elapsed() >= LONGEST_LINGER {
            self.flush().await?;
        }
        Ok(())
    }

    /// Hands everything to the consumers.
    async fn flush(&mut self) -> Result<(), TaskError> {
        for edge in &mut self.edges {
            edge.partitioner.flush()?;
        }
        self.push_ready().await?;
        self.flushed_at = Instant::now();
        Ok(())
    }

    async fn push_ready(&mut self) -> Result<(), TaskError> {
        for OutputEdge {
            partitioner,
            writer,
        } in &mut self.edges
        {
            while let Some((place, batch)) = partitioner.next_ready() {
                let (rows, bytes) = (batch.num_rows(), size_of(&batch));
                let pushed = writer.push(place, batch).await;
                pushed.map_err(|closed| TaskError::Output(closed.to_string()))?;
                self.counters.count_out(rows, bytes);
            }
        }
        Ok(())
    }

    fn finish(self) {
        self.edges.into_iter().for_each(|edge| edge.writer.finish());
    }

    fn fail(self, cause: &str) {
        self.edges
            .into_iter()
            .for_each(|edge| edge.writer.fail(cause));
    }
}
