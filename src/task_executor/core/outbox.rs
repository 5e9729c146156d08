//! Calls of a TaskExecutor to the JobMaster of a job: offers of slots, reports of changed executions, requests of
//! operators to their coordinators. Pure.
//!
//! Messages in flight belong to the present run of the connection: what an ended run did not deliver is sent again.
//! At most one offer and one report are in flight; failed ones are sent again. A request of an operator is sent until
//! it is answered, and forgotten with its task. It fails the task only if the JobMaster answers that there will never
//! be an answer.

use std::collections::{BTreeMap, BTreeSet};

use tanist_dataflow::Requester;
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, JobId};
use tanist_proto::v1 as pb;

use super::connection::Connection;
use super::effect::{Effect, JobMasterAddress};
use super::executions::{ExecutionKey, Executions};
use super::output::Output;
use super::slot_table::{SlotHolder, SlotTable};

/// A message of which one at a time is in flight, and that is repeated until it arrives.
#[derive(Debug)]
enum Delivery<T> {
    /// Nothing is in flight. The next message may be sent from that moment on.
    Ready(Option<Uptime>),
    /// This is in flight.
    InFlight(T),
}

impl<T> Delivery<T> {
    fn is_ready(&self, now: Uptime) -> bool {
        match self {
            Delivery::Ready(not_before) => not_before.is_none_or(|at| at <= now),
            Delivery::InFlight(_) => false,
        }
    }

    /// Takes what is in flight. The next message may be sent from `not_before` on.
    fn finish(&mut self, not_before: Option<Uptime>) -> Option<T> {
        match std::mem::replace(self, Delivery::Ready(not_before)) {
            Delivery::Ready(_) => None,
            Delivery::InFlight(sent) => Some(sent),
        }
    }

    /// When a failed message may be sent again.
    fn retry_at(&self) -> Option<Uptime> {
        match self {
            Delivery::Ready(not_before) => *not_before,
            Delivery::InFlight(_) => None,
        }
    }
}

/// An unanswered request of an operator.
#[derive(Debug)]
struct CoordinatorRequest {
    execution: ExecutionKey,
    operator: String,
    number: u64,
    delivery: Delivery<()>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Outbox {
    /// Slots to offer.
    slots: BTreeSet<AllocationId>,
    /// The offer in flight.
    offer: Delivery<BTreeSet<AllocationId>>,
    /// The report in flight.
    report: Delivery<Vec<ExecutionKey>>,
    /// By number.
    coordinator_requests: BTreeMap<u64, CoordinatorRequest>,
}

/// Sender and receiver of the messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route<'a> {
    /// The job and the incarnation of its JobMaster.
    pub job: (JobId, u64),
    /// The registered connection to it.
    pub connection: &'a Connection,
    /// This TaskManager.
    pub location: &'a pb::TaskManagerLocation,
}

impl Outbox {
    /// Empty.
    pub(super) fn new() -> Outbox {
        Outbox {
            slots: BTreeSet::new(),
            offer: Delivery::Ready(None),
            report: Delivery::Ready(None),
            coordinator_requests: BTreeMap::new(),
        }
    }

    /// Forgets what is in flight: the connection has ended. Changes in the lost report count as not reported.
    pub(super) fn reset(&mut self, executions: &mut Executions) {
        self.offer = Delivery::Ready(None);
        if let Some(keys) = self.report.finish(None) {
            executions.put_back(keys);
        }
        for request in self.coordinator_requests.values_mut() {
            request.delivery = Delivery::Ready(None);
        }
    }

    /// When a failed message is sent again.
    pub(super) fn retry_at(&self, executions: &Executions) -> Option<Uptime> {
        let is_offering = !self.slots.is_empty();
        let is_reporting = executions.has_changed();
        let requests = self.coordinator_requests.values();
        let times = [
            self.offer.retry_at().filter(|_| is_offering),
            self.report.retry_at().filter(|_| is_reporting),
            requests.filter_map(|it| it.delivery.retry_at()).min(),
        ];
        times.into_iter().flatten().min()
    }

