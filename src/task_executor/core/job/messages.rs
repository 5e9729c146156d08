//! Messages of a job to its JobMaster, and their answers: registration, heartbeats, offers of slots, reports of
//! executions, requests to coordinators, the message with which it disconnects. Pure.

use std::collections::BTreeSet;

use tanist_dataflow::Requester;
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_proto::id::AllocationId;
use tanist_proto::v1 as pb;

use super::Job;
use crate::core::connection::{Registration, SilenceTimeouts};
use crate::core::executions::Metrics;
use crate::core::log_line::LogLine;
use crate::core::outbox::{Route, scope};
use crate::core::output::Output;
use crate::core::slot_table::SlotTable;

impl Job {
    /// The message of an attempt to register, with all that the job has here.
    pub(crate) fn registration_request(
        &mut self,
        now: Uptime,
        registration: Registration,
        location: &pb::TaskManagerLocation,
        slots: &SlotTable,
        metrics: Metrics<'_>,
    ) -> pb::RegisterTaskManagerRequest {
        pb::RegisterTaskManagerRequest {
            sender: Some(self.connection.send(registration)),
            job_id: self.id.to_string(),
            location: Some(location.clone()),
            executions: self.executions.full_report(metrics, now),
            slots: slots.offers(self.id),
            outputs: self.executions.outputs(),
            checkpoints: self.checkpoints.full_report(),
            takes_checkpoints: true,
        }
    }

    /// Records that the registration succeeded. Active slots were part of it: the JobMaster frees those it does not
    /// need, and those missing in its heartbeats are offered again.
    pub(crate) fn registered(
        &mut self,
        now: Uptime,
        silence: SilenceTimeouts,
        incarnation: u64,
        slots: &SlotTable,
    ) {
        self.connection.succeed(now, silence);
        self.raise_incarnation(incarnation);
        self.outbox
            .replace_offers(slots.not_accepted(self.id).collect());
    }

    /// The answer to a heartbeat: everything of the job, including unacknowledged terminal states. A slot that the
    /// JobMaster does not know is offered again: it accepts or rejects it.
    pub(crate) fn heartbeat(
        &mut self,
        request: &pb::HeartbeatFromJobMasterRequest,
        slots: &SlotTable,
        metrics: Metrics<'_>,
        output: &mut Output,
    ) -> pb::HeartbeatFromJobMasterResponse {
        for allocation in slots.active(self.id) {
            if !request.allocation_ids.contains(&allocation.to_string()) {
                self.outbox.offer(allocation);
            }
        }
        if request.stopping {
            self.stop_sources(output);
        }
        let held = slots.held_by(self.id).map(|it| it.to_string());
        pb::HeartbeatFromJobMasterResponse {
            executions: self.executions.report(metrics),
            outputs: self.executions.outputs(),
            allocation_ids: held.collect(),
            checkpoints: self.checkpoints.reports(),
        }
    }

    /// The address of its JobMaster, and the message with which a stopping TaskManager disconnects.
    pub(crate) fn disconnect_message(
        &self,
        location: &pb::TaskManagerLocation,
        cause: &str,
    ) -> (String, pb::DisconnectTaskManagerRequest) {
        let request = pb::DisconnectTaskManagerRequest {
            sender: Some(self.connection.sender()),
            job: Some(scope(self.id, self.incarnation)),
            resource_id: location.resource_id.clone(),
            incarnation: location.incarnation.clone(),
            cause: cause.to_owned(),
            nothing_runs: !self.executions.is_running(),
        };
        (self.connection.address().to_owned(), request)
    }

    /// Sends what the JobMaster does not know yet, if there is a registration.
    pub(crate) fn send(
        &mut self,
        now: Uptime,
        location: &pb::TaskManagerLocation,
        slots: &SlotTable,
        output: &mut Output,
    ) {
        if !self.connection.is_registered() {
            return;
        }
        let route = Route {
            job: (self.id, self.incarnation),
            connection: &self.connection,
            location,
        };
        let executions = &mut self.executions;
        self.outbox.send(now, route, executions, slots, output);
        self.checkpoints.send(now, route, output);
    }

    /// Offers a slot to the JobMaster.
    pub(crate) fn offer(&mut self, allocation: AllocationId) {
        self.outbox.offer(allocation);
    }

    /// Handles the answer to an offer: `accepted` and `rejected` slots. Others are offered again at `retry_at`, and
    /// rejected ones in which a task continues, until the task is cancelled or the slot accepted. Returns the slots
    /// that the job loses.
    pub(crate) fn offer_answered(
        &mut self,
        accepted: &BTreeSet<AllocationId>,
        rejected: &BTreeSet<AllocationId>,
        retry_at: Uptime,
        output: &mut Output,
    ) -> Vec<AllocationId> {
        let offered = self.outbox.finish_offer();
        let mut unanswered = &offered - accepted;
        let mut lost = Vec::new();
        for &allocation in rejected {
            if !self.continues_in(allocation, output) && unanswered.remove(&allocation) {
                let job = self.id;
                output.log(LogLine::SlotRejected { job, allocation });
                lost.push(allocation);
            }
        }
        if !unanswered.is_empty() {
            self.outbox.retry_offer(unanswered, retry_at);
        }
        lost
    }

    /// Handles the failure of an offer, which is sent again at `retry_at`.
    pub(crate) fn offer_failed(&mut self, retry_at: Uptime) {
        let offered = self.outbox.finish_offer();
        self.outbox.retry_offer(offered, retry_at);
    }

    /// Ends the report in flight. With `retry_at` it failed, and is sent again then.
    pub(crate) fn finish_report(&mut self, retry_at: Option<Uptime>) {
        self.outbox.finish_report(retry_at, &mut self.executions);
    }

    /// Adds a request of an operator to its coordinator.
    pub(crate) fn ask_coordinator(&mut self, request_id: u64, requester: Requester, number: u64) {
        self.outbox.ask_coordinator(request_id, requester, number);
    }

    /// Handles the answer to a request of an operator, or sends it again at `retry_at` if the call failed. Returns
    /// that error.
    pub(crate) fn coordinator_answered(
        &mut self,
        request_id: u64,
        answer: GatewayResult<pb::AskCoordinatorResponse>,
        retry_at: Uptime,
        output: &mut Output,
    ) -> Option<GatewayError> {
        self.outbox
            .coordinator_answered(request_id, answer, retry_at, output)
    }
}
