//! Asking the leader, whoever it is by then.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::RestError;
use super::server::RestServerOptions;
use super::view::ClusterView;
use crate::gateway::{DispatcherGateway, GatewayError, GatewayResult};

/// The pause before a leader that just failed to answer is looked up again; doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What every handler has. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub(super) view: Arc<dyn ClusterView>,
    pub(super) options: Arc<RestServerOptions>,
    /// The server stops: nobody waits any longer.
    pub(super) stop: CancellationToken,
}

impl Context {
    /// Asks the leader's Dispatcher, and the next one's if it goes meanwhile. `ask` is called as often as that takes: what it
    /// asks for must not take effect twice.
    pub(super) async fn ask<T, A, F>(&self, ask: A) -> Result<T, RestError>
    where
        A: Fn(Arc<dyn DispatcherGateway>) -> F,
        F: Future<Output = GatewayResult<T>>,
    {
        let stopping = || GatewayError::NotYet("this JobManager is stopping".to_owned());
        tokio::select! {
            biased;
            answer = self.ask_until_answered(ask) => answer,
            () = self.stop.cancelled() => Err(stopping().into()),
        }
    }

    async fn ask_until_answered<T, A, F>(&self, ask: A) -> Result<T, RestError>
    where
        A: Fn(Arc<dyn DispatcherGateway>) -> F,
        F: Future<Output = GatewayResult<T>>,
    {
        let patience = self.options.await_leader_timeout;
        let give_up = Instant::now() + patience;
        let mut pause = FIRST_PAUSE;
        loop {
            let left = give_up.saturating_duration_since(Instant::now());
            let dispatcher = self.view.dispatcher(left).await?;
            let answer = tokio::time::timeout(self.options.answer_timeout, ask(dispatcher)).await;
            let error = match answer {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(_) => GatewayError::NoAnswer {
                    target: "the leader".to_owned(),
                    reason: format!("it took longer than {:?}", self.options.answer_timeout),
                },
            };
            if !error.is_retryable() || Instant::now() + pause >= give_up {
                return Err(error.into());
            }
            tracing::debug!(%error, "the leader gave no answer, looking for it again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
