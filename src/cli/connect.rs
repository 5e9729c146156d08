//! From configuration and arguments to a client of the cluster.

use tokio::sync::watch;

use crate::client::{ClientError, ClusterClient, JobClient};
use crate::config::Configuration;

/// A client, and what it needs to find the leader.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) jobs: JobClient,
    pub(super) cluster: ClusterClient,
}

/// A client that asks `addresses`; without them, the configured REST server; without that, whom the store names as leader.
pub(super) async fn connect(
    configuration: &Configuration,
    addresses: &[String],
) -> Result<Connection, ClientError> {
    connect_telling(configuration, addresses, &watch::Sender::new(None)).await
}

/// The same, which tells why the store can't be opened so far.
pub(super) async fn connect_telling(
    configuration: &Configuration,
    addresses: &[String],
    waits: &watch::Sender<Option<String>>,
) -> Result<Connection, ClientError> {
    let cluster = ClusterClient::connect_telling(configuration, addresses, waits).await?;
    let jobs = cluster.jobs().clone();
    Ok(Connection { jobs, cluster })
}
