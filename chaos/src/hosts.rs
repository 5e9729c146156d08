//! The hosts of a cluster with one host per process: their network, and their connections to the store.
//!
//! The store's server runs beside the test, on its loopback. A proxy for each process makes it reachable
//! on a host of the network, so that the connection to the store can be cut like any other, and the
//! traffic of a single process to it can be held.

use std::collections::BTreeMap;

use tanist_ha::testing::proxy::TcpProxy;

use crate::network::{Host, Network};
use crate::store::Store;

/// The port of the first proxy.
const FIRST_PORT: u16 = 4000;

/// The network of a cluster, and a proxy to the store for each process. Owned by the cluster.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// By the host of the process that uses it; empty for a store without server.
    pub(crate) store_proxies: BTreeMap<Host, TcpProxy>,
    /// The option that names the store's server.
    store_key: Option<&'static str>,
    // Declared after the proxies, which listen on it, so that it is dropped after them.
    pub(crate) network: Network,
}

impl Hosts {
    /// Creates hosts for this number of processes on `store`.
    pub(crate) fn create(
        store: &Store,
        jobmanagers: usize,
        taskmanagers: usize,
    ) -> anyhow::Result<Hosts> {
        let network = Network::create(jobmanagers, taskmanagers)?;
        let processes = (0..jobmanagers)
            .map(Host::JobManager)
            .chain((0..taskmanagers).map(Host::TaskManager));
        let mut store_proxies = BTreeMap::new();
        let store_key = store.endpoint_key();
        if store_key.is_some() {
            let target = store.endpoint().parse()?;
            for (port, host) in (FIRST_PORT..).zip(processes) {
                let listen = network.listen_on(Host::Store, port)?;
                store_proxies.insert(host, TcpProxy::listening(listen, target)?);
            }
        }
        Ok(Hosts {
            store_proxies,
            store_key,
            network,
        })
    }

    /// The settings of the process on `host`.
    pub(crate) fn settings(&self, host: Host) -> Vec<(&'static str, String)> {
        let address = host.address().to_string();
        let keys: &[&str] = match host {
            Host::JobManager(_) => &[
                "jobmanager.bind-host",
                "jobmanager.rpc.address",
                "rest.bind-address",
                "rest.address",
            ],
            Host::TaskManager(_) => &["taskmanager.bind-host", "taskmanager.host"],
            Host::Store | Host::Test => &[],
        };
        let mut settings: Vec<_> = keys.iter().map(|key| (*key, address.clone())).collect();
        settings.push(("security.insecure", "true".to_owned()));
        if let (Some(key), Some(proxy)) = (self.store_key, self.store_proxies.get(&host)) {
            settings.push((key, proxy.address().to_string()));
        }
        settings
    }
}