    /// Sends what the JobMaster does not know yet.
    pub(super) fn send(
        &mut self,
        now: Uptime,
        route: Route<'_>,
        executions: &mut Executions,
        slots: &SlotTable,
        output: &mut Output,
    ) {
        let Route {
            job: (job, incarnation),
            connection,
            location,
        } = route;
        let to = || JobMasterAddress {
            job,
            address: connection.address().to_owned(),
            run: connection.run(),
        };
        if self.offer.is_ready(now) && !self.slots.is_empty() {
            let offered = std::mem::take(&mut self.slots);
            let offer = |&allocation: &_| slots.offer(SlotHolder { job, allocation });
            let offers: Vec<pb::SlotOffer> = offered.iter().filter_map(offer).collect();
            if !offers.is_empty() {
                self.offer = Delivery::InFlight(offered);
                let request = pb::OfferSlotsRequest {
                    sender: Some(connection.sender()),
                    job: Some(scope(job, incarnation)),
                    resource_id: location.resource_id.clone(),
                    incarnation: location.incarnation.clone(),
                    offers,
                };
                output.effect(Effect::Offer { to: to(), request });
            }
        }
        if self.report.is_ready(now) && executions.has_changed() {
            let (keys, executions) = executions.take_changed();
            self.report = Delivery::InFlight(keys);
            let request = pb::UpdateTaskExecutionStatesRequest {
                sender: Some(connection.sender()),
                job: Some(scope(job, incarnation)),
                resource_id: location.resource_id.clone(),
                incarnation: location.incarnation.clone(),
                executions,
            };
            output.effect(Effect::Update { to: to(), request });
        }
        let requests = self.coordinator_requests.iter_mut();
        for (&request_id, due) in requests.filter(|(_, it)| it.delivery.is_ready(now)) {
            due.delivery = Delivery::InFlight(());
            let request = pb::AskCoordinatorRequest {
                sender: Some(connection.sender()),
                job: Some(scope(job, incarnation)),
                resource_id: location.resource_id.clone(),
                incarnation: location.incarnation.clone(),
                execution: Some(due.execution.message()),
                operator: due.operator.clone(),
                number: due.number,
            };
            output.effect(Effect::AskCoordinator {
                to: to(),
                request_id,
                request,
            });
        }
    }

    /// Offers a slot.
    pub(super) fn offer(&mut self, allocation: AllocationId) {
        self.slots.insert(allocation);
    }

    /// Does not offer a slot any more.
    pub(super) fn withdraw_offer(&mut self, allocation: AllocationId) {
        self.slots.remove(&allocation);
    }

    /// Offers these slots and no others.
    pub(super) fn replace_offers(&mut self, allocations: BTreeSet<AllocationId>) {
        self.slots = allocations;
    }

    /// Ends the offer in flight, and returns its slots.
    pub(super) fn finish_offer(&mut self) -> BTreeSet<AllocationId> {
        self.offer.finish(None).unwrap_or_default()
    }

    /// Offers these again, and nothing before `at`.
    pub(super) fn retry_offer(&mut self, allocations: BTreeSet<AllocationId>, at: Uptime) {
        self.offer = Delivery::Ready(Some(at));
        self.slots.extend(allocations);
    }

    /// Ends the report in flight. With `retry_at` it failed, and is sent again then.
    pub(super) fn finish_report(&mut self, retry_at: Option<Uptime>, executions: &mut Executions) {
        let keys = self.report.finish(retry_at).unwrap_or_default();
        if retry_at.is_some() {
            executions.put_back(keys);
        }
    }

    /// Adds a request of an operator to its coordinator.
    pub(super) fn ask_coordinator(&mut self, request_id: u64, requester: Requester, number: u64) {
        let request = CoordinatorRequest {
            execution: ExecutionKey {
                vertex: requester.vertex,
                subtask: requester.subtask,
                generation: requester.generation,
            },
            operator: requester.operator,
            number,
            delivery: Delivery::Ready(None),
        };
        self.coordinator_requests.insert(request_id, request);
    }

    /// Handles the answer to a request of an operator, or sends it again at `retry_at` if the call failed. Returns
    /// that error.
    pub(super) fn coordinator_answered(
        &mut self,
        request_id: u64,
        answer: GatewayResult<pb::AskCoordinatorResponse>,
        retry_at: Uptime,
        output: &mut Output,
    ) -> Option<GatewayError> {
        let request = self.coordinator_requests.get_mut(&request_id)?;
        let answer = match answer {
            Ok(response) => response
                .answer
                .ok_or_else(|| "its answer is of a newer version".to_owned()),
            Err(GatewayError::Invalid(reason)) => Err(reason),
            Err(error) => {
                request.delivery = Delivery::Ready(Some(retry_at));
                return Some(error);
            }
        };
        self.coordinator_requests.remove(&request_id);
        output.effect(Effect::AnswerCoordinatorRequest { request_id, answer });
        None
    }

    /// Drops the requests of an execution that has ended.
    pub(super) fn drop_requests_of(&mut self, execution: &ExecutionKey, output: &mut Output) {
        self.coordinator_requests.retain(|&request_id, request| {
            let is_its_own = request.execution == *execution;
            if is_its_own {
                let answer = Err("its task has ended".to_owned());
                output.effect(Effect::AnswerCoordinatorRequest { request_id, answer });
            }
            !is_its_own
        });
    }
}

/// The job and the incarnation of its JobMaster, as messages name them.
pub(super) fn scope(job: JobId, incarnation: u64) -> pb::JobScope {
    pb::JobScope {
        job_id: job.to_string(),
        job_incarnation: incarnation,
    }
}
