//! The ZooKeeper backend, on real servers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;
use zookeeper_client::Client;

use super::super::{CaseResult, OpenElection, Subject};
use super::Place;
use super::gates::Gates;
use super::network::Network;
use crate::clock::Clock;
use crate::election::{ElectionDriver, ProcessId};
use crate::store::CoordinationStore;
use crate::testing::proxy::TcpProxy;
use crate::testing::servers::{ZooKeeperEnsemble, ZooKeeperServer, ZooKeeperServerOptions};
use crate::zookeeper::{ZooKeeperOptions, open_election, open_store};

#[derive(Debug)]
pub(super) struct ZooKeeperSubject {
    gates: Gates,
    network: Network,
    /// Past all wires.
    direct: String,
    namespace: String,
    lease: Duration,
}

async fn shared() -> CaseResult<&'static ZooKeeperServer> {
    static SERVER: OnceCell<ZooKeeperServer> = OnceCell::const_new();
    let server =
        SERVER.get_or_try_init(|| ZooKeeperServer::start(ZooKeeperServerOptions::default()));
    Ok(server.await?)
}

impl ZooKeeperSubject {
    pub(super) async fn open(place: Place, namespace: String) -> CaseResult<ZooKeeperSubject> {
        let options = ZooKeeperServerOptions::default();
        let network = match place {
            Place::Shared => Network::new(None, vec![shared().await?.address()]),
            Place::Own => {
                let server = ZooKeeperServer::start(options).await?;
                let address = server.address();
                Network::new(Some(Box::new(server)), vec![address])
            }
            Place::Ensemble => {
                let mut ensemble = ZooKeeperEnsemble::start(3, options).await?;
                let addresses = ensemble.servers().iter().map(ZooKeeperServer::address);
                let addresses = addresses.collect();
                Network::new(Some(Box::new(ensemble)), addresses)
            }
        };
        let direct: Vec<String> = network.addresses().map(|at| at.to_string()).collect();
        let default = ZooKeeperOptions::new(Vec::new(), "").session_timeout;
        Ok(ZooKeeperSubject {
            gates: Gates::default(),
            direct: direct.join(","),
            network,
            namespace,
            lease: super::lease(Duration::from_secs(1), default),
        })
    }

    async fn options(&self, process: &ProcessId) -> CaseResult<ZooKeeperOptions> {
        Ok(ZooKeeperOptions {
            session_timeout: self.lease,
            request_timeout: Duration::from_secs(2),
            ..ZooKeeperOptions::new(self.network.endpoints(process).await?, &*self.namespace)
        })
    }
}

#[async_trait(?Send)]
impl Subject for ZooKeeperSubject {
    fn lease(&self) -> Option<Duration> {
        Some(self.lease)
    }

    async fn contender(&self, process: &ProcessId) -> CaseResult<OpenElection> {
        let options = self.options(process).await?;
        let enter = self.gates.enter(process);
        Ok(Box::new(move || {
            enter();
            Box::pin(async move {
                let election = open_election(options, Clock::Boottime, true).await?;
                Ok(Arc::new(election) as Arc<dyn ElectionDriver>)
            })
        }))
    }

    async fn observer(&self, process: &ProcessId) -> CaseResult<Arc<dyn ElectionDriver>> {
        let options = self.options(process).await?;
        Ok(Arc::new(
            open_election(options, Clock::Boottime, false).await?,
        ))
    }

    async fn store(&self, process: &ProcessId) -> CaseResult<Arc<dyn CoordinationStore>> {
        Ok(Arc::new(open_store(self.options(process).await?).await?))
    }

    async fn stop(&self, process: &ProcessId) {
        self.gates.stop(process).await;
    }

    async fn cont(&self, process: &ProcessId) {
        self.gates.cont(process);
    }

    /// Its thread never runs again, so nothing of it closes the session.
    async fn crash(&self, process: &ProcessId) {
        self.gates.stop(process).await;
    }

    async fn isolate(&self, process: &ProcessId) {
        self.network.each_proxy(process, TcpProxy::hold).await;
    }

    async fn heal(&self, process: &ProcessId) {
        self.network.each_proxy(process, TcpProxy::forward).await;
    }

    async fn interrupt(&self, process: &ProcessId) {
        self.network.interrupt(process).await;
    }

    async fn delete_leader(&self) -> CaseResult {
        let client = Client::connect(&self.direct).await?;
        let path = format!("{}/leader", self.namespace);
        client.delete(&path, None).await?;
        Ok(())
    }

    async fn lose_quorum(&self) -> CaseResult {
        self.network.servers().await?.kill_majority();
        Ok(())
    }

    async fn regain_quorum(&self) -> CaseResult {
        Ok(self.network.servers().await?.start_majority().await?)
    }

    async fn restart(&self) -> CaseResult {
        Ok(self.network.servers().await?.restart().await?)
    }

    async fn restart_wiped(&self) -> CaseResult {
        Ok(self.network.servers().await?.restart_wiped().await?)
    }
}
