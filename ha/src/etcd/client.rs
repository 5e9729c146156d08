//! The connection to etcd: one endpoint at a time, another one when that fails.
//!
//! The client library balances over all endpoints without checking them, so that one dead server fails a part
//! of all calls forever. Here each endpoint has its own client, all calls and streams use the same endpoint,
//! and a failure moves all of them to the next. Every call has a deadline. All clones share this state.
//!
//! Invariant: a request that may have been applied is sent to another endpoint only if it is a read or idempotent
//! ([`Repeat`]); otherwise its caller gets `NoAnswer`.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use futures::TryFutureExt as _;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::status::{Failure, classify, no_answer};
use super::{EtcdOptions, STORE};
use crate::error::{Error, Result};

/// Timeout for opening, over all endpoints.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// The server disconnects clients that ping more often than every 5 s, or while no stream is open.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The endpoint in use, and the number of moves so far: a late failure of an earlier use moves no call away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    index: usize,
    generation: u64,
}

/// The condition for repeating a request without asking its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Always: the request is a read, or is idempotent.
    Always,
    /// Only if it was certainly not applied.
    IfNotApplied,
}

/// A connection; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    shared: Arc<Shared>,
}

struct Shared {
    options: EtcdOptions,
    /// Timeout for connecting to one endpoint.
    connect_timeout: Duration,
    position: watch::Sender<Position>,
    /// A client for each endpoint, once connected.
    clients: Vec<Mutex<Option<Client>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("options", &self.options)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// The options that it was opened with.
    pub(super) fn options(&self) -> &EtcdOptions {
        &self.shared.options
    }

    /// Creates an unconnected connection. Starts with a random endpoint, so that processes spread.
    pub(super) fn new(options: EtcdOptions) -> Connection {
        let count = options.endpoints.len();
        let share = OPEN_TIMEOUT / u32::try_from(count).unwrap_or(u32::MAX);
        let connect_timeout = share
            .max(Duration::from_millis(500))
            .min(options.request_timeout.div_f32(1.5));
        let index = rand::random_range(0..count);
        let shared = Shared {
            options,
            connect_timeout,
            position: watch::Sender::new(Position {
                index,
                generation: 0,
            }),
            clients: (0..count).map(|_| Mutex::new(None)).collect(),
        };
        Connection {
            shared: Arc::new(shared),
        }
    }

    /// The endpoints, for messages.
    pub(super) fn endpoints(&self) -> String {
        self.shared.options.endpoints.join(",")
    }

    /// The endpoint in use, for messages.
    pub(super) fn endpoint(&self, position: Position) -> &str {
        &self.shared.options.endpoints[position.index]
    }

    /// Every endpoint, for requests to each server.
    pub(super) fn all_positions(&self) -> Vec<Position> {
        let generation = self.shared.position.borrow().generation;
        let indices = 0..self.shared.clients.len();
        indices
            .map(|index| Position { index, generation })
            .collect()
    }

    /// A watch of the endpoint in use.
    pub(super) fn position(&self) -> watch::Receiver<Position> {
        self.shared.position.subscribe()
    }

    /// The timeout of a call.
    pub(super) fn request_timeout(&self) -> Duration {
        self.shared.options.request_timeout
    }

    /// Moves all calls and streams away from a failed endpoint, unless another call already did.
    pub(super) fn leave(&self, failed: Position) {
        let count = self.shared.clients.len();
        self.shared.position.send_if_modified(|position| {
            let current = *position == failed;
            if current {
                position.index = (failed.index + 1) % count;
                position.generation += 1;
            }
            current
        });
    }

    /// Same as [`Connection::leave`], for a connection that is open but silent: drops its client, so that the next use
    /// of the endpoint connects again.
    pub(super) fn abandon(&self, silent: Position) {
        if *self.shared.position.borrow() == silent {
            *self.slot(silent) = None;
        }
        self.leave(silent);
    }

