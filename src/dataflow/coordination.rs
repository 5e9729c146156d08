//! The connection from an operator in a task to its coordinator at the JobMaster. The TaskExecutor
//! transports the requests; while there is no leader, a request waits. An answer that can never come is an
//! error with the reason.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tanist_ha::ask::ask;
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::v1::ask_coordinator_response::Answer;
use tokio::sync::{mpsc, oneshot};

/// The operator that asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requester {
    /// Its job.
    pub job: JobId,
    /// Its vertex.
    pub vertex: JobVertexId,
    /// Its subtask.
    pub subtask: u32,
    /// The attempt.
    pub generation: Generation,
    /// Its name.
    pub operator: String,
}

/// A request to the coordinator, on its way. If it is dropped without an answer, the operator gets an error.
#[derive(Debug)]
pub struct CoordinatorRequest {
    /// Who asks.
    pub requester: Requester,
    /// Number of this request among those of this operator in this attempt, from 1.
    pub number: u64,
    /// Takes the answer, or the reason why there will never be one.
    pub reply: oneshot::Sender<Result<Answer, String>>,
}

/// Handle with which an operator asks its coordinator.
#[derive(Debug, Clone)]
pub struct CoordinatorLine {
    pub(super) requester: Requester,
    pub(super) coordinator_requests: mpsc::Sender<CoordinatorRequest>,
}

impl CoordinatorLine {
    /// Sends the request with this number. The coordinator always gives the same answer to the same
    /// number. The caller asks the next number only after the answer.
    pub fn ask(&self, number: u64) -> PendingAnswer {
        let (coordinator_requests, requester) =
            (self.coordinator_requests.clone(), self.requester.clone());
        let mut pending = PendingAnswer {
            future: Box::pin(async move {
                let request = |reply| CoordinatorRequest {
                    requester,
                    number,
                    reply,
                };
                let answer = ask(&coordinator_requests, request).await;
                answer.unwrap_or_else(|_| {
                    Err("this process sends no more requests to coordinators".to_owned())
                })
            }),
            answer: None,
        };
        // Poll once: this sends the request before the caller waits for the answer.
        if let Poll::Ready(answer) = pending.poll(&mut Context::from_waker(Waker::noop())) {
            pending.answer = Some(answer);
        }
        pending
    }
}

/// The pending answer to a request. The caller polls it.
pub struct PendingAnswer {
    future: Pin<Box<dyn Future<Output = Result<Answer, String>> + Send>>,
    answer: Option<Result<Answer, String>>,
}

impl PendingAnswer {
    /// Returns the answer, if it has arrived. Must not be called again after that.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Answer, String>> {
        match self.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => self.future.as_mut().poll(cx),
        }
    }
}
