//! The replacement of a JobMaster whose ExecutionGraph could not be built: it owns a FAILED result and answers until
//! that is written. Until then the job has not ended and shows no terminal status. Requests to change the job are
//! refused with the cause.

use futures::StreamExt as _;
use futures::channel::mpsc;
use tanist_gateway::GatewayError;
use tanist_proto::v1 as pb;

use super::core::before_its_end;
use super::handle::{Message, ProgressWriter};

/// Answers for a job that could not be initialized, until its result is written.
pub(super) async fn serve_failed(
    result: &pb::JobResult,
    mut messages: mpsc::Receiver<Box<Message>>,
    progress: &ProgressWriter,
) {
    let over = || GatewayError::Conflict(result.cause.clone());
    loop {
        let message = tokio::select! {
            () = progress.to_stop() => return,
            message = messages.next() => message.map(|message| *message),
        };
        // A caller that is gone needs no answer.
        match message {
            None => return,
            Some(Message::Describe(_, reply)) => {
                let _ = reply.send(Ok(before_its_end(result)));
            }
            Some(Message::ResultWritten(reply)) => {
                let _ = reply.send(Ok(()));
                return;
            }
            Some(Message::Gone(..)) => {}
            Some(
                Message::Cancel(reply)
                | Message::StopJob(reply)
                | Message::TriggerSavepoint(_, reply),
            ) => {
                drop(reply.send(Err(over())));
            }
            Some(Message::Request(request)) => request.refuse(over()),
        }
    }
}
