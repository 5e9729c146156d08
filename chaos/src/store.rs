//! The stores for leadership and jobs of clusters: real servers, or a directory.
//!
//! Clusters share one etcd and one ZooKeeper, separated by cluster id. A test that breaks the server uses
//! its own server.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tanist_gateway::kinds;
use tanist_ha::backend::{Access, Backend};
use tanist_ha::election::{ElectionDriver, ProcessId};
use tanist_ha::embedded::EmbeddedOptions;
use tanist_ha::etcd::EtcdOptions;
use tanist_ha::store::CoordinationStore;
use tanist_ha::testing::servers::{
    EtcdCluster, EtcdServer, EtcdServerOptions, ZooKeeperEnsemble, ZooKeeperServer,
    ZooKeeperServerOptions,
};
use tanist_ha::zookeeper::ZooKeeperOptions;
use tokio::sync::OnceCell;

use crate::test_all;

/// The root of the clusters' keys in a shared store.
const ROOT: &str = "/tanist";

static SHARED_ETCD: OnceCell<EtcdServer> = OnceCell::const_new();
static SHARED_ZOOKEEPER: OnceCell<ZooKeeperServer> = OnceCell::const_new();

/// Number of servers in an ensemble: the smallest number that survives the loss of one.
const MEMBERS: usize = 3;
/// Heap of each Java process of an ensemble, in MiB: three of them run beside everything else.
const MEMBER_HEAP_MIB: u32 = 64;

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

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreKind::Embedded => "embedded",
            StoreKind::Etcd => "etcd",
            StoreKind::ZooKeeper => "zookeeper",
        })
    }
}

/// A store on which a cluster can be started.
#[derive(Debug)]
pub struct Store {
    kind: StoreKind,
    /// Host and port of each server, separated by commas; unused for a directory.
    endpoint: String,
    /// User and password, if the store requires them.
    user: Option<(String, String)>,
    pub(crate) server: Server,
}

#[derive(Debug)]
pub(crate) enum Server {
    /// The cluster's own directory: there is no server.
    None,
    Shared,
    Etcd(Box<EtcdServer>),
    ZooKeeper(Box<ZooKeeperServer>),
    EtcdCluster(EtcdCluster),
    ZooKeeperEnsemble(ZooKeeperEnsemble),
}

impl Store {
    /// The store of that kind that clusters share; started on first use. An embedded store is not shared.
    pub async fn shared(kind: StoreKind) -> anyhow::Result<Store> {
        let endpoint = match kind {
            StoreKind::Embedded => String::new(),
            StoreKind::Etcd => {
                let start = || EtcdServer::start(EtcdServerOptions::default());
                SHARED_ETCD
                    .get_or_try_init(start)
                    .await?
                    .address()
                    .to_string()
            }
            StoreKind::ZooKeeper => {
                let start = || ZooKeeperServer::start(ZooKeeperServerOptions::default());
                SHARED_ZOOKEEPER
                    .get_or_try_init(start)
                    .await?
                    .address()
                    .to_string()
            }
        };
        let server = match kind {
            StoreKind::Embedded => Server::None,
            StoreKind::Etcd | StoreKind::ZooKeeper => Server::Shared,
        };
        Ok(Store {
            kind,
            endpoint,
            user: None,
            server,
        })
    }

    /// A separate server, which the test may kill and restart.
    pub async fn own(kind: StoreKind) -> anyhow::Result<Store> {
        match kind {
            StoreKind::Embedded => Store::shared(kind).await,
            StoreKind::Etcd => Store::own_etcd(EtcdServerOptions::default()).await,
            StoreKind::ZooKeeper => Store::own_zookeeper(ZooKeeperServerOptions::default()).await,
        }
    }

    /// Three separate servers, which the test may kill and restart one by one. Not for the embedded store.
    pub async fn ensemble(kind: StoreKind) -> anyhow::Result<Store> {
        let (endpoints, server) = match kind {
            StoreKind::Embedded => bail!("the embedded store has no servers"),
            StoreKind::Etcd => {
                let cluster = EtcdCluster::start(MEMBERS, EtcdServerOptions::default()).await?;
                (cluster.addresses(), Server::EtcdCluster(cluster))
            }
            StoreKind::ZooKeeper => {
                let options = ZooKeeperServerOptions {
                    heap_mib: MEMBER_HEAP_MIB,
                    ..ZooKeeperServerOptions::default()
                };
                let ensemble = ZooKeeperEnsemble::start(MEMBERS, options).await?;
                (ensemble.addresses(), Server::ZooKeeperEnsemble(ensemble))
            }
        };
        let endpoints: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
        Ok(Store {
            kind,
            endpoint: endpoints.join(","),
            user: None,
            server,
        })
    }

