//! Which leader a TaskExecutor follows, and its registrations there. Pure, a part of [`super`].
//!
//! - Losing the ResourceManager or a JobMaster stops nothing: it registers again, with its slots and executions.
//! - A leader is followed in a term that is proven, or that is believed while the store is silent:
//!   [`tanist_gateway::fencing`].
//! - A process at a leader's address that denies a job or rejects a registration ends nothing: the address may now
//!   belong to another cluster. The store decides about jobs ([`super::generation_check`]), and it alone can name
//!   another incarnation of the cluster.

use tanist_gateway::fencing::Proof;
use tanist_gateway::registration::Registered;
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_ha::retrieval::LeaderView;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::connection::{Registration, SilenceTimeouts};
use super::executions::Metrics;
use super::slot_table::SlotState;
use super::{Core, Effect, Leader, LogLine, Target};
use crate::Fatal;

impl Core {
    /// Handles a leader, or none, named by the store. Its term counts like a message of the leader.
    pub fn leader_changed(&mut self, now: Uptime, view: LeaderView) {
        let refusal = self.highest.follow(&view).err();
        if let Some(refusal) = &refusal {
            let refusal = refusal.to_string();
            self.output.log(LogLine::LeaderRefused { refusal });
            self.check_incarnation(&view);
        }
        let Some(information) = view.leader.filter(|_| refusal.is_none()) else {
            // Present connections stay: that the store names no leader says nothing about them. But another process
            // may take a slot or supersede running tasks: so the store is asked, and the slot timeouts are
            // suspended.
            self.is_led = false;
            self.slots.stop_all_timers();
            return;
        };
        let Some(address) = information.addresses.get("rpc").cloned() else {
            let leader = information.process;
            self.output.log(LogLine::LeaderWithoutAddress { leader });
            return;
        };
        let leader = Leader {
            epoch: information.epoch,
            address,
        };
        self.follow(now, leader);
    }

    /// Handles the announcement of a new leader, which arrives before the store shows it.
    pub fn announce_leader(
        &mut self,
        now: Uptime,
        request: &pb::AnnounceLeaderRequest,
    ) -> GatewayResult<pb::AnnounceLeaderResponse> {
        let epoch = self.highest.admit(request.sender.as_ref())?;
        self.output.log(LogLine::LeaderAnnounced {
            epoch,
            process: request.process.clone(),
        });
        let address = request.leader_rpc_address.clone();
        self.follow(now, Leader { epoch, address });
        self.job_masters_changed(&request.jobs);
        let (resource_id, incarnation) = self.identity();
        Ok(pb::AnnounceLeaderResponse {
            resource_id,
            incarnation,
        })
    }

