//! The loop of a task: it opens the operators, polls the source or reads the input to its end, and prepares the commits
//! of sinks. It owns the chain of operators, the input gate and the outputs. Cancelling drops the future: there is an
//! await point at least once a batch. After an error the outputs fail with its text, so that consumers know the cause.
//!
//! Checkpoints are taken up between two elements. `CheckpointControl` owns what is to be taken up; the loop asks it.
//! A checkpoint is taken up when all operators have room. Its barrier follows the flush of all that they emitted.

use std::future::{pending, poll_fn};
use std::sync::Arc;

use futures::FutureExt as _;
use tanist_ha::failpoint::failpoint;
use tanist_proto::id::JobId;
use tanist_proto::v1::CheckpointBarrier;
use tokio::sync::{mpsc, watch};
use tokio::task;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::TaskSpec;
use super::chain::{Chain, Place};
use super::checkpoint_control::CheckpointControl;
use super::encoder::Encoder;
use super::error::TaskError;
use super::externals::{self, Until};
use super::faults::{Fault, is_planted};
use super::memory::{SlotMemory, TaskMemory};
use super::outputs::Outputs;
use super::pace::Pace;
use super::plan::{Plan, PlanError};
use super::restore::{Beginning, own_number};
use super::status::{Counters, TaskStatus};
use crate::coordination::CoordinatorRequest;
use crate::end_guard::EndGuard;
use crate::exchange::{ChannelRequest, Exchange, Input, InputGate};
use crate::operator::{
    EndOfInput, OperatorFactory, Output, SinkOutput, Source, SourceState, Stopped,
};
use crate::state::UnencodedSnapshot;
use crate::time::Element;

/// A running task.
pub(super) struct Run {
    pub(super) spec: TaskSpec,
    pub(super) exchange: Exchange,
    pub(super) operators: Arc<dyn OperatorFactory>,
    pub(super) end_guard: EndGuard,
    /// Sends operators' requests; `None` if nothing transports them.
    pub(super) coordinator_requests: Option<mpsc::Sender<CoordinatorRequest>>,
    pub(super) counters: Arc<Counters>,
    pub(super) slot: Arc<SlotMemory>,
    pub(super) status: watch::Sender<TaskStatus>,
    /// Cancelled when the source has to end.
    pub(super) stop: CancellationToken,
    pub(super) checkpoints: Arc<CheckpointControl>,
    pub(super) encoder: Encoder,
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

    pub(super) async fn run(mut self) -> Result<SinkOutput, TaskError> {
        // In this order: the next line takes the snapshot out of the deployment.
        let own = own_number(&self.spec.deployment);
        let beginning = Beginning::take(&mut self.spec.deployment);
        let run = Arc::new(self);
        let planning = Arc::clone(&run);
        // Computing the types of SQL expressions takes long.
        let mut plan = task::spawn_blocking(move || planning.plan()).await??;
        // Registered first: consumers of a task that can't even open get the reason.
        let mut outputs = Outputs::register(&run.exchange, &mut plan, &run.counters)?;
        match run.run_with(plan, (beginning, own), &mut outputs).await {
            Ok(output) => outputs.finish().await.map(|()| output),
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
            (self.counters.peers(), self.counters.notices()),
            self.coordinator_requests.as_ref(),
        )
    }

