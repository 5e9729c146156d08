//! Reads the generation of an isolated job from the store before its tasks start. Decides nothing: the answer goes to
//! [`crate::core`].

use tanist_gateway::{NoAnswer, StoredJobs};
use tanist_ha::clock::{Moment, Uptime};
use tanist_proto::v1 as pb;

use super::{Actor, Called, Reply};

/// A deployment whose generation is being read from the store.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    request: pb::SubmitTasksRequest,
    reply: Reply<pb::SubmitTasksResponse>,
    asked_at: Moment,
}

impl Actor {
    /// Starts a deployment whose graph is there; that of an isolated job only after the store's confirmation.
    pub(super) fn start_deployed(
        &mut self,
        now: Uptime,
        request: pb::SubmitTasksRequest,
        reply: Reply<pb::SubmitTasksResponse>,
    ) {
        let job = match self.core.isolated_job(now, &request) {
            Ok(Some(job)) => job,
            Ok(None) => {
                let answer = self.core.submit(now, request);
                return self.answer(reply, answer);
            }
            Err(refusal) => return self.answer(reply, Err(refusal)),
        };
        let asked_at = self.services.guard.now();
        let waiting = Box::new(Unconfirmed {
            request,
            reply,
            asked_at,
        });
        let records = self.services.records.clone();
        // Below the JobMaster's RPC timeout, so that it receives the reason if the store does not answer.
        let read_timeout = self.options.rpc_timeout / 2;
        self.calls.spawn(async move {
            let late = |_| Err(NoAnswer(format!("none within {read_timeout:?}")));
            let answer = tokio::time::timeout(read_timeout, records.stored_jobs(&[job])).await;
            Called::Confirmed(waiting, answer.unwrap_or_else(late))
        });
    }

    /// Handles the store's answer about a deployment.
    pub(super) fn confirmed(
        &mut self,
        now: Uptime,
        waiting: Unconfirmed,
        answer: Result<StoredJobs, NoAnswer>,
    ) {
        let Unconfirmed {
            request,
            reply,
            asked_at,
        } = waiting;
        let answer = self.core.submit_confirmed(now, request, asked_at, answer);
        self.answer(reply, answer);
    }
}
