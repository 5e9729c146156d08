//! A backend on real servers. etcd and ZooKeeper differ in their options, and in the way in which a test writes to
//! them without the clients under test ([`ServedBackend`]); the operations on servers, wires and processes are the
//! same. A subject owns its [`Network`] and the election threads that it stops.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::gates::Gates;
use super::network::Network;
use super::{CaseResult, OpenElection, Subject, until_definite};
use crate::backend::{Access, Backend};
use crate::election::{ElectionDriver, ProcessId};
use crate::keys::Key;
use crate::store::CoordinationStore;
use crate::testing::kinds::KINDS;
use crate::testing::proxy::TcpProxy;

/// The request timeout.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// A kind of server, with its clients.
pub(crate) trait ServedBackend: fmt::Debug + Send + Sync + 'static {
    /// Endpoints, namespace and lease of a client.
    type Options: Backend;

    fn options(endpoints: Vec<String>, namespace: &str, lease: Duration) -> Self::Options;

    /// Overwrites or deletes an existing key, bypassing all clients.
    fn overwrite(
        addresses: Vec<String>,
        key: String,
        value: Option<String>,
    ) -> impl Future<Output = CaseResult>;

    /// Deletes the existing leader key, bypassing all clients.
    fn delete_leader(addresses: Vec<String>, namespace: &str) -> impl Future<Output = CaseResult>;

    /// Puts an item, or deletes an existing one, bypassing all clients.
    fn write_by_hand(
        addresses: Vec<String>,
        path: String,
        value: Option<&[u8]>,
    ) -> impl Future<Output = CaseResult>;
}

/// A namespace on such servers.
#[derive(Debug)]
pub(crate) struct ServedSubject<B> {
    gates: Gates,
    network: Network,
    namespace: String,
    lease: Duration,
    _backend: std::marker::PhantomData<B>,
}

impl<B: ServedBackend> ServedSubject<B> {
    pub(crate) fn new(network: Network, namespace: String, lease: Duration) -> ServedSubject<B> {
        ServedSubject {
            gates: Gates::default(),
            network,
            namespace,
            lease,
            _backend: std::marker::PhantomData,
        }
    }

    async fn options(&self, process: &ProcessId) -> CaseResult<B::Options> {
        let endpoints = self.network.endpoints(process).await?;
        Ok(B::options(endpoints, &self.namespace, self.lease))
    }
}

#[async_trait(?Send)]
impl<B: ServedBackend> Subject for ServedSubject<B> {
    fn lease(&self) -> Option<Duration> {
        Some(self.lease)
    }

    async fn contender(&self, process: &ProcessId) -> CaseResult<OpenElection> {
        let options = self.options(process).await?;
        let id = process.clone();
        let enter = self.gates.enter(process);
        Ok(Box::new(move || {
            enter();
            Box::pin(async move {
                until_definite(async || options.open_election(id.clone(), Access::Contend).await)
                    .await
            })
        }))
    }

    async fn observer(&self, process: &ProcessId) -> CaseResult<Arc<dyn ElectionDriver>> {
        let options = self.options(process).await?;
        let open = async || {
            options
                .open_election(process.clone(), Access::Observe)
                .await
        };
        Ok(until_definite(open).await?)
    }

    async fn store(&self, process: &ProcessId) -> CaseResult<Arc<dyn CoordinationStore>> {
        let options = self.options(process).await?;
        Ok(until_definite(async || options.open_store(KINDS, Access::Contend).await).await?)
    }

    async fn stop(&self, process: &ProcessId) {
        self.gates.stop(process).await;
    }

    async fn cont(&self, process: &ProcessId) {
        self.gates.cont(process);
    }

    /// Stops its thread for good, so that it never gives the lease back or closes the session.
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

    /// Bypasses all wires.
    async fn delete_leader(&self) -> CaseResult {
        let addresses = self.network.addresses().map(|at| at.to_string()).collect();
        B::delete_leader(addresses, &self.namespace).await
    }

    async fn overwrite(&self, path: &str, value: Option<&str>) -> CaseResult {
        let addresses = self.network.addresses().map(|at| at.to_string()).collect();
        let key = format!("{}/{path}", self.namespace);
        B::overwrite(addresses, key, value.map(str::to_owned)).await
    }

    async fn write_by_hand(&self, key: &Key, value: Option<&[u8]>) -> CaseResult {
        let addresses = self.network.addresses().map(|at| at.to_string()).collect();
        let path = format!("{}/{key}", self.namespace);
        B::write_by_hand(addresses, path, value).await
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
