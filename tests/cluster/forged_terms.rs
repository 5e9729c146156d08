//! An attacker who reaches the ports of a cluster, and knows the public status, names terms that no process
//! holds: no leader ends, no TaskManager leaves its leader, and every leader can still be succeeded.

use anyhow::{Context as _, ensure};
use tanist_chaos::{Cluster, StoreKind, wait_for};
use tanist_gateway::{Connector as _, GatewayError};
use tanist_proto::v1 as pb;
use tanist_rpc::{RpcOptions, TonicConnector};

use crate::support::{BOUND, RunningOn, cluster_on};

on_stores! {
    usually on embedded(Embedded) { forged_terms_end_no_leader }
    usually on etcd(Etcd) { one_forged_announcement_to_one_task_manager_ends_no_leader }
    usually on zookeeper(ZooKeeper) { forged_terms_end_no_leader }
}

/// A sender built from the public status.
async fn forged(cluster: &mut Cluster, above: u64) -> anyhow::Result<pb::Sender> {
    let status = cluster.get("/v1/ha/status").await?;
    let incarnation = status["cluster-incarnation"].as_str();
    let epoch = status["epoch"].as_u64().context("an epoch")?;
    Ok(pb::Sender {
        cluster_incarnation: incarnation.context("an incarnation")?.to_owned(),
        epoch: epoch + above,
        process: "somebody".to_owned(),
        process_start: "1".to_owned(),
        ..pb::Sender::default()
    })
}

async fn announce(
    cluster: &mut Cluster,
    sender: pb::Sender,
    leader_rpc_address: &str,
) -> anyhow::Result<Result<pb::AnnounceLeaderResponse, GatewayError>> {
    let listed = cluster.get("/v1/taskmanagers").await?;
    let address = listed["taskmanagers"][0]["path"].as_str();
    let address = address.context("a TaskManager")?.to_owned();
    let request = pb::AnnounceLeaderRequest {
        sender: Some(sender),
        leader_rpc_address: leader_rpc_address.to_owned(),
        process: "somebody".to_owned(),
        jobs: Vec::new(),
    };
    let connector = TonicConnector::new(RpcOptions::default());
    let gateway = connector.task_executor(&address);
    Ok(gateway.announce_leader(request).await)
}

/// Checks that the leader continues, can be succeeded, and that no attempt has changed.
async fn check_unharmed(cluster: &mut Cluster, running: &RunningOn) -> anyhow::Result<()> {
    running.check_untouched(cluster).await?;
    ensure!(
        cluster.leader().await? == running.first,
        "another one leads"
    );
    running.check_next_leader(cluster).await?;
    running.workload.stop_and_check(cluster).await
}

async fn one_forged_announcement_to_one_task_manager_ends_no_leader(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.start().await?;
    let running = RunningOn::start(&mut cluster).await?;
    for address in ["", "127.0.0.1:1"] {
        let sender = forged(&mut cluster, 1000).await?;
        let answer = announce(&mut cluster, sender, address).await?;
        ensure!(answer.is_err(), "it was followed: {answer:?}");
    }
    check_unharmed(&mut cluster, &running).await
}

async fn forged_terms_end_no_leader(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.start().await?;
    let running = RunningOn::start(&mut cluster).await?;
    // The leader's own epoch with another holder, and an epoch that does not exist.
    for above in [0, 1] {
        let sender = forged(&mut cluster, above).await?;
        let answer = announce(&mut cluster, sender, "127.0.0.1:1").await?;
        ensure!(answer.is_err(), "it was followed: {answer:?}");
    }
    let sender = forged(&mut cluster, 1000).await?;
    let status = cluster.get("/v1/ha/status").await?;
    let leader = status["leader"]["rpc-address"]
        .as_str()
        .context("a leader")?;
    let connector = TonicConnector::new(RpcOptions::default());
    let registration = pb::RegisterTaskExecutorRequest {
        sender: Some(sender.clone()),
        location: Some(pb::TaskManagerLocation {
            resource_id: "somebody".to_owned(),
            rpc_address: "127.0.0.1:1".to_owned(),
            ..pb::TaskManagerLocation::default()
        }),
        ..pb::RegisterTaskExecutorRequest::default()
    };
    let gateway = connector.resource_manager(leader);
    let answer = gateway.register_task_executor(registration).await;
    ensure!(
        matches!(answer, Err(GatewayError::Outdated { epoch, .. }) if epoch < sender.epoch),
        "{answer:?}"
    );
    // The status names the sender of the claim, and that the store does not show the epoch.
    wait_for("the status to name who told", BOUND, async || {
        let status = cluster.get("/v1/ha/status").await?;
        let claims = status["claims"].as_array().context("claims")?;
        let is_it = |claim: &serde_json::Value| {
            let by = claim["by"]
                .as_str()
                .is_some_and(|by| by.contains("somebody"));
            by && claim["epoch"] == sender.epoch
        };
        ensure!(claims.iter().any(is_it), "{status}");
        Ok(())
    })
    .await?;
    check_unharmed(&mut cluster, &running).await
}
