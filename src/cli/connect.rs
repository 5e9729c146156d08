//! From configuration and arguments to a client of the cluster.

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
    let cluster = ClusterClient::connect_to(configuration, addresses).await?;
    let jobs = cluster.jobs().clone();
    Ok(Connection { jobs, cluster })
}
