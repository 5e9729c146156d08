//! The loop of a task. Cancelling drops the future: there is an await point at least once a batch.

use std::sync::Arc;
use std::time::Duration;

use arrow_schema::ArrowError;
use tanist_proto::v1::Committable;
use tokio::sync::watch;
use tokio::task::{self, JoinError};
use tokio::time::Instant;

use super::chain::{Chain, Place};
use super::plan::{Plan, PlanError, PlannedOutput};
use super::status::{Counters, TaskStatus};
use super::{TaskSpec, panic_message};
use crate::dataflow::exchange::{Exchange, Input, InputError, InputGate, PartitionWriter};
use crate::dataflow::operator::{EndOfInput, OperatorError, Output, Source, SourceState};
use crate::dataflow::partitioner::Partitioner;
use crate::dataflow::record::size_of;
use crate::dataflow::time::{Element, TimeSignal};

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
        let mut plan = Plan::of(&self.spec)?;
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
                self.wait_for_room(&mut chain, outputs).await?;
                let mut emitted = Output::default();
                let end = chain.end_input(index, &mut emitted)?;
                outputs.send(emitted).await?;
                if outputs.is_due() {
                    outputs.flush().await?;
                }
                if end == EndOfInput::Done {
                    break;
                }
                task::yield_now().await;
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
            match source
                .next(Instant::now())
                .map_err(|error| place.error(error))?
            {
                SourceState::Batch(batch) => {
                    self.process(Element::Batch(batch), chain, outputs).await?;
                }
                SourceState::Wait(until) => {
                    let tick = self.settle(chain, outputs).await?;
                    tokio::time::sleep_until(tick.map_or(until, |tick| tick.min(until))).await;
                }
                SourceState::WaitFor(more) => {
                    let tick = self.settle(chain, outputs).await?;
                    until(more.notified(), tick).await;
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
            match gate.poll()? {
                Input::Batch(batch) => {
                    self.counters.count_in(&batch);
                    self.process(Element::Batch(batch), chain, outputs).await?;
                }
                Input::Time(signal) => {
                    self.process(Element::Time(signal), chain, outputs).await?;
                }
                Input::Idle => {
                    let tick = self.settle(chain, outputs).await?;
                    until(gate.readable(), tick).await;
                }
                Input::Ended => return Ok(()),
            }
        }
    }

    async fn process(
        &self,
        element: Element,
        chain: &mut Chain,
        outputs: &mut Outputs,
    ) -> Result<(), TaskError> {
        self.wait_for_room(chain, outputs).await?;
        let mut emitted = Output::default();
        chain.process(0, element, &mut emitted)?;
        outputs.send(emitted).await?;
        if outputs.is_due() {
            self.settle(chain, outputs).await?;
        }
        task::yield_now().await;
        Ok(())
    }

    /// Waits for an operator that hands its records on elsewhere and can't get rid of them.
    async fn wait_for_room(
        &self,
        chain: &mut Chain,
        outputs: &mut Outputs,
    ) -> Result<(), TaskError> {
        while let Some(room) = chain.without_room() {
            outputs.flush().await?;
            room.notified().await;
        }
        Ok(())
    }

    /// Hands everything to the consumers, and says when operators want to know the time again.
    async fn settle(
        &self,
        chain: &mut Chain,
        outputs: &mut Outputs,
    ) -> Result<Option<Instant>, TaskError> {
        let mut emitted = Output::default();
        let tick = chain.tick(Instant::now(), &mut emitted)?;
        outputs.send(emitted).await?;
        outputs.flush().await?;
        Ok(tick)
    }
}

/// Waits for something, or for this moment.
async fn until(something: impl Future<Output = ()>, moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::select! {
            () = something => {}
            () = tokio::time::sleep_until(moment) => {}
        },
        None => something.await,
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
    /// What is to be said about event time once all records before it are out.
    signals: Vec<TimeSignal>,
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
            signals: Vec::new(),
        })
    }

    /// Hands batches to the partitioners and what is ready to the consumers. Event time waits for the next flush: to say it
    /// later is always right, and records need not be sent in pieces for its sake.
    async fn send(&mut self, mut emitted: Output) -> Result<(), TaskError> {
        let (late, skipped) = emitted.dropped();
        self.counters.count_dropped(late, skipped);
        for element in emitted.take() {
            match element {
                Element::Batch(batch) => {
                    for edge in &mut self.edges {
                        edge.partitioner.add(batch.clone())?;
                    }
                    self.push_ready().await?;
                }
                Element::Time(signal) => signal.add_to(&mut self.signals),
            }
        }
        Ok(())
    }

    /// Whether records have waited long enough.
    fn is_due(&self) -> bool {
        self.flushed_at.elapsed() >= LONGEST_LINGER
    }

    /// Hands everything to the consumers.
    async fn flush(&mut self) -> Result<(), TaskError> {
        for edge in &mut self.edges {
            edge.partitioner.flush()?;
        }
        self.push_ready().await?;
        for signal in self.signals.drain(..) {
            self.edges
                .iter()
                .for_each(|edge| edge.writer.signal(signal));
        }
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
