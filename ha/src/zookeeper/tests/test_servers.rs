//! The servers start, stop, and come back with and without their data.

use super::wait_until;
use crate::testing::servers::READY_BOUND;
use crate::zookeeper::test_servers::{ZooKeeperEnsemble, ZooKeeperServer, ZooKeeperServerOptions};

#[tokio::test]
async fn a_zookeeper_server_restarts_with_and_without_data()
-> Result<(), Box<dyn std::error::Error>> {
    let mut server = ZooKeeperServer::start(ZooKeeperServerOptions::default()).await?;
    server.stop();
    server.cont();
    server.restart().await?;
    server.restart_wiped().await?;
    Ok(())
}

#[tokio::test]
async fn a_zookeeper_ensemble_elects_another_leader() -> Result<(), Box<dyn std::error::Error>> {
    let mut ensemble = ZooKeeperEnsemble::start(3, ZooKeeperServerOptions::default()).await?;
    let leader = ensemble.leader().await?;
    ensemble.servers()[leader].kill();
    let bound = READY_BOUND;
    let other = wait_until("another leader", bound, async || ensemble.leader().await).await;
    assert_ne!(leader, other);
    ensemble.servers()[leader].restart().await?;
    Ok(())
}
