//! A connection to the ensemble that outlives its sessions.
//!
//! It owns the newest session and the tasks that use it; one of these replaces a session that ended for good.
//! Invariant: the directories exist before a session is published. While there is no session, requests fail with
//! `Unavailable`, and those that need the ended session with `SessionLost`.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::ZooKeeperOptions;
use super::session::{Session, unavailable};
use crate::election::Nonce;
use crate::error::{Error, Result};
use crate::keys::Kinds;
use crate::retry::Backoff;

/// A watch of the newest session, if there is one.
pub(super) type Sessions = watch::Receiver<Option<Arc<Session>>>;

/// A connection that gets a new session whenever the old one ended. Dropping it closes its session.
pub(super) struct Connection {
    root: String,
    current: Arc<watch::Sender<Option<Arc<Session>>>>,
    tasks: Mutex<JoinSet<()>>,
    request_timeout: Duration,
}

impl Connection {
    /// Gets the first session and creates the directories, those of `kinds` too. `slowest`: the longest pause
    /// between two attempts to get a later one.
    pub(super) async fn open(
        options: ZooKeeperOptions,
        kinds: Option<Kinds>,
        slowest: Duration,
    ) -> Result<Connection> {
        let root = options.root()?;
        let request_timeout = options.request_timeout;
        let session = Arc::new(Session::open(&options, kinds).await?);
        let current = Arc::new(watch::Sender::new(Some(session)));
        let connection = Connection {
            root,
            current,
            tasks: Mutex::default(),
            request_timeout,
        };
        connection.spawn(supervise(
            options,
            kinds,
            slowest,
            connection.current.clone(),
        ));
        Ok(connection)
    }

    /// Runs a task that ends with the connection.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.lock().spawn(task);
    }

    /// The absolute path of a node that is named relative to the namespace.
    pub(super) fn path(&self, relative: &str) -> String {
        format!("{}/{relative}", self.root)
    }

    /// The newest session, if it is connected.
    pub(super) fn session(&self) -> Result<Arc<Session>> {
        let session = self.current.borrow().clone();
        let session = session.ok_or_else(|| unavailable("there is no session"))?;
        session.connected()?;
        Ok(session)
    }

    /// The session with this nonce, if it is connected; `SessionLost` if it ended.
    pub(super) fn session_of(&self, nonce: &Nonce) -> Result<Arc<Session>> {
        let session = self.current.borrow().clone();
        match session {
            Some(session) if session.nonce() == nonce && !session.state().is_terminated() => {
                session.connected()?;
                Ok(session)
            }
            Some(_) | None => Err(Error::SessionLost),
        }
    }

    /// A watch of the newest session.
    pub(super) fn sessions(&self) -> Sessions {
        self.current.subscribe()
    }

    /// Ends the tasks and the session, and waits until the server has closed it, within the request timeout.
    pub(super) async fn close(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
        let Some(session) = self.current.send_replace(None) else {
            return;
        };
        let mut states = session.states();
        drop(session);
        let closed = async {
            while !states.state().is_terminated() {
                states.changed().await;
            }
        };
        if tokio::time::timeout(self.request_timeout, closed)
            .await
            .is_err()
        {
            tracing::warn!(
                "the ZooKeeper session could not be closed in time: it expires by itself"
            );
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The tasks end with their set.
        self.current.send_replace(None);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

/// Replaces each session that ended with a new one.
async fn supervise(
    options: ZooKeeperOptions,
    kinds: Option<Kinds>,
    slowest: Duration,
    current: Arc<watch::Sender<Option<Arc<Session>>>>,
) {
    loop {
        let Some(mut states) = current.borrow().as_ref().map(|it| it.states()) else {
            return;
        };
        let mut state = states.state();
        while !state.is_terminated() {
            state = states.changed().await;
        }
        tracing::warn!(%state, "the ZooKeeper session ended: requesting another one");
        current.send_replace(None);
        // Often enough to be back before the old session expires on the servers: after an outage of the
        // ensemble this gives a suspended leader the first chance.
        let slowest = slowest.min(options.session_timeout / 4);
        let mut backoff = Backoff::new(Duration::from_millis(100).min(slowest), slowest);
        let mut last_logged = String::new();
        let session = loop {
            match Session::open(&options, kinds).await {
                Ok(session) => break session,
                Err(error) => {
                    let reason = error.to_string();
                    if reason != last_logged {
                        tracing::warn!(%reason, "no ZooKeeper session: retrying until there is one");
                        last_logged = reason;
                    }
                    tokio::time::sleep(backoff.next_delay()).await;
                }
            }
        };
        current.send_replace(Some(Arc::new(session)));
    }
}
