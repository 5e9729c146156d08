//! Requests of the leading JobManager to a TaskExecutor, and their answers. Each is admitted by [`super::connections`]
//! first, and then handled by the objects that it concerns.

use tanist_gateway::{GatewayResult, NoAnswer, StoredJobs};
use tanist_ha::clock::{Moment, Uptime};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::trigger_answer::Answer;

use super::TaskExecutorCore;
use super::deployments::Deployment;
use super::effect::{Effect, Target, TaskKey, TriggeredSource};
use super::executions::Metrics;
use super::graphs::GraphKey;
use super::isolation::Confirmation;
use super::job::SourceState;
use super::leader_tracker::Leader;
use super::log_line::LogLine;
use super::messages::{execution_key, invalid, parse};

impl TaskExecutorCore {
    /// Handles the announcement of a new leader, which arrives before the store shows it.
    pub(crate) fn announce_leader(
        &mut self,
        now: Uptime,
        request: &pb::AnnounceLeaderRequest,
    ) -> GatewayResult<pb::AnnounceLeaderResponse> {
        let epoch = self.leader.admit(request.sender.as_ref())?;
        self.output.log(LogLine::LeaderAnnounced {
            epoch,
            process: request.process.clone(),
        });
        let address = request.leader_rpc_address.clone();
        self.follow(now, Leader::new(epoch, address));
        self.connections().job_masters_changed(&request.jobs);
        let location = &self.description.location;
        Ok(pb::AnnounceLeaderResponse {
            resource_id: location.resource_id.clone(),
            incarnation: location.incarnation.clone(),
        })
    }

    /// Handles a slot request of the ResourceManager for a job.
    pub(crate) fn request_slot(
        &mut self,
        now: Uptime,
        request: &pb::RequestSlotRequest,
    ) -> GatewayResult<pb::RequestSlotResponse> {
        let sender = request.sender.as_ref();
        self.connections().admit_resource_manager(now, sender)?;
        let (answer, offered_to) = self.slot_allocation(now).request(request)?;
        if let Some(job) = offered_to {
            self.connections().connect_idle(job);
        }
        Ok(pb::RequestSlotResponse {
            answer: Some(answer),
            slots_version: self.slots.version(),
        })
    }

    /// Frees unused slots, for the ResourceManager or for a JobMaster that returns slots of its job.
    pub(crate) fn free_slots(
        &mut self,
        now: Uptime,
        request: &pb::FreeSlotsRequest,
    ) -> GatewayResult<pb::Ack> {
        let from = self.connections().admit(now, request.sender.as_ref())?;
        for text in &request.allocation_ids {
            let allocation = parse(text)?;
            let mut slots = self.slot_allocation(now);
            if let Some(job) = slots.free(from, allocation, &request.cause)
                && from == Target::ResourceManager
            {
                self.connections().restart_registration(job);
            }
        }
        Ok(pb::Ack {})
    }

    /// The graph to fetch before [`TaskExecutorCore::submit`] can be called. On an error the deployment is refused
    /// with any graph.
    pub(crate) fn missing_graph(
        &mut self,
        now: Uptime,
        request: &pb::SubmitTasksRequest,
    ) -> GatewayResult<Option<GraphKey>> {
        let reference = match (&request.graph, &request.graph_reference) {
            (None, Some(reference)) => reference,
            (Some(_), _) | (None, None) => return Ok(None),
        };
        let job = self.admit_deployment(now, request)?;
        let known = self.jobs.requested(job)?.graph(reference);
        Ok(known.is_none().then(|| GraphKey::new(job, reference)))
    }

    /// The job of a deployment, if it is an isolated job: the store is asked before
    /// [`TaskExecutorCore::submit_confirmed`] is called.
    pub(crate) fn isolated_job(
        &mut self,
        now: Uptime,
        request: &pb::SubmitTasksRequest,
    ) -> GatewayResult<Option<JobId>> {
        let is_isolated = request.stop_first.is_some();
        is_isolated
            .then(|| self.admit_deployment(now, request))
            .transpose()
    }

    /// Handles a deployment.
    pub(crate) fn submit(
        &mut self,
        now: Uptime,
        request: pb::SubmitTasksRequest,
    ) -> GatewayResult<pb::SubmitTasksResponse> {
        self.start_tasks(now, request, None)
    }

