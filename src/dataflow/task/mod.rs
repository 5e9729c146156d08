//! A task: one attempt of one subtask of a vertex, from its deployment to its end.
//!
//! It runs on the runtime that it is given, never blocks its other tasks for longer than a batch (`pace.rs`), and says how it stands in a `watch` that
//! keeps the last value. It ends by itself or by being cancelled; restarting it is the JobMaster's business. Nothing that it
//! does takes the process down: an operator's panic fails the task alone.

mod chain;
mod externals;
mod outputs;
mod pace;
mod plan;
mod run;
#[cfg(all(test, feature = "sql"))]
mod sql_tests;
mod status;
#[cfg(test)]
mod stop_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod time_tests;
#[cfg(test)]
mod word_count_tests;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt as _;
use tanist_ha::clock::Moment;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_proto::id::JobId;
use tanist_proto::v1::{Committable, JobGraph, TaskDeployment, TaskMetrics};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use plan::PlanError;
pub use run::TaskError;
pub use status::TaskStatus;

use super::coordination::Question;
use super::exchange::Exchange;
use super::host::{AllGone, Lingering, TaskHost};
use crate::telemetry::panic_message;
use status::Counters;

/// Questions of operators that may wait to be carried on; more of them wait with their tasks.
const WAITING_QUESTIONS: usize = 256;

/// What is to be run.
#[derive(Debug, Clone)]
pub struct TaskSpec {
    /// The job's graph.
    pub graph: Arc<JobGraph>,
    /// Which subtask, which attempt, and where its inputs are.
    pub deployment: TaskDeployment,
    /// The cluster that deploys it.
    pub cluster_incarnation: ClusterIncarnation,
    /// The term that deploys it.
    pub epoch: Epoch,
    /// Counts the job's JobMasters.
    pub job_incarnation: u64,
    /// The indices of the extended resources that are the task's own, by name.
    pub external_resources: BTreeMap<String, Vec<u64>>,
}

/// Where tasks run.
#[derive(Debug, Clone)]
pub struct TaskRuntime {
    runtime: Handle,
    exchange: Exchange,
    host: Arc<TaskHost>,
    questions: Arc<Mutex<Option<mpsc::Sender<Question>>>>,
}

impl TaskRuntime {
    /// Programs of the job may run until then, whatever becomes of this process; without a word they may for ever.
    pub fn may_run_until(&self, job: JobId, ends: Moment) {
        self.host.leases.extend(job, ends);
    }

    /// No program of the job runs here any more, nor will.
    pub fn forget_programs(&self, job: JobId) {
        self.host.leases.forget(job);
        self.release_files(job);
    }

    /// No program of the job runs here: what was fetched for it is removed. What starts later fetches it anew.
    pub fn release_files(&self, job: JobId) {
        if let Some(files) = self.host.kept_artifacts.let_go(job) {
            // Gigabytes take a while.
            self.runtime.spawn_blocking(move || drop(files));
        }
    }

    /// Tasks on this runtime that meet in this exchange and get this from their process.
    pub fn new(runtime: Handle, exchange: Exchange, host: TaskHost) -> TaskRuntime {
        TaskRuntime {
            runtime,
            exchange,
            host: Arc::new(host),
            questions: Arc::default(),
        }
    }

    /// The exchange of all its tasks.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// What the operators of tasks that are started from here on ask of their coordinators. To be carried there by one.
    pub fn questions(&self) -> mpsc::Receiver<Question> {
        let (sender, questions) = mpsc::channel(WAITING_QUESTIONS);
        *self
            .questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(sender);
        questions
    }

    /// Starts a task. What is wrong with it becomes its status.
    pub fn start(&self, spec: TaskSpec) -> RunningTask {
        let (sender, status) = watch::channel(TaskStatus::Deploying);
        let counters = Arc::new(Counters::default());
        let cancel = CancellationToken::new();
        let stop = CancellationToken::new();
        let (lingering, all_gone) = Lingering::new();
        let questions = self
            .questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let task = run::Run {
            spec,
            questions: questions.clone(),
            exchange: self.exchange.clone(),
            host: Arc::clone(&self.host),
            lingering,
            counters: Arc::clone(&counters),
            status: sender.clone(),
            stop: stop.clone(),
        };
        drop(questions);
        let name = task.name();
        self.runtime.spawn(supervise(
            name,
            task.run(),
            sender,
            cancel.clone(),
            all_gone,
        ));
        RunningTask {
            status,
            counters,
            cancel: cancel.drop_guard(),
            stop,
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
}

impl RunningTask {
    /// Asks the task to end. It does so at its next batch or wait; its status says when. No effect on one that has ended.
    pub fn cancel(&self) {
        self.cancel.token().cancel();
    }

    /// Asks its source, if it has one, to end: the task finishes with what that has read by then. No effect on any other.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// What it has done so far.
    pub fn metrics(&self) -> TaskMetrics {
        self.counters.snapshot()
    }

    /// How it stands. The last value stays.
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

/// Runs a task to its end, whatever that is.
async fn supervise(
    name: String,
    task: impl Future<Output = Result<Vec<Committable>, TaskError>>,
    status: watch::Sender<TaskStatus>,
    cancel: CancellationToken,
    all_gone: AllGone,
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
        Some(Ok(Ok(committables))) => TaskStatus::Finished { committables },
        Some(Ok(Err(error))) => error.into_status(),
        Some(Err(panic)) => TaskStatus::failed(format!("panicked: {}", panic_message(&*panic))),
    };
    // Its files and channels are closed, and its programs gone, before anybody hears that it has ended.
    drop(running);
    all_gone.wait().await;
    match &last {
        TaskStatus::Failed { cause, .. } => tracing::warn!(task = name, cause, "task failed"),
        ended => tracing::debug!(task = name, status = ended.name(), "task ended"),
    }
    status.send_replace(last);
}
