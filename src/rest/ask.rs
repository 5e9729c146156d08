//! Asks the current leader, and its successor after a change of leader.
//!
//! Two leaders may receive one request, so a request must be safe to repeat. It ends with the leader's answer, with an
//! error that a repetition would not change, or with the last error once the timeout for a leader is over.

use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::{DispatcherGateway, GatewayError, GatewayResult};
use tanist_ha::election::Epoch;
use tanist_ha::retrieval::LeaderView;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::RestError;
use super::peers::Peers;
use super::server::RestServerOptions;
use super::view::ClusterView;

/// Pause before a leader that just failed to answer is looked up again; doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Minimum timeout of the last leader that is asked, even if it was found late.
const SHORTEST_ANSWER: Duration = Duration::from_secs(5);

/// Time for which a request that the leader's store refuses is repeated. A busy store recovers by itself; if
/// the store has no space, the client gets the error before its own timeout.
const STORE_TIMEOUT: Duration = Duration::from_millis(1500);

fn confirmed_epoch(view: &LeaderView) -> Option<Epoch> {
    view.leader.as_ref().map(|leader| leader.epoch)
}

/// Completes when a leader of a younger epoch than `asked` is confirmed.
async fn succeeded(leaders: &mut watch::Receiver<LeaderView>, asked: Option<Epoch>) {
    let younger = leaders.wait_for(|view| confirmed_epoch(view) > asked);
    if younger.await.is_err() {
        std::future::pending().await
    }
}

/// The context of every handler. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub(super) view: Arc<dyn ClusterView>,
    pub(super) peers: Peers,
    pub(super) options: Arc<RestServerOptions>,
    /// One permit for each upload that is accepted at once.
    pub(super) uploads: Arc<Semaphore>,
    /// Cancelled when the server stops: requests then wait no longer.
    pub(super) stop: CancellationToken,
}

impl Context {
    /// Asks the leader's Dispatcher, and asks the next leader when the leader fails to answer or when another
    /// leader is confirmed before the answer, since a frozen or cut-off leader may never answer. `ask` may be
    /// called several times: the request must not take effect twice.
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
        let give_up = Instant::now() + self.options.await_leader_timeout;
        let mut pause = FIRST_PAUSE;
        let mut refused_since = None;
        loop {
            let left = give_up.saturating_duration_since(Instant::now());
            let mut leaders = self.view.leaders();
            // Read before the Dispatcher is taken: a change of leader in between then ends this try at once. Read
            // after it, the change would not be noticed, and the former leader may never answer.
            let known = confirmed_epoch(&leaders.borrow());
            let dispatcher = self.view.dispatcher(left).await?;
            let asked = known.or_else(|| confirmed_epoch(&leaders.borrow()));
            let left = give_up.saturating_duration_since(Instant::now());
            let timeout = self.options.answer_timeout.min(left.max(SHORTEST_ANSWER));
            let error = tokio::select! {
                biased;
                answer = ask(dispatcher) => match answer {
                    Ok(answer) => return Ok(answer),
                    Err(error) => error,
                },
                () = succeeded(&mut leaders, asked) => {
                    tracing::debug!("another JobManager leads: forwarding the request to it");
                    continue;
                }
                () = tokio::time::sleep(timeout) => GatewayError::NoAnswer {
                    target: "the leader".to_owned(),
                    reason: format!("it took longer than {timeout:?}"),
                },
            };
            if !error.is_retryable() || Instant::now() + pause >= give_up {
                return Err(error.into());
            }
            if let GatewayError::StoreRefused(_) = &error {
                let since = *refused_since.get_or_insert_with(Instant::now);
                if since.elapsed() + pause >= STORE_TIMEOUT {
                    return Err(error.into());
                }
            } else {
                refused_since = None;
            }
            tracing::debug!(%error, "the leader did not answer: searching for the current leader");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
