//! The stores for leadership and jobs of clusters: real servers, or a directory. One file a kind of store: how its
//! servers are started, and how a cluster is configured to use it. `StoreKind::store_type` is the only match.
//!
//! Clusters share one etcd and one ZooKeeper, separated by cluster id. A test that breaks the server uses
//! its own server.

mod embedded;
mod etcd;
mod servers;
mod zookeeper;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use tanist_gateway::kinds;
use tanist_ha::backend::{Access, Backend};
use tanist_ha::election::{ElectionDriver, ProcessId};
use tanist_ha::store::CoordinationStore;

use self::servers::{Servers, Started};
use crate::test_all;

/// The root of the clusters' keys in a shared store.
const ROOT: &str = "/tanist";

/// Number of servers in an ensemble: the smallest number that survives the loss of one.
const MEMBERS: usize = 3;

/// The kind of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// SQLite in a directory.
    Embedded,
    /// etcd.
    Etcd,
    /// ZooKeeper.
    ZooKeeper,
}

impl StoreKind {
    fn store_type(self) -> &'static dyn StoreType {
        match self {
            StoreKind::Embedded => &embedded::Embedded,
            StoreKind::Etcd => &etcd::Etcd,
            StoreKind::ZooKeeper => &zookeeper::ZooKeeper,
        }
    }
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.store_type().name())
    }
}

/// What depends on the kind of a store.
#[async_trait(?Send)]
trait StoreType: Sync {
    /// Its name in the configuration.
    fn name(&self) -> &'static str;

    /// The option that names its servers or its directory.
    fn place_key(&self) -> &'static str;

    /// Whether it has servers.
    fn has_servers(&self) -> bool {
        true
    }

    /// The servers that all clusters share; started on first use.
    async fn shared(&self) -> anyhow::Result<Started>;

    /// A separate server.
    async fn own(&self) -> anyhow::Result<Started>;

    /// [`MEMBERS`] separate servers.
    async fn ensemble(&self) -> anyhow::Result<Started>;

    /// The settings of `tanist` besides type and place; `shortest`: with the shortest lease that it grants.
    fn settings(&self, place: &Place<'_>, shortest: bool) -> Vec<(&'static str, String)>;

    /// The store of a cluster, with short leases.
    fn backend(&self, place: &Place<'_>, cluster_id: &str) -> Arc<dyn Backend>;
}

/// Where a store is, and as which user it is used.
struct Place<'a> {
    endpoint: &'a str,
    user: Option<&'a (String, String)>,
    directory: &'a Path,
}

impl Place<'_> {
    fn endpoints(&self) -> Vec<String> {
        self.endpoint.split(',').map(str::to_owned).collect()
    }
}

/// The addresses of an ensemble in one text.
fn joined(addresses: &[SocketAddr]) -> String {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    addresses.join(",")
}

/// A store on which a cluster can be started.
#[derive(Debug)]
pub struct Store {
    kind: StoreKind,
    /// Host and port of each server, separated by commas; empty for a directory.
    endpoint: String,
    /// User and password, if the store requires them.
    user: Option<(String, String)>,
    servers: Box<dyn Servers>,
}

impl Store {
    /// The store of that kind that clusters share; started on first use. An embedded store is not shared.
    pub async fn shared(kind: StoreKind) -> anyhow::Result<Store> {
        Ok(Store::on(kind, kind.store_type().shared().await?))
    }

    /// A separate server, which the test may kill and restart.
    pub async fn own(kind: StoreKind) -> anyhow::Result<Store> {
        Ok(Store::on(kind, kind.store_type().own().await?))
    }

    /// Three separate servers, which the test may kill and restart one by one. Not for the embedded store.
    pub async fn ensemble(kind: StoreKind) -> anyhow::Result<Store> {
        Ok(Store::on(kind, kind.store_type().ensemble().await?))
    }

    /// A store on these servers, without users.
    fn on(kind: StoreKind, (endpoint, servers): Started) -> Store {
        Store {
            kind,
            endpoint,
            user: None,
            servers,
        }
    }

    /// Another server with the same data, or the same files in `to`: the two differ only in their location.
    pub(crate) async fn copy(&self, from: &Path, to: &Path) -> anyhow::Result<Store> {
        Ok(Store::on(self.kind, self.servers.copy(from, to).await?))
    }

