//! The servers start, stop, and come back with and without their data.

use etcd_client::Client;

use crate::etcd::test_servers::{EtcdCluster, EtcdServer, EtcdServerOptions};

#[tokio::test]
async fn an_etcd_server_comes_back_with_its_data_and_wiped_without()
-> Result<(), Box<dyn std::error::Error>> {
    let mut server = EtcdServer::start(EtcdServerOptions::default()).await?;
    let mut client = Client::connect(server.endpoints(), None).await?;
    client.put("key", "value", None).await?;
    assert_eq!(
        client.lease_grant(1, None).await?.ttl(),
        1,
        "short leases are granted"
    );
    server.kill();
    server.restart().await?;
    let mut client = Client::connect(server.endpoints(), None).await?;
    assert_eq!(client.get("key", None).await?.kvs().len(), 1);
    server.restart_wiped().await?;
    let mut client = Client::connect(server.endpoints(), None).await?;
    assert_eq!(client.get("key", None).await?.kvs().len(), 0);
    Ok(())
}

#[tokio::test]
async fn an_etcd_cluster_elects_another_leader() -> Result<(), Box<dyn std::error::Error>> {
    let user = Some(("tanist".to_owned(), "secret".to_owned()));
    let options = EtcdServerOptions {
        user,
        ..EtcdServerOptions::default()
    };
    let mut cluster = EtcdCluster::start(3, options).await?;
    let leader = cluster.leader().await?;
    cluster.servers()[leader].kill();
    cluster.servers()[(leader + 1) % 3].wait_ready().await?;
    cluster.servers()[leader].restart().await?;
    Ok(())
}
