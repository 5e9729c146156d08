//! The etcd backend, on real servers.

use std::time::Duration;

use etcd_client::Client;
use tokio::sync::OnceCell;

use super::EtcdOptions;
use super::test_servers::{EtcdCluster, EtcdServer, EtcdServerOptions};
use crate::testing::conformance::network::{Network, breakable_ensemble, breakable_server};
use crate::testing::conformance::served::{REQUEST_TIMEOUT, ServedBackend, ServedSubject};
use crate::testing::conformance::{CaseResult, Place, Subject, lease};

breakable_server!(EtcdServer);
breakable_ensemble!(EtcdCluster);

#[derive(Debug)]
struct Etcd;

async fn shared() -> CaseResult<&'static EtcdServer> {
    static SERVER: OnceCell<EtcdServer> = OnceCell::const_new();
    let server = SERVER.get_or_try_init(|| EtcdServer::start(EtcdServerOptions::default()));
    Ok(server.await?)
}

/// Opens a namespace on the servers of `place`.
pub async fn open(place: Place, namespace: String) -> CaseResult<Box<dyn Subject>> {
    let options = EtcdServerOptions::default();
    let network = match place {
        Place::Shared => Network::shared(shared().await?.address()),
        Place::Own => Network::own(EtcdServer::start(options).await?),
        Place::Ensemble => Network::own(EtcdCluster::start(3, options).await?),
    };
    let lease = lease(Duration::from_secs(2), EtcdOptions::default().lease_ttl);
    Ok(Box::new(ServedSubject::<Etcd>::new(
        network, namespace, lease,
    )))
}

impl ServedBackend for Etcd {
    type Options = EtcdOptions;

    fn options(endpoints: Vec<String>, namespace: &str, lease: Duration) -> EtcdOptions {
        EtcdOptions {
            endpoints,
            namespace: namespace.to_owned(),
            lease_ttl: lease,
            request_timeout: REQUEST_TIMEOUT,
            ..EtcdOptions::default()
        }
    }

    async fn overwrite(addresses: Vec<String>, key: String, value: Option<String>) -> CaseResult {
        let mut client = Client::connect(&addresses, None).await?;
        match value {
            Some(value) => {
                client.put(key, value, None).await?;
            }
            None => {
                client.delete(key, None).await?;
            }
        }
        Ok(())
    }

    async fn delete_leader(addresses: Vec<String>, namespace: &str) -> CaseResult {
        let mut client = Client::connect(&addresses, None).await?;
        let key = format!("{namespace}/leader");
        let deleted = client.delete(key, None).await?.deleted();
        assert_eq!(deleted, 1, "there was a leader");
        Ok(())
    }

    async fn write_by_hand(
        addresses: Vec<String>,
        path: String,
        value: Option<&[u8]>,
    ) -> CaseResult {
        let mut client = Client::connect(&addresses, None).await?;
        match value {
            Some(value) => drop(client.put(path, value, None).await?),
            None => drop(client.delete(path, None).await?),
        }
        Ok(())
    }
}