    /// Handles a deployment to an isolated job, with the store's answer to a read that began at `asked_at`.
    pub(crate) fn submit_confirmed(
        &mut self,
        now: Uptime,
        request: pb::SubmitTasksRequest,
        asked_at: Moment,
        answer: Result<StoredJobs, NoAnswer>,
    ) -> GatewayResult<pb::SubmitTasksResponse> {
        let scope = request.job.as_ref();
        let job = scope.and_then(|scope| scope.job_id.parse::<JobId>().ok());
        match Confirmation::new(job, asked_at, answer, &self.leader) {
            Ok(confirmation) => self.start_tasks(now, request, Some(&confirmation)),
            Err(reason) => {
                let reason = format!("the store does not confirm the generation: {reason}");
                self.refuse_tasks(now, &request, &reason)
            }
        }
    }

    /// Refuses all tasks of a deployment.
    pub(crate) fn refuse_tasks(
        &mut self,
        now: Uptime,
        request: &pb::SubmitTasksRequest,
        reason: &str,
    ) -> GatewayResult<pb::SubmitTasksResponse> {
        let job = self.admit_deployment(now, request)?;
        Ok(self.deployments().refuse(job, request, reason))
    }

    fn start_tasks(
        &mut self,
        now: Uptime,
        request: pb::SubmitTasksRequest,
        confirmation: Option<&Confirmation>,
    ) -> GatewayResult<pb::SubmitTasksResponse> {
        let deployment = Deployment {
            job: self.admit_deployment(now, &request)?,
            sender: request.sender.clone().unwrap_or_default(),
            confirmation,
            timeouts: self.cancellation_timeouts(now),
        };
        self.deployments().submit(&deployment, request)
    }

    fn admit_deployment(
        &mut self,
        now: Uptime,
        request: &pb::SubmitTasksRequest,
    ) -> GatewayResult<JobId> {
        let (sender, scope) = (request.sender.as_ref(), request.job.as_ref());
        self.connections().admit_job_master(now, sender, scope)
    }

    /// Handles the cancellation of tasks.
    pub(crate) fn cancel_tasks(
        &mut self,
        now: Uptime,
        request: &pb::CancelTasksRequest,
    ) -> GatewayResult<pb::Ack> {
        let (sender, scope) = (request.sender.as_ref(), request.job.as_ref());
        let job = self.connections().admit_job_master(now, sender, scope)?;
        let timeouts = self.cancellation_timeouts(now);
        let known = self.jobs.requested(job)?;
        for task in &request.tasks {
            let up_to = execution_key(&task.vertex_id, task.subtask, task.up_to_generation)?;
            known.cancel_up_to(up_to, timeouts, &mut self.output);
        }
        Ok(pb::Ack {})
    }

    /// Begins a checkpoint at sources. An effect has the running tasks begin it, and answers the request of this
    /// number.
    pub(crate) fn trigger_checkpoint(
        &mut self,
        now: Uptime,
        request: &pb::TriggerCheckpointRequest,
        request_id: u64,
    ) -> GatewayResult<()> {
        let (sender, scope) = (request.sender.as_ref(), request.job.as_ref());
        let job = self.connections().admit_job_master(now, sender, scope)?;
        let barrier = request.barrier;
        let barrier = barrier.ok_or_else(|| invalid("the message names no checkpoint"))?;
        let known = self.jobs.requested(job)?;
        let mut sources = Vec::new();
        for id in &request.sources {
            let execution = execution_key(&id.vertex_id, id.subtask, id.generation)?;
            sources.push(match known.source(&execution) {
                Ok(SourceState::Runs) => TriggeredSource::Runs(TaskKey { job, execution }),
                Ok(SourceState::Ended) => {
                    TriggeredSource::Answered(Answer::SourceEnded(pb::Ack {}))
                }
                Err(reason) => TriggeredSource::Answered(Answer::Refused(reason)),
            });
        }
        self.output.effect(Effect::TriggerCheckpoint {
            request_id,
            barrier,
            sources,
        });
        Ok(())
    }

    /// Reports to tasks that a checkpoint is aborted.
    pub(crate) fn abort_checkpoint(
        &mut self,
        now: Uptime,
        request: &pb::AbortCheckpointRequest,
    ) -> GatewayResult<pb::Ack> {
        let (sender, scope) = (request.sender.as_ref(), request.job.as_ref());
        let job = self.connections().admit_job_master(now, sender, scope)?;
        let known = self.jobs.requested(job)?;
        for id in &request.executions {
            let execution = execution_key(&id.vertex_id, id.subtask, id.generation)?;
            known.abort_checkpoint(execution, request.number, &mut self.output);
        }
        Ok(pb::Ack {})
    }

