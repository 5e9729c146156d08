//! Requests of operators to their coordinators, on the way to the JobMaster: sent when there is a registration,
//! and again until answered. A request waits while there is no leader; it is forgotten with its task, and fails
//! the task only if the JobMaster answers that there will never be an answer.

use tanist_dataflow::Asker;
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ask_coordinator_response::Answer;

use super::executions::ExecutionKey;
use super::job::Delivery;
use super::{Core, Effect, scope};

/// An unanswered request.
#[derive(Debug)]
pub struct Waiting {
    execution: ExecutionKey,
    operator: String,
    number: u64,
    delivery: Delivery<()>,
}

impl Waiting {
    /// Forgets what was sent under an earlier registration.
    pub(super) fn forget_delivery(&mut self) {
        self.delivery = Delivery::Ready(None);
    }

    /// When it must be sent again.
    pub(super) fn retry_at(&self) -> Option<Uptime> {
        self.delivery.retry_at()
    }
}

impl Core {
    /// Handles a request of an operator.
    pub fn ask(&mut self, request_id: u64, asker: Asker, number: u64) {
        let Some(known) = self.jobs.get_mut(&asker.job) else {
            let gone = "its job is no longer on this TaskManager".to_owned();
            self.answer_coordinator_request(request_id, Err(gone));
            return;
        };
        let waiting = Waiting {
            execution: ExecutionKey {
                vertex: asker.vertex,
                subtask: asker.subtask,
                generation: asker.generation,
            },
            operator: asker.operator,
            number,
            delivery: Delivery::Ready(None),
        };
        known.coordinator_requests.insert(request_id, waiting);
    }

    /// Sends the requests that were not sent yet or failed.
    pub(super) fn send_coordinator_requests(&mut self, now: Uptime, job: JobId) {
        let (resource_id, incarnation) = self.identity();
        let Some(known) = self.jobs.get_mut(&job) else {
            return;
        };
        if !known.connection.is_registered() || self.lifecycle.is_stopping() {
            return;
        }
        let (sender, scope) = (known.connection.sender(), scope(job, known));
        let (address, run) = (
            known.connection.address().to_owned(),
            known.connection.run(),
        );
        for (request_id, waiting) in &mut known.coordinator_requests {
            if !waiting.delivery.is_ready(now) {
                continue;
            }
            waiting.delivery = Delivery::InFlight(());
            let request = pb::AskCoordinatorRequest {
                sender: Some(sender.clone()),
                job: Some(scope.clone()),
                resource_id: resource_id.clone(),
                incarnation: incarnation.clone(),
                execution: Some(pb::ExecutionId {
                    vertex_id: waiting.execution.vertex.to_string(),
                    subtask: waiting.execution.subtask,
                    generation: waiting.execution.generation.get(),
                }),
                operator: waiting.operator.clone(),
                number: waiting.number,
            };
            self.output.effect(Effect::AskCoordinator {
                job,
                address: address.clone(),
                run,
                request_id: *request_id,
                request,
            });
        }
    }

    /// Handles the answer to a request.
    pub fn asked(
        &mut self,
        now: Uptime,
        job: JobId,
        run: u64,
        request_id: u64,
        answer: GatewayResult<pb::AskCoordinatorResponse>,
    ) {
        let retry_at = now + self.options.retry_delay;
        let known = self.jobs.get_mut(&job);
        let Some(known) = known.filter(|known| known.connection.run() == run) else {
            return;
        };
        let Some(waiting) = known.coordinator_requests.get_mut(&request_id) else {
            return;
        };
        let answer = match answer {
            Ok(response) => response
                .answer
                .ok_or_else(|| "its answer is of a newer version".to_owned()),
            Err(GatewayError::Invalid(why)) => Err(why),
            Err(error) => {
                waiting.delivery = Delivery::Ready(Some(retry_at));
                self.call_failed(job, &error);
                return;
            }
        };
        known.coordinator_requests.remove(&request_id);
        self.answer_coordinator_request(request_id, answer);
    }

    /// Drops the requests of an execution that has ended.
    pub(super) fn forget_coordinator_requests(&mut self, job: JobId, execution: &ExecutionKey) {
        let Some(known) = self.jobs.get_mut(&job) else {
            return;
        };
        let output = &mut self.output;
        known.coordinator_requests.retain(|request_id, waiting| {
            let is_its_own = waiting.execution == *execution;
            if is_its_own {
                output.effect(Effect::AnswerCoordinatorRequest {
                    request_id: *request_id,
                    answer: Err("its task has ended".to_owned()),
                });
            }
            !is_its_own
        });
    }

    fn answer_coordinator_request(&mut self, request_id: u64, answer: Result<Answer, String>) {
        self.output
            .effect(Effect::AnswerCoordinatorRequest { request_id, answer });
    }
}
