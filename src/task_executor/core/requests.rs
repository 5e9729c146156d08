//! Requests of the leading JobManager to a TaskExecutor, and their answers. Pure, a part of [`super`].
//! Deployed tasks are handled in [`super::deployments`].
//!
//! Every request passes two checks: the highest epoch that this process accepts, and the registration of the
//! connection. Requests about a job also name the incarnation of its JobMaster.

use std::collections::BTreeMap;
use std::str::FromStr;

use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, Generation, JobId};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;

use super::executions::{ExecutionKey, Metrics};
use super::job::Job;
use super::slot_table::{RequestAnswer, SlotHolder, allocation_message};
use super::{Core, Effect, LogLine, Target, TaskKey};

impl Core {
    /// Handles a slot request of the ResourceManager for a job.
    pub fn request_slot(
        &mut self,
        now: Uptime,
        request: &pb::RequestSlotRequest,
    ) -> GatewayResult<pb::RequestSlotResponse> {
        use pb::request_slot_response::Answer;
        self.admit_resource_manager(now, request.sender.as_ref())?;
        let job: JobId = parse(&request.job_id)?;
        let allocation: AllocationId = parse(&request.allocation_id)?;
        let holder = SlotHolder { job, allocation };
        let refused = |reason: &str| Answer::Refused(reason.to_owned());
        let is_held = self.slots.is_held(holder);
        let answer = if let Some(reason) = self.lifecycle.slot_refusal(is_held) {
            refused(reason)
        } else if self.jobs.get(&job).is_some_and(|known| known.is_ending) {
            refused("the job is ending on this TaskManager")
        } else {
            let wanted = ResourceProfile::from_message(request.profile.as_ref());
            match self.slots.request(request.slot, holder, &wanted) {
                RequestAnswer::Allocated { is_new } => {
                    if is_new {
                        self.output.log(LogLine::SlotAllocated {
                            job,
                            allocation,
                            slot: request.slot,
                            profile: wanted,
                        });
                        self.offer_new(holder);
                    }
                    Answer::Allocated(pb::Ack {})
                }
                RequestAnswer::Occupied(present) => Answer::Occupied(allocation_message(present)),
                RequestAnswer::Refused(reason) => Answer::Refused(reason),
            }
        };
        Ok(pb::RequestSlotResponse {
            answer: Some(answer),
            slots_version: self.slots.version(),
        })
    }

    /// Frees unused slots, for the ResourceManager or for a JobMaster that returns slots of its job. No decision in
    /// the store is behind it: the sender may be a leader that stood still, or have forgotten its deployments. So a
    /// slot in which a task continues is not freed: the end of a task is decided in the store, by a generation, and
    /// arrives as a cancellation that names it.
    pub fn free_slots(
        &mut self,
        now: Uptime,
        request: &pb::FreeSlotsRequest,
    ) -> GatewayResult<pb::Ack> {
        let from = self.admit_any(now, request.sender.as_ref())?;
        for text in &request.allocation_ids {
            let allocation: AllocationId = parse(text)?;
            let Some(job) = self.slots.job_of(allocation) else {
                continue;
            };
            let may_free = match from {
                Target::JobMaster(of) => of == job && !self.continues_in(job, allocation),
                Target::ResourceManager => self.jobs.get(&job).is_none_or(|known| {
                    !known.connection.is_registered() && !known.executions.is_in_use(allocation)
                }),
            };
            if may_free {
                self.output.log(LogLine::SlotFreed {
                    job,
                    allocation,
                    cause: request.cause.clone(),
                });
                self.release_slot(now, job, allocation);
                self.register_without(from, job);
            }
        }
        Ok(pb::Ack {})
    }

    /// Whether a task of the job continues in a slot. Logs that, since the sender believes that the slot is idle.
    pub(super) fn continues_in(&mut self, job: JobId, allocation: AllocationId) -> bool {
        let known = self.jobs.get(&job);
        let continues = known.is_some_and(|known| known.executions.continues_in(allocation));
        if continues {
            self.output.log(LogLine::SlotKept { job, allocation });
        }
        continues
    }

    /// A running registration at a JobMaster may name a slot that was freed for the ResourceManager meanwhile:
    /// begins a new one.
    fn register_without(&mut self, from: Target, job: JobId) {
        let known = self.jobs.get(&job);
        let is_registering =
            known.is_some_and(|it| !it.connection.is_registered() && !it.connection.is_idle());
        if from == Target::ResourceManager && is_registering {
            self.connect(Target::JobMaster(job));
        }
    }

    /// Handles the replacement of JobMasters that failed, in the same term: registers again at once where it was
    /// connected to an older one. Repeated or late, it changes nothing.
    pub(super) fn job_masters_changed(&mut self, jobs: &[pb::JobScope]) {
        for scope in jobs {
            let Ok(job) = scope.job_id.parse::<JobId>() else {
                continue;
            };
            let known = self.jobs.get_mut(&job);
            let older = known.filter(|it| !it.is_ending && it.incarnation < scope.job_incarnation);
            if let Some(known) = older {
                self.output.log(LogLine::JobTakenOver { job });
                known.incarnation = scope.job_incarnation;
                self.connect(Target::JobMaster(job));
            }
        }
    }

