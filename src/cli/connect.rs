//! From configuration and arguments to a client of the cluster.

use std::sync::Arc;

use tanist_ha::election::{ElectionDriver, ProcessId};
use tanist_ha::retrieval;

use crate::client::{
    ClientError, FollowedLeader, JobClient, LeaderFinder, RestClient, RetryOptions, StaticAddresses,
};
use crate::config::Configuration;
use crate::process::ha;

/// A client, and what it needs to find the leader.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) jobs: JobClient,
    /// Follows the leader for as long as it is held.
    _store: Option<Arc<dyn ElectionDriver>>,
}

/// A client that asks `addresses`; without them, the configured REST server; without that, whom the store names as leader.
pub(super) async fn connect(
    configuration: &Configuration,
    addresses: &[String],
) -> Result<Connection, ClientError> {
    let client = configuration.client();
    if !addresses.is_empty() {
        let finder = StaticAddresses(addresses.to_vec());
        return Ok(connected(configuration, finder, None));
    }
    if let Some(rest) = &client.rest {
        let finder = StaticAddresses(vec![rest.to_string()]);
        return Ok(connected(configuration, finder, None));
    }
    let process = ProcessId::new(format!("client-{:016x}", rand::random::<u64>()));
    let opening = ha::observe(configuration.ha(), &process);
    let store = tokio::time::timeout(client.timeout, opening).await;
    let store = store.map_err(|_| ClientError::Unreachable {
        waited: client.timeout,
        last: "the store that is to say who leads can't be reached; `--address` asks a JobManager \
               without it"
            .to_owned(),
    })?;
    let finder = FollowedLeader(retrieval::follow(store.observed()));
    Ok(connected(configuration, finder, Some(store)))
}

fn connected(
    configuration: &Configuration,
    finder: impl LeaderFinder,
    store: Option<Arc<dyn ElectionDriver>>,
) -> Connection {
    let client = configuration.client();
    let options = RetryOptions {
        timeout: client.timeout,
        retry_period: client.retry_period,
        ..RetryOptions::default()
    };
    Connection {
        jobs: JobClient::new(RestClient::new(Arc::new(finder), options)),
        _store: store,
    }
}
