//! Which leader a TaskExecutor follows, and its registrations there. Pure, a part of [`super`].
//!
//! - Losing the ResourceManager or a JobMaster stops nothing: it registers again, with its slots and executions.
//! - A process at a leader's address that denies a job or rejects a registration ends nothing: the address may now
//!   belong to another cluster. The store decides about jobs ([`super::generation_check`]), and it alone can name
//!   another incarnation of the cluster.

use tanist_gateway::GatewayResult;
use tanist_gateway::fencing::Proof;
use tanist_gateway::registration::Registered;
use tanist_ha::clock::Uptime;
use tanist_ha::retrieval::LeaderView;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::connection::SilenceTimeouts;
use super::executions::Metrics;
use super::leader_tracker::{Followed, Leader, run_is_over};
use super::{Core, Effect, LogLine, Target};
use crate::Fatal;

impl Core {
    /// Handles a leader, or none, named by the store. Its term counts like a message of the leader.
    pub fn leader_changed(&mut self, now: Uptime, view: LeaderView) {
        if let Some(leader) = self.leader.record_view(view, &mut self.output) {
            self.follow(now, leader);
        }
    }

    /// Handles the announcement of a new leader, which arrives before the store shows it.
    pub fn announce_leader(
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
        self.job_masters_changed(&request.jobs);
        let (resource_id, incarnation) = self.identity();
        Ok(pb::AnnounceLeaderResponse {
            resource_id,
            incarnation,
        })
    }

    /// Handles a change of the term that this process accepts. Returns whether the followed leader was dropped.
    pub fn term_changed(&mut self, proof: &Proof) -> bool {
        if !self.leader.record_proof(proof, &mut self.output) {
            return false;
        }
        self.resource_manager.end();
        self.output
            .effect(Effect::StopRegistering(Target::ResourceManager));
        for (&job, known) in &mut self.jobs {
            known.disconnect();
            self.output
                .effect(Effect::StopRegistering(Target::JobMaster(job)));
        }
        true
    }

    fn follow(&mut self, now: Uptime, leader: Leader) {
        if self.lifecycle.is_stopping() {
            return;
        }
        let targets: Vec<Target> = std::iter::once(Target::ResourceManager)
            .chain(self.jobs.keys().map(|&job| Target::JobMaster(job)))
            .collect();
        match self.leader.follow(now, leader, &mut self.output) {
            Followed::Older => {}
            Followed::Other => targets.into_iter().for_each(|target| self.connect(target)),
            Followed::Same => {
                for target in targets {
                    self.output.effect(Effect::Wake(target));
                }
            }
        }
    }

    /// The message of the next attempt to register at the ResourceManager.
    pub fn prepare_resource_manager(
        &mut self,
        run: u64,
    ) -> GatewayResult<pb::RegisterTaskExecutorRequest> {
        if self.resource_manager.run() != run {
            return Err(run_is_over());
        }
        let registration = self.leader.next_registration()?;
        let sender = self.resource_manager.send(registration);
        self.slots.record_report();
        let of = &self.description;
        Ok(pb::RegisterTaskExecutorRequest {
            sender: Some(sender),
            location: Some(of.location.clone()),
            hardware: Some(of.hardware),
            total_profile: Some(of.worker.total().into()),
            default_slot_profile: Some((&of.worker.default_slot()).into()),
            number_of_slots: of.worker.slots(),
            slot_report: Some(self.slot_report()),
            version: of.version.clone(),
            protocol_version: of.protocol_version,
            cluster_id: of.cluster_id.clone(),
            memory_configuration: Some(of.memory_configuration),
            draining: self.lifecycle.is_draining(),
            worker_of: of.worker_of.clone(),
        })
    }

    /// The message of the next attempt to register at a JobMaster.
    pub fn prepare_job_master(
        &mut self,
        job: JobId,
        run: u64,
        metrics: Metrics<'_>,
        now: Uptime,
    ) -> GatewayResult<pb::RegisterTaskManagerRequest> {
        if self
            .jobs
            .get(&job)
            .is_none_or(|known| known.connection.run() != run)
        {
            return Err(run_is_over());
        }
        let registration = self.leader.next_registration()?;
        let known = self.jobs.get_mut(&job).ok_or_else(run_is_over)?;
        let sender = known.connection.send(registration);
        Ok(pb::RegisterTaskManagerRequest {
            sender: Some(sender),
            job_id: job.to_string(),
            location: Some(self.description.location.clone()),
            executions: known.executions.full_report(metrics, now),
            slots: self.slots.offers(job),
            outputs: known.executions.outputs(),
        })
    }