    /// Handles the cancellation of tasks.
    pub fn cancel_tasks(
        &mut self,
        now: Uptime,
        request: &pb::CancelTasksRequest,
    ) -> GatewayResult<pb::Ack> {
        let job = self.admit_job_master(now, request.sender.as_ref(), request.job.as_ref())?;
        let timeouts = self.cancellation_timeouts(now);
        for task in &request.tasks {
            let up_to = execution_key(&task.vertex_id, task.subtask, task.up_to_generation)?;
            let Some(known) = self.jobs.get_mut(&job) else {
                continue;
            };
            let cancelled = known.executions.cancel_up_to(up_to, timeouts);
            // The output of a running task is released after its end: without its output it would seem to have
            // failed.
            if !known.executions.is_running_up_to(up_to) {
                self.output.effect(Effect::ReleaseTask(TaskKey {
                    job,
                    execution: up_to,
                }));
            }
            self.output.cancel(job, cancelled);
        }
        Ok(pb::Ack {})
    }

    /// Forgets executions whose terminal states are in the job's record.
    pub fn acknowledge_executions(
        &mut self,
        now: Uptime,
        request: &pb::AcknowledgeExecutionsRequest,
    ) -> GatewayResult<pb::Ack> {
        let job = self.admit_job_master(now, request.sender.as_ref(), request.job.as_ref())?;
        for id in &request.executions {
            let key = execution_key(&id.vertex_id, id.subtask, id.generation)?;
            if let Some(known) = self.jobs.get_mut(&job) {
                known.executions.acknowledge(&key);
            }
        }
        Ok(pb::Ack {})
    }

    /// Handles a heartbeat of the ResourceManager. `unread`: number of outputs that consumers have not read to
    /// their end.
    pub fn heartbeat_from_resource_manager(
        &mut self,
        now: Uptime,
        request: &pb::HeartbeatFromResourceManagerRequest,
        unread: usize,
    ) -> GatewayResult<pb::HeartbeatFromResourceManagerResponse> {
        self.admit_resource_manager(now, request.sender.as_ref())?;
        let (is_draining, is_releasing) = (request.draining, request.releasing);
        self.lifecycle
            .drain(is_draining, is_releasing, &mut self.output);
        let slot_report = Some(self.slot_report());
        Ok(pb::HeartbeatFromResourceManagerResponse {
            slot_report,
            kept_outputs: u32::try_from(self.kept_outputs(unread)).unwrap_or(u32::MAX),
        })
    }

    /// Every slot with the number of tasks that run in it.
    pub(super) fn slot_report(&self) -> pb::SlotReport {
        let mut tasks: BTreeMap<AllocationId, u32> = BTreeMap::new();
        for allocation in self.jobs.values().flat_map(|job| job.executions.in_use()) {
            *tasks.entry(allocation).or_default() += 1;
        }
        let tasks = |allocation| tasks.get(&allocation).copied();
        self.slots.report(|of| tasks(of).unwrap_or_default())
    }

    /// Handles a heartbeat of a JobMaster. The answer reports everything of the job, including unacknowledged
    /// terminal states. A slot that the JobMaster does not know is offered again: it accepts or rejects it.
    pub fn heartbeat_from_job_master(
        &mut self,
        now: Uptime,
        request: &pb::HeartbeatFromJobMasterRequest,
        metrics: Metrics<'_>,
    ) -> GatewayResult<pb::HeartbeatFromJobMasterResponse> {
        let admitted = self.admit_job_master(now, request.sender.as_ref(), request.job.as_ref());
        let job = admitted.map_err(|error| self.unless_registering(request.job.as_ref(), error))?;
        let known = self.jobs.get_mut(&job).ok_or_else(|| unknown_job(job))?;
        for allocation in self.slots.active(job) {
            if !request.allocation_ids.contains(&allocation.to_string()) {
                known.to_offer.insert(allocation);
            }
        }
        let executions = known.executions.report(metrics);
        let outputs = known.executions.outputs();
        if request.stopping {
            self.stop_sources(job);
        }
        Ok(pb::HeartbeatFromJobMasterResponse {
            executions,
            outputs,
            allocation_ids: self.slots.held_by(job).map(|it| it.to_string()).collect(),
        })
    }

    /// Handles the message with which a JobMaster disconnects: the job has ended, or the JobMaster gave this TaskExecutor up, which then
    /// registers again.
    pub fn disconnect_job_master(
        &mut self,
        now: Uptime,
        request: &pb::DisconnectJobMasterRequest,
    ) -> GatewayResult<pb::Ack> {
        if request.job_ended && self.has_let_go(request.job.as_ref())? {
            self.leader.admit(request.sender.as_ref())?;
            return Ok(pb::Ack {});
        }
        let job = self.admit_job_master(now, request.sender.as_ref(), request.job.as_ref())?;
        if request.job_ended {
            self.end_job(now, job, &request.cause);
        } else {
            self.output.log(LogLine::JobMasterDisconnected {
                job,
                cause: request.cause.clone(),
            });
            self.connect(Target::JobMaster(job));
        }
        Ok(pb::Ack {})
    }

