//! TaskManagers are drained while an endless job runs on them: its tasks are moved, also under another
//! leader, and the drain survives restarts of the TaskManager until it is ended.

use std::time::Duration;

use anyhow::ensure;
use serde_json::Value;
use tanist_chaos::{Cluster, StoreKind, wait_for};

use crate::regions::TwoRegions;
use crate::support::{BOUND, cluster_on};

on_stores! {
    embedded(Embedded) {
        an_endless_job_moves_off_a_drained_taskmanager_though_its_leader_dies,
        a_host_is_drained_and_what_runs_there_waits_for_slots_elsewhere,
    }
    etcd(Etcd) { an_endless_job_moves_off_a_drained_taskmanager_though_its_leader_dies }
}

/// Timeout until a process without work ends.
const END_BOUND: Duration = Duration::from_secs(60);

async fn an_endless_job_moves_off_a_drained_taskmanager_though_its_leader_dies(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.jobmanagers(2).taskmanagers(3);
    let mut cluster = builder.slots(1).start().await?;
    let regions = TwoRegions::start(&mut cluster).await?;
    let [left, _] = regions.taskmanagers;
    let name = format!("tm-{left}");
    run_drain_command(
        &mut cluster,
        &["drain", "--evict", "--reason", "a new disk", &name],
    )
    .await?;
    // The record was written before the request was answered, so the next leader continues at any point.
    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    wait_for("the left region to run elsewhere", BOUND, async || {
        regions.until_left_runs_elsewhere(&mut cluster).await
    })
    .await?;
    regions.check_right_untouched(&mut cluster).await?;
    let status = cluster.taskmanager(left).ended(END_BOUND).await?;
    ensure!(status.code() == Some(0), "{name}: {status}");
    let path = format!("/v1/jobs/{}/exceptions", regions.job());
    let exceptions = cluster.get(&path).await?;
    let entries = exceptions["exceptionHistory"]["entries"].as_array();
    ensure!(
        entries.is_none_or(Vec::is_empty),
        "it counts as a failure: {exceptions}"
    );

    // After a restart it is still drained, and keeps running.
    cluster.taskmanager(left).start()?;
    let what = "the TaskManager to be shown as drained";
    let is_drained = |body: &Value| drain_of(body, &name).is_some_and(|it| it["drained"] == true);
    cluster
        .wait_for_rest(what, BOUND, "/v1/taskmanagers", is_drained)
        .await?;
    let leader = cluster.leader().await?;
    let list = ["taskmanager", "list", "--address", &leader.rest];
    let listed = cluster.cli().run(&list).await?.success()?;
    ensure!(
        listed.contains("drained since") && listed.contains("a new disk"),
        "{listed}"
    );
    run_drain_command(&mut cluster, &["undrain", &name]).await?;
    let is_open =
        |body: &Value| body.to_string().contains(&name) && drain_of(body, &name).is_none();
    let what = "the TaskManager to be of use again";
    cluster
        .wait_for_rest(what, BOUND, "/v1/taskmanagers", is_open)
        .await?;
    // The other region moves there: it is the only slot left.
    let [_, right] = regions.taskmanagers;
    run_drain_command(&mut cluster, &["drain", "--evict", &format!("tm-{right}")]).await?;
    let status = cluster.taskmanager(right).ended(END_BOUND).await?;
    ensure!(status.code() == Some(0), "tm-{right}: {status}");
    cluster.wait_until_running(regions.job()).await?;
    run_drain_command(&mut cluster, &["undrain", &format!("tm-{right}")]).await?;
    regions.cancel(&mut cluster).await
}

/// All TaskManagers are on one host here: there is no place to move to, so all tasks continue.
async fn a_host_is_drained_and_what_runs_there_waits_for_slots_elsewhere(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.jobmanagers(1).taskmanagers(2);
    let mut cluster = builder.slots(1).start().await?;
    let regions = TwoRegions::start(&mut cluster).await?;
    let body = cluster.get("/v1/taskmanagers").await?;
    let address = body["taskmanagers"][0]["path"].as_str().unwrap_or_default();
    let host = address
        .rsplit_once(':')
        .map_or(address, |(host, _)| host)
        .to_owned();
    run_drain_command(&mut cluster, &["drain", "--evict", "--host", &host]).await?;
    let waits = |body: &Value| body.to_string().contains("\"eviction\"");
    let path = format!("/v1/jobs/{}", regions.job());
    cluster
        .wait_for_rest("the job to wait", BOUND, &path, waits)
        .await?;
    let all_drained = |body: &Value| {
        let mut ids = ["tm-0", "tm-1"].into_iter();
        ids.all(|id| drain_of(body, id).is_some_and(|it| it["evicting"] == true))
    };
    cluster
        .wait_for_rest("both to be drained", BOUND, "/v1/taskmanagers", all_drained)
        .await?;
    regions.check_right_untouched(&mut cluster).await?;
    run_drain_command(&mut cluster, &["undrain", "--host", &host]).await?;
    let none_drained = |body: &Value| {
        ["tm-0", "tm-1"]
            .iter()
            .all(|id| drain_of(body, id).is_none())
    };
    cluster
        .wait_for_rest(
            "none to be drained",
            BOUND,
            "/v1/taskmanagers",
            none_drained,
        )
        .await?;
    regions.check_right_untouched(&mut cluster).await?;
    regions.cancel(&mut cluster).await
}

/// The drain of a TaskManager as REST shows it.
fn drain_of<'a>(body: &'a Value, id: &str) -> Option<&'a Value> {
    let mut all = body["taskmanagers"].as_array()?.iter();
    let found = all.find(|it| it["id"] == id)?;
    found.get("drain")
}

async fn run_drain_command(cluster: &mut Cluster, what: &[&str]) -> anyhow::Result<()> {
    let leader = cluster.leader().await?;
    let arguments = [&["taskmanager"], what, &["--address", &leader.rest]].concat();
    cluster.cli().run(&arguments).await?.success()?;
    Ok(())
}
