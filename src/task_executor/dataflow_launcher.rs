//! The launcher that runs tasks in this process's dataflow: [`TaskRuntime`] behind the traits of [`super::launcher`].
//! Decides nothing.

use std::sync::Arc;

use tanist_dataflow::{self as dataflow, CoordinatorRequest, TaskRuntime, TaskSpec, TaskStatus};
use tanist_ha::clock::Moment;
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::trigger_answer::Answer;
use tokio::sync::{mpsc, watch};

use super::launcher::{CheckpointStatus, RunningTask, TaskLauncher, TaskStart};

impl TaskLauncher for TaskRuntime {
    fn start(&self, task: TaskStart) -> Box<dyn RunningTask> {
        Box::new(TaskRuntime::start(
            self,
            TaskSpec {
                graph: task.graph,
                deployment: task.deployment,
                cluster_incarnation: task.cluster_incarnation,
                epoch: task.epoch,
                job_incarnation: task.job_incarnation,
                external_resources: task.external_resources,
                managed_memory: task.managed_memory,
            },
        ))
    }

    fn release_task(&self, job: JobId, vertex: JobVertexId, subtask: u32, up_to: Generation) {
        self.exchange().release_task(job, vertex, subtask, up_to);
    }

    fn release_job(&self, job: JobId, up_to: Generation) {
        self.exchange().release(job, up_to);
        self.remove_programs(job);
    }

    fn release_files(&self, job: JobId) {
        TaskRuntime::release_files(self, job);
    }

    fn may_run_until(&self, job: JobId, ends: Moment) {
        TaskRuntime::may_run_until(self, job, ends);
    }

    fn kept_outputs(&self) -> watch::Receiver<usize> {
        self.exchange().unread_partitions()
    }

    fn coordinator_requests(&self) -> Option<mpsc::Receiver<CoordinatorRequest>> {
        Some(TaskRuntime::coordinator_requests(self))
    }
}

impl RunningTask for dataflow::RunningTask {
    fn cancel(&self) {
        dataflow::RunningTask::cancel(self);
    }

    fn stop(&self) {
        dataflow::RunningTask::stop(self);
    }

    fn metrics(&self) -> pb::TaskMetrics {
        dataflow::RunningTask::metrics(self)
    }

    fn status(&self) -> watch::Receiver<TaskStatus> {
        dataflow::RunningTask::status(self)
    }

    fn trigger(&self, barrier: pb::CheckpointBarrier) -> Answer {
        dataflow::RunningTask::trigger(self, barrier)
    }

    fn abort_checkpoint(&self, number: u64) {
        dataflow::RunningTask::abort_checkpoint(self, number);
    }

    fn release_snapshot(&self, number: u64, written: Option<Arc<pb::SubtaskSnapshot>>) {
        dataflow::RunningTask::release_snapshot(self, number, written);
    }

    fn decline_blocked(&self, reason: &str) {
        dataflow::RunningTask::decline_blocked(self, reason);
    }

    fn checkpoints(&self) -> watch::Receiver<CheckpointStatus> {
        dataflow::RunningTask::checkpoints(self)
    }

    fn notices(&self) -> watch::Receiver<Vec<String>> {
        dataflow::RunningTask::notices(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::tests::testing::World;
    use tanist_dataflow::{Exchange, ExchangeOptions};
    use tanist_gateway::fencing::HighestEpoch;
    use tanist_operators::{Operators, TaskHost};

    #[tokio::test]
    async fn a_deployed_task_runs_in_the_dataflow_and_its_end_is_reported() {
        let runtime = tokio::runtime::Handle::current();
        let gate = Arc::new(HighestEpoch::default());
        let options = ExchangeOptions::new("tm", "1", gate);
        let exchange = Exchange::bind("127.0.0.1:0", options, runtime.clone());
        let exchange = exchange.await.expect("a free port");
        let tasks = Arc::new(TaskRuntime::new(
            runtime,
            exchange,
            Operators::new(TaskHost::without_programs()),
        ));
        let world = World::start_with(false, Some(tasks));
        let (_, leader) = world.with_leader("jm1:1", 1).await;
        let allocation = "000000000000000000000000000000a1";
        leader.request_slot(0, allocation).await;
        leader.registered_job().await;
        leader.offered().await;
        let answer = leader.submit(1, allocation).await.expect("is registered");
        assert_eq!(answer.refused, []);
        let ended = tokio::time::timeout(Duration::from_secs(60), leader.ended());
        let ended = ended.await.expect("ten records take no minute");
        assert_eq!(
            (ended.state(), ended.cause.as_str()),
            (pb::ExecutionState::Finished, "")
        );
    }
}
