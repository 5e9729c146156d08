//! A task: one attempt of one subtask of a vertex, from its deployment to its end.
//!
//! It runs on the given runtime, never blocks the runtime's other tasks for longer than a batch (`pace.rs`),
//! and publishes its status in a `watch` that keeps the last value. It ends by itself or when it is cancelled;
//! the JobMaster restarts it. A task can't end the process: an operator's panic fails only its task.

mod alignment;
mod chain;
mod checkpoint;
mod checkpoint_control;
mod encoder;
mod error;
mod externals;
mod faults;
mod memory;
mod outputs;
mod pace;
mod plan;
mod restore;
mod run;
mod saved_snapshots;
mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use parking_lot::Mutex;
use tanist_ha::clock::Moment;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_proto::id::JobId;
use tanist_proto::v1::trigger_answer::Answer;
use tanist_proto::v1::{CheckpointBarrier, JobGraph, SubtaskSnapshot, TaskDeployment, TaskMetrics};
use tanist_telemetry::panic_message;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use checkpoint::{CheckpointProgress, CheckpointStatus};
pub use status::TaskStatus;

use self::checkpoint_control::CheckpointControl;
use self::error::TaskError;
use self::memory::SlotMemories;
use self::status::Counters;
use crate::coordination::CoordinatorRequest;
use crate::end_guard::{EndGuard, EndWaiter};
use crate::exchange::Exchange;
use crate::operator::{OperatorFactory, SinkOutput};

/// Maximum number of operators' requests that wait to be sent. When it is reached, tasks with further
/// requests wait.
const WAITING_REQUESTS: usize = 256;

/// What to run.
#[derive(Debug, Clone)]
pub struct TaskSpec {
    /// The job's graph.
    pub graph: Arc<JobGraph>,
    /// Subtask, attempt and locations of the inputs.
    pub deployment: TaskDeployment,
    /// The cluster that deploys it.
    pub cluster_incarnation: ClusterIncarnation,
    /// The term that deploys it.
    pub epoch: Epoch,
    /// Number of the job's JobMaster, counted over the job's life.
    pub job_incarnation: u64,
    /// Indices of the extended resources that the task may use, by resource name.
    pub external_resources: BTreeMap<String, Vec<u64>>,
    /// Managed memory of the slot, in bytes; 0: it has none.
    pub managed_memory: u64,
}

/// Where tasks run.
#[derive(Debug, Clone)]
pub struct TaskRuntime {
    runtime: Handle,
    exchange: Exchange,
    operators: Arc<dyn OperatorFactory>,
    /// Where tasks put requests of their operators; `None`: nothing sends them on yet.
    coordinator_requests: Arc<Mutex<Option<mpsc::Sender<CoordinatorRequest>>>>,
    slots: SlotMemories,
}

impl TaskRuntime {
    /// Sets until when programs of the job may run, even if this process hangs or ends. Without a call there is
    /// no limit.
    pub fn may_run_until(&self, job: JobId, ends: Moment) {
        self.operators.may_run_until(job, ends);
    }

    /// Removes the lease and the files of a job of which no program runs here or will run here.
    pub fn remove_programs(&self, job: JobId) {
        self.operators.remove_limit(job);
        self.release_files(job);
    }

    /// Removes the files that were fetched for a job of which no program runs here. A program that starts later
    /// fetches them again.
    pub fn release_files(&self, job: JobId) {
        if let Some(files) = self.operators.release_files(job) {
            // Removing gigabytes takes time.
            self.runtime.spawn_blocking(move || drop(files));
        }
    }

    /// Creates tasks on this runtime, with this exchange and the operators of this process.
    pub fn new(
        runtime: Handle,
        exchange: Exchange,
        operators: impl OperatorFactory,
    ) -> TaskRuntime {
        TaskRuntime {
            runtime,
            exchange,
            operators: Arc::new(operators),
            coordinator_requests: Arc::default(),
            slots: SlotMemories::default(),
        }
    }

    /// The exchange of all its tasks.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Returns the requests that operators ask their coordinators, for tasks that are started after this call.
    /// The caller has to send them on. A later call replaces the receiver.
    pub fn coordinator_requests(&self) -> mpsc::Receiver<CoordinatorRequest> {
        let (sender, coordinator_requests) = mpsc::channel(WAITING_REQUESTS);
        *self.coordinator_requests.lock() = Some(sender);
        coordinator_requests
    }

