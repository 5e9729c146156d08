//! The calls of a TaskExecutor's core to JobMasters, with their answers, in any order. In each run of a connection one
//! offer, one report and one copy of a coordinator request are in flight at a time.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tanist_dataflow::Requester;
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::core_world::World;
use crate::Options;
use crate::core::{Effect, Event, TaskKey};

/// A report of executions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Report {
    InFlight,
    /// It failed at this moment.
    Failed(Uptime),
}

/// How a call ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    NotYet,
    Outdated,
    Invalid,
}

impl Outcome {
    pub(super) fn answer<T>(self, answer: T) -> GatewayResult<T> {
        let reason = "a test says so".to_owned();
        match self {
            Outcome::Answered => Ok(answer),
            Outcome::NotYet => Err(GatewayError::NotYet(reason)),
            Outcome::Outdated => Err(GatewayError::Outdated { epoch: 0, reason }),
            Outcome::Invalid => Err(GatewayError::Invalid(reason)),
        }
    }
}

/// A request of an operator that is not answered.
#[derive(Debug)]
struct Request {
    task: TaskKey,
    /// The run of the connection in which it is in flight.
    run: Option<u64>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The last report of each job, with the run of its connection.
    reports: BTreeMap<JobId, (u64, Report)>,
    /// The executions in it.
    reported: BTreeMap<JobId, Vec<pb::ExecutionReport>>,
    /// The last offer of each job, with the run of its connection.
    offers: BTreeMap<JobId, (u64, Vec<String>)>,
    requests: BTreeMap<u64, Request>,
    last_request: u64,
}

impl Calls {
    /// Records an effect, if it is a call or the end of an operator's request.
    pub(super) fn record(&mut self, effect: &Effect) -> Result<(), TestCaseError> {
        if let Effect::Update { to, request } = effect {
            let in_flight = (to.run, Report::InFlight);
            let last = self.reports.insert(to.job, in_flight);
            prop_assert_ne!(last, Some(in_flight), "two reports at once");
            self.reported.insert(to.job, request.executions.clone());
        }
        if let Effect::Offer { to, request } = effect {
            let offers = request.offers.iter();
            let offered = offers.map(|offer| offer.allocation_id.clone()).collect();
            let last = self.offers.insert(to.job, (to.run, offered));
            let last = last.map(|(run, _)| run);
            prop_assert_ne!(last, Some(to.run), "two offers at once");
        }
        if let Effect::AskCoordinator { to, request_id, .. } = effect {
            let request = self.requests.get_mut(request_id);
            let last = request.map(|request| request.run.replace(to.run));
            prop_assert!(last.is_some(), "request {request_id} has ended");
            prop_assert_ne!(last, Some(Some(to.run)), "two copies at once");
        }
        if let Effect::AnswerCoordinatorRequest { request_id, .. } = effect {
            let request = self.requests.remove(request_id);
            prop_assert!(request.is_some(), "request {request_id} ends twice");
        }
        Ok(())
    }

    /// Whether a report under this run of the connection is in flight, or is not to be repeated yet.
    pub(super) fn is_report_pending(&self, now: Uptime, job: JobId, run: u64) -> bool {
        let report = self.reports.get(&job).filter(|(of, _)| *of == run);
        report.is_some_and(|(_, report)| match *report {
            Report::InFlight => true,
            Report::Failed(at) => now < at + Options::default().retry_delay,
        })
    }

    /// The executions in the last report of a job, if it was sent in this run of the connection and failed.
    pub(super) fn failed_report(&self, job: JobId, run: u64) -> &[pb::ExecutionReport] {
        match self.reports.get(&job) {
            Some(&(of, Report::Failed(_))) if of == run => &self.reported[&job],
            Some(_) | None => &[],
        }
    }

    /// The tasks whose requests are not answered.
    pub(super) fn requesters(&self) -> impl Iterator<Item = &TaskKey> {
        self.requests.values().map(|request| &request.task)
    }
}

impl World {
    /// Ends the report of a job, if one is in flight.
    pub(super) fn end_report(&mut self, job: u128, outcome: Outcome) {
        let job = JobId::from_bits(job);
        let Some(&(run, Report::InFlight)) = self.calls.reports.get(&job) else {
            return;
        };
        match outcome {
            Outcome::Answered => self.calls.reports.remove(&job),
            Outcome::NotYet | Outcome::Outdated | Outcome::Invalid => {
                let failed = (run, Report::Failed(self.now));
                self.calls.reports.insert(job, failed)
            }
        };
        let answer = outcome.answer(pb::UpdateTaskExecutionStatesResponse::default());
        let reported = Event::ExecutionsReported { job, run, answer };
        self.core.handle(self.now, reported);
    }

    /// Ends the offer of a job, if one is in flight: the JobMaster accepts or rejects the slots.
    pub(super) fn end_offer(&mut self, job: u128, accepts: bool, outcome: Outcome) {
        let job = JobId::from_bits(job);
        let Some((run, offered)) = self.calls.offers.remove(&job) else {
            return;
        };
        let mut answer = pb::OfferSlotsResponse::default();
        match accepts {
            true => answer.accepted_allocation_ids = offered,
            false => answer.rejected_allocation_ids = offered,
        }
        let answer = outcome.answer(answer);
        let offered = Event::SlotsOffered { job, run, answer };
        self.core.handle(self.now, offered);
    }

    /// An operator of a running task asks its coordinator.
    pub(super) fn ask_coordinator(&mut self, which: usize) {
        let Some(&(task, _)) = self.running.get(which) else {
            return;
        };
        self.calls.last_request += 1;
        let request_id = self.calls.last_request;
        let request = Request { task, run: None };
        self.calls.requests.insert(request_id, request);
        let requester = Requester {
            job: task.job,
            vertex: task.execution.vertex,
            subtask: task.execution.subtask,
            generation: task.execution.generation,
            operator: "numbers".to_owned(),
        };
        let asked = Event::CoordinatorAsked {
            request_id,
            requester,
            number: request_id,
        };
        self.core.handle(self.now, asked);
    }

    /// Ends the call with an operator's request, in this run or the one before.
    pub(super) fn end_request(&mut self, which: usize, is_old: bool, outcome: Outcome) {
        let requests = self.calls.requests.iter_mut();
        let mut in_flight = requests.filter(|(_, request)| request.run.is_some());
        let Some((&request_id, request)) = in_flight.nth(which) else {
            return;
        };
        let run = match is_old {
            true => request.run.unwrap_or_default().saturating_sub(1),
            false => request.run.take().unwrap_or_default(),
        };
        let job = request.task.job;
        let exhausted = pb::ask_coordinator_response::Answer::Exhausted(pb::Ack {});
        let answer = outcome.answer(pb::AskCoordinatorResponse {
            answer: Some(exhausted),
        });
        let answered = Event::CoordinatorAnswered {
            job,
            run,
            request_id,
            answer,
        };
        self.core.handle(self.now, answered);
    }
}
