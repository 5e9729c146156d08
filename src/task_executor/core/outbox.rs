//! Messages that a TaskExecutor sends to the leader without being asked: offers, reports, free slots. Pure, a part
//! of [`super`].
//!
//! At most one offer and one report to a JobMaster are in flight; failed ones are sent again.

use std::collections::BTreeSet;

use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, JobId};
use tanist_proto::v1 as pb;

use super::job::Delivery;
use super::slot_table::SlotHolder;
use super::{Core, Effect, LogLine, Target, scope};

impl Core {
    /// Handles the answer to an offer.
    pub fn offered(
        &mut self,
        now: Uptime,
        job: JobId,
        run: u64,
        answer: GatewayResult<pb::OfferSlotsResponse>,
    ) {
        let retry_at = now + self.options.retry_delay;
        let Some(known) = self
            .jobs
            .get_mut(&job)
            .filter(|known| known.connection.run() == run)
        else {
            return;
        };
        let not_before = answer.is_err().then_some(retry_at);
        let mut unanswered = known.offer.finish(not_before).unwrap_or_default();
        match answer {
            Ok(answer) => {
                for allocation in parse_all(&answer.accepted_allocation_ids) {
                    unanswered.remove(&allocation);
                    self.slots.activate(allocation);
                }
                for allocation in parse_all(&answer.rejected_allocation_ids) {
                    // A slot in which a task continues is offered again, until the task is cancelled or the slot
                    // accepted.
                    if !self.continues_in(job, allocation) && unanswered.remove(&allocation) {
                        self.output.log(LogLine::SlotRejected { job, allocation });
                        self.release_slot(now, job, allocation);
                    }
                }
                if let Some(known) = self.jobs.get_mut(&job)
                    && !unanswered.is_empty()
                {
                    known.offer = Delivery::Ready(Some(retry_at));
                    known.to_offer.extend(unanswered);
                }
            }
            Err(error) => {
                known.to_offer.extend(unanswered);
                self.call_failed(job, &error);
            }
        }
    }

    /// Handles the answer to a report.
    pub fn updated(
        &mut self,
        now: Uptime,
        job: JobId,
        run: u64,
        answer: GatewayResult<pb::UpdateTaskExecutionStatesResponse>,
    ) {
        let retry_at = now + self.options.retry_delay;
        let Some(known) = self
            .jobs
            .get_mut(&job)
            .filter(|known| known.connection.run() == run)
        else {
            return;
        };
        let keys = known
            .update
            .finish(answer.is_err().then_some(retry_at))
            .unwrap_or_default();
        if let Err(error) = answer {
            known.executions.put_back(keys);
            self.call_failed(job, &error);
        }
    }

    /// Handles the answer to a slot notification. If it failed, the next heartbeat reports the slots.
    pub fn notified(&mut self, run: u64, answer: &GatewayResult<pb::Ack>) {
        if self.resource_manager.run() == run
            && let Err(error @ (GatewayError::Outdated { .. } | GatewayError::NotFound(_))) = answer
        {
            let error = error.to_string();
            self.output.log(LogLine::RegistrationUnknown { error });
            self.connect(Target::ResourceManager);
        }
    }

    /// Sends what the JobMaster does not know yet.
    pub(super) fn send_messages(&mut self, now: Uptime, job: JobId) {
        let (resource_id, incarnation) = self.identity();
        let Some(known) = self.jobs.get_mut(&job) else {
            return;
        };
        if !known.connection.is_registered() || self.lifecycle.is_stopping() {
            return;
        }
        let (address, run) = (
            known.connection.address().to_owned(),
            known.connection.run(),
        );
        if known.offer.is_ready(now) && !known.to_offer.is_empty() {
            let offered = std::mem::take(&mut known.to_offer);
            let offer = |&allocation: &_| self.slots.offer(SlotHolder { job, allocation });
            let offers: Vec<pb::SlotOffer> = offered.iter().filter_map(offer).collect();
            if !offers.is_empty() {
                let request = pb::OfferSlotsRequest {
                    sender: Some(known.connection.sender()),
                    job: Some(scope(job, known)),
                    resource_id: resource_id.clone(),
                    incarnation: incarnation.clone(),
                    offers,
                };
                known.offer = Delivery::InFlight(offered);
                let address = address.clone();
                self.output.effect(Effect::Offer {
                    job,
                    address,
                    run,
                    request,
                });
            }
        }
        if known.update.is_ready(now) && known.executions.has_changed() {
            let (keys, executions) = known.executions.take_changed();
            let request = pb::UpdateTaskExecutionStatesRequest {
                sender: Some(known.connection.sender()),
                job: Some(scope(job, known)),
                resource_id,
                incarnation,
                executions,
            };
            known.update = Delivery::InFlight(keys);
            self.output.effect(Effect::Update {
                job,
                address,
                run,
                request,
            });
        }
        self.send_coordinator_requests(now, job);
    }

    /// Notifies the ResourceManager of all slots or some. Without a ResourceManager, the next registration reports
    /// them.
    pub(super) fn notify_slots(&mut self, slots: Vec<pb::SlotStatus>, are_all: bool) {
        if !self.resource_manager.is_registered() || self.lifecycle.is_stopping() {
            return;
        }
        let (resource_id, incarnation) = self.identity();
        let sender = Some(self.resource_manager.sender());
        let request = pb::NotifySlotsAvailableRequest {
            sender,
            resource_id,
            incarnation,
            slots,
            are_all,
            slots_version: self.slots.version(),
        };
        let address = self.resource_manager.address().to_owned();
        let run = self.resource_manager.run();
        self.output.effect(Effect::NotifySlots {
            address,
            run,
            request,
        });
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
}

fn parse_all(texts: &[String]) -> BTreeSet<AllocationId> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}
