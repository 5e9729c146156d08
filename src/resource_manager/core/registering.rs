//! Registration at a ResourceManager, and checks of senders: compatible TaskExecutors, and the JobMaster of
//! each job. Pure, a part of [`super`].
//!
//! A rejection is permanent: the TaskExecutor ends its process. So only a leader may reject, and the term is compared
//! before the version, the cluster and the worker's record. Only the cluster incarnation is compared before the term,
//! since epochs of two incarnations can't be compared.

use std::time::Duration;

use tanist_gateway::registration::Answer;
use tanist_gateway::{Departure, GatewayError, GatewayResult, JobMasterId, ResourceRequirements};
use tanist_ha::clock::{Uptime, millis};
use tanist_ha::election::Epoch;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::WorkerResourceSpec;
use tanist_proto::v1 as pb;
use tanist_proto::{OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, speaks_protocol};
use tanist_telemetry::VERSION_AND_REVISION;

use super::job_masters::{Heard, Superseded};
use super::report::{parse_report, task_counts, worker_of};
use super::slot_manager::SlotsReport;
use super::task_executors::{Availability, Registration};
use super::workers::Admission;
use super::{Effect, LogLine, ResourceManagerCore};

/// Maximum length of a name from outside in logs, in characters.
const LONGEST_NAME: usize = 100;

/// Maximum delay of the first heartbeat after a registration.
const FIRST_HEARTBEAT: Duration = Duration::from_secs(1);

/// A TaskExecutor that registers.
struct Registrant {
    worker: ResourceId,
    location: pb::TaskManagerLocation,
    /// The number of its registration.
    number: u64,
}

impl ResourceManagerCore {
    /// Registers a TaskExecutor.
    pub(crate) fn register(
        &mut self,
        now: Uptime,
        request: pb::RegisterTaskExecutorRequest,
    ) -> GatewayResult<Answer<pb::RegistrationSuccess>> {
        let registrant = match self.check_registrant(&request)? {
            Ok(registrant) => registrant,
            Err(answer) => return Ok(answer),
        };
        let report = request.slot_report.clone().unwrap_or_default();
        let tasks = task_counts(&report);
        let report = parse_report(report, true)?;
        let worker = &registrant.worker;
        let is_releasing = match self.admit_worker(
            worker,
            &request.worker_of,
            request.number_of_slots,
        ) {
            Admission::Welcome { is_releasing } => is_releasing,
            // What is not durable in the store must end no process.
            Admission::Undecided => {
                return Err(GatewayError::NotYet(format!(
                    "the worker {worker} is to be stopped, and its record is being removed"
                )));
            }
            Admission::Unknown => {
                return Ok(Answer::Rejection(format!(
                    "this cluster has no record of the worker {worker}: it was being stopped, or an earlier leader was \
                         deposed before it started it"
                )));
            }
        };
        let spec = worker_of(&request);
        self.note_registered(&registrant, spec.clone(), report);
        let availability = self.note_availability(&registrant, is_releasing);
        // A change of its drain status is sent at once.
        let next_heartbeat =
            match availability.is_releasing || request.draining != availability.is_draining {
                true => now,
                // Early: a connection must exist for its end to be noticed.
                false => now + self.options.heartbeat_interval.min(FIRST_HEARTBEAT),
            };
        let Registrant {
            worker,
            location,
            number,
        } = registrant;
        let registration = Registration {
            location,
            number,
            hardware: request.hardware,
            spec,
            memory_configuration: request.memory_configuration,
            tasks,
        };
        self.task_executors
            .register(now, worker, registration, availability, next_heartbeat);
        self.changed(now);
        Ok(Answer::Success(pb::RegistrationSuccess {
            resource_id: self.resource_id.clone(),
            cluster_id: self.term.cluster_id.clone(),
            cluster_incarnation: self.term.incarnation.to_string(),
            epoch: self.term.epoch.get(),
            heartbeat_interval_ms: millis(self.options.heartbeat_interval),
            heartbeat_timeout_ms: millis(self.options.heartbeat_timeout),
            draining: availability.is_draining,
        }))
    }