    /// Forgets executions whose terminal states are in the job's record.
    pub(crate) fn acknowledge_executions(
        &mut self,
        now: Uptime,
        request: &pb::AcknowledgeExecutionsRequest,
    ) -> GatewayResult<pb::Ack> {
        let (sender, scope) = (request.sender.as_ref(), request.job.as_ref());
        let job = self.connections().admit_job_master(now, sender, scope)?;
        let known = self.jobs.requested(job)?;
        for id in &request.executions {
            known.acknowledge(&execution_key(&id.vertex_id, id.subtask, id.generation)?);
        }
        Ok(pb::Ack {})
    }

    /// Handles a heartbeat of the ResourceManager. `unread`: number of outputs that consumers have not read to
    /// their end.
    pub(crate) fn heartbeat_from_resource_manager(
        &mut self,
        now: Uptime,
        request: &pb::HeartbeatFromResourceManagerRequest,
        unread: usize,
    ) -> GatewayResult<pb::HeartbeatFromResourceManagerResponse> {
        let sender = request.sender.as_ref();
        self.connections().admit_resource_manager(now, sender)?;
        let (is_draining, is_releasing) = (request.draining, request.releasing);
        self.lifecycle
            .drain(is_draining, is_releasing, &mut self.output);
        Ok(pb::HeartbeatFromResourceManagerResponse {
            slot_report: Some(self.slot_report()),
            kept_outputs: u32::try_from(self.kept_outputs(unread)).unwrap_or(u32::MAX),
        })
    }

    /// Handles a heartbeat of a JobMaster.
    pub(crate) fn heartbeat_from_job_master(
        &mut self,
        now: Uptime,
        request: &pb::HeartbeatFromJobMasterRequest,
        metrics: Metrics<'_>,
    ) -> GatewayResult<pb::HeartbeatFromJobMasterResponse> {
        let (sender, scope) = (request.sender.as_ref(), request.job.as_ref());
        let mut connections = self.connections();
        let admitted = connections.admit_job_master(now, sender, scope);
        let job = admitted.map_err(|refusal| connections.heartbeat_refusal(scope, refusal))?;
        let known = self.jobs.requested(job)?;
        Ok(known.heartbeat(request, &self.slots, metrics, &mut self.output))
    }

    /// Handles the message with which a JobMaster disconnects: the job has ended, or the JobMaster gave this
    /// TaskExecutor up, which then registers again.
    pub(crate) fn disconnect_job_master(
        &mut self,
        now: Uptime,
        request: &pb::DisconnectJobMasterRequest,
    ) -> GatewayResult<pb::Ack> {
        let (sender, scope) = (request.sender.as_ref(), request.job.as_ref());
        if request.job_ended && self.has_ended(scope)? {
            self.leader.admit(sender)?;
            return Ok(pb::Ack {});
        }
        let job = self.connections().admit_job_master(now, sender, scope)?;
        if request.job_ended {
            self.slot_allocation(now).end_job(job, &request.cause);
        } else {
            self.output.log(LogLine::JobMasterDisconnected {
                job,
                cause: request.cause.clone(),
            });
            self.connections().connect(Target::JobMaster(job));
        }
        Ok(pb::Ack {})
    }

    /// Whether a job is ending here, or is not known any more.
    fn has_ended(&self, scope: Option<&pb::JobScope>) -> GatewayResult<bool> {
        let scope = scope.ok_or_else(|| invalid("the message names no job"))?;
        let known = self.jobs.get(parse(&scope.job_id)?);
        Ok(known.is_none_or(|known| known.is_ending()))
    }

    /// Handles the message with which the ResourceManager disconnects: registers again.
    pub(crate) fn disconnect_resource_manager(
        &mut self,
        now: Uptime,
        request: &pb::DisconnectResourceManagerRequest,
    ) -> GatewayResult<pb::Ack> {
        let sender = request.sender.as_ref();
        self.connections().admit_resource_manager(now, sender)?;
        self.output.log(LogLine::ResourceManagerDisconnected {
            cause: request.cause.clone(),
        });
        self.connections().connect(Target::ResourceManager);
        Ok(pb::Ack {})
    }
}
