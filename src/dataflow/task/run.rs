//! The loop of a task. Cancelling drops the future: there is an await point at least once a batch.

use std::future::{pending, poll_fn};
use std::sync::Arc;

use arrow_schema::ArrowError;
use futures::FutureExt as _;
use tanist_proto::id::JobId;
use tanist_proto::v1::Committable;
use tokio::sync::{mpsc, watch};
use tokio::task::{self, JoinError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::chain::{Chain, Place};
use super::externals::{self, Until};
use super::outputs::Outputs;
use super::pace::Pace;
use super::plan::{Plan, PlanError};
use super::status::{Counters, TaskStatus};
use super::{TaskSpec, panic_message};
use crate::coordination::CoordinatorRequest;
use crate::end_guard::EndGuard;
use crate::exchange::{Exchange, Input, InputError, InputGate};
use crate::operator::{
    EndOfInput, OperatorError, OperatorFactory, Output, Source, SourceState, Stopped,
};
use crate::time::Element;

/// Why a task failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TaskError {
    /// The deployment can't be run.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An operator failed.
    #[error("operator {operator:?} ({number}/{parallelism}): {source}")]
    Operator {
        /// The operator's name in the job file.
        operator: String,
        /// The subtask, counted from one.
        number: u32,
        /// Number of subtasks.
        parallelism: u32,
        /// Error of the operator.
        source: Box<OperatorError>,
    },
    /// A producer ended before it had sent everything.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The result partition was closed from outside.
    #[error("its result partition was closed: {0}")]
    Output(String),
    /// Its output could not be kept.
    #[error("can't keep its output: {0}")]
    Keep(String),
    /// A batch could not be distributed to the targets.
    #[error("can't partition a batch: {0}")]
    Partition(#[from] ArrowError),
    /// An artifact of the job is not available.
    #[error("{0}")]
    Artifact(String),
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

impl TaskError {
    /// Whether every further attempt would end the same way. Errors that depend on the version of this program
    /// are not such: another TaskManager may succeed.
    fn is_unrecoverable(&self) -> bool {
        match self {
            TaskError::Operator { source, .. } => source.is_unrecoverable(),
            TaskError::Plan(PlanError::Operator { source, .. }) => source.is_unrecoverable(),
            TaskError::Plan(PlanError::Key(_)) => true,
            TaskError::Plan(
                PlanError::Id(_)
                | PlanError::Column(_)
                | PlanError::Specification { .. }
                | PlanError::Mismatch(_),
            )
            | TaskError::Input(_)
            | TaskError::Output(_)
            | TaskError::Keep(_)
            | TaskError::Partition(_)
            | TaskError::Artifact(_)
            | TaskError::Aborted(_) => false,
        }
    }

    /// The final status of the task.
    pub(super) fn into_status(self) -> TaskStatus {
        let cause = self.to_string();
        let unrecoverable = self.is_unrecoverable();
        let unreadable = match self {
            TaskError::Input(InputError { kept, .. }) => kept,
            _ => None,
        };
        TaskStatus::Failed {
            cause,
            unreadable,
            unrecoverable,
        }
    }
}

/// A running task.
pub(super) struct Run {
    pub(super) spec: TaskSpec,
    pub(super) exchange: Exchange,
    pub(super) operators: Arc<dyn OperatorFactory>,
    pub(super) end_guard: EndGuard,
    /// Sends operators' requests; `None` if nothing transports them.
    pub(super) coordinator_requests: Option<mpsc::Sender<CoordinatorRequest>>,
    pub(super) counters: Arc<Counters>,
    pub(super) status: watch::Sender<TaskStatus>,
    /// Cancelled when the source has to end.
    pub(super) stop: CancellationToken,
}

impl Run {
    /// Name of the task in logs.
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
        let run = Arc::new(self);
        let planning = Arc::clone(&run);
        // The types of SQL expressions take long.
        let mut plan = task::spawn_blocking(move || planning.plan()).await??;
        // Registered first: consumers of a task that can't even open get the reason.
        let mut outputs = Outputs::register(&run.exchange, &mut plan, &run.counters)?;
        match run.run_with(plan, &mut outputs).await {
            Ok(committables) => outputs.finish().await.map(|()| committables),
            Err(error) => {
                outputs.fail(&error.to_string());
                Err(error)
            }
        }
    }

    fn plan(&self) -> Result<Plan, PlanError> {
        Plan::of(
            &self.spec,
            &*self.operators,
            &self.end_guard,
            self.counters.peers(),
            self.coordinator_requests.as_ref(),
        )
    }

    async fn run_with(
        &self,
        mut plan: Plan,
        outputs: &mut Outputs,
    ) -> Result<Vec<Committable>, TaskError> {
        self.status.send_replace(TaskStatus::Initializing);
        let uses_artifacts = plan.uses_artifacts(&*self.operators);
        let chain = Chain::build(&mut plan, &*self.operators)?;
        if uses_artifacts {
            self.fetch_artifacts(plan.job).await?;
        }
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
                let mut emitted = Output::default();
                let end = Pace::default().step(|| chain.end_input(index, &mut emitted))?;
                outputs.send(emitted).await?;
                if outputs.is_due() {
                    outputs.flush().await?;
                }
                if end == EndOfInput::Done {
                    break;
                }
                if chain.is_external(index) {
                    rest(pending(), &mut chain, outputs, Until::DoneBy(index)).await?;
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

    /// Fetches the uploaded artifacts. They are kept while the job has slots here.
    async fn fetch_artifacts(&self, job: JobId) -> Result<(), TaskError> {
        let fetched = self.operators.fetch_artifacts(job, &self.spec.graph).await;
        fetched.map_err(|error| TaskError::Artifact(error.to_string()))
    }

    /// Runs a source to its end.
    async fn poll(
        &self,
        place: &Place,
        mut source: Box<dyn Source>,
        chain: &mut Chain,
        outputs: &mut Outputs,
    ) -> Result<(), TaskError> {
        let (mut is_stopped, mut pace) = (false, Pace::default());
        loop {
            make_room(chain, outputs).await?;
            if !is_stopped && self.stop.is_cancelled() {
                is_stopped = true;
                if source.stop() == Stopped::AtOnce {
                    source.close();
                    return Ok(());
                }
            }
            let stop = async {
                if is_stopped {
                    pending::<()>().await;
                }
                self.stop.cancelled().await;
            };
            match pace
                .step(|| source.next(Instant::now()))
                .map_err(|error| place.error(error))?
            {
                SourceState::Batch(batch) => {
                    process(Element::Batch(batch), chain, outputs).await?;
                }
                SourceState::Wait(until) => {
                    let moment = either(tokio::time::sleep_until(until), stop);
                    rest(moment, chain, outputs, Until::Emission).await?;
                }
                SourceState::WaitFor(more) => {
                    let more = either(more.notified(), stop);
                    rest(more, chain, outputs, Until::Emission).await?;
                }
                SourceState::Pending => {
                    let ready = either(poll_fn(|cx| source.poll_ready(cx)), stop);
                    rest(ready, chain, outputs, Until::Emission).await?;
                }
                SourceState::End => {
                    source.close();
                    return Ok(());
                }
            }
        }
    }

    /// Reads all input to its end.
    async fn read(
        &self,
        mut gate: InputGate,
        chain: &mut Chain,
        outputs: &mut Outputs,
    ) -> Result<(), TaskError> {
        loop {
            make_room(chain, outputs).await?;
            match gate.poll(|_| false)? {
                Input::Batch(batch) => {
                    self.counters.count_in(&batch);
                    process(Element::Batch(batch), chain, outputs).await?;
                }
                Input::Time(signal) => process(Element::Time(signal), chain, outputs).await?,
                Input::Barrier(..) | Input::ChannelEnded(_) => {}
                Input::Idle => rest(gate.readable(), chain, outputs, Until::Emission).await?,
                Input::Ended => return Ok(()),
            }
        }
    }
}

/// Waits for the first of two futures.
async fn either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    tokio::select! {
        () = one => {}
        () = other => {}
    }
}

/// Processes one element. The operators must have room for it.
async fn process(
    element: Element,
    chain: &mut Chain,
    outputs: &mut Outputs,
) -> Result<(), TaskError> {
    let mut emitted = Output::default();
    chain.process_beside(element, &mut emitted)?;
    outputs.send(emitted).await?;
    if outputs.is_due() {
        tick_and_flush(chain, outputs).await?;
    }
    task::yield_now().await;
    Ok(())
}

/// Waits until all operators accept another batch; sends on what they emit without input until then.
async fn make_room(chain: &mut Chain, outputs: &mut Outputs) -> Result<(), TaskError> {
    loop {
        match externals::wait(chain, Until::Room).now_or_never() {
            Some(emitted) => {
                let emitted = emitted?;
                if emitted.is_empty() {
                    return Ok(());
                }
                outputs.send(emitted).await?;
                if outputs.is_due() {
                    tick_and_flush(chain, outputs).await?;
                }
            }
            None => rest(pending(), chain, outputs, Until::Room).await?,
        }
    }
}

/// Flushes the outputs, then waits for the first of: `something`; the time at which an operator needs the time
/// again; output that the operators emit without input. Such output is sent on.
async fn rest(
    something: impl Future<Output = ()>,
    chain: &mut Chain,
    outputs: &mut Outputs,
    until: Until,
) -> Result<(), TaskError> {
    let tick = tick_and_flush(chain, outputs).await?;
    let moment = async {
        match tick {
            Some(tick) => tokio::time::sleep_until(tick).await,
            None => pending().await,
        }
    };
    let emitted = tokio::select! {
        () = something => return Ok(()),
        () = moment => return Ok(()),
        emitted = externals::wait(chain, until) => emitted?,
    };
    outputs.send(emitted).await
}

/// Passes the time to the operators and flushes the outputs. Returns when the operators need the time again.
async fn tick_and_flush(
    chain: &mut Chain,
    outputs: &mut Outputs,
) -> Result<Option<Instant>, TaskError> {
    let mut emitted = Output::default();
    let tick = chain.tick_beside(Instant::now(), &mut emitted)?;
    outputs.send(emitted).await?;
    outputs.flush().await?;
    Ok(tick)
}
