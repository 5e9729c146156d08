//! The ZooKeeper backend, on real servers.

use std::time::Duration;

use tokio::sync::OnceCell;
use zookeeper_client::{Acls, Client, CreateMode};

use super::ZooKeeperOptions;
use super::test_servers::{ZooKeeperEnsemble, ZooKeeperServer, ZooKeeperServerOptions};
use crate::testing::conformance::network::{Network, breakable_ensemble, breakable_server};
use crate::testing::conformance::served::{REQUEST_TIMEOUT, ServedBackend, ServedSubject};
use crate::testing::conformance::{CaseResult, Place, Subject, lease};

breakable_server!(ZooKeeperServer);
breakable_ensemble!(ZooKeeperEnsemble);

#[derive(Debug)]
struct ZooKeeper;

async fn shared() -> CaseResult<&'static ZooKeeperServer> {
    static SERVER: OnceCell<ZooKeeperServer> = OnceCell::const_new();
    let server =
        SERVER.get_or_try_init(|| ZooKeeperServer::start(ZooKeeperServerOptions::default()));
    Ok(server.await?)
}

/// Opens a namespace on the servers of `place`.
pub async fn open(place: Place, namespace: String) -> CaseResult<Box<dyn Subject>> {
    let options = ZooKeeperServerOptions::default();
    let network = match place {
        Place::Shared => Network::shared(shared().await?.address()),
        Place::Own => Network::own(ZooKeeperServer::start(options).await?),
        Place::Ensemble => Network::own(ZooKeeperEnsemble::start(3, options).await?),
    };
    let default = ZooKeeperOptions::new(Vec::new(), "").session_timeout;
    let lease = lease(Duration::from_secs(1), default);
    Ok(Box::new(ServedSubject::<ZooKeeper>::new(
        network, namespace, lease,
    )))
}

impl ServedBackend for ZooKeeper {
    type Options = ZooKeeperOptions;

    fn options(endpoints: Vec<String>, namespace: &str, lease: Duration) -> ZooKeeperOptions {
        ZooKeeperOptions {
            session_timeout: lease,
            request_timeout: REQUEST_TIMEOUT,
            ..ZooKeeperOptions::new(endpoints, namespace)
        }
    }

    async fn overwrite(addresses: Vec<String>, key: String, value: Option<String>) -> CaseResult {
        let client = Client::connect(&addresses.join(",")).await?;
        match value {
            Some(value) => {
                client.set_data(&key, value.as_bytes(), None).await?;
            }
            None => client.delete(&key, None).await?,
        }
        Ok(())
    }

    async fn delete_leader(addresses: Vec<String>, namespace: &str) -> CaseResult {
        let client = Client::connect(&addresses.join(",")).await?;
        client.delete(&format!("{namespace}/leader"), None).await?;
        Ok(())
    }

    async fn write_by_hand(
        addresses: Vec<String>,
        path: String,
        value: Option<&[u8]>,
    ) -> CaseResult {
        let client = Client::connect(&addresses.join(",")).await?;
        let Some(value) = value else {
            return Ok(client.delete(&path, None).await?);
        };
        match client.set_data(&path, value, None).await {
            Ok(_) => {}
            Err(zookeeper_client::Error::NoNode) => {
                let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
                client.create(&path, value, &options).await?;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
