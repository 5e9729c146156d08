//! The way from an operator in a task to its half at the JobMaster. Who carries questions there is the TaskExecutor's business;
//! while nobody leads, a question waits.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tanist_ha::ask::ask;
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::v1::ask_coordinator_response::Answer;
use tokio::sync::{mpsc, oneshot};

/// Which operator asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
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

/// A question on its way. Dropping it is no answer.
#[derive(Debug)]
pub struct Question {
    /// Who asks.
    pub asker: Asker,
    /// Counts what this operator asks in this attempt, from 1.
    pub number: u64,
    /// Takes the answer, or why there never will be one.
    pub reply: oneshot::Sender<Result<Answer, String>>,
}

/// How an operator asks.
#[derive(Debug, Clone)]
pub struct CoordinatorLine {
    pub(super) asker: Asker,
    pub(super) questions: mpsc::Sender<Question>,
}

impl CoordinatorLine {
    /// Asks. What is asked under a number is always answered in the same way; the next number comes after the answer.
    pub fn ask(&self, number: u64) -> Asking {
        let (questions, asker) = (self.questions.clone(), self.asker.clone());
        let mut asking = Asking {
            future: Box::pin(async move {
                let question = |reply| Question {
                    asker,
                    number,
                    reply,
                };
                let answer = ask(&questions, question).await;
                answer.unwrap_or_else(|_| Err("this process asks nobody any more".to_owned()))
            }),
            answer: None,
        };
        // So that it is on its way while nobody waits for it yet.
        if let Poll::Ready(answer) = asking.poll(&mut Context::from_waker(Waker::noop())) {
            asking.answer = Some(answer);
        }
        asking
    }
}

/// A question that was asked. Whoever wants the answer polls it.
pub struct Asking {
    future: Pin<Box<dyn Future<Output = Result<Answer, String>> + Send>>,
    answer: Option<Result<Answer, String>>,
}

impl Asking {
    /// The answer, if it is there. Not to be called again after that.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Answer, String>> {
        match self.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => self.future.as_mut().poll(cx),
        }
    }
}
