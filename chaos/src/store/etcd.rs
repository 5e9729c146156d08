//! etcd: real servers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tanist_ha::backend::Backend;
use tanist_ha::etcd::EtcdOptions;
use tanist_ha::etcd::test_servers::{EtcdCluster, EtcdServer, EtcdServerOptions};
use tokio::sync::OnceCell;

use super::servers::{Servers, SharedServers, Started};
use super::{MEMBERS, Place, ROOT, Store, StoreKind, StoreType, joined};
use crate::copies::copy_all;

static SHARED: OnceCell<EtcdServer> = OnceCell::const_new();

pub(super) struct Etcd;

#[async_trait(?Send)]
impl StoreType for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn place_key(&self) -> &'static str {
        "high-availability.etcd.endpoints"
    }

    async fn shared(&self) -> anyhow::Result<Started> {
        let start = || EtcdServer::start(EtcdServerOptions::default());
        let server = SHARED.get_or_try_init(start).await?;
        Ok((server.address().to_string(), Box::new(SharedServers)))
    }

    async fn own(&self) -> anyhow::Result<Started> {
        start(EtcdServerOptions::default()).await
    }

    async fn ensemble(&self) -> anyhow::Result<Started> {
        let cluster = EtcdCluster::start(MEMBERS, EtcdServerOptions::default()).await?;
        Ok((joined(&cluster.addresses()), Box::new(cluster)))
    }

    fn settings(&self, place: &Place<'_>, shortest: bool) -> Vec<(&'static str, String)> {
        let mut settings = Vec::new();
        if shortest {
            settings.push(("high-availability.etcd.lease-ttl", "2 s".to_owned()));
        }
        if let Some((user, password)) = place.user {
            settings.push(("high-availability.etcd.user", user.clone()));
            settings.push(("high-availability.etcd.password", password.clone()));
        }
        settings
    }

    fn backend(&self, place: &Place<'_>, cluster_id: &str) -> Arc<dyn Backend> {
        Arc::new(EtcdOptions {
            endpoints: place.endpoints(),
            namespace: format!("{ROOT}/{cluster_id}"),
            user: place.user.cloned(),
            lease_ttl: Duration::from_secs(2),
            request_timeout: Duration::from_secs(2),
            quota_bytes: None,
        })
    }
}

async fn start(options: EtcdServerOptions) -> anyhow::Result<Started> {
    let server = EtcdServer::start(options).await?;
    Ok((server.address().to_string(), Box::new(server)))
}

impl Store {
    /// A separate etcd, with a user if the options name one.
    pub async fn own_etcd(options: EtcdServerOptions) -> anyhow::Result<Store> {
        let user = options.user.clone();
        let started = start(options).await?;
        Ok(Store {
            user,
            ..Store::on(StoreKind::Etcd, started)
        })
    }
}

#[async_trait(?Send)]
impl Servers for EtcdServer {
    fn kill(&mut self) -> anyhow::Result<()> {
        EtcdServer::kill(self);
        Ok(())
    }

    fn stop(&self) -> anyhow::Result<()> {
        EtcdServer::stop(self);
        Ok(())
    }

    fn cont(&self) -> anyhow::Result<()> {
        EtcdServer::cont(self);
        Ok(())
    }

    async fn restart(&mut self) -> anyhow::Result<()> {
        Ok(EtcdServer::restart(self).await?)
    }

    async fn fill(&self) -> anyhow::Result<()> {
        Ok(EtcdServer::fill(self).await?)
    }

    async fn make_room(&self) -> anyhow::Result<()> {
        Ok(EtcdServer::make_room(self).await?)
    }

    async fn copy(&self, _from: &Path, to: &Path) -> anyhow::Result<Started> {
        EtcdServer::stop(self);
        let copied = copy_all(&self.data(), to);
        EtcdServer::cont(self);
        copied?;
        let server = EtcdServer::start_with(to).await?;
        Ok((server.address().to_string(), Box::new(server)))
    }
}

#[async_trait(?Send)]
impl Servers for EtcdCluster {
    async fn leading_member(&self) -> anyhow::Result<usize> {
        Ok(self.leader().await?)
    }

    fn kill_member(&mut self, member: usize) -> anyhow::Result<()> {
        self.servers()[member].kill();
        Ok(())
    }

    async fn restart_member(&mut self, member: usize) -> anyhow::Result<()> {
        Ok(self.servers()[member].restart().await?)
    }
}
