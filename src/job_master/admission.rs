//! The part of the actor that admits messages of this term and this JobMaster, and answers registrations. The
//! core decides which registration of a TaskManager counts. A message of another cluster, term or JobMaster is
//! refused as `Outdated`.

use tanist_gateway::registration::Answer;
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::millis;
use tanist_ha::election::Epoch;
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

use super::actor::JobMasterActor;
use super::core::{Connection, Event, Refusal, Registration, checkpoints};

impl JobMasterActor {
    pub(super) fn register(
        &mut self,
        request: pb::RegisterTaskManagerRequest,
    ) -> GatewayResult<pb::RegisterTaskManagerResponse> {
        let location = request.location.unwrap_or_default();
        let task_manager = resource_id(&location.resource_id)?;
        let sender = self.admit(request.sender.as_ref(), &task_manager)?;
        let connection = Connection {
            task_manager,
            registration: Registration::new(sender.registration),
        };
        let (executions, slots, outputs) = (request.executions, request.slots, request.outputs);
        let reports = self.task_reports(request.checkpoints);
        let registered = checkpoints::Event::Registered {
            connection: connection.clone(),
            takes_checkpoints: request.takes_checkpoints,
            reports,
        };
        self.hear_registration(registered);
        let event = Event::Registered {
            connection,
            location,
            executions,
            slots,
            outputs,
        };
        let job_incarnation = self.core.job_incarnation();
        let answer = match self.apply(event) {
            Ok(_) => Answer::Success(pb::RegistrationSuccess {
                resource_id: format!("job-master-{}-{job_incarnation}", self.calls.job.job_id),
                cluster_id: String::new(),
                cluster_incarnation: self.calls.sender.cluster_incarnation.clone(),
                epoch: self.calls.sender.epoch,
                heartbeat_interval_ms: millis(self.options.heartbeat_interval),
                heartbeat_timeout_ms: millis(self.options.heartbeat_timeout),
                draining: false,
            }),
            Err(Refusal::Outdated { seen, .. }) => Answer::TooLow {
                highest: seen.get(),
            },
            Err(refusal @ (Refusal::NotRegistered(_) | Refusal::NotServed(_) | Refusal::Ended)) => {
                Answer::Failure(refusal.to_string())
            }
        };
        Ok(pb::RegisterTaskManagerResponse {
            registration: Some(answer.into_message(&self.calls.sender.cluster_incarnation)),
            job_incarnation,
        })
    }

    /// Refuses a message of another term. A younger epoch makes the election read its store; only that can
    /// end this term.
    fn admit(&self, sender: Option<&pb::Sender>, from: &ResourceId) -> GatewayResult<pb::Sender> {
        let missing = || GatewayError::Invalid("the message names no sender".to_owned());
        let (sender, own) = (sender.ok_or_else(missing)?, &self.calls.sender);
        let outdated = |reason: String| GatewayError::Outdated {
            epoch: own.epoch,
            reason,
        };
        if sender.cluster_incarnation != own.cluster_incarnation {
            let (theirs, ours) = (&sender.cluster_incarnation, &own.cluster_incarnation);
            return Err(outdated(format!(
                "cluster incarnation {theirs}, this is {ours}"
            )));
        }
        if sender.epoch > own.epoch {
            let teller = format!("TaskManager {from}");
            (self.on_higher_epoch)(Epoch::new(sender.epoch), &teller);
        }
        if sender.epoch != own.epoch {
            return Err(outdated(format!(
                "epoch {}, this is epoch {}",
                sender.epoch, own.epoch
            )));
        }
        Ok(sender.clone())
    }

    /// Admits a message on a connection. It counts as a sign of life only under the present registration.
    pub(super) fn admit_from(
        &mut self,
        sender: &Option<pb::Sender>,
        job: &Option<pb::JobScope>,
        task_manager: &str,
    ) -> GatewayResult<Connection> {
        let task_manager = resource_id(task_manager)?;
        let sender = self.admit(sender.as_ref(), &task_manager)?;
        let own = self.core.job_incarnation();
        if let Some(job) = job.as_ref().filter(|job| job.job_incarnation != own) {
            let reason = format!("job incarnation {}, this is {own}", job.job_incarnation);
            return Err(GatewayError::Outdated {
                epoch: sender.epoch,
                reason,
            });
        }
        let connection = Connection {
            task_manager,
            registration: Registration::new(sender.registration),
        };
        self.peers.heard(&connection);
        Ok(connection)
    }
}

/// The error that the sender of a refused event receives.
pub(super) fn refused(refusal: Refusal) -> GatewayError {
    match refusal {
        Refusal::NotRegistered(_) => GatewayError::NotFound(refusal.to_string()),
        Refusal::Outdated { .. } => GatewayError::Outdated {
            epoch: 0,
            reason: refusal.to_string(),
        },
        Refusal::NotServed(_) | Refusal::Ended => GatewayError::Conflict(refusal.to_string()),
    }
}

fn resource_id(text: &str) -> GatewayResult<ResourceId> {
    text.parse()
        .map_err(|error| GatewayError::Invalid(format!("{error}")))
}