    /// Checks who registers, or returns the answer that refuses it.
    fn check_registrant(
        &mut self,
        request: &pb::RegisterTaskExecutorRequest,
    ) -> GatewayResult<Result<Registrant, Answer<pb::RegistrationSuccess>>> {
        let sender = request
            .sender
            .as_ref()
            .ok_or_else(|| invalid("the message names no sender"))?;
        let own = &self.term.incarnation;
        if !sender.cluster_incarnation.is_empty() && sender.cluster_incarnation != own.as_str() {
            return Ok(Err(Answer::Rejection(format!(
                "the TaskManager belongs to cluster incarnation {}, this cluster is {own}: the store was wiped, or restored from \
                 a backup; if that is meant, start the TaskManager again: it joins the cluster as it is",
                sender.cluster_incarnation
            ))));
        }
        // Before what follows, since a process that no longer leads must reject no TaskExecutor permanently.
        let location = request.location.as_ref();
        self.check_epoch(sender.epoch, || registrant(location))?;
        if let Some(reason) = self.misfit(request) {
            return Ok(Err(Answer::Rejection(reason)));
        }
        let location = location.ok_or_else(|| invalid("the registration has no location"))?;
        let worker: ResourceId = match location.resource_id.parse() {
            Ok(worker) => worker,
            Err(error) => return Ok(Err(Answer::Rejection(format!("{error}")))),
        };
        let present = self.task_executors.get(&worker);
        if let Some(other) = present.filter(|it| it.has_replaced(&location.incarnation)) {
            return Ok(Err(Answer::Rejection(format!(
                "the process at {} has taken the place of this one under the resource id {worker}: give each TaskManager a \
                 `taskmanager.resource-id` of its own, or none",
                other.location().rpc_address
            ))));
        }
        let highest = self.task_executors.highest_registration(&worker);
        if sender.registration <= highest {
            return Ok(Err(Answer::TooLow { highest }));
        }
        Ok(Ok(Registrant {
            worker,
            location: location.clone(),
            number: sender.registration,
        }))
    }

    /// Records the slots of a registering TaskExecutor. They replace those of an earlier process or registration.
    fn note_registered(
        &mut self,
        registrant: &Registrant,
        spec: WorkerResourceSpec,
        report: SlotsReport,
    ) {
        let Registrant {
            worker,
            location,
            number,
        } = registrant;
        let replaced = self
            .task_executors
            .replaced_by(worker, &location.incarnation);
        if let Some(old) = replaced {
            self.log.push(LogLine::IncarnationReplaced {
                task_manager: worker.clone(),
                old: old.to_owned(),
                new: location.incarnation.clone(),
            });
            let cause = format!("the process at {} has replaced it", location.rpc_address);
            self.tell_gone(worker, &cause);
        }
        self.log.push(LogLine::Registered {
            task_manager: worker.clone(),
            address: location.rpc_address.clone(),
            slots: report.slots.len(),
            registration: *number,
        });
        self.slots.put_worker(worker, spec, report);
        self.unfulfillable_jobs.comes(worker);
    }

    /// Records whether a registering TaskExecutor may be used, and returns it. `is_releasing`: the driver releases it.
    fn note_availability(&mut self, registrant: &Registrant, is_releasing: bool) -> Availability {
        let Registrant {
            worker, location, ..
        } = registrant;
        // A release sent before it registered again may not have reached it yet.
        let is_releasing = is_releasing
            || self
                .task_executors
                .is_releasing(worker, &location.incarnation);
        let driver = self.workers_of_driver.as_ref();
        if driver.is_some_and(|driver| driver.is_of_place(worker)) {
            self.drains.note_host_of_workers(location);
        }
        // No slots may be assigned there either while its release is being written.
        let is_release_decided = driver
            .and_then(|driver| driver.record_of(worker))
            .is_some_and(|record| record.releasing);
        let is_draining = is_releasing || self.drains.is_drained(worker, location);
        self.slots
            .set_draining(worker, is_draining || is_release_decided);
        Availability {
            is_draining,
            is_releasing,
        }
    }

    /// Handles a notification about changed slots of a TaskExecutor.
    pub(crate) fn slots_available(
        &mut self,
        now: Uptime,
        request: pb::NotifySlotsAvailableRequest,
    ) -> GatewayResult<pb::Ack> {
        let worker = self.check_registered(request.sender.as_ref(), &request.resource_id)?;
        let (slots, version) = (request.slots, request.slots_version);
        let report = parse_report(pb::SlotReport { slots, version }, request.are_all)?;
        self.slots.report(&worker, &report, self.slots.turn());
        self.changed(now);
        Ok(pb::Ack {})
    }

    /// Handles the goodbye of a TaskExecutor.
    pub(crate) fn goodbye(
        &mut self,
        now: Uptime,
        request: &pb::DisconnectTaskExecutorRequest,
    ) -> GatewayResult<pb::Ack> {
        let worker = self.check_registered(request.sender.as_ref(), &request.resource_id)?;
        self.log.push(LogLine::Left {
            task_manager: worker.clone(),
            cause: request.cause.clone(),
        });
        self.depart(now, &worker);
        self.worker_gone(now, &worker, true);
        self.changed(now);
        Ok(pb::Ack {})
    }

