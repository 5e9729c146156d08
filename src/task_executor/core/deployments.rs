//! Handles deployments: which of their tasks start, which are refused and why, and which sources end because their
//! job is being stopped. Pure, a part of [`super`]; the checks of every request are in [`super::requests`].
//!
//! - A task starts only in a slot that its job holds here, and no generation of it starts twice or after a younger
//!   one.
//! - A task of an isolated job starts only under the generation that the store has just named, and never beside an
//!   earlier attempt.
//! - Tasks are refused one by one: a refused task keeps no other from starting.
//! - A job that is being stopped stays so: the sources of tasks that start later end, too.

use std::collections::BTreeSet;
use std::sync::Arc;

use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_model::resources::share_of;
use tanist_proto::id::{AllocationId, Generation, JobId, JobVertexId};
use tanist_proto::v1 as pb;

use super::executions::ExecutionKey;
use super::isolation::Confirmation;
use super::requests::{execution_key, invalid, parse, unknown_job};
use super::slot_table::SlotHolder;
use super::{Core, Effect, LogLine, TaskKey};
use crate::launcher::TaskStart;

impl Core {
    /// The job of a deployment, if it is an isolated job.
    pub fn deployed_job(
        &mut self,
        now: Uptime,
        request: &pb::SubmitTasksRequest,
    ) -> GatewayResult<Option<JobId>> {
        if request.stop_first.is_none() {
            return Ok(None);
        }
        self.admit_job_master(now, request.sender.as_ref(), request.job.as_ref())
            .map(Some)
    }

    /// Handles a deployment. For an isolated job `confirmation` is the store's answer.
    pub fn submit(
        &mut self,
        now: Uptime,
        request: pb::SubmitTasksRequest,
        confirmation: Option<&Confirmation>,
    ) -> GatewayResult<pb::SubmitTasksResponse> {
        let sender = request.sender.clone().unwrap_or_default();
        let job = self.admit_job_master(now, request.sender.as_ref(), request.job.as_ref())?;
        let graph = match (request.graph, &request.graph_reference) {
            (Some(graph), _) => Arc::new(graph),
            (None, Some(reference)) => {
                let known = self.jobs.get(&job).and_then(|known| known.graph.as_ref());
                known
                    .and_then(|known| known.if_is(reference))
                    .ok_or_else(|| invalid("the deployment's graph was not fetched"))?
            }
            (None, None) => return Err(invalid("the deployment has no graph")),
        };
        if let Some(known) = self.jobs.get_mut(&job) {
            known.regions.note(&request.tasks);
            known.executions.keep_outputs_of(kept_vertices(&graph));
        }
        if request.stopping {
            self.stop_sources(job);
        }
        if let (Some(bounds), Some(confirmation)) = (request.stop_first, confirmation) {
            let outlived = self.stop_superseded(now, job, &confirmation.regions);
            self.note_confirmation(job, bounds, confirmation, outlived);
        }
        let mut refused = Vec::new();
        for deployment in request.tasks {
            let mut refusal = refusal(&deployment, String::new());
            if let Err(reason) =
                self.start_task(now, job, &sender, &graph, deployment, confirmation)
            {
                let (subtask, generation) = (refusal.subtask, refusal.generation);
                self.output.log(LogLine::TaskRefused {
                    job,
                    vertex: refusal.vertex_id.clone(),
                    subtask,
                    generation,
                    reason: reason.clone(),
                });
                refusal.reason = reason;
                refused.push(refusal);
            }
        }
        Ok(pb::SubmitTasksResponse { refused })
    }

    fn start_task(
        &mut self,
        now: Uptime,
        job: JobId,
        sender: &pb::Sender,
        graph: &Arc<pb::JobGraph>,
        deployment: pb::TaskDeployment,
        confirmation: Option<&Confirmation>,
    ) -> Result<(), String> {
        if self.lifecycle.is_stopping() {
            return Err("the TaskManager is shutting down".to_owned());
        }
        let text = |error: GatewayError| error.to_string();
        let allocation: AllocationId = parse(&deployment.allocation_id).map_err(text)?;
        let key = execution_key(
            &deployment.vertex_id,
            deployment.subtask,
            deployment.generation,
        )
        .map_err(text)?;
        if !self.slots.is_held(SlotHolder { job, allocation }) {
            return Err(format!(
                "the job does not hold allocation {allocation} here"
            ));
        }
        let timeouts = self.cancellation_timeouts(now);
        let known = self
            .jobs
            .get_mut(&job)
            .ok_or_else(|| unknown_job(job).to_string())?;
        let below = Generation::new(key.generation.get().saturating_sub(1));
        let older = ExecutionKey {
            generation: below,
            ..key
        };
        if let Some(confirmation) = confirmation {
            let region = known.regions.of(key.vertex, key.subtask);
            let stored = region.and_then(|region| confirmation.regions.get(region));
            if stored != Some(&key.generation) {
                return Err(format!("the store has another generation: {stored:?}"));
            }
            if known.executions.is_running_up_to(older) {
                return Err("an earlier attempt still runs here".to_owned());
            }
        }
        known.executions.admit(key, allocation, now)?;
        // The job's record has a younger generation: older ones have no effect any more.
        let superseded = known.executions.cancel_up_to(older, timeouts);
        // A JobMaster that deploys into a slot has accepted it, even if its answer to the offer was lost.
        self.slots.activate(allocation);
        let is_stopped = known.is_stopped;
        known.has_files = true;
        let start = TaskStart {
            job,
            job_incarnation: known.incarnation,
            cluster_incarnation: ClusterIncarnation::new(sender.cluster_incarnation.as_str()),
            epoch: Epoch::new(sender.epoch),
            graph: graph.clone(),
            external_resources: share_of(graph, key.vertex, &self.slots.indices(allocation)),
            deployment,
        };
        self.output.cancel(job, superseded);
        let task = TaskKey {
            job,
            execution: key,
        };
        self.output.effect(Effect::Start(task, Box::new(start)));
        if is_stopped {
            self.output.effect(Effect::Stop(task));
        }
        Ok(())
    }

    /// Ends the sources of a job that is being stopped, including those of tasks that start later.
    pub(super) fn stop_sources(&mut self, job: JobId) {
        let Some(known) = self.jobs.get_mut(&job) else {
            return;
        };
        if !std::mem::replace(&mut known.is_stopped, true) {
            self.output.log(LogLine::JobStopped { job });
        }
        for execution in known.executions.running() {
            self.output.effect(Effect::Stop(TaskKey { job, execution }));
        }
    }
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
pub(super) fn refusal(task: &pb::TaskDeployment, reason: String) -> pb::TaskRefusal {
    pb::TaskRefusal {
        vertex_id: task.vertex_id.clone(),
        subtask: task.subtask,
        generation: task.generation,
        reason,
    }
}