    /// Handles a change of the term that this process accepts. Returns whether the followed leader was dropped.
    pub fn term_changed(&mut self, proof: &Proof) -> bool {
        if let Some(shown) = proof.went_back() {
            let proven = proof.proven();
            self.output.effect(Effect::Fatal(Fatal::Refused(format!(
                "the store went back from epoch {proven} to epoch {shown}: it was restored from a backup; the tasks of this \
                 TaskManager are younger than its records; bring the former store back first, or start this process again: it \
                 joins the cluster as it is"
            ))));
        }
        let contradicted = proof.contradicted();
        if contradicted == self.contradicted {
            return false;
        }
        self.contradicted = contradicted;
        let is_followed = |leader: &Leader| contradicted.is_some_and(|it| it.epoch == leader.epoch);
        let Some(leader) = self.leader.take_if(|leader| is_followed(leader)) else {
            return false;
        };
        self.output.log(LogLine::LeaderDropped {
            epoch: leader.epoch,
            address: leader.address,
        });
        self.is_led = false;
        self.slots.stop_all_timers();
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

    /// If a leader of another incarnation of the cluster is in this store, this process is refused.
    fn check_incarnation(&mut self, view: &LeaderView) {
        let ours = self.highest.heard().incarnation;
        if let (Some(ours), Some(theirs), Some(leader)) = (ours, &view.incarnation, &view.leader)
            && ours != *theirs
        {
            self.output.effect(Effect::Fatal(Fatal::Refused(format!(
                "the store is another incarnation of the cluster: {theirs}, led by {}, and this \
                 TaskManager belongs to {ours}: it was wiped, or restored from a backup; if that is meant, start this process \
                 again: it joins the cluster as it is; else bring the former store back first",
                leader.process
            ))));
        }
    }

    fn follow(&mut self, now: Uptime, leader: Leader) {
        let known = self.leader.as_ref();
        if known.is_some_and(|known| known.epoch > leader.epoch) || self.lifecycle.is_stopping() {
            return;
        }
        self.heard_of_leader = now;
        let was_led = std::mem::replace(&mut self.is_led, true);
        let targets: Vec<Target> = std::iter::once(Target::ResourceManager)
            .chain(self.jobs.keys().map(|&job| Target::JobMaster(job)))
            .collect();
        if self.leader.as_ref() == Some(&leader) {
            for target in targets {
                self.output.effect(Effect::Wake(target));
            }
            if was_led {
                return;
            }
            let connected = self.jobs.iter();
            let connected = connected.filter(|(_, known)| known.connection.is_registered());
            for (&job, _) in connected {
                self.slots.start_timers(job, now, self.options.slot_timeout);
            }
            return;
        }
        self.output.log(LogLine::LeaderFollowed {
            epoch: leader.epoch,
            address: leader.address.clone(),
        });
        self.leader = Some(leader);
        for target in targets {
            self.connect(target);
        }
    }

    /// The message of the next attempt to register at the ResourceManager.
    pub fn prepare_resource_manager(
        &mut self,
        run: u64,
    ) -> GatewayResult<pb::RegisterTaskExecutorRequest> {
        if self.resource_manager.run() != run {
            return Err(superseded());
        }
        let registration = self.next_registration()?;
        let sender = self.resource_manager.send(registration);
        self.reported_slots = self.slots.version();
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
            return Err(superseded());
        }
        let registration = self.next_registration()?;
        let known = self.jobs.get_mut(&job).ok_or_else(superseded)?;
        let sender = known.connection.send(registration);
        let held = self
            .slots
            .held_by(job)
            .filter_map(|(slot, state)| Some((slot, state.holder()?)));
        let slots = held
            .map(|(slot, of)| self.slots.offer(slot, of.allocation))
            .collect();
        Ok(pb::RegisterTaskManagerRequest {
            sender: Some(sender),
            job_id: job.to_string(),
            location: Some(self.description.location.clone()),
            executions: known.executions.full_report(metrics, now),
            slots,
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
        self.last_registration = self.last_registration.max(seen);
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
                self.heard_of_leader = now;
                let silence = SilenceTimeouts::new(&success, self.options.heartbeat_timeout);
                self.resource_manager.succeed(now, silence);
                self.output.log(LogLine::AtResourceManager {
                    resource_manager: success.resource_id,
                    epoch: success.epoch,
                    address: self.resource_manager.address().to_owned(),
                });
                // The leader answers: JobMasters there can be tried again without delay.
                self.wake_all();
                if self.slots.version() != self.reported_slots {
                    let all = self.slots.report().slots;
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
                self.heard_of_leader = now;
                let silence = SilenceTimeouts::new(&success, self.options.heartbeat_timeout);
                known.connection.succeed(now, silence);
                known.incarnation = known.incarnation.max(incarnation);
                // Active slots were part of the registration: the JobMaster frees those it does not need, and those
                // missing in its heartbeats are offered again.
                let held = self.slots.held_by(job);
                let new = held.filter(|(_, slot)| !matches!(slot, SlotState::Active(_)));
                let holders = new.filter_map(|(_, slot)| slot.holder());
                known.to_offer = holders.map(|holder| holder.allocation).collect();
                if self.is_led {
                    self.slots.start_timers(job, now, self.options.slot_timeout);
                }
                self.flush(now, job);
            }
            Registered::Rejected(reason) => {
                known.connection.end();
                self.output.log(LogLine::JobMasterRejected { job, reason });
            }
        }
    }

    /// Connects again to the known leader.
    pub(super) fn connect(&mut self, target: Target) {
        let Some(leader) = &self.leader else { return };
        let address = leader.address.clone();
        let run = match target {
            Target::ResourceManager => self.resource_manager.begin(&address),
            Target::JobMaster(job) => {
                let Some(known) = self.jobs.get_mut(&job).filter(|known| !known.is_ending) else {
                    return;
                };
                self.slots.stop_timers(job);
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
        self.heard_of_leader = now;
        match target {
            Target::ResourceManager => self.resource_manager.record_contact(now),
            Target::JobMaster(job) => {
                if let Some(known) = self.jobs.get_mut(&job) {
                    known.connection.record_contact(now);
                }
            }
        }
    }

    fn next_registration(&mut self) -> GatewayResult<Registration> {
        let unknown = || GatewayError::NotYet("the cluster's incarnation is not known".to_owned());
        let leader = self.leader.as_ref().ok_or_else(superseded)?;
        let incarnation = self.highest.heard().incarnation.ok_or_else(unknown)?;
        if leader.epoch != self.highest.heard().epoch {
            return Err(superseded());
        }
        self.last_registration = self.last_registration.saturating_add(1);
        let number = self.last_registration;
        Ok(Registration::new(incarnation, leader.epoch, number))
    }
}

fn superseded() -> GatewayError {
    GatewayError::NotYet("this run of registration attempts is over".to_owned())
}