    /// A ZooKeeper that was started elsewhere, at `host:port`.
    pub fn zookeeper_at(endpoint: String) -> Store {
        Store {
            kind: StoreKind::ZooKeeper,
            endpoint,
            user: None,
            server: Server::Shared,
        }
    }

    /// A separate ZooKeeper.
    pub async fn own_zookeeper(options: ZooKeeperServerOptions) -> anyhow::Result<Store> {
        let server = ZooKeeperServer::start(options).await?;
        let endpoint = server.address().to_string();
        Ok(Store {
            kind: StoreKind::ZooKeeper,
            endpoint,
            user: None,
            server: Server::ZooKeeper(Box::new(server)),
        })
    }

    /// A separate etcd, with a user if the options name one.
    pub async fn own_etcd(options: EtcdServerOptions) -> anyhow::Result<Store> {
        let user = options.user.clone();
        let server = EtcdServer::start(options).await?;
        let endpoint = server.address().to_string();
        let server = Server::Etcd(Box::new(server));
        Ok(Store {
            kind: StoreKind::Etcd,
            endpoint,
            user,
            server,
        })
    }

    /// A store on this server, without users.
    pub(crate) fn on(kind: StoreKind, endpoint: String, server: Server) -> Store {
        Store {
            kind,
            endpoint,
            user: None,
            server,
        }
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
        match self.kind {
            StoreKind::Embedded => None,
            StoreKind::Etcd => Some("high-availability.etcd.endpoints"),
            StoreKind::ZooKeeper => Some("high-availability.zookeeper.quorum"),
        }
    }

    /// Sends SIGKILL to the server; its data stays.
    pub fn kill_server(&mut self) -> anyhow::Result<()> {
        match &mut self.server {
            Server::Etcd(server) => server.kill(),
            Server::ZooKeeper(server) => server.kill(),
            Server::None
            | Server::Shared
            | Server::EtcdCluster(_)
            | Server::ZooKeeperEnsemble(_) => bail!("this cluster has no single server of its own"),
        }
        Ok(())
    }

    /// Sends SIGSTOP to the server: it stops answering, but time continues for it.
    pub fn stop_server(&self) -> anyhow::Result<()> {
        match &self.server {
            Server::Etcd(server) => server.stop(),
            Server::ZooKeeper(server) => server.stop(),
            Server::None
            | Server::Shared
            | Server::EtcdCluster(_)
            | Server::ZooKeeperEnsemble(_) => bail!("this cluster has no single server of its own"),
        }
        Ok(())
    }

    /// Sends SIGCONT after [`Store::stop_server`].
    pub fn cont_server(&self) -> anyhow::Result<()> {
        match &self.server {
            Server::Etcd(server) => server.cont(),
            Server::ZooKeeper(server) => server.cont(),
            Server::None
            | Server::Shared
            | Server::EtcdCluster(_)
            | Server::ZooKeeperEnsemble(_) => bail!("this cluster has no single server of its own"),
        }
        Ok(())
    }

    /// Starts the server again with its data, killing it first if it is running, and waits until it is ready.
    pub async fn restart_server(&mut self) -> anyhow::Result<()> {
        match &mut self.server {
            Server::Etcd(server) => server.restart().await?,
            Server::ZooKeeper(server) => server.restart().await?,
            Server::None
            | Server::Shared
            | Server::EtcdCluster(_)
            | Server::ZooKeeperEnsemble(_) => bail!("this cluster has no single server of its own"),
        }
        Ok(())
    }

    /// Fills etcd up to its quota, which has to be small.
    pub async fn fill(&self) -> anyhow::Result<()> {
        Ok(self.own_single_etcd()?.fill().await?)
    }

    /// Repairs a full etcd as an operator does.
    pub async fn make_room(&self) -> anyhow::Result<()> {
        Ok(self.own_single_etcd()?.make_room().await?)
    }

    fn own_single_etcd(&self) -> anyhow::Result<&EtcdServer> {
        match &self.server {
            Server::Etcd(server) => Ok(server),
            Server::None
            | Server::Shared
            | Server::ZooKeeper(_)
            | Server::EtcdCluster(_)
            | Server::ZooKeeperEnsemble(_) => bail!("this cluster has no single etcd of its own"),
        }
    }

    /// Whether the ZooKeeper process has ended by itself, or was killed.
    pub fn has_server_ended(&mut self) -> anyhow::Result<bool> {
        match &mut self.server {
            Server::ZooKeeper(server) => Ok(server.has_ended()),
            Server::None
            | Server::Shared
            | Server::Etcd(_)
            | Server::EtcdCluster(_)
            | Server::ZooKeeperEnsemble(_) => bail!("this cluster has no ZooKeeper of its own"),
        }
    }

