//! Registrations at the ResourceManager and the JobMasters: the message of each attempt, and what follows from the
//! result.
//!
//! A process at a leader's address that denies a job or rejects a registration ends nothing: the address may now
//! belong to another cluster. The store decides about jobs ([`super::generation_check`]), and it alone can name
//! another incarnation of the cluster.

use tanist_gateway::GatewayResult;
use tanist_gateway::registration::Registered;
use tanist_ha::clock::Uptime;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::TaskExecutorCore;
use super::connection::SilenceTimeouts;
use super::effect::Effect;
use super::executions::Metrics;
use super::leader_tracker::run_is_over;
use super::log_line::LogLine;
use crate::Fatal;

impl TaskExecutorCore {
    /// The message of the next attempt to register at the ResourceManager.
    pub(crate) fn prepare_resource_manager(
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
    pub(crate) fn prepare_job_master(
        &mut self,
        now: Uptime,
        job: JobId,
        run: u64,
        metrics: Metrics<'_>,
    ) -> GatewayResult<pb::RegisterTaskManagerRequest> {
        let known = self.jobs.in_run(job, run).ok_or_else(run_is_over)?;
        let registration = self.leader.next_registration()?;
        let location = &self.description.location;
        Ok(known.registration_request(now, registration, location, &self.slots, metrics))
    }

    /// Whether this run of attempts at a JobMaster is active.
    pub(crate) fn is_registering(&self, job: JobId, run: u64) -> bool {
        let connection = self.jobs.get(job).map(|known| known.connection());
        connection.is_some_and(|it| it.run() == run && it.is_registering())
    }

    /// Handles the result of a run of attempts at the ResourceManager.
    pub(super) fn registered_at_resource_manager(
        &mut self,
        now: Uptime,
        run: u64,
        result: Registered<pb::RegistrationSuccess>,
    ) {
        if self.resource_manager.run() != run {
            return;
        }
        let success = match result {
            Registered::Success(success) => success,
            Registered::Rejected(reason) => {
                self.resource_manager.end();
                let address = self.resource_manager.address();
                self.output.effect(Effect::Fatal(Fatal::Refused(format!(
                    "the ResourceManager at {address} rejected this TaskManager: {reason}"
                ))));
                return;
            }
        };
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
        self.connections().wake_all();
        if self.slots.has_changed_since_report() {
            let all = self.slots.report(|_| 0).slots;
            self.notify_slots(all, true);
        }
    }

    /// Handles the result of a run of attempts at a JobMaster.
    pub(super) fn registered_at_job_master(
        &mut self,
        now: Uptime,
        job: JobId,
        run: u64,
        result: Registered<(pb::RegistrationSuccess, u64)>,
    ) {
        let Some(known) = self.jobs.in_run(job, run) else {
            return;
        };
        match result {
            Registered::Success((success, incarnation)) => {
                let epoch = success.epoch;
                self.output.log(LogLine::AtJobMaster { job, epoch });
                self.leader.record_contact(now);
                let silence = SilenceTimeouts::new(&success, self.options.heartbeat_timeout);
                known.registered(now, silence, incarnation, &self.slots);
            }
            Registered::Rejected(reason) => {
                known.disconnect();
                self.output.log(LogLine::JobMasterRejected { job, reason });
            }
        }
    }

    /// Notifies the ResourceManager of all slots or some. Without a ResourceManager, the next registration reports
    /// them.
    pub(super) fn notify_slots(&mut self, slots: Vec<pb::SlotStatus>, are_all: bool) {
        if !self.resource_manager.is_registered() || self.lifecycle.is_stopping() {
            return;
        }
        let location = &self.description.location;
        let request = pb::NotifySlotsAvailableRequest {
            sender: Some(self.resource_manager.sender()),
            resource_id: location.resource_id.clone(),
            incarnation: location.incarnation.clone(),
            slots,
            are_all,
            slots_version: self.slots.version(),
        };
        self.output.effect(Effect::NotifySlots {
            address: self.resource_manager.address().to_owned(),
            run: self.resource_manager.run(),
            request,
        });
    }
}