    /// Starts a task. An error becomes its status.
    pub fn start(&self, spec: TaskSpec) -> RunningTask {
        let (sender, status) = watch::channel(TaskStatus::Deploying);
        let counters = Arc::new(Counters::default());
        let cancel = CancellationToken::new();
        let stop = CancellationToken::new();
        let (end_guard, end_waiter) = EndGuard::new();
        let restored = spec.deployment.restore.as_ref();
        let restored = restored.map_or(0, |restore| restore.number);
        let checkpoints = Arc::new(CheckpointControl::above(restored));
        let coordinator_requests = self.coordinator_requests.lock();
        let slot = &spec.deployment.allocation_id;
        let slot = self.slots.of(slot, spec.managed_memory);
        let task = run::Run {
            spec,
            slot,
            coordinator_requests: coordinator_requests.clone(),
            exchange: self.exchange.clone(),
            operators: Arc::clone(&self.operators),
            end_guard,
            counters: Arc::clone(&counters),
            status: sender.clone(),
            stop: stop.clone(),
            checkpoints: Arc::clone(&checkpoints),
            encoder: encoder::Encoder::default(),
        };
        drop(coordinator_requests);
        let name = task.name();
        let running = supervise(name, task.run(), sender, cancel.clone(), end_waiter);
        let ending = Arc::clone(&checkpoints);
        self.runtime.spawn(async move {
            running.await;
            ending.close();
        });
        RunningTask {
            status,
            counters,
            cancel: cancel.drop_guard(),
            stop,
            checkpoints,
        }
    }
}

/// A task that was started. Dropping it cancels the task.
#[derive(Debug)]
pub struct RunningTask {
    status: watch::Receiver<TaskStatus>,
    counters: Arc<Counters>,
    cancel: DropGuard,
    stop: CancellationToken,
    checkpoints: Arc<CheckpointControl>,
}

impl RunningTask {
    /// Cancels the task. It ends at its next batch or wait, and then its status says so. No effect on a task
    /// that has ended.
    pub fn cancel(&self) {
        self.cancel.token().cancel();
    }

    /// Stops the task's source, if it has one: the task finishes with what was read by then. No effect on other
    /// tasks.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Begins a checkpoint at the task's source: it injects the barrier between two batches. Idempotent.
    pub fn trigger(&self, barrier: CheckpointBarrier) -> Answer {
        self.checkpoints.trigger(barrier)
    }

    /// Tells the task that a checkpoint is aborted: it stops waiting for its barriers, and does not take it up.
    pub fn abort_checkpoint(&self, number: u64) {
        self.checkpoints.abort(number);
    }

    /// What the task has saved for a checkpoint is written, or not needed: the task need not keep it. `written` names
    /// the objects, which later snapshots may name again.
    pub fn release_snapshot(&self, number: u64, written: Option<Arc<SubtaskSnapshot>>) {
        self.checkpoints.release(number, written);
    }

    /// Makes the task decline the checkpoint for which it blocks inputs, if there is one.
    pub fn decline_blocked(&self, reason: &str) {
        self.checkpoints.decline_blocked(reason);
    }

    /// What the task has done for checkpoints. The last value stays, also after its end.
    pub fn checkpoints(&self) -> watch::Receiver<CheckpointStatus> {
        self.checkpoints.status()
    }

    /// What its operators have said to people. The last value stays, also after its end.
    pub fn notices(&self) -> watch::Receiver<Vec<String>> {
        self.counters.notices().watch()
    }

    /// Counters of the task up to now.
    pub fn metrics(&self) -> TaskMetrics {
        self.counters.snapshot()
    }

    /// Status of the task. The last value stays.
    pub fn status(&self) -> watch::Receiver<TaskStatus> {
        self.status.clone()
    }

    /// Waits for the end.
    pub async fn ended(&self) -> TaskStatus {
        let mut status = self.status.clone();
        let ended = status
            .wait_for(TaskStatus::is_terminal)
            .await
            .map(|status| status.clone());
        ended.unwrap_or_else(|_| TaskStatus::failed("its runtime has ended"))
    }
}

/// Runs a task to its end and publishes its final status.
async fn supervise(
    name: String,
    task: impl Future<Output = Result<SinkOutput, TaskError>>,
    status: watch::Sender<TaskStatus>,
    cancel: CancellationToken,
    end_waiter: EndWaiter,
) {
    tracing::debug!(task = name, "task starts");
    let mut running = Box::pin(AssertUnwindSafe(task).catch_unwind());
    let ended = tokio::select! {
        biased;
        () = cancel.cancelled() => None,
        ended = &mut running => Some(ended),
    };
    let last = match ended {
        None => {
            status.send_replace(TaskStatus::Canceling);
            TaskStatus::Canceled
        }
        Some(Ok(Ok(output))) => TaskStatus::Finished { output },
        Some(Ok(Err(error))) => error.into_status(),
        Some(Err(panic)) => TaskStatus::failed(format!("panicked: {}", panic_message(&*panic))),
    };
    // Its files and channels are closed, and its programs are gone, before the end is published.
    drop(running);
    end_waiter.wait().await;
    match &last {
        TaskStatus::Failed { cause, .. } => tracing::warn!(task = name, cause, "task failed"),
        ended => tracing::debug!(task = name, status = ended.name(), "task ended"),
    }
    status.send_replace(last);
}
