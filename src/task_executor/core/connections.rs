//! Handler of the connections to the followed leader: which leader is followed, when a connection begins and ends,
//! and which messages belong to one.
//!
//! - Losing the ResourceManager or a JobMaster stops nothing: it registers again, with its slots and executions.
//! - A stopping TaskExecutor begins no connection: its disconnect messages name those that it had.
//! - Every message of a leader passes two checks: the highest epoch that this process accepts, and the registration
//!   of the connection. Messages about a job also name the incarnation of its JobMaster.

use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::TaskExecutorCore;
use super::connection::Connection;
use super::effect::{Effect, Target};
use super::jobs::Jobs;
use super::leader_tracker::{Followed, Leader, LeaderTracker};
use super::lifecycle::Lifecycle;
use super::log_line::LogLine;
use super::messages::{invalid, parse};
use super::output::Output;

/// See the module.
#[derive(Debug)]
pub(super) struct Connections<'a> {
    leader: &'a mut LeaderTracker,
    resource_manager: &'a mut Connection,
    jobs: &'a mut Jobs,
    lifecycle: &'a Lifecycle,
    output: &'a mut Output,
}

impl TaskExecutorCore {
    pub(super) fn connections(&mut self) -> Connections<'_> {
        Connections {
            leader: &mut self.leader,
            resource_manager: &mut self.resource_manager,
            jobs: &mut self.jobs,
            lifecycle: &self.lifecycle,
            output: &mut self.output,
        }
    }
}

