//! Reply channels of requests of operators to their coordinators. Decides nothing: [`crate::core`] says when a request
//! is sent and when it ends.

use std::collections::BTreeMap;

use tanist_dataflow::CoordinatorRequest;
use tanist_proto::v1::ask_coordinator_response::Answer;
use tokio::sync::oneshot;

use super::Actor;
use crate::core::Event;

/// Reply channels of open requests, by number.
#[derive(Debug, Default)]
pub(super) struct CoordinatorReplies {
    last: u64,
    open: BTreeMap<u64, oneshot::Sender<Result<Answer, String>>>,
}

impl CoordinatorReplies {
    /// Adds a request. Returns its number.
    fn add(&mut self, reply: oneshot::Sender<Result<Answer, String>>) -> u64 {
        self.last += 1;
        self.open.insert(self.last, reply);
        self.last
    }

    /// Answers a request.
    pub(super) fn answer(&mut self, request_id: u64, answer: Result<Answer, String>) {
        if let Some(reply) = self.open.remove(&request_id) {
            let _its_task_may_have_ended = reply.send(answer);
        }
    }
}

impl Actor {
    /// Handles a request of a task's operator.
    pub(super) fn coordinator_asked(&mut self, request: CoordinatorRequest) {
        let asked = Event::CoordinatorAsked {
            request_id: self.replies.add(request.reply),
            requester: request.requester,
            number: request.number,
        };
        self.core.handle(self.started.uptime(), asked);
    }
}