    /// Handles the message with which the ResourceManager disconnects: registers again.
    pub fn disconnect_resource_manager(
        &mut self,
        now: Uptime,
        request: &pb::DisconnectResourceManagerRequest,
    ) -> GatewayResult<pb::Ack> {
        self.admit_resource_manager(now, request.sender.as_ref())?;
        self.output.log(LogLine::ResourceManagerDisconnected {
            cause: request.cause.clone(),
        });
        self.connect(Target::ResourceManager);
        Ok(pb::Ack {})
    }

    fn offer_new(&mut self, holder: SlotHolder) {
        let known = self.jobs.entry(holder.job).or_insert_with(Job::new);
        known.to_offer.insert(holder.allocation);
        if known.connection.is_idle() {
            self.connect(Target::JobMaster(holder.job));
        }
    }

    fn has_let_go(&self, scope: Option<&pb::JobScope>) -> GatewayResult<bool> {
        let scope = scope.ok_or_else(|| invalid("the message names no job"))?;
        let known = self.jobs.get(&parse::<JobId>(&scope.job_id)?);
        Ok(known.is_none_or(|known| known.is_ending))
    }

    fn admit_resource_manager(
        &mut self,
        now: Uptime,
        sender: Option<&pb::Sender>,
    ) -> GatewayResult<()> {
        match self.admit_any(now, sender)? {
            Target::ResourceManager => Ok(()),
            Target::JobMaster(_) => Err(self
                .leader
                .outdated("this registration is one at a JobMaster".to_owned())),
        }
    }

    pub(super) fn admit_job_master(
        &mut self,
        now: Uptime,
        sender: Option<&pb::Sender>,
        scope: Option<&pb::JobScope>,
    ) -> GatewayResult<JobId> {
        let scope = scope.ok_or_else(|| invalid("the message names no job"))?;
        let job: JobId = parse(&scope.job_id)?;
        if self.admit_any(now, sender)? != Target::JobMaster(job) {
            return Err(self
                .leader
                .outdated("this registration is not one at the job's JobMaster".to_owned()));
        }
        let known = self.jobs.get_mut(&job).ok_or_else(|| unknown_job(job))?;
        if scope.job_incarnation < known.incarnation {
            let reason = format!("another JobMaster took the job over: {}", known.incarnation);
            return Err(self.leader.outdated(reason));
        }
        known.incarnation = scope.job_incarnation;
        Ok(job)
    }

    /// Finds the connection that a message belongs to, by its registration.
    fn admit_any(&mut self, now: Uptime, sender: Option<&pb::Sender>) -> GatewayResult<Target> {
        self.leader.admit(sender)?;
        let registration = sender.map(|sender| sender.registration).unwrap_or_default();
        let target = if self.resource_manager.has_registration(registration) {
            Target::ResourceManager
        } else {
            let jobs = self.jobs.iter();
            let found = jobs
                .filter(|(_, known)| !known.is_ending)
                .find(|(_, known)| known.connection.has_registration(registration));
            let Some((&job, _)) = found else {
                // A leader that can call can also be registered at.
                self.wake_all();
                return Err(self.leader.outdated(format!(
                    "registration {registration} is not the present one"
                )));
            };
            Target::JobMaster(job)
        };
        self.heard(now, target);
        Ok(target)
    }

    /// A JobMaster that calls under a registration that is being replaced must wait, and not count a refusal: all
    /// tasks that it knows here still run.
    fn unless_registering(
        &self,
        scope: Option<&pb::JobScope>,
        error: GatewayError,
    ) -> GatewayError {
        let named = scope.and_then(|scope| scope.job_id.parse::<JobId>().ok());
        let known = named.and_then(|job| self.jobs.get(&job));
        let own_epoch = self.leader.epoch().get();
        match error {
            GatewayError::Outdated { epoch, reason }
                if epoch == own_epoch
                    && known.is_some_and(|it| !it.is_ending && it.connection.is_registering()) =>
            {
                GatewayError::NotYet(format!("registering again: {reason}"))
            }
            error => error,
        }
    }
}

pub(super) fn execution_key(
    vertex: &str,
    subtask: u32,
    generation: u64,
) -> GatewayResult<ExecutionKey> {
    let generation = Generation::new(generation);
    Ok(ExecutionKey {
        vertex: parse(vertex)?,
        subtask,
        generation,
    })
}

pub(super) fn parse<T: FromStr<Err: ToString>>(text: &str) -> GatewayResult<T> {
    text.parse()
        .map_err(|error: T::Err| GatewayError::Invalid(error.to_string()))
}

pub(super) fn invalid(reason: &str) -> GatewayError {
    GatewayError::Invalid(reason.to_owned())
}

pub(super) fn unknown_job(job: JobId) -> GatewayError {
    GatewayError::NotFound(format!("job {job} is unknown on this TaskManager"))
}