impl Connections<'_> {
    /// Follows a leader, unless a younger one is followed: connects to it, or ends the delays between attempts.
    pub(super) fn follow(&mut self, now: Uptime, leader: Leader) {
        match self.leader.follow(now, leader, self.output) {
            Followed::Older => {}
            Followed::Same => self.wake_all(),
            Followed::Other => self.targets().into_iter().for_each(|to| self.connect(to)),
        }
    }

    /// Ends all connections.
    pub(super) fn disconnect_all(&mut self) {
        self.resource_manager.end();
        self.jobs.iter_mut().for_each(|job| job.disconnect());
        let targets = self.targets().into_iter();
        targets.for_each(|target| self.output.effect(Effect::StopRegistering(target)));
    }

    /// Ends the attempts to register: the TaskExecutor stops. Registrations that have succeeded stay until their
    /// disconnect messages.
    pub(super) fn stop_registering(&mut self) {
        let mut targets = Vec::new();
        if self.resource_manager.is_registering() {
            self.resource_manager.end();
            targets.push(Target::ResourceManager);
        }
        let jobs = self.jobs.iter_mut();
        for job in jobs.filter(|job| job.connection().is_registering()) {
            job.disconnect();
            targets.push(Target::JobMaster(job.id()));
        }
        let targets = targets.into_iter();
        targets.for_each(|target| self.output.effect(Effect::StopRegistering(target)));
    }

    /// Connects, or connects again, to the followed leader.
    pub(super) fn connect(&mut self, target: Target) {
        let address = self.leader.address();
        let Some(address) = address.filter(|_| !self.lifecycle.is_stopping()) else {
            return;
        };
        let run = match target {
            Target::ResourceManager => self.resource_manager.begin(address),
            Target::JobMaster(job) => {
                let known = self.jobs.get_mut(job);
                let Some(known) = known.filter(|known| !known.is_ending()) else {
                    return;
                };
                known.connect(address)
            }
        };
        self.output.effect(Effect::Register {
            target,
            address: address.to_owned(),
            run,
        });
    }

    /// Connects again where the other side was silent for too long.
    pub(super) fn reconnect_silent(&mut self, now: Uptime) {
        let is_lost = |connection: &Connection| connection.lost_at().is_some_and(|at| at <= now);
        if is_lost(self.resource_manager) {
            self.output.log(LogLine::ResourceManagerSilent);
            self.connect(Target::ResourceManager);
        }
        let silent = self.jobs.iter().filter(|job| is_lost(job.connection()));
        let silent: Vec<JobId> = silent.map(|job| job.id()).collect();
        for job in silent {
            self.output.log(LogLine::JobMasterSilent { job });
            self.connect(Target::JobMaster(job));
        }
    }

    /// Connects to the JobMaster of a job for which there was no address.
    pub(super) fn connect_idle(&mut self, job: JobId) {
        let known = self.jobs.get(job);
        if known.is_some_and(|known| known.connection().is_idle()) {
            self.connect(Target::JobMaster(job));
        }
    }

    /// Begins another registration at a JobMaster if one is in progress: it may name a slot that was freed meanwhile.
    pub(super) fn restart_registration(&mut self, job: JobId) {
        let known = self.jobs.get(job);
        if known.is_some_and(|known| known.connection().is_registering()) {
            self.connect(Target::JobMaster(job));
        }
    }

    /// Handles the replacement of JobMasters that failed, in the same term: registers again at once where it was
    /// connected to an older one. Repeated or late, it changes nothing.
    pub(super) fn job_masters_changed(&mut self, scopes: &[pb::JobScope]) {
        for scope in scopes {
            let Ok(job) = scope.job_id.parse::<JobId>() else {
                continue;
            };
            let known = self.jobs.get_mut(job).filter(|known| !known.is_ending());
            if let Some(known) = known.filter(|it| it.incarnation() < scope.job_incarnation) {
                self.output.log(LogLine::JobTakenOver { job });
                known.raise_incarnation(scope.job_incarnation);
                self.connect(Target::JobMaster(job));
            }
        }
    }

    /// Handles a failed call to a JobMaster: if it does not know this registration, begins another one.
    pub(super) fn call_failed(&mut self, job: JobId, error: &GatewayError) {
        self.output.log(LogLine::CallFailed {
            job,
            error: error.to_string(),
        });
        match error {
            GatewayError::Outdated { .. } | GatewayError::NotFound(_) => {
                self.connect(Target::JobMaster(job));
            }
            GatewayError::Unreachable { .. }
            | GatewayError::NoAnswer { .. }
            | GatewayError::NotYet(_)
            | GatewayError::StoreRefused(_)
            | GatewayError::Conflict(_)
            | GatewayError::Incomparable(_)
            | GatewayError::Invalid(_)
            | GatewayError::Unknown(_)
            | GatewayError::Internal(_) => {}
        }
    }

    /// Ends all delays between attempts.
    pub(super) fn wake_all(&mut self) {
        let targets = self.targets().into_iter();
        targets.for_each(|target| self.output.effect(Effect::Wake(target)));
    }

    fn targets(&self) -> Vec<Target> {
        let job_masters = self.jobs.ids().into_iter().map(Target::JobMaster);
        std::iter::once(Target::ResourceManager)
            .chain(job_masters)
            .collect()
    }

    /// Admits a message of a leader. Returns the connection that it belongs to, by its registration.
    pub(super) fn admit(
        &mut self,
        now: Uptime,
        sender: Option<&pb::Sender>,
    ) -> GatewayResult<Target> {
        self.leader.admit(sender)?;
        let registration = sender.map(|sender| sender.registration).unwrap_or_default();
        let target = if self.resource_manager.has_registration(registration) {
            self.resource_manager.record_contact(now);
            Target::ResourceManager
        } else if let Some(job) = self.jobs.with_registration(registration) {
            self.jobs.requested(job)?.record_contact(now);
            Target::JobMaster(job)
        } else {
            // A leader that can call can also be registered at.
            self.wake_all();
            let reason = format!("registration {registration} is not the present one");
            return Err(self.leader.outdated(reason));
        };
        self.leader.record_contact(now);
        Ok(target)
    }

    /// Admits a message of the ResourceManager.
    pub(super) fn admit_resource_manager(
        &mut self,
        now: Uptime,
        sender: Option<&pb::Sender>,
    ) -> GatewayResult<()> {
        match self.admit(now, sender)? {
            Target::ResourceManager => Ok(()),
            Target::JobMaster(_) => {
                let reason = "this registration is one at a JobMaster".to_owned();
                Err(self.leader.outdated(reason))
            }
        }
    }

    /// Admits a message of a JobMaster. Returns its job, which is known.
    pub(super) fn admit_job_master(
        &mut self,
        now: Uptime,
        sender: Option<&pb::Sender>,
        scope: Option<&pb::JobScope>,
    ) -> GatewayResult<JobId> {
        let scope = scope.ok_or_else(|| invalid("the message names no job"))?;
        let job: JobId = parse(&scope.job_id)?;
        if self.admit(now, sender)? != Target::JobMaster(job) {
            let reason = "this registration is not one at the job's JobMaster".to_owned();
            return Err(self.leader.outdated(reason));
        }
        let known = self.jobs.requested(job)?;
        if scope.job_incarnation < known.incarnation() {
            let incarnation = known.incarnation();
            let reason = format!("another JobMaster took the job over: {incarnation}");
            return Err(self.leader.outdated(reason));
        }
        known.raise_incarnation(scope.job_incarnation);
        Ok(job)
    }

    /// The refusal of a heartbeat. A JobMaster that calls under a registration that is being replaced must wait, and
    /// not count a refusal: all tasks that it knows here still run.
    pub(super) fn heartbeat_refusal(
        &self,
        scope: Option<&pb::JobScope>,
        refusal: GatewayError,
    ) -> GatewayError {
        let job = scope.and_then(|scope| scope.job_id.parse::<JobId>().ok());
        let known = job.and_then(|job| self.jobs.get(job));
        let is_registering =
            known.is_some_and(|it| !it.is_ending() && it.connection().is_registering());
        match refusal {
            GatewayError::Outdated { epoch, reason }
                if epoch == self.leader.epoch().get() && is_registering =>
            {
                GatewayError::NotYet(format!("registering again: {reason}"))
            }
            refusal => refusal,
        }
    }
}
