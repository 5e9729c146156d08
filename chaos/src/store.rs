//! The stores that clusters keep their leadership and jobs in: real servers, or a directory.
//!
//! Clusters share one etcd and one ZooKeeper, told apart by cluster id. A test that breaks the server has its own.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tanist_ha::clock::Clock;
use tanist_ha::election::{ElectionDriver, ProcessId};
use tanist_ha::embedded::EmbeddedOptions;
use tanist_ha::etcd::EtcdOptions;
use tanist_ha::store::CoordinationStore;
use tanist_ha::testing::servers::{
    EtcdServer, EtcdServerOptions, ZooKeeperServer, ZooKeeperServerOptions,
};
use tanist_ha::zookeeper::ZooKeeperOptions;
use tanist_ha::{embedded, etcd, zookeeper};
use tokio::sync::OnceCell;

use crate::test_all;

/// The names of the cluster's directories in a store that is shared with others.
const ROOT: &str = "/tanist";

static SHARED_ETCD: OnceCell<EtcdServer> = OnceCell::const_new();
static SHARED_ZOOKEEPER: OnceCell<ZooKeeperServer> = OnceCell::const_new();

/// Which store.
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

/// A store that a cluster can be started on.
#[derive(Debug)]
pub struct Store {
    kind: StoreKind,
    /// Host and port; unused for a directory.
    endpoint: String,
    /// What its users say, where it asks.
    user: Option<(String, String)>,
    server: Server,
}

#[derive(Debug)]
enum Server {
    /// The cluster's own directory: there is no server.
    None,
    Shared,
    Etcd(Box<EtcdServer>),
    ZooKeeper(Box<ZooKeeperServer>),
}

impl Store {
    /// The store of that kind that clusters share; started when first asked for. An embedded one is the cluster's own.
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

    /// A server of its own, to be killed and restarted.
    pub async fn own(kind: StoreKind) -> anyhow::Result<Store> {
        match kind {
            StoreKind::Embedded => Store::shared(kind).await,
            StoreKind::Etcd => Store::own_etcd(EtcdServerOptions::default()).await,
            StoreKind::ZooKeeper => {
                let server = ZooKeeperServer::start(ZooKeeperServerOptions::default()).await?;
                let endpoint = server.address().to_string();
                let server = Server::ZooKeeper(Box::new(server));
                Ok(Store {
                    kind,
                    endpoint,
                    user: None,
                    server,
                })
            }
        }
    }

    /// An etcd of its own, with a user if the options name one.
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

    /// Which store it is.
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Host and port of the server.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The setting that names the server.
    pub(crate) fn endpoint_key(&self) -> Option<&'static str> {
        match self.kind {
            StoreKind::Embedded => None,
            StoreKind::Etcd => Some("high-availability.etcd.endpoints"),
            StoreKind::ZooKeeper => Some("high-availability.zookeeper.quorum"),
        }
    }

    /// SIGKILL to the server; its data stay.
    pub fn kill_server(&mut self) -> anyhow::Result<()> {
        match &mut self.server {
            Server::Etcd(server) => server.kill(),
            Server::ZooKeeper(server) => server.kill(),
            Server::None | Server::Shared => bail!("this cluster has no server of its own"),
        }
        Ok(())
    }

    /// SIGSTOP to the server: it answers nobody, and its clock goes on.
    pub fn stop_server(&self) -> anyhow::Result<()> {
        match &self.server {
            Server::Etcd(server) => server.stop(),
            Server::ZooKeeper(server) => server.stop(),
            Server::None | Server::Shared => bail!("this cluster has no server of its own"),
        }
        Ok(())
    }

    /// SIGCONT after [`Store::stop_server`].
    pub fn cont_server(&self) -> anyhow::Result<()> {
        match &self.server {
            Server::Etcd(server) => server.cont(),
            Server::ZooKeeper(server) => server.cont(),
            Server::None | Server::Shared => bail!("this cluster has no server of its own"),
        }
        Ok(())
    }

    /// Starts the server again with its data, killing it first if it runs, and waits until it is ready.
    pub async fn restart_server(&mut self) -> anyhow::Result<()> {
        match &mut self.server {
            Server::Etcd(server) => server.restart().await?,
            Server::ZooKeeper(server) => server.restart().await?,
            Server::None | Server::Shared => bail!("this cluster has no server of its own"),
        }
        Ok(())
    }

    /// What tells `tanist` to use it. Leases are as short as the store grants, or the defaults if those are wanted or all is
    /// tested.
    pub(crate) fn settings(&self, directory: &Path, defaults: bool) -> Vec<(String, String)> {
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

    /// Watches the election of a cluster, without contending.
    pub(crate) async fn observe(
        &self,
        directory: &Path,
        cluster_id: &str,
    ) -> anyhow::Result<Arc<dyn ElectionDriver>> {
        let clock = Clock::Boottime;
        Ok(match self.kind {
            StoreKind::Embedded => {
                let observer = ProcessId::new("observer");
                let options = embedded_options(directory, cluster_id);
                Arc::new(embedded::open_election(options, observer, false, clock).await?)
            }
            StoreKind::Etcd => {
                Arc::new(etcd::open_election(self.etcd(cluster_id), clock, false).await?)
            }
            StoreKind::ZooKeeper => {
                Arc::new(zookeeper::open_election(self.zookeeper(cluster_id), clock, false).await?)
            }
        })
    }

    /// Opens the records of a cluster.
    pub(crate) async fn records(
        &self,
        directory: &Path,
        cluster_id: &str,
    ) -> anyhow::Result<Arc<dyn CoordinationStore>> {
        let opened: anyhow::Result<Arc<dyn CoordinationStore>> = async {
            Ok(match self.kind {
                StoreKind::Embedded => {
                    let options = embedded_options(directory, cluster_id);
                    Arc::new(embedded::open_store(options).await?) as Arc<dyn CoordinationStore>
                }
                StoreKind::Etcd => Arc::new(etcd::open_store(self.etcd(cluster_id)).await?),
                StoreKind::ZooKeeper => {
                    Arc::new(zookeeper::open_store(self.zookeeper(cluster_id)).await?)
                }
            })
        }
        .await;
        opened.with_context(|| format!("cannot open the records in {}", self.kind))
    }

    fn etcd(&self, cluster_id: &str) -> EtcdOptions {
        EtcdOptions {
            endpoints: vec![self.endpoint.clone()],
            namespace: format!("{ROOT}/{cluster_id}"),
            user: self.user.clone(),
            lease_ttl: Duration::from_secs(2),
            request_timeout: Duration::from_secs(2),
        }
    }

    fn zookeeper(&self, cluster_id: &str) -> ZooKeeperOptions {
        ZooKeeperOptions {
            digest: self.user.clone(),
            session_timeout: Duration::from_secs(2),
            ..ZooKeeperOptions::new(vec![self.endpoint.clone()], format!("{ROOT}/{cluster_id}"))
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

fn embedded_options(directory: &Path, cluster_id: &str) -> EmbeddedOptions {
    EmbeddedOptions::new(directory.join(cluster_id))
}