    async fn run_with(
        &self,
        mut plan: Plan,
        (beginning, own): (Result<Beginning, PlanError>, Option<u64>),
        outputs: &mut Outputs,
    ) -> Result<SinkOutput, TaskError> {
        self.status.send_replace(TaskStatus::Initializing);
        let snapshot = match beginning? {
            Beginning::Start => None,
            Beginning::Snapshot(snapshot) => Some(snapshot),
            Beginning::Ended(output) => {
                self.checkpoints.begin(plan.inputs.is_empty());
                self.checkpoints.end_input();
                self.status.send_replace(TaskStatus::Running);
                // Its producers have ended too. Their partitions stay until they are read to the end; kept outputs stay
                // anyway.
                plan.inputs.retain(|input| !input.is_kept);
                self.read_ends(plan.inputs).await?;
                return Ok(output);
            }
        };
        let uses_artifacts = plan.uses_artifacts(&*self.operators);
        let chain = Chain::build(&mut plan, &*self.operators)?;
        if uses_artifacts {
            self.fetch_artifacts(plan.job).await?;
        }
        let is_restored = snapshot.is_some();
        if let (Some(number), Some(snapshot)) = (own, &snapshot) {
            self.checkpoints.restore(number, snapshot);
        }
        let opening = task::spawn_blocking(move || chain.open(snapshot.as_deref(), own));
        let opened = opening.await?;
        let mut chain = opened.map_err(|error| error.of_restore(self.checkpoints.highest()))?;
        if is_restored {
            failpoint("restore.opened").await;
        }
        let memory = TaskMemory::new(Arc::clone(&self.slot), Arc::clone(&self.counters));
        chain.count_state(memory);
        let source = chain.take_source();
        self.checkpoints.begin(source.is_some());
        self.status.send_replace(TaskStatus::Running);
        match source {
            Some((place, source)) => self.poll(&place, source, &mut chain, outputs).await?,
            None => {
                let gate = self.open(plan.inputs);
                self.checkpoints.open(gate.channels());
                self.read(gate, &mut chain, outputs).await?;
            }
        }
        // First: operators can't be saved while they emit what they have left.
        self.checkpoints.end_input();
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
            let mut output = SinkOutput::default();
            for commit in commits {
                output.extend(commit.prepare()?);
            }
            Ok::<_, TaskError>(output)
        });
        let output = preparing.await??;
        chain.close();
        // A number that the task has taken up needs its state also after its end.
        self.encoder.finish().await;
        Ok(output)
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
        let is_restored = self.spec.deployment.restore.is_some();
        let mut repeats = is_restored && is_planted(Fault::EmittedTwiceAtReplay);
        // The order matters. A paused source does nothing but take up a checkpoint. Operators must have room before a
        // checkpoint and before the next batch. A checkpoint comes before a stop, which may end the source at once.
        loop {
            while self.checkpoints.is_held() {
                stand_still(self.checkpoints.changed(), chain).await?;
            }
            make_room(chain, outputs).await?;
            if let Some(barrier) = self.checkpoints.take_trigger() {
                let saving = Some((place, &mut source));
                self.take_up(barrier, saving, chain, outputs).await?;
                failpoint("checkpoint.injected").await;
                if self.checkpoints.is_paused() {
                    failpoint("stop.paused").await;
                }
                // A paused source is neither polled nor ended.
                continue;
            }
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
            let interruption = either(stop, self.checkpoints.changed());
            match pace
                .step(|| source.next(Instant::now()))
                .map_err(|error| place.error(error))?
            {
                SourceState::Batch(batch) => {
                    if std::mem::take(&mut repeats) {
                        process(Element::Batch(batch.clone()), chain, outputs).await?;
                    }
                    process(Element::Batch(batch), chain, outputs).await?;
                }
                SourceState::Wait(until) => {
                    let moment = either(tokio::time::sleep_until(until), interruption);
                    rest(moment, chain, outputs, Until::Emission).await?;
                }
                SourceState::WaitFor(more) => {
                    let more = either(more.notified(), interruption);
                    rest(more, chain, outputs, Until::Emission).await?;
                }
                SourceState::Pending => {
                    let ready = either(poll_fn(|cx| source.poll_ready(cx)), interruption);
                    rest(ready, chain, outputs, Until::Emission).await?;
                }
                SourceState::End => {
                    source.close();
                    return Ok(());
                }
            }
        }
    }

    fn open(&self, inputs: Vec<ChannelRequest>) -> InputGate {
        let term = (self.spec.cluster_incarnation.clone(), self.spec.epoch);
        self.exchange.open(inputs, &term)
    }

    /// Reads channels that have only their ends, until all have ended.
    async fn read_ends(&self, inputs: Vec<ChannelRequest>) -> Result<(), TaskError> {
        let mut gate = self.open(inputs);
        loop {
            match gate.poll(|_| false)? {
                Input::Ended => return Ok(()),
                Input::Idle => gate.readable().await,
                Input::Batch(_) | Input::Time(_) | Input::Barrier(..) | Input::ChannelEnded(_) => {}
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
        let mut is_paused = false;
        loop {
            if !is_paused {
                make_room(chain, outputs).await?;
            }
            let input = self
                .checkpoints
                .reading(|is_blocked| gate.poll(is_blocked))?;
            if is_paused {
                match &input {
                    Input::Batch(_) | Input::Time(_) => self.checkpoints.take_input(),
                    Input::Barrier(..) | Input::ChannelEnded(_) | Input::Idle | Input::Ended => {}
                }
                is_paused = self.checkpoints.is_paused();
                if !is_paused {
                    make_room(chain, outputs).await?;
                }
            }
            let barrier = match input {
                Input::Batch(batch) => {
                    self.counters.count_in(&batch);
                    process(Element::Batch(batch), chain, outputs).await?;
                    None
                }
                Input::Time(signal) => {
                    process(Element::Time(signal), chain, outputs).await?;
                    None
                }
                Input::Barrier(channel, barrier) => self.arrive(channel, barrier).await,
                Input::ChannelEnded(channel) => self.checkpoints.end_channel(channel),
                Input::Idle => {
                    let readable = either(gate.readable(), self.checkpoints.changed());
                    match is_paused {
                        true => stand_still(readable, chain).await?,
                        false => rest(readable, chain, outputs, Until::Emission).await?,
                    }
                    None
                }
                Input::Ended => return Ok(()),
            };
            if let Some(barrier) = barrier {
                make_room(chain, outputs).await?;
                self.take_up(barrier, None, chain, outputs).await?;
                is_paused = self.checkpoints.is_paused();
            }
        }
    }

    /// Handles a barrier that a channel has delivered. Returns it if the task has to take it up.
    async fn arrive(
        &self,
        channel: usize,
        barrier: CheckpointBarrier,
    ) -> Option<CheckpointBarrier> {
        let complete = self.checkpoints.arrive(channel, barrier);
        if self.checkpoints.reading(|is_blocked| is_blocked(channel)) {
            failpoint("checkpoint.blocked").await;
        }
        complete
    }

    /// Takes a checkpoint up: saves the source and the operators, which have room, and sends the barrier on behind all
    /// that they emitted before. Keyed state is only frozen, and encoded while the task goes on. If an operator can't
    /// be saved, the task declines the checkpoint and goes on; it fails if the error is unrecoverable.
    async fn take_up(
        &self,
        barrier: CheckpointBarrier,
        source: Option<(&Place, &mut Box<dyn Source>)>,
        chain: &mut Chain,
        outputs: &mut Outputs,
    ) -> Result<(), TaskError> {
        let number = barrier.number;
        let deployment = &self.spec.deployment;
        let mut snapshot = UnencodedSnapshot::of(&deployment.vertex_id, deployment.subtask);
        let base = self.checkpoints.base(barrier.newest);
        let saved =
            Pace::default().step(|| chain.snapshot(barrier, source, base.as_ref(), &mut snapshot));
        if let Err(error) = saved {
            if error.is_unrecoverable() {
                return Err(error);
            }
            let task = self.name();
            tracing::warn!(task, checkpoint = number, %error, "a task can't save its state");
            self.checkpoints.decline(number, error.to_string());
            return Ok(());
        }
        failpoint("checkpoint.frozen").await;
        if is_planted(Fault::BarrierOvertakesRecords) {
            outputs.barrier(barrier);
        }
        outputs.flush().await?;
        // The number may have been aborted while the flush waited for room: then no barrier is sent.
        if self.checkpoints.is_wanted(number) {
            outputs.barrier(barrier);
            match snapshot.into_encoded() {
                Ok(snapshot) => self.checkpoints.save(number, snapshot),
                Err(frozen) => {
                    self.checkpoints.freeze(number);
                    let control = &self.checkpoints;
                    self.encoder.begin(number, frozen, control, &self.end_guard);
                }
            }
        }
        Ok(())
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

/// Waits for `something` while the task is paused behind a barrier. Operators write on what they hold, and emit
/// nothing: it would be behind the barrier. Their time stands still, or an operator that passes on nothing for a while
/// would call its input idle, although it only was not read.
async fn stand_still(
    something: impl Future<Output = ()>,
    chain: &mut Chain,
) -> Result<(), TaskError> {
    let began = Instant::now();
    let waited = tokio::select! {
        () = something => Ok(()),
        error = externals::write_on(chain) => Err(error),
    };
    chain.stood_still(began.elapsed());
    waited
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
