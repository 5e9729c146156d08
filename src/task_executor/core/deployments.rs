//! Handler of a deployment: which of its tasks start, which are refused and why.
//!
//! - A task starts only in a slot that its job holds here, and no generation of it starts twice or after a younger
//!   one.
//! - A task of an isolated job starts only under the generation that the store has just named, and never beside an
//!   earlier attempt.
//! - Tasks are refused one by one: a refused task keeps no other from starting.

use std::collections::BTreeSet;
use std::sync::Arc;

use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_model::resources::share_of;
use tanist_proto::id::{AllocationId, JobId, JobVertexId};
use tanist_proto::v1 as pb;

use super::TaskExecutorCore;
use super::checkpoints::SnapshotPlace;
use super::effect::{Effect, TaskKey};
use super::executions::{CancellationTimeouts, ExecutionKey};
use super::isolation::{Confirmation, IsolatedJobs};
use super::job::{Beginning, Job};
use super::jobs::Jobs;
use super::lifecycle::Lifecycle;
use super::log_line::LogLine;
use super::messages::{execution_key, invalid, parse};
use super::output::Output;
use super::slot_table::{SlotHolder, SlotTable};
use crate::launcher::TaskStart;

/// A deployment to a job, which is known.
#[derive(Debug)]
pub(super) struct Deployment<'a> {
    /// The job.
    pub job: JobId,
    /// The sender of the deployment.
    pub sender: pb::Sender,
    /// The store's answer, if it is an isolated job.
    pub confirmation: Option<&'a Confirmation>,
    /// Timeouts of earlier attempts, which are cancelled.
    pub timeouts: CancellationTimeouts,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Deployments<'a> {
    slots: &'a mut SlotTable,
    jobs: &'a mut Jobs,
    isolated: &'a mut IsolatedJobs,
    lifecycle: &'a Lifecycle,
    output: &'a mut Output,
}

impl TaskExecutorCore {
    pub(super) fn deployments(&mut self) -> Deployments<'_> {
        Deployments {
            slots: &mut self.slots,
            jobs: &mut self.jobs,
            isolated: &mut self.isolated,
            lifecycle: &self.lifecycle,
            output: &mut self.output,
        }
    }
}

