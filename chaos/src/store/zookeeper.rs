//! ZooKeeper: real servers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tanist_ha::backend::Backend;
use tanist_ha::zookeeper::ZooKeeperOptions;
use tanist_ha::zookeeper::test_servers::{
    ZooKeeperEnsemble, ZooKeeperServer, ZooKeeperServerOptions,
};
use tokio::sync::OnceCell;

use super::servers::{Servers, SharedServers, Started};
use super::{MEMBERS, Place, ROOT, Store, StoreKind, StoreType, joined};
use crate::copies::copy_all;

/// Heap of each Java process of an ensemble, in MiB: three of them run beside everything else.
const MEMBER_HEAP_MIB: u32 = 64;

static SHARED: OnceCell<ZooKeeperServer> = OnceCell::const_new();

pub(super) struct ZooKeeper;

#[async_trait(?Send)]
impl StoreType for ZooKeeper {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn place_key(&self) -> &'static str {
        "high-availability.zookeeper.quorum"
    }

    async fn shared(&self) -> anyhow::Result<Started> {
        let start = || ZooKeeperServer::start(ZooKeeperServerOptions::default());
        let server = SHARED.get_or_try_init(start).await?;
        Ok((server.address().to_string(), Box::new(SharedServers)))
    }

    async fn own(&self) -> anyhow::Result<Started> {
        start(ZooKeeperServerOptions::default()).await
    }

    async fn ensemble(&self) -> anyhow::Result<Started> {
        let options = ZooKeeperServerOptions {
            heap_mib: MEMBER_HEAP_MIB,
            ..ZooKeeperServerOptions::default()
        };
        let ensemble = ZooKeeperEnsemble::start(MEMBERS, options).await?;
        Ok((joined(&ensemble.addresses()), Box::new(ensemble)))
    }

    fn settings(&self, place: &Place<'_>, shortest: bool) -> Vec<(&'static str, String)> {
        let mut settings = Vec::new();
        if shortest {
            let key = "high-availability.zookeeper.client.session-timeout";
            settings.push((key, "1 s".to_owned()));
        }
        if let Some((user, password)) = place.user {
            settings.push(("high-availability.zookeeper.auth.user", user.clone()));
            settings.push((
                "high-availability.zookeeper.auth.password",
                password.clone(),
            ));
        }
        settings
    }

    fn backend(&self, place: &Place<'_>, cluster_id: &str) -> Arc<dyn Backend> {
        Arc::new(ZooKeeperOptions {
            digest: place.user.cloned(),
            session_timeout: Duration::from_secs(2),
            ..ZooKeeperOptions::new(place.endpoints(), format!("{ROOT}/{cluster_id}"))
        })
    }
}

async fn start(options: ZooKeeperServerOptions) -> anyhow::Result<Started> {
    let server = ZooKeeperServer::start(options).await?;
    Ok((server.address().to_string(), Box::new(server)))
}

impl Store {
    /// A ZooKeeper that was started elsewhere, at `host:port`.
    pub fn zookeeper_at(endpoint: String) -> Store {
        Store::on(StoreKind::ZooKeeper, (endpoint, Box::new(SharedServers)))
    }

    /// A separate ZooKeeper.
    pub async fn own_zookeeper(options: ZooKeeperServerOptions) -> anyhow::Result<Store> {
        Ok(Store::on(StoreKind::ZooKeeper, start(options).await?))
    }
}

#[async_trait(?Send)]
impl Servers for ZooKeeperServer {
    fn kill(&mut self) -> anyhow::Result<()> {
        ZooKeeperServer::kill(self);
        Ok(())
    }

    fn stop(&self) -> anyhow::Result<()> {
        ZooKeeperServer::stop(self);
        Ok(())
    }

    fn cont(&self) -> anyhow::Result<()> {
        ZooKeeperServer::cont(self);
        Ok(())
    }

    async fn restart(&mut self) -> anyhow::Result<()> {
        Ok(ZooKeeperServer::restart(self).await?)
    }

    fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(ZooKeeperServer::has_ended(self))
    }

    async fn copy(&self, _from: &Path, to: &Path) -> anyhow::Result<Started> {
        ZooKeeperServer::stop(self);
        let copied = copy_all(&self.data(), to);
        ZooKeeperServer::cont(self);
        copied?;
        let options = ZooKeeperServerOptions {
            data: Some(to.to_owned()),
            ..ZooKeeperServerOptions::default()
        };
        start(options).await
    }
}

#[async_trait(?Send)]
impl Servers for ZooKeeperEnsemble {
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