    /// Registers a JobMaster. Returns the one that it replaces.
    pub(crate) fn register_job_master(
        &mut self,
        now: Uptime,
        job: JobId,
        id: JobMasterId,
    ) -> GatewayResult<Option<JobMasterId>> {
        self.check_epoch(id.epoch.get(), || "a JobMaster".to_owned())?;
        let replaced = match self.job_masters.register(now, job, id) {
            Ok(replaced) => replaced,
            Err(Superseded { present }) => {
                return Err(self.outdated(superseded(job, id, present)));
            }
        };
        if let Some(old) = replaced {
            self.log
                .push(LogLine::JobMasterReplaced { job, old, new: id });
            // The requirements of the old one do not hold for the new one.
            self.slots.withdraw(job);
        }
        Ok(replaced)
    }

    /// Replaces the requirements of a job.
    pub(crate) fn declare(
        &mut self,
        now: Uptime,
        requirements: ResourceRequirements,
    ) -> GatewayResult<()> {
        let ResourceRequirements {
            job,
            job_master: id,
            ..
        } = requirements;
        self.check_epoch(id.epoch.get(), || "a JobMaster".to_owned())?;
        match self.job_masters.hear(now, job, id) {
            Heard::Registered => {}
            Heard::Unknown => {
                let reason = format!("JobMaster {id} of job {job} is not registered");
                return Err(GatewayError::NotFound(reason));
            }
            Heard::Superseded(Superseded { present }) => {
                return Err(self.outdated(superseded(job, id, present)));
            }
        }
        let resources = requirements.resources.clone();
        self.log.push(LogLine::Declared { job, resources });
        self.slots.declare(requirements);
        self.changed(now);
        Ok(())
    }

    /// Handles the departure of a job's JobMaster and withdraws its requirements. Returns whether it was
    /// registered.
    pub(crate) fn disconnect_job_master(
        &mut self,
        now: Uptime,
        job: JobId,
        departure: Departure,
    ) -> bool {
        let is_gone = self.job_masters.disconnect(now, job, departure);
        if is_gone {
            self.log.push(LogLine::JobMasterLeft { job, departure });
            self.slots.withdraw(job);
            self.changed(now);
        }
        is_gone
    }

    /// Why this TaskManager can never work with this cluster.
    fn misfit(&self, request: &pb::RegisterTaskExecutorRequest) -> Option<String> {
        let protocol = request.protocol_version;
        if !speaks_protocol(protocol) {
            return Some(format!(
                "the TaskManager's version {} speaks protocol {protocol}, this ResourceManager's \
                 version {} speaks {OLDEST_PROTOCOL_VERSION} to {PROTOCOL_VERSION}",
                request.version, VERSION_AND_REVISION
            ));
        }
        let (theirs, ours) = (&request.cluster_id, &self.term.cluster_id);
        (theirs != ours).then(|| {
            format!("the TaskManager is configured for cluster {theirs:?}, this one is {ours:?}")
        })
    }

    fn check_registered(
        &mut self,
        sender: Option<&pb::Sender>,
        resource_id: &str,
    ) -> GatewayResult<ResourceId> {
        let sender = sender.ok_or_else(|| invalid("the message names no sender"))?;
        if sender.cluster_incarnation != self.term.incarnation.as_str() {
            let reason = format!("cluster incarnation {}", sender.cluster_incarnation);
            return Err(self.outdated(reason));
        }
        let worker: ResourceId = resource_id
            .parse()
            .map_err(|error| invalid(&format!("{error}")))?;
        self.check_epoch(sender.epoch, || format!("TaskManager {worker}"))?;
        match self.task_executors.get(&worker) {
            Some(known) if known.registration_number() == sender.registration => Ok(worker),
            Some(_) | None => Err(self.outdated(format!(
                "registration {} of {worker} is not the present one",
                sender.registration
            ))),
        }
    }

    /// Compares epochs. A younger epoch makes the election ask its store, which alone can end this term.
    fn check_epoch(&mut self, number: u64, teller: impl FnOnce() -> String) -> GatewayResult<()> {
        let epoch = Epoch::new(number);
        if epoch == self.term.epoch {
            return Ok(());
        }
        if epoch > self.term.epoch {
            let teller = teller();
            self.effects.push(Effect::HigherEpoch { epoch, teller });
        }
        Err(self.outdated(format!(
            "epoch {epoch}, but this is epoch {}",
            self.term.epoch
        )))
    }
}

/// Id and address of a registering TaskManager, escaped, since they come from outside.
fn registrant(location: Option<&pb::TaskManagerLocation>) -> String {
    let escaped = |text: &str| text.escape_debug().take(LONGEST_NAME).collect::<String>();
    let of = location.map(|of| (escaped(&of.resource_id), escaped(&of.rpc_address)));
    let (id, address) = of.unwrap_or_default();
    format!("TaskManager {id} at {address}")
}

fn superseded(job: JobId, id: JobMasterId, present: JobMasterId) -> String {
    format!("JobMaster {id} of job {job}, but {present} is the present one")
}

fn invalid(reason: &str) -> GatewayError {
    GatewayError::Invalid(reason.to_owned())
}