    /// The kind of the store.
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Host and port of the server; for an ensemble those of all servers, separated by commas.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The option that names the server.
    pub(crate) fn endpoint_key(&self) -> Option<&'static str> {
        let store_type = self.kind.store_type();
        store_type.has_servers().then(|| store_type.place_key())
    }

    /// The option that says where the store is, with its value: the servers, or `directory`.
    pub(crate) fn place_setting(&self, directory: &Path) -> (String, String) {
        let store_type = self.kind.store_type();
        let value = match store_type.has_servers() {
            true => self.endpoint.clone(),
            false => directory.to_string_lossy().into_owned(),
        };
        (store_type.place_key().to_owned(), value)
    }

    /// Sends SIGKILL to the server; its data stays.
    pub fn kill_server(&mut self) -> anyhow::Result<()> {
        self.servers.kill()
    }

    /// Sends SIGSTOP to the server: it stops answering, but time continues for it.
    pub fn stop_server(&self) -> anyhow::Result<()> {
        self.servers.stop()
    }

    /// Sends SIGCONT after [`Store::stop_server`].
    pub fn cont_server(&self) -> anyhow::Result<()> {
        self.servers.cont()
    }

    /// Starts the server again with its data, killing it first if it is running, and waits until it is ready.
    pub async fn restart_server(&mut self) -> anyhow::Result<()> {
        self.servers.restart().await
    }

    /// Fills the server up to its quota, which has to be small.
    pub async fn fill(&self) -> anyhow::Result<()> {
        self.servers.fill().await
    }

    /// Repairs a full server as an operator does.
    pub async fn make_room(&self) -> anyhow::Result<()> {
        self.servers.make_room().await
    }

    /// Whether the server has ended by itself, or was killed.
    pub fn has_server_ended(&mut self) -> anyhow::Result<bool> {
        self.servers.has_ended()
    }

    /// Index of the leading server of an ensemble. All must be running.
    pub async fn leading_member(&self) -> anyhow::Result<usize> {
        self.servers.leading_member().await
    }

    /// Sends SIGKILL to one server of an ensemble; its data stays.
    pub fn kill_member(&mut self, member: usize) -> anyhow::Result<()> {
        self.servers.kill_member(member)
    }

    /// Starts one server of an ensemble again with its data, and waits until it serves, which needs a quorum.
    pub async fn restart_member(&mut self, member: usize) -> anyhow::Result<()> {
        self.servers.restart_member(member).await
    }

    /// The settings with which `tanist` uses this store. Leases are as short as the store grants, or the
    /// defaults if those are requested or the long tests are enabled.
    pub fn settings(&self, directory: &Path, defaults: bool) -> Vec<(String, String)> {
        let shortest = !defaults && !test_all();
        let own = self.kind.store_type();
        let own = own.settings(&self.place(directory), shortest).into_iter();
        let kind = ("high-availability.type".to_owned(), self.kind.to_string());
        [kind, self.place_setting(directory)]
            .into_iter()
            .chain(own.map(|(key, value)| (key.to_owned(), value)))
            .collect()
    }

    /// Observes the election of a cluster, without contending. Creates the store if no JobManager has done that yet.
    pub(crate) async fn observe(
        &self,
        directory: &Path,
        cluster_id: &str,
    ) -> anyhow::Result<Arc<dyn ElectionDriver>> {
        let backend = self.backend(directory, cluster_id);
        if backend.absence().is_some() {
            backend.open_store(kinds::ALL, Access::Contend).await?;
        }
        let observer = ProcessId::new("observer");
        Ok(backend.open_election(observer, Access::Observe).await?)
    }

    /// Opens the records of a cluster.
    pub(crate) async fn records(
        &self,
        directory: &Path,
        cluster_id: &str,
    ) -> anyhow::Result<Arc<dyn CoordinationStore>> {
        let backend = self.backend(directory, cluster_id);
        let opened = backend.open_store(kinds::ALL, Access::Contend).await;
        opened.with_context(|| format!("cannot open the records in {}", self.kind))
    }

    fn backend(&self, directory: &Path, cluster_id: &str) -> Arc<dyn Backend> {
        let store_type = self.kind.store_type();
        store_type.backend(&self.place(directory), cluster_id)
    }

    fn place<'a>(&'a self, directory: &'a Path) -> Place<'a> {
        Place {
            endpoint: &self.endpoint,
            user: self.user.as_ref(),
            directory,
        }
    }
}
