//! Makes a client of the cluster from configuration and arguments.
//!
//! Without an address the client opens the store first, to find the leader. While the store does not answer, the reason
//! is shown, and after the timeout the error is [`ClientError::Unreachable`], or [`ClientError::NoCluster`] if there is
//! no store.

use std::time::Duration;

use tanist_client::{ClientError, ClusterClient, JobClient};
use tanist_config::Configuration;
use tokio::sync::watch;

use super::output::inform;

/// Timeout of a command that reads, while no JobManager accepts a connection. Commands that change something use
/// `client.timeout`.
const REACH_TIMEOUT: Duration = Duration::from_secs(5);
/// After this time without a store a command shows what it waits for.
const NOTICE_AFTER: Duration = Duration::from_secs(1);

/// A client and the connection to the store that finds the leader.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) jobs: JobClient,
    pub(super) cluster: ClusterClient,
}

/// A client for a command that reads. It asks `addresses`; without them, the configured REST server; without
/// that, the leader that the store names.
pub(super) async fn connect(
    configuration: &Configuration,
    addresses: &[String],
) -> Result<Connection, ClientError> {
    connect_within(configuration, addresses, Some(REACH_TIMEOUT)).await
}

/// The same for a command that changes something: it is retried for `client.timeout`.
pub(super) async fn connect_to_change(
    configuration: &Configuration,
    addresses: &[String],
) -> Result<Connection, ClientError> {
    connect_within(configuration, addresses, None).await
}

async fn connect_within(
    configuration: &Configuration,
    addresses: &[String],
    reach_timeout: Option<Duration>,
) -> Result<Connection, ClientError> {
    let waits = watch::Sender::new(None);
    let connecting = open(configuration, addresses, reach_timeout, &waits);
    let mut reasons = waits.subscribe();
    // A store that is available is open before the notice is due.
    let quiet = async {
        tokio::time::sleep(NOTICE_AFTER).await;
        reasons.mark_changed();
        reasons
    };
    let mut connecting = std::pin::pin!(connecting);
    let reasons = tokio::select! {
        connected = &mut connecting => return connected,
        reasons = quiet => reasons,
    };
    reporting(reasons, connecting).await
}

/// The same; reports to `waits` why the store can't be opened yet.
pub(super) async fn connect_reporting(
    configuration: &Configuration,
    addresses: &[String],
    waits: &watch::Sender<Option<String>>,
) -> Result<Connection, ClientError> {
    open(configuration, addresses, None, waits).await
}

async fn open(
    configuration: &Configuration,
    addresses: &[String],
    reach_timeout: Option<Duration>,
    waits: &watch::Sender<Option<String>>,
) -> Result<Connection, ClientError> {
    let cluster =
        ClusterClient::connect_reporting(configuration, addresses, reach_timeout, waits).await?;
    let jobs = cluster.jobs().clone();
    Ok(Connection { jobs, cluster })
}

/// Shows the reasons for waiting while `doing` runs.
pub(super) async fn reporting<T>(
    mut waits: watch::Receiver<Option<String>>,
    doing: impl Future<Output = T>,
) -> T {
    let tell = async {
        while waits.changed().await.is_ok() {
            if let Some(reason) = &*waits.borrow_and_update() {
                inform(format_args!("waits: {reason}"));
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        done = doing => done,
        never = tell => never,
    }
}
