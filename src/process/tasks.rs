//! Runs a TaskExecutor's tasks in the dataflow, on a runtime of their own.

use std::sync::Arc;

use tanist_proto::id::{Generation, JobId};
use tanist_proto::v1 as pb;
use tokio::sync::watch;

use crate::dataflow::{self, TaskRuntime, TaskSpec};
use crate::task_executor::{RunningTask, TaskLauncher, TaskStart, TaskStatus};

/// Starts tasks in a [`TaskRuntime`].
#[derive(Debug)]
pub(super) struct DataflowTasks {
    tasks: TaskRuntime,
}

impl DataflowTasks {
    pub(super) fn new(tasks: TaskRuntime) -> DataflowTasks {
        DataflowTasks { tasks }
    }
}

impl TaskLauncher for DataflowTasks {
    fn start(&self, task: TaskStart) -> Box<dyn RunningTask> {
        let spec = TaskSpec {
            graph: Arc::clone(&task.graph),
            deployment: task.deployment,
            cluster_incarnation: task.cluster_incarnation,
            epoch: task.epoch,
            job_incarnation: task.job_incarnation,
        };
        Box::new(Running(self.tasks.start(spec)))
    }

    fn release_job(&self, job: JobId, up_to: Generation) {
        self.tasks.exchange().release(job, up_to);
    }
}

#[derive(Debug)]
struct Running(dataflow::RunningTask);

impl RunningTask for Running {
    fn cancel(&self) {
        self.0.cancel();
    }

    fn metrics(&self) -> pb::TaskMetrics {
        self.0.metrics()
    }

    fn status(&self) -> watch::Receiver<TaskStatus> {
        self.0.status()
    }
}