    /// Index of the leading server of an ensemble. All must be running.
    pub async fn leading_member(&self) -> anyhow::Result<usize> {
        Ok(match &self.server {
            Server::EtcdCluster(cluster) => cluster.leader().await?,
            Server::ZooKeeperEnsemble(ensemble) => ensemble.leader().await?,
            Server::None | Server::Shared | Server::Etcd(_) | Server::ZooKeeper(_) => {
                bail!("this store is no ensemble")
            }
        })
    }

    /// Sends SIGKILL to one server of an ensemble; its data stays.
    pub fn kill_member(&mut self, member: usize) -> anyhow::Result<()> {
        match &mut self.server {
            Server::EtcdCluster(cluster) => cluster.servers()[member].kill(),
            Server::ZooKeeperEnsemble(ensemble) => ensemble.servers()[member].kill(),
            Server::None | Server::Shared | Server::Etcd(_) | Server::ZooKeeper(_) => {
                bail!("this store is no ensemble")
            }
        }
        Ok(())
    }

    /// Starts one server of an ensemble again with its data, and waits until it serves, which needs a quorum.
    pub async fn restart_member(&mut self, member: usize) -> anyhow::Result<()> {
        match &mut self.server {
            Server::EtcdCluster(cluster) => cluster.servers()[member].restart().await?,
            Server::ZooKeeperEnsemble(ensemble) => ensemble.servers()[member].restart().await?,
            Server::None | Server::Shared | Server::Etcd(_) | Server::ZooKeeper(_) => {
                bail!("this store is no ensemble")
            }
        }
        Ok(())
    }

    /// The settings with which `tanist` uses this store. Leases are as short as the store grants, or the
    /// defaults if those are requested or the long tests are enabled.
    pub fn settings(&self, directory: &Path, defaults: bool) -> Vec<(String, String)> {
        let shortest = !defaults && !test_all();
        let mut settings = vec![("high-availability.type".to_owned(), self.kind.to_string())];
        let mut set = |key: &str, value: &str| {
            settings.push((format!("high-availability.{key}"), value.to_owned()));
        };
        match self.kind {
            StoreKind::Embedded => set("embedded.dir", &directory.to_string_lossy()),
            StoreKind::Etcd => {
                set("etcd.endpoints", &self.endpoint);
                if shortest {
                    set("etcd.lease-ttl", "2 s");
                }
            }
            StoreKind::ZooKeeper => {
                set("zookeeper.quorum", &self.endpoint);
                if shortest {
                    set("zookeeper.client.session-timeout", "1 s");
                }
            }
        }
        if let Some((user, password)) = &self.user {
            set(&format!("{}.{}", self.kind, user_key(self.kind)), user);
            set(
                &format!("{}.{}", self.kind, password_key(self.kind)),
                password,
            );
        }
        settings
    }

    /// The store of a cluster, with short leases.
    fn backend(&self, directory: &Path, cluster_id: &str) -> Arc<dyn Backend> {
        match self.kind {
            StoreKind::Embedded => Arc::new(EmbeddedOptions::new(directory.join(cluster_id))),
            StoreKind::Etcd => Arc::new(self.etcd(cluster_id)),
            StoreKind::ZooKeeper => Arc::new(self.zookeeper(cluster_id)),
        }
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

    fn endpoints(&self) -> Vec<String> {
        self.endpoint.split(',').map(str::to_owned).collect()
    }

    fn etcd(&self, cluster_id: &str) -> EtcdOptions {
        EtcdOptions {
            endpoints: self.endpoints(),
            namespace: format!("{ROOT}/{cluster_id}"),
            user: self.user.clone(),
            lease_ttl: Duration::from_secs(2),
            request_timeout: Duration::from_secs(2),
            quota_bytes: None,
        }
    }

    fn zookeeper(&self, cluster_id: &str) -> ZooKeeperOptions {
        ZooKeeperOptions {
            digest: self.user.clone(),
            session_timeout: Duration::from_secs(2),
            ..ZooKeeperOptions::new(self.endpoints(), format!("{ROOT}/{cluster_id}"))
        }
    }
}

fn user_key(kind: StoreKind) -> &'static str {
    match kind {
        StoreKind::ZooKeeper => "auth.user",
        StoreKind::Embedded | StoreKind::Etcd => "user",
    }
}

fn password_key(kind: StoreKind) -> &'static str {
    match kind {
        StoreKind::ZooKeeper => "auth.password",
        StoreKind::Embedded | StoreKind::Etcd => "password",
    }
}
