//! The part of the actor that handles messages and answers them. A caller that is gone needs no answer.

use std::collections::BTreeMap;

use tanist_gateway::GatewayError;
use tanist_proto::v1 as pb;

use super::actor::{JobMasterActor, Next};
use super::admission::refused;
use super::core::{CancelAnswer, CoordinatorAnswer, CoordinatorRequest, Event, parse};
use super::handle::{Message, Reply, Request};

impl JobMasterActor {
    fn answer_request(&mut self, request: Request) {
        match request {
            Request::RegisterTaskManager(request, reply) => {
                let _ = reply.send(self.register(*request));
            }
            Request::OfferSlots(request, reply) => {
                let connection =
                    self.admit_from(&request.sender, &request.job, &request.resource_id);
                let answer = connection.and_then(|connection| {
                    let event = Event::SlotsOffered {
                        connection,
                        slots: request.offers,
                    };
                    self.apply(event).map_err(refused)
                });
                let _ = reply.send(answer);
            }
            Request::UpdateTaskExecutionStates(request, reply) => {
                let connection =
                    self.admit_from(&request.sender, &request.job, &request.resource_id);
                let answer = connection.and_then(|connection| {
                    let executions = request.executions;
                    let event = Event::ExecutionsReported {
                        connection,
                        executions,
                    };
                    self.apply(event).map_err(refused)
                });
                let _ = reply.send(answer.map(|_| pb::UpdateTaskExecutionStatesResponse {}));
            }
            Request::FailSlot(request, reply) => {
                let connection =
                    self.admit_from(&request.sender, &request.job, &request.resource_id);
                let answer = connection.and_then(|connection| {
                    let allocation = parse(&request.allocation_id).ok_or_else(|| {
                        GatewayError::Invalid(format!(
                            "{:?} is not an allocation id",
                            request.allocation_id
                        ))
                    })?;
                    let cause = request.cause;
                    self.apply(Event::SlotFailed {
                        connection,
                        allocation,
                        cause,
                    })
                    .map_err(refused)
                });
                let _ = reply.send(answer.map(|_| pb::Ack {}));
            }
            Request::AskCoordinator(request, reply) => self.ask(*request, reply),
            Request::ReportCheckpoints(request, reply) => {
                let _ = reply.send(self.report_checkpoints(*request));
            }
            Request::DisconnectTaskManager(request, reply) => {
                let connection =
                    self.admit_from(&request.sender, &request.job, &request.resource_id);
                let answer = connection.and_then(|connection| {
                    let cause = request.cause;
                    let event = match request.nothing_runs {
                        true => Event::TaskManagerLeft { connection, cause },
                        false => Event::TaskManagerLost { connection, cause },
                    };
                    self.apply(event).map_err(refused)
                });
                let _ = reply.send(answer.map(|_| pb::Ack {}));
            }
        }
    }

    pub(super) fn answer(&mut self, message: Message) -> Next {
        match message {
            Message::Request(request) => self.answer_request(request),
            Message::Gone(task_manager, incarnation) => {
                self.note(Event::TaskManagerGone {
                    task_manager,
                    incarnation,
                });
            }
            Message::Cancel(reply) => {
                self.replies.add_cancel(reply);
                self.note(Event::CancelRequested);
            }
            Message::StopJob(reply) if self.stops_with_savepoint() => {
                let why = "the job is being stopped with a savepoint".to_owned();
                let _ = reply.send(Err(GatewayError::Conflict(why)));
            }
            Message::StopJob(reply) => {
                self.replies.add_stop(reply);
                self.note(Event::StopRequested);
            }
            Message::TriggerSavepoint(request, reply) => self.trigger_savepoint(*request, reply),
            Message::Describe(detail, reply) => {
                let _ = reply.send(Ok(self.details(detail)));
            }
            Message::ResultWritten(reply) => {
                if self.progress.0.look(|progress| progress.outcome.is_some()) {
                    return Next::Close(reply);
                }
                let _ = reply.send(Err(GatewayError::Conflict(
                    "the job has no result".to_owned(),
                )));
            }
        }
        Next::Continue
    }

