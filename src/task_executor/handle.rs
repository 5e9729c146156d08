//! Handle to the TaskExecutor of this process; cheap to clone.
//!
//! A leader's message waits here until its term is proven, so that the actor only compares epochs: no message of an
//! unproven term reaches it.

use async_trait::async_trait;
use tanist_gateway::fencing::HighestEpoch;
use tanist_gateway::{GatewayError, GatewayResult, TaskExecutorGateway};
use tanist_ha::ask::{Unanswered, ask};
use tanist_proto::v1 as pb;
use tokio::sync::{mpsc, oneshot};

use super::actor::{Message, Reply, Request};

/// See the module.
#[derive(Debug, Clone)]
pub struct TaskExecutorHandle {
    mailbox: mpsc::Sender<Message>,
    terms: HighestEpoch,
}

impl TaskExecutorHandle {
    pub(super) fn new(mailbox: mpsc::Sender<Message>, terms: HighestEpoch) -> TaskExecutorHandle {
        TaskExecutorHandle { mailbox, terms }
    }

    pub(super) async fn send<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<T>) -> Message,
    ) -> Result<T, Unanswered> {
        ask(&self.mailbox, message).await
    }

    async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> GatewayResult<T> {
        let message = |reply| Message::Request(request(reply));
        let answer = self.send(message).await;
        answer.map_err(|_| GatewayError::gone("TaskExecutor"))?
    }
}

/// Refuses an invalid message.
macro_rules! check {
    (announce_leader, $message:ident) => {
        names_address(&$message)?
    };
    ($valid:ident, $message:ident) => {};
}

/// Implements each method by asking the actor, once the message is valid and its term is proven.
macro_rules! gateway {
    ($($(#[$doc:meta])* $variant:ident $method:ident($message:ident) -> $answer:ident;)*) => {
        #[async_trait]
        impl TaskExecutorGateway for TaskExecutorHandle {
            $(async fn $method(&self, message: pb::$message) -> GatewayResult<pb::$answer> {
                check!($method, message);
                self.terms.prove(message.sender.as_ref()).await?;
                self.ask(|reply| Request::$variant(Box::new(message), reply)).await
            })*
        }
    };
}

tanist_proto::task_executor_methods! { gateway! {} }

/// A leader that can't be reached is not followed, in any term.
fn names_address(request: &pb::AnnounceLeaderRequest) -> GatewayResult<()> {
    if request.leader_rpc_address.is_empty() {
        let reason = "the leader names no address".to_owned();
        return Err(GatewayError::Invalid(reason));
    }
    Ok(())
}