impl Deployments<'_> {
    /// Starts the tasks of a deployment.
    pub(super) fn submit(
        &mut self,
        deployment: &Deployment<'_>,
        request: pb::SubmitTasksRequest,
    ) -> GatewayResult<pb::SubmitTasksResponse> {
        let &Deployment { job, timeouts, .. } = deployment;
        let known = self.jobs.requested(job)?;
        let graph = match (request.graph, &request.graph_reference) {
            (Some(graph), _) => Arc::new(graph),
            (None, Some(reference)) => known
                .graph(reference)
                .ok_or_else(|| invalid("the deployment's graph was not fetched"))?,
            (None, None) => return Err(invalid("the deployment has no graph")),
        };
        known.record_deployment(&request.tasks, kept_vertices(&graph));
        if request.stopping {
            known.stop_sources(self.output);
        }
        if let (Some(bounds), Some(confirmation)) = (request.stop_first, deployment.confirmation) {
            let timeouts = self.isolated.timeouts(job, timeouts);
            let regions = confirmation.regions();
            let is_superseded = known.cancel_superseded(regions, timeouts, self.output);
            let asked_at = confirmation.asked_at();
            self.isolated.deployed(job, bounds, asked_at);
            // The confirmation of a younger generation does not extend the time of a superseded task.
            if !is_superseded {
                self.isolated.confirm(job, asked_at, self.output);
            }
        }
        let mut refused = Vec::new();
        for task in request.tasks {
            let mut refusal = refusal(&task, String::new());
            if let Err(reason) = self.start(deployment, &graph, task) {
                self.output.log(LogLine::TaskRefused {
                    job,
                    vertex: refusal.vertex_id.clone(),
                    subtask: refusal.subtask,
                    generation: refusal.generation,
                    reason: reason.clone(),
                });
                refusal.reason = reason;
                refused.push(refusal);
            }
        }
        Ok(pb::SubmitTasksResponse { refused })
    }

    fn start(
        &mut self,
        deployment: &Deployment<'_>,
        graph: &Arc<pb::JobGraph>,
        task: pb::TaskDeployment,
    ) -> Result<(), String> {
        if self.lifecycle.is_stopping() {
            return Err("the TaskManager is shutting down".to_owned());
        }
        let text = |error: GatewayError| error.to_string();
        let job = deployment.job;
        let allocation: AllocationId = parse(&task.allocation_id).map_err(text)?;
        let key = execution_key(&task.vertex_id, task.subtask, task.generation).map_err(text)?;
        if !self.slots.is_held(SlotHolder { job, allocation }) {
            return Err(format!(
                "the job does not hold allocation {allocation} here"
            ));
        }
        let known = self.jobs.requested(job).map_err(text)?;
        if let Some(confirmation) = deployment.confirmation {
            check_isolated(known, &key, confirmation)?;
        }
        let sender = &deployment.sender;
        let cluster = ClusterIncarnation::new(sender.cluster_incarnation.as_str());
        let begins = Beginning {
            place: SnapshotPlace {
                cluster: cluster.clone(),
                storage: task.storage.clone(),
            },
            restored_from: task.restore.as_ref().map_or(0, |it| it.number),
            takes_checkpoints: task.takes_checkpoints,
        };
        known.admit(key, allocation, begins, deployment.timeouts, self.output)?;
        // A JobMaster that deploys into a slot has accepted it, even if its answer to the offer was lost.
        self.slots.activate(allocation);
        let start = TaskStart {
            job,
            job_incarnation: known.incarnation(),
            cluster_incarnation: cluster,
            epoch: Epoch::new(sender.epoch),
            graph: graph.clone(),
            external_resources: share_of(graph, key.vertex, &self.slots.indices(allocation)),
            managed_memory: self.slots.managed_memory(allocation),
            deployment: task,
        };
        let task = TaskKey {
            job,
            execution: key,
        };
        self.output.effect(Effect::Start(task, Box::new(start)));
        if known.is_stopped() {
            self.output.effect(Effect::Stop(task));
        }
        Ok(())
    }

    /// Refuses all tasks of a deployment.
    pub(super) fn refuse(
        &mut self,
        job: JobId,
        request: &pb::SubmitTasksRequest,
        reason: &str,
    ) -> pb::SubmitTasksResponse {
        self.output.log(LogLine::TasksRefused {
            job,
            tasks: request.tasks.len(),
            reason: reason.to_owned(),
        });
        let tasks = request.tasks.iter();
        let refused = tasks.map(|task| refusal(task, reason.to_owned()));
        pb::SubmitTasksResponse {
            refused: refused.collect(),
        }
    }
}

/// Why the store's answer does not allow a task of an isolated job to start.
fn check_isolated(
    job: &Job,
    execution: &ExecutionKey,
    confirmation: &Confirmation,
) -> Result<(), String> {
    let stored = job.stored_generation(execution, confirmation.regions());
    if stored != Some(execution.generation) {
        return Err(format!("the store has another generation: {stored:?}"));
    }
    if job.executions().is_running_up_to(execution.previous()) {
        return Err("an earlier attempt still runs here".to_owned());
    }
    Ok(())
}

fn kept_vertices(graph: &pb::JobGraph) -> BTreeSet<JobVertexId> {
    let blocking = graph
        .edges
        .iter()
        .filter(|edge| edge.exchange() == pb::Exchange::Blocking);
    blocking
        .filter_map(|edge| edge.source.parse().ok())
        .collect()
}

/// The refusal of a task.
fn refusal(task: &pb::TaskDeployment, reason: String) -> pb::TaskRefusal {
    pb::TaskRefusal {
        vertex_id: task.vertex_id.clone(),
        subtask: task.subtask,
        generation: task.generation,
        reason,
    }
}
