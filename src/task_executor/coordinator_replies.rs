//! Carries the requests of operators to their coordinators, and the answers back. Decides nothing:
//! [`super::core`] says when a request is sent and when it ends.

use tanist_dataflow::CoordinatorRequest;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ask_coordinator_response::Answer;

use super::actor::{Actor, Called};

impl Actor {
    /// Handles a request of a task's operator.
    pub(super) fn take_coordinator_request(&mut self, request: CoordinatorRequest) {
        self.last_coordinator_request += 1;
        self.replies
            .insert(self.last_coordinator_request, request.reply);
        self.core
            .ask(self.last_coordinator_request, request.asker, request.number);
    }

    pub(super) fn ask_coordinator(
        &mut self,
        job: JobId,
        address: String,
        run: u64,
        request_id: u64,
        request: pb::AskCoordinatorRequest,
    ) {
        let gateway = self.services.connector.job_master(&address, job);
        let call = async move { gateway.ask_coordinator(request).await };
        self.call(address, call, move |answer| {
            Called::Asked(job, run, request_id, answer)
        });
    }

    pub(super) fn answer_coordinator_request(
        &mut self,
        request_id: u64,
        answer: Result<Answer, String>,
    ) {
        if let Some(reply) = self.replies.remove(&request_id) {
            let _its_task_may_have_ended = reply.send(answer);
        }
    }
}
