//! The health that an etcd cluster reports when a member is away, and when its data are reported corrupt.

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client};

use super::*;
use crate::store::health::ServerRole;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absent_member_and_the_alarm_of_corruption_are_reported() -> TestResult {
    let mut cluster = EtcdCluster::start(3, EtcdServerOptions::default()).await?;
    let store = EtcdStore::open(options(cluster.endpoints(), "health"), KINDS).await?;
    let health = store.health().await?;
    let roles = |wanted: ServerRole| health.servers.iter().filter(|it| it.role == wanted).count();
    assert_eq!(
        (roles(ServerRole::Leader), roles(ServerRole::Follower)),
        (1, 2)
    );
    assert!(health.warnings().is_empty(), "{health:?}");

    let leader = cluster.leader().await?;
    let away = (leader + 1) % 3;
    let address = cluster.servers()[away].address().to_string();
    cluster.servers()[away].kill();
    let health = store.health().await?;
    assert_eq!(health.servers.len(), 3, "{health:?}");
    let warnings = health.warnings().join("\n");
    assert!(warnings.contains(&address), "{warnings}");

    let endpoint = cluster.servers()[leader].endpoint();
    let mut client = Client::connect([endpoint], None).await?;
    let status = client.status().await?;
    let mut of_member = AlarmOptions::new();
    of_member.with_member(status.leader());
    client
        .alarm(AlarmAction::Activate, AlarmType::Corrupt, Some(of_member))
        .await?;
    let health = store.health().await?;
    assert_eq!(health.alarms, ["CORRUPT"], "{health:?}");
    assert!(health.warnings().join("\n").contains("CORRUPT"));
    Ok(())
}
