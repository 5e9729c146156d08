//! Follows some nodes across every reconnect and every new session.
//!
//! Uses one-shot watches, set before reading and again after each event: the client library restores these,
//! and only these, after a reconnect. After each reconnect everything is read again anyway.
//!
//! Invariant: the last value is never missed; values in between may be.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, select_all};
use zookeeper_client::{SessionState, WatchedEvent};

use super::client::Sessions;
use super::session::{Node, Session};
use crate::election::Nonce;
use crate::error::Outcome;
use crate::retry::Backoff;

/// Passes the nodes at `paths` to `seen`: once for each session, and whenever one of them may have changed.
/// Ends with the connection.
pub(super) async fn follow(
    mut sessions: Sessions,
    paths: Vec<String>,
    mut seen: impl FnMut(Vec<Option<Node>>) + Send,
) {
    let mut last = None;
    while let Some(session) = next_session(&mut sessions, last.as_ref()).await {
        follow_session(&session, &paths, &mut seen).await;
        last = Some(session.nonce().clone());
    }
}

/// Waits for a session other than `last`; `None` when the connection is gone.
pub(super) async fn next_session(
    sessions: &mut Sessions,
    last: Option<&Nonce>,
) -> Option<Arc<Session>> {
    let other = |session: &Option<Arc<Session>>| {
        session
            .as_ref()
            .is_some_and(|session| last != Some(session.nonce()))
    };
    sessions.wait_for(other).await.ok()?.clone()
}

/// Follows within one session, until its end.
async fn follow_session(
    session: &Session,
    paths: &[String],
    seen: &mut (impl FnMut(Vec<Option<Node>>) + Send),
) {
    let mut states = session.states();
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    // Kept until the next ones are set: dropping the last watch of a path costs a request.
    let mut watches: Vec<BoxFuture<'static, WatchedEvent>>;
    let mut kept = Vec::new();
    loop {
        match states.state() {
            SessionState::SyncConnected => {}
            state if state.is_terminated() => return,
            _ => {
                states.changed().await;
                continue;
            }
        }
        match session.watch(paths).await {
            Ok((set, nodes)) => {
                watches = set
                    .into_iter()
                    .map(|watch| watch.changed().boxed())
                    .collect();
                drop(kept);
                seen(nodes);
                backoff.reset();
                tokio::select! {
                    _ = select_all(watches.iter_mut()) => {}
                    _ = states.changed() => {}
                }
                kept = watches;
            }
            Err(error) => {
                if error.outcome() == Outcome::Fatal {
                    tracing::warn!(%error, "nodes in ZooKeeper can't be watched: retrying");
                } else {
                    tracing::debug!(%error, "nodes in ZooKeeper can't be watched: retrying");
                }
                tokio::select! {
                    () = tokio::time::sleep(backoff.next_delay()) => {}
                    _ = states.changed() => {}
                }
            }
        }
    }
}
