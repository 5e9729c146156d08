//! The store is an ensemble of three servers, and some are lost: a follower, the leading server, the quorum
//! for longer than every lease. The leader keeps leading in all cases. If the leader is lost together with the
//! quorum, a standby leads as soon as the store is back. One test per store, because ensembles are expensive.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::{Cluster, ClusterBuilder, Store, StoreKind};
use tokio::time::Instant;

use crate::support::{PROCESS_GONE, PROGRAM, RunningOn, on_a_quiet_machine, outage};

/// Longer than the leases and sessions of these tests, which the stores grant for 2 s.
const OUTAGE: Duration = Duration::from_millis(3500);
/// Timeout of other steps on a busy machine.
const BOUND: Duration = Duration::from_secs(30);
/// After the store serves again a standby leads within a second, including its recovery.
const LED_WITHIN: Duration = Duration::from_secs(1);
/// The same for the old leader: it is asked over REST, twice, by a client that does not know when the store is back.
const LED_ON_WITHIN: Duration = Duration::from_secs(3);
/// For ZooKeeper: three servers on a busy machine need more than the shortest timeout to detect each other.
const SESSION: &str = "2 s";
/// How long standbys do not take free leadership while they hear the leader: it may reconnect late to an
/// ensemble that has just recovered.
const HOLD_OFF: &str = "30 s";

on_stores! {
    etcd(Etcd) {
        whatever_an_ensemble_loses_is_no_trouble_of_the_leader,
    }
    zookeeper(ZooKeeper) {
        whatever_an_ensemble_loses_is_no_trouble_of_the_leader,
    }
}

async fn whatever_an_ensemble_loses_is_no_trouble_of_the_leader(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::ensemble(kind).await?)
        .set("high-availability.detector.hold-off-timeout", HOLD_OFF)
        .set(
            "high-availability.zookeeper.client.session-timeout",
            SESSION,
        )
        .start()
        .await?;
    let running = RunningOn::start(&mut cluster).await?;

    // A follower is lost, and the status shows it.
    let leading = cluster.store().leading_member().await?;
    let follower = (leading + 1) % 3;
    cluster.store().kill_member(follower)?;
    shows_servers_away(&mut cluster, 1).await?;
    check_led_by_the_first(&mut cluster, &running).await?;
    cluster.store().restart_member(follower).await?;
    shows_servers_away(&mut cluster, 0).await?;

    // The leading server is lost.
    let leading = cluster.store().leading_member().await?;
    cluster.store().kill_member(leading)?;
    check_led_by_the_first(&mut cluster, &running).await?;
    cluster.store().restart_member(leading).await?;

    // Two servers are lost, for longer than every lease.
    let lost = [leading, (leading + 1) % 3];
    for member in lost {
        cluster.store().kill_member(member)?;
    }
    tokio::time::sleep(outage(OUTAGE)).await;
    running.check_untouched(&mut cluster).await?;
    cluster.store().restart_member(lost[0]).await?;
    let back = Instant::now();
    check_led_by_the_first(&mut cluster, &running).await?;
    let took = back.elapsed();
    println!("{kind}: led on {took:?} after the quorum served");
    ensure!(
        took <= on_a_quiet_machine(LED_ON_WITHIN),
        "{kind}: led on {took:?} after the quorum served"
    );

    // The same again, and the leader is lost in the meantime.
    cluster.store().kill_member(lost[0])?;
    cluster.jobmanager(running.first.index).kill();
    tokio::time::sleep(outage(OUTAGE)).await;
    cluster.store().restart_member(lost[0]).await?;
    let back = Instant::now();
    let standby = 1 - running.first.index;
    cluster
        .jobmanager(standby)
        .logs("leadership confirmed", BOUND)
        .await?;
    let took = back.elapsed();
    println!("{kind}: another one leads {took:?} after the quorum served");
    ensure!(
        took <= on_a_quiet_machine(LED_WITHIN),
        "{kind}: another one led {took:?} after the quorum served"
    );
    let second = cluster.successor_of(&running.first).await?;
    // The standby tried to take over while the quorum was lost. The server that was left may have its transaction in
    // its log, and the quorum applies it when it serves again. Then the standby's own session of before has the term
    // between, and the next one begins when the store ends that session.
    let own_lapsed_term: &[&str] = &["lease-expired"];
    let detections = match second.epoch - running.first.epoch {
        1 => &PROCESS_GONE[..],
        _ => own_lapsed_term,
    };
    running
        .check_finished_under(&mut cluster, &[(second, detections)])
        .await
}

/// Checks that the store confirms the first leader's term, and that no task was touched.
async fn check_led_by_the_first(cluster: &mut Cluster, running: &RunningOn) -> anyhow::Result<()> {
    let leads = |status: &Value| {
        status["term"]["state"] == "leading" && status["store-health"]["latency"].is_number()
    };
    let status = cluster
        .wait_for_rest("a confirmed term", BOUND, "/v1/ha/status", leads)
        .await?;
    ensure!(
        status["leader"]["epoch"] == running.first.epoch,
        "another term: {status}"
    );
    // The answer follows a read of the store that still finds this term.
    let path = format!("/v1/jobs/{}?consistent=true", running.workload.job());
    let runs = |job: &Value| job["state"] == "RUNNING";
    cluster
        .wait_for_rest("a confirmed answer", BOUND, &path, runs)
        .await?;
    running.check_untouched(cluster).await
}

/// Waits until this number of the store's servers is shown as unreachable, with a warning.
async fn shows_servers_away(cluster: &mut Cluster, away: usize) -> anyhow::Result<()> {
    let shows = |status: &Value| {
        let servers = status["store-health"]["servers"].as_array();
        let servers = servers.map(Vec::as_slice).unwrap_or_default();
        let unreachable = |server: &&Value| server["role"] == "unreachable";
        let warned = status["warnings"].to_string().contains("gives no answer");
        servers.len() == 3
            && servers.iter().filter(unreachable).count() == away
            && warned == (away > 0)
    };
    let what = format!("{away} servers that are away");
    let shown = cluster.wait_for_rest(&what, BOUND, "/v1/ha/status", shows);
    shown.await.context("the store's servers")?;
    Ok(())
}