    /// Whether this run of attempts at a JobMaster is active.
    pub fn is_registering(&self, job: JobId, run: u64) -> bool {
        let known = self.jobs.get(&job);
        known
            .is_some_and(|known| known.connection.run() == run && known.connection.is_registering())
    }

    /// Makes later registrations use numbers above one that a leader has seen.
    pub fn raise_registration(&mut self, seen: u64) {
        self.leader.raise_registration(seen);
    }

    /// Handles the result of a run of attempts at the ResourceManager.
    pub fn registered_at_resource_manager(
        &mut self,
        now: Uptime,
        run: u64,
        result: Registered<pb::RegistrationSuccess>,
    ) {
        if self.resource_manager.run() != run {
            return;
        }
        match result {
            Registered::Success(success) => {
                self.lifecycle.registered(success.draining);
                self.leader.record_contact(now);
                let silence = SilenceTimeouts::new(&success, self.options.heartbeat_timeout);
                self.resource_manager.succeed(now, silence);
                self.output.log(LogLine::AtResourceManager {
                    resource_manager: success.resource_id,
                    epoch: success.epoch,
                    address: self.resource_manager.address().to_owned(),
                });
                // The leader answers: JobMasters there can be tried again without delay.
                self.wake_all();
                if self.slots.has_changed_since_report() {
                    let all = self.slots.report(|_| 0).slots;
                    self.notify_slots(all, true);
                }
            }
            Registered::Rejected(reason) => {
                self.resource_manager.end();
                self.output.effect(Effect::Fatal(Fatal::Refused(format!(
                    "the ResourceManager at {} rejected this TaskManager: {reason}",
                    self.resource_manager.address()
                ))));
            }
        }
    }

    /// Handles the result of a run of attempts at a JobMaster.
    pub fn registered_at_job_master(
        &mut self,
        now: Uptime,
        job: JobId,
        run: u64,
        result: Registered<(pb::RegistrationSuccess, u64)>,
    ) {
        let Some(known) = self
            .jobs
            .get_mut(&job)
            .filter(|known| known.connection.run() == run)
        else {
            return;
        };
        match result {
            Registered::Success((success, incarnation)) => {
                let epoch = success.epoch;
                self.output.log(LogLine::AtJobMaster { job, epoch });
                self.leader.record_contact(now);
                let silence = SilenceTimeouts::new(&success, self.options.heartbeat_timeout);
                known.connection.succeed(now, silence);
                known.incarnation = known.incarnation.max(incarnation);
                // Active slots were part of the registration: the JobMaster frees those it does not need, and those
                // missing in its heartbeats are offered again.
                known.to_offer = self.slots.not_accepted(job).collect();
            }
            Registered::Rejected(reason) => {
                known.connection.end();
                self.output.log(LogLine::JobMasterRejected { job, reason });
            }
        }
    }

    /// Connects again to the known leader.
    pub(super) fn connect(&mut self, target: Target) {
        let Some(address) = self.leader.address().map(str::to_owned) else {
            return;
        };
        let run = match target {
            Target::ResourceManager => self.resource_manager.begin(&address),
            Target::JobMaster(job) => {
                let Some(known) = self.jobs.get_mut(&job).filter(|known| !known.is_ending) else {
                    return;
                };
                known.connect(&address)
            }
        };
        self.output.effect(Effect::Register {
            target,
            address,
            run,
        });
    }

    /// Ends all delays between attempts.
    pub(super) fn wake_all(&mut self) {
        let jobs = self.jobs.keys().map(|&job| Target::JobMaster(job));
        let targets = std::iter::once(Target::ResourceManager).chain(jobs);
        targets.for_each(|target| self.output.effect(Effect::Wake(target)));
    }

    /// Records a message of a leader on a connection.
    pub(super) fn heard(&mut self, now: Uptime, target: Target) {
        self.leader.record_contact(now);
        match target {
            Target::ResourceManager => self.resource_manager.record_contact(now),
            Target::JobMaster(job) => {
                if let Some(known) = self.jobs.get_mut(&job) {
                    known.connection.record_contact(now);
                }
            }
        }
    }
}