    fn slot(&self, position: Position) -> MutexGuard<'_, Option<Client>> {
        let slot = &self.shared.clients[position.index];
        slot.lock()
    }

    /// The client of an endpoint; connects it on first use.
    pub(super) async fn client(&self, position: Position) -> Result<Client, Failure> {
        if let Some(client) = &*self.slot(position) {
            return Ok(client.clone());
        }
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.shared.connect_timeout)
            .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
            .with_keep_alive_while_idle(false)
            // A member that lost its raft leader then refuses requests instead of being silent.
            .with_require_leader(true);
        if let Some((name, password)) = &self.shared.options.user {
            options = options.with_user(name, password);
        }
        // With a user this requests a token; otherwise it sends nothing.
        let connect = Client::connect([self.endpoint(position)], Some(options));
        let client = match timeout(self.shared.connect_timeout, connect).await {
            Ok(connected) => connected.map_err(classify).map_err(unsent)?,
            Err(_) => return Err(Failure::NotSent("no answer to the login".to_owned())),
        };
        Ok(self.slot(position).get_or_insert(client).clone())
    }

    /// Makes one call with a deadline: on the endpoint in use, and then on each other one if the request was
    /// certainly not applied, or as `repeat` allows.
    pub(super) async fn call<T, F, Fut>(&self, repeat: Repeat, f: F) -> Result<T>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        let deadline = Instant::now() + self.request_timeout();
        let mut renewed = None;
        let mut endpoints_left = self.shared.clients.len();
        loop {
            let position = *self.shared.position.borrow();
            let attempt = async {
                let client = self.client(position).await?;
                f(client).map_err(classify).await
            };
            let Ok(result) = timeout_at(deadline, attempt).await else {
                self.abandon(position);
                return Err(no_answer(format!(
                    "none within {:?}",
                    self.request_timeout()
                )));
            };
            let failure = match result {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            let error = match failure {
                // Each endpoint has its own client, and each client its own token.
                Failure::Token(reason) if renewed == Some(position) => return Err(denied(reason)),
                Failure::Token(_) => {
                    renewed = Some(position);
                    self.renew_token(position).await?;
                    continue;
                }
                Failure::NotSent(reason) => {
                    self.leave(position);
                    self.unreachable(reason)
                }
                Failure::NoLeader(reason) => {
                    self.leave(position);
                    Error::Unavailable {
                        store: STORE,
                        reason,
                    }
                }
                Failure::Final(error @ Error::NoAnswer { .. }) => {
                    self.leave(position);
                    if repeat == Repeat::IfNotApplied {
                        return Err(error);
                    }
                    error
                }
                Failure::Final(error) => return Err(error),
            };
            endpoints_left -= 1;
            if endpoints_left == 0 {
                return Err(error);
            }
        }
    }

    /// Requests a new token.
    pub(super) async fn renew_token(&self, position: Position) -> Result<()> {
        let client = self
            .client(position)
            .await
            .map_err(|failure| self.error_of(failure))?;
        match timeout(self.shared.connect_timeout, client.refresh_token()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.error_of(unsent(classify(error)))),
            Err(_) => Err(self.unreachable("no answer to the login".to_owned())),
        }
    }

    /// The error of a failed attempt that is not repeated.
    pub(super) fn error_of(&self, failure: Failure) -> Error {
        match failure {
            Failure::NotSent(reason) => self.unreachable(reason),
            Failure::NoLeader(reason) => Error::Unavailable {
                store: STORE,
                reason,
            },
            Failure::Token(reason) => denied(reason),
            Failure::Final(error) => error,
        }
    }

    fn unreachable(&self, reason: String) -> Error {
        Error::Unreachable {
            store: STORE,
            endpoints: self.endpoints(),
            reason,
        }
    }

    /// Checks whether any endpoint answers within [`OPEN_TIMEOUT`], when a driver is opened.
    pub(super) async fn probe(&self, key: String) -> Result<()> {
        let mut last = self.unreachable("no endpoint answered".to_owned());
        for _ in 0..self.shared.clients.len() {
            let position = *self.shared.position.borrow();
            let probe = async {
                let mut client = self.client(position).await?;
                client
                    .get(key.as_str(), None)
                    .await
                    .map(drop)
                    .map_err(classify)
            };
            last = match timeout(self.shared.connect_timeout, probe).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(Failure::Final(error @ Error::Denied { .. }))) => return Err(error),
                Ok(Err(failure)) => match self.error_of(failure) {
                    // A read is never applied.
                    Error::NoAnswer { reason, .. } => self.unreachable(reason),
                    error => error,
                },
                Err(_) => {
                    *self.slot(position) = None;
                    self.unreachable(format!(
                        "no answer within {:?}",
                        self.shared.connect_timeout
                    ))
                }
            };
            self.leave(position);
        }
        Err(last)
    }
}

fn denied(reason: String) -> Error {
    Error::Denied {
        store: STORE,
        reason,
    }
}

/// Marks a failed token request as not sent: the caller's own request was not sent.
fn unsent(failure: Failure) -> Failure {
    match failure {
        Failure::Final(Error::NoAnswer { reason, .. }) => Failure::NotSent(reason),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tonic::Status;

    use super::*;

    #[tokio::test]
    async fn a_token_is_renewed_at_each_endpoint_before_access_counts_as_denied() {
        let endpoints = ["http://127.0.0.1:1", "http://127.0.0.1:2"].map(str::to_owned);
        let connection = Connection::new(EtcdOptions {
            endpoints: endpoints.into(),
            ..EtcdOptions::default()
        });
        let made = AtomicUsize::new(0);
        let call = connection.call(Repeat::Always, |_client| {
            let answer = match made.fetch_add(1, Ordering::Relaxed) {
                0 | 2 => Err(Status::unauthenticated("etcdserver: invalid auth token")),
                1 => Err(Status::unavailable("etcdserver: no leader")),
                _ => Ok(()),
            };
            async move { answer.map_err(etcd_client::Error::GRpcStatus) }
        });
        let answered = call.await;
        assert!(answered.is_ok(), "{answered:?}");
    }
}
