//! The ZooKeeper backend: an election and a record store, each on its own session.
//!
//! Nodes are as in [`crate::keys`], below the namespace. The token of a term is the data version of `epoch`;
//! `leader` and `members/<process>` are ephemeral. Every write of a term is one multi that checks the version
//! of `epoch` and, by the node `epoch/<incarnation>`, the cluster's incarnation; by the data version of
//! `changes`, a repeated transaction is applied at most once.
//!
//! This backend does not rely on persistent watches (the client library loses them at a reconnect), nor on
//! the library's lock recipe or retries, nor on the order in which an abandoned request arrives. A session that
//! ended is replaced (`client`); requests of the ended one fail with `SessionLost` or `NoAnswer`.

mod backend;
mod client;
#[cfg(feature = "testing")]
pub mod conformance;
mod election;
mod follow;
mod health;
mod multi;
mod nodes;
mod permissions;
mod session;
mod store;
#[cfg(feature = "testing")]
pub mod test_servers;
#[cfg(all(test, feature = "testing"))]
mod tests;

use std::fmt;
use std::time::Duration;

pub use election::ZooKeeperElection;
pub use store::ZooKeeperStore;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::keys::Kinds;
use client::Connection;

/// The longest pause between two attempts to get a session, for contenders and for records. Short, so that a
/// process leads soon after the ensemble is back.
const SLOWEST_RETRY: Duration = Duration::from_millis(250);
/// The same for observers. Longer, because there may be many of them, to spare the servers.
const SLOWEST_RETRY_OF_OBSERVERS: Duration = Duration::from_secs(2);

/// Options of a ZooKeeper ensemble.
#[derive(Clone)]
pub struct ZooKeeperOptions {
    /// The servers, `host:port` each.
    pub quorum: Vec<String>,
    /// The directory of the cluster, like `/tanist/my-cluster`, up to 200 bytes; created if missing.
    pub namespace: String,
    /// User and password of the scheme `digest`. Every created node then belongs to this user alone,
    /// including missing parents of the namespace.
    pub digest: Option<(String, String)>,
    /// The requested session timeout. The server grants between 2 and 20 of its ticks.
    pub session_timeout: Duration,
    /// Timeout for opening, and for each later attempt to get a session.
    pub connect_timeout: Duration,
    /// Timeout for the answer to a request.
    pub request_timeout: Duration,
}

impl ZooKeeperOptions {
    /// Options with default timeouts and no credentials.
    pub fn new(quorum: Vec<String>, namespace: impl Into<String>) -> ZooKeeperOptions {
        ZooKeeperOptions {
            quorum,
            namespace: namespace.into(),
            digest: None,
            session_timeout: Duration::from_secs(6),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
        }
    }

    /// The servers, for messages.
    fn endpoints(&self) -> String {
        self.quorum.join(",")
    }

    /// The namespace as an absolute path without a trailing slash.
    fn root(&self) -> Result<String> {
        let trimmed = self.namespace.trim_matches('/');
        let component = |part: &str| {
            !part.is_empty() && part != "." && part != ".." && !part.chars().any(char::is_control)
        };
        if trimmed.len() > 200
            || !trimmed.split('/').all(component)
            || trimmed.split('/').next() == Some("zookeeper")
        {
            let namespace = &self.namespace;
            return Err(Error::Misconfigured(
                format!("{namespace:?} is no namespace: use a path like /tanist/my-cluster").into(),
            ));
        }
        Ok(format!("/{trimmed}"))
    }

    fn check(&self) -> Result<()> {
        let address = |server: &String| !server.is_empty() && !server.contains(['/', ',', ' ']);
        if self.quorum.is_empty() || !self.quorum.iter().all(address) {
            let quorum = &self.quorum;
            return Err(Error::Misconfigured(
                format!("{quorum:?} names no ZooKeeper servers: use host:port for each").into(),
            ));
        }
        if self.session_timeout.is_zero() {
            return Err(Error::Misconfigured(
                "the ZooKeeper session timeout is zero".into(),
            ));
        }
        self.root().map(|_| ())
    }
}

impl fmt::Debug for ZooKeeperOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperOptions")
            .field("quorum", &self.quorum)
            .field("namespace", &self.namespace)
            .field("user", &self.digest.as_ref().map(|(user, _)| user))
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

/// Opens the election part on its own session. Without `contends` it only observes: no lease is reported.
///
/// Fails with `Unreachable` or `Denied` within twice the connect timeout; the caller retries. Its tasks run
/// on the caller's runtime.
pub async fn open_election(
    options: ZooKeeperOptions,
    clock: Clock,
    contends: bool,
) -> Result<ZooKeeperElection> {
    options.check()?;
    let slowest = if contends {
        SLOWEST_RETRY
    } else {
        SLOWEST_RETRY_OF_OBSERVERS
    };
    let connection = Connection::open(options, None, slowest).await?;
    Ok(ZooKeeperElection::start(connection, clock, contends))
}

/// Opens the records part on its own session. `Unreachable` or `Denied` within twice the connect timeout.
pub async fn open_store(options: ZooKeeperOptions, kinds: Kinds) -> Result<ZooKeeperStore> {
    options.check()?;
    let quorum = options.quorum.clone();
    let connection = Connection::open(options, Some(kinds), SLOWEST_RETRY).await?;
    Ok(ZooKeeperStore::start(connection, kinds, quorum))
}

/// Removes all nodes of a cluster that has ended for good, including its epochs. No process may contend for
/// it after that. The namespace's parents stay.
pub async fn remove_cluster(options: ZooKeeperOptions) -> Result<()> {
    options.check()?;
    let connection = Connection::open(options, None, SLOWEST_RETRY).await?;
    let session = connection.session()?;
    let removed = nodes::remove_tree(&session, session.root()).await;
    drop(session);
    connection.close().await;
    removed
}
