//! The etcd backend, on real servers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::Client;
use tokio::sync::OnceCell;

use super::super::{CaseResult, OpenElection, Subject};
use super::Place;
use super::gates::Gates;
use super::network::Network;
use crate::clock::Clock;
use crate::election::{ElectionDriver, ProcessId};
use crate::etcd::{EtcdOptions, open_election, open_store};
use crate::store::CoordinationStore;
use crate::testing::proxy::TcpProxy;
use crate::testing::servers::{EtcdCluster, EtcdServer, EtcdServerOptions};

#[derive(Debug)]
pub(super) struct EtcdSubject {
    gates: Gates,
    network: Network,
    /// Past all wires.
    direct: Vec<String>,
    namespace: String,
    lease: Duration,
}

async fn shared() -> CaseResult<&'static EtcdServer> {
    static SERVER: OnceCell<EtcdServer> = OnceCell::const_new();
    let server = SERVER.get_or_try_init(|| EtcdServer::start(EtcdServerOptions::default()));
    Ok(server.await?)
}

impl EtcdSubject {
    pub(super) async fn open(place: Place, namespace: String) -> CaseResult<EtcdSubject> {
        let options = EtcdServerOptions::default();
        let network = match place {
            Place::Shared => Network::new(None, vec![shared().await?.address()]),
            Place::Own => {
                let server = EtcdServer::start(options).await?;
                let address = server.address();
                Network::new(Some(Box::new(server)), vec![address])
            }
            Place::Ensemble => {
                let mut cluster = EtcdCluster::start(3, options).await?;
                let addresses = cluster.servers().iter().map(EtcdServer::address).collect();
                Network::new(Some(Box::new(cluster)), addresses)
            }
        };
        let direct = network.addresses().map(|address| address.to_string());
        Ok(EtcdSubject {
            gates: Gates::default(),
            direct: direct.collect(),
            network,
            namespace,
            lease: super::lease(Duration::from_secs(2), EtcdOptions::default().lease_ttl),
        })
    }

    async fn options(&self, process: &ProcessId) -> CaseResult<EtcdOptions> {
        Ok(EtcdOptions {
            endpoints: self.network.endpoints(process).await?,
            namespace: self.namespace.clone(),
            lease_ttl: self.lease,
            request_timeout: Duration::from_secs(2),
            ..EtcdOptions::default()
        })
    }
}

#[async_trait(?Send)]
impl Subject for EtcdSubject {
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

    /// Its thread never runs again, so nothing of it gives the lease back.
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
        let mut client = Client::connect(&self.direct, None).await?;
        let key = format!("{}/leader", self.namespace);
        let deleted = client.delete(key, None).await?.deleted();
        assert_eq!(deleted, 1, "there was a leader");
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