    /// Handles a task's request to a coordinator. A refusal is answered here, everything else by an effect.
    fn ask(
        &mut self,
        request: pb::AskCoordinatorRequest,
        reply: Reply<pb::AskCoordinatorResponse>,
    ) {
        let connection = self.admit_from(&request.sender, &request.job, &request.resource_id);
        let token = self.replies.add_ask(reply);
        let applied = connection.and_then(|connection| {
            let request = CoordinatorRequest {
                token,
                execution: request.execution.unwrap_or_default(),
                operator: request.operator,
                number: request.number,
            };
            let event = Event::CoordinatorAsked {
                connection,
                request,
            };
            self.apply(event).map_err(refused)
        });
        if let Err(error) = applied {
            self.replies.refuse_ask(token, error);
        }
    }
}

/// The pending replies: answers may take as long as the job.
#[derive(Debug, Default)]
pub(super) struct Replies {
    cancels: Vec<Reply<()>>,
    stops: Vec<Reply<()>>,
    /// Replies to requests to coordinators, by token.
    asks: BTreeMap<u64, Reply<pb::AskCoordinatorResponse>>,
    last_ask: u64,
}

impl Replies {
    fn add_cancel(&mut self, reply: Reply<()>) {
        add(&mut self.cancels, reply);
    }

    fn add_stop(&mut self, reply: Reply<()>) {
        add(&mut self.stops, reply);
    }

    /// Returns its token.
    fn add_ask(&mut self, reply: Reply<pb::AskCoordinatorResponse>) -> u64 {
        self.last_ask += 1;
        self.asks.insert(self.last_ask, reply);
        self.last_ask
    }

    fn refuse_ask(&mut self, token: u64, error: GatewayError) {
        if let Some(reply) = self.asks.remove(&token) {
            // A caller that is gone needs no answer.
            let _ = reply.send(Err(error));
        }
    }

    pub(super) fn answer_cancels(&mut self, answer: &CancelAnswer) {
        answer_all(&mut self.cancels, answer);
    }

    pub(super) fn answer_stops(&mut self, answer: &CancelAnswer) {
        answer_all(&mut self.stops, answer);
    }

    pub(super) fn answer_ask(&mut self, token: u64, answer: CoordinatorAnswer) {
        let Some(reply) = self.asks.remove(&token) else {
            return;
        };
        let answer = match answer {
            CoordinatorAnswer::Decided(answer) => Ok(pb::AskCoordinatorResponse {
                answer: Some(answer),
            }),
            CoordinatorAnswer::NotServed(why) => Err(GatewayError::Conflict(why)),
            CoordinatorAnswer::Invalid(why) => Err(GatewayError::Invalid(why)),
        };
        let _ = reply.send(answer);
    }
}

fn answer_all(pending: &mut Vec<Reply<()>>, answer: &CancelAnswer) {
    for reply in pending.drain(..) {
        let answer = match answer {
            CancelAnswer::Decided => Ok(()),
            CancelAnswer::TooLate(why) => Err(GatewayError::Conflict(why.clone())),
            CancelAnswer::Refused(why) => Err(GatewayError::Internal(why.clone())),
        };
        // A caller that is gone needs no answer.
        let _ = reply.send(answer);
    }
}

/// Adds a pending reply and drops those whose caller is gone: an answer may take as long as the job.
fn add(pending: &mut Vec<Reply<()>>, reply: Reply<()>) {
    pending.retain(|before| !before.is_closed());
    pending.push(reply);
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn requests_of_callers_that_are_gone_are_not_kept() {
        let mut pending = Vec::new();
        let (reply, stays) = oneshot::channel();
        add(&mut pending, reply);
        for _ in 0..3 {
            add(&mut pending, oneshot::channel().0);
        }
        assert_eq!(pending.len(), 2);
        assert!(!pending[0].is_closed());
        drop(stays);
    }
}
