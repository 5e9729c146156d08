//! Interface through which a TaskExecutor runs tasks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tanist_ha::clock::Moment;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::trigger_answer::Answer;
use tokio::sync::{mpsc, watch};

pub(crate) use tanist_dataflow::CoordinatorRequest;
pub use tanist_dataflow::{CheckpointStatus, SinkOutput, TaskStatus};

/// A task to start.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskStart {
    /// The job.
    pub job: JobId,
    /// Incarnation of the JobMaster that deploys it.
    pub job_incarnation: u64,
    /// The cluster of the deployment.
    pub cluster_incarnation: ClusterIncarnation,
    /// The term of the deployment.
    pub epoch: Epoch,
    /// The job's graph, shared by the tasks of one deployment.
    pub graph: Arc<pb::JobGraph>,
    /// The task, its generation, and the location of its inputs.
    pub deployment: pb::TaskDeployment,
    /// Indexes of the extended resources that are reserved for it, by name.
    pub external_resources: BTreeMap<String, Vec<u64>>,
    /// Managed memory of its slot, in bytes.
    pub managed_memory: u64,
}

/// Runs tasks. Every call returns at once.
pub trait TaskLauncher: Send + Sync + fmt::Debug + 'static {
    /// Starts a task. A task that can't be started shows as failed.
    fn start(&self, task: TaskStart) -> Box<dyn RunningTask>;
    /// Releases the outputs of this subtask's generations up to this one: no consumer will take them.
    fn release_task(&self, job: JobId, vertex: JobVertexId, subtask: u32, up_to: Generation);
    /// Releases everything of the job's generations up to this one.
    fn release_job(&self, job: JobId, up_to: Generation);
    /// Releases the files that were fetched for the job's programs, since it has no slot here at present.
    fn release_files(&self, _job: JobId) {}
    /// Sets the time by which tasks of an isolated job have ended unless it is extended. Programs of tasks need it:
    /// they run on when this process is stopped.
    fn may_run_until(&self, _job: JobId, _ends: Moment) {}
    /// Watches the number of outputs that consumers have not read to their end, including those of tasks that have
    /// ended. Not those of blocking edges, which stay after they were read.
    fn kept_outputs(&self) -> watch::Receiver<usize>;
    /// Receives the requests of operators to their coordinators, from tasks that are started after this call.
    /// `None`: no operator asks.
    fn coordinator_requests(&self) -> Option<mpsc::Receiver<CoordinatorRequest>> {
        None
    }
}

/// A started task. Dropping it ends the task as soon as possible. The defaults are those of a task whose state is not
/// saved.
pub trait RunningTask: Send + fmt::Debug {
    /// Cancels it. Can be repeated.
    fn cancel(&self);
    /// Ends its source, if it has one; the task finishes with what it has read. Can be repeated.
    fn stop(&self);
    /// Its counters.
    fn metrics(&self) -> pb::TaskMetrics;
    /// Watches its status.
    fn status(&self) -> watch::Receiver<TaskStatus>;
    /// Begins a checkpoint at its source. Idempotent.
    fn trigger(&self, _barrier: pb::CheckpointBarrier) -> Answer {
        Answer::Refused("its state is not saved".to_owned())
    }
    /// Tells it that a checkpoint is aborted. Idempotent.
    fn abort_checkpoint(&self, _number: u64) {}
    /// Allows it to drop what it has saved for a checkpoint. `written`: the snapshot with the names of the objects in
    /// which it is written. `None`: it is not needed.
    fn release_snapshot(&self, _number: u64, _written: Option<Arc<pb::SubtaskSnapshot>>) {}
    /// Makes it decline the checkpoint for which it blocks inputs, if there is one.
    fn decline_blocked(&self, _reason: &str) {}
    /// Watches its checkpoint status. The last value before its end is published before the end.
    fn checkpoints(&self) -> watch::Receiver<CheckpointStatus> {
        watch::channel(CheckpointStatus::default()).1
    }
    /// Watches its notices for users, oldest first. The list only grows.
    fn notices(&self) -> watch::Receiver<Vec<String>> {
        watch::channel(Vec::new()).1
    }
}
