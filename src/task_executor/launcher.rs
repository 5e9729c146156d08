//! What a TaskExecutor needs from whoever runs its tasks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tanist_ha::clock::Moment;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::v1 as pb;
use tokio::sync::{mpsc, watch};

pub use crate::dataflow::{Question, TaskStatus};

/// A task to start.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskStart {
    /// The job.
    pub job: JobId,
    /// Which JobMaster of the job deploys it.
    pub job_incarnation: u64,
    /// The cluster that the deployment is of.
    pub cluster_incarnation: ClusterIncarnation,
    /// The term that it is of.
    pub epoch: Epoch,
    /// The job's graph; shared by the tasks of one deployment.
    pub graph: Arc<pb::JobGraph>,
    /// Which task, which generation, and where its input comes from.
    pub deployment: pb::TaskDeployment,
    /// The indices of the extended resources that are its own, by name.
    pub external_resources: BTreeMap<String, Vec<u64>>,
}

/// Runs tasks. Every call returns at once.
pub trait TaskLauncher: Send + Sync + fmt::Debug + 'static {
    /// Starts a task. A task that can't be started shows as failed.
    fn start(&self, task: TaskStart) -> Box<dyn RunningTask>;
    /// Nobody will take what this subtask's generations up to this one have produced.
    fn release_task(&self, job: JobId, vertex: JobVertexId, subtask: u32, up_to: Generation);
    /// Nothing of the job's generations up to this one will be asked for any more.
    fn release_job(&self, job: JobId, up_to: Generation);
    /// The job has no slot here at present: files that were fetched for its programs are not kept for it.
    fn release_files(&self, _job: JobId) {}
    /// Tasks of an isolated job have ended by then unless this is said again: for what goes on when this process stands still.
    fn may_run_until(&self, _job: JobId, _ends: Moment) {}
    /// Follows how many outputs are kept for consumers that have not taken them to their end, also those of tasks that have
    /// ended. Not those of blocking edges: these stay when they were read.
    fn kept_outputs(&self) -> watch::Receiver<usize>;
    /// What operators of the tasks that are started from here on ask of their coordinators; none where none asks.
    fn questions(&self) -> Option<mpsc::Receiver<Question>> {
        None
    }
}

/// A task that was started. Dropping it ends the task as soon as that is possible.
pub trait RunningTask: Send + fmt::Debug {
    /// Tells it to end. Repeated, it changes nothing.
    fn cancel(&self);
    /// Tells its source, if it has one, to end; the task finishes with what it has read. Repeated, it changes nothing.
    fn stop(&self);
    /// Its counters.
    fn metrics(&self) -> pb::TaskMetrics;
    /// Follows how far it is.
    fn status(&self) -> watch::Receiver<TaskStatus>;
}
