//! TaskManagers that leave permanently, from the view of an operator: a drained one is shown as such, continues its
//! work, and ends in order when its job has ended; one that belongs to another cluster is refused and logs the reason.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::{Cluster, StoreKind};

use crate::support::{BOUND, RunningOn, WordsAndTicks, cluster_on};

/// Exit code of TaskManagers that are refused permanently.
const REFUSED: i32 = 21;
/// Timeout until a process without work ends.
const END_BOUND: Duration = Duration::from_secs(60);

on_stores! {
    embedded(Embedded) {
        a_drained_taskmanager_is_shown_as_such_and_ends_in_peace,
        a_taskmanager_of_another_cluster_is_refused_and_says_why,
    }
    etcd(Etcd) { a_drained_taskmanager_is_shown_as_such_and_ends_in_peace }
}

async fn a_drained_taskmanager_is_shown_as_such_and_ends_in_peace(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.taskmanagers(1).slots(4);
    let mut cluster = builder.start().await?;
    let running = RunningOn::start(&mut cluster).await?;
    let leader = running.first.rest.clone();
    let drain = ["taskmanager", "drain", "tm-0", "--address", &leader];
    let said = cluster.cli().run(&drain).await?;
    let text = format!("{}{}", said.stdout, said.stderr);
    said.success()?;
    ensure!(text.contains("tm-0"), "{text:?}");
    let (what, path) = ("tm-0 as drained", "/v1/taskmanagers");
    let shows_it = |body: &Value| drained(body) == ["tm-0"];
    cluster.wait_for_rest(what, BOUND, path, shows_it).await?;
    // Another job gets none of its slots, though two are free.
    let next = WordsAndTicks::prepare_in(&cluster, "next", 1)?;
    cluster.submit(&next.submission).await?;

    // The next leader keeps the drain.
    cluster.kill_leader().await?;
    let second = cluster.successor_of(&running.first).await?;
    running.check_untouched(&mut cluster).await?;
    cluster.wait_for_rest(what, BOUND, path, shows_it).await?;
    running.workload.stop(&mut cluster).await?;
    let status = cluster.taskmanager(0).ended(END_BOUND).await?;
    ensure!(status.code() == Some(0), "tm-0: {status}");
    for text in [
        "the TaskManager is drained: deregistering",
        "it was drained, or",
    ] {
        cluster.taskmanager(0).logs(text, BOUND).await?;
    }
    running.workload.check_result()?;
    let view = cluster.job(next.job()).await?;
    ensure!(
        !view.runs("clock") && !view.is_over(),
        "it ran on a drained TaskManager: {}",
        view.0
    );
    // After a restart it is still drained, until the drain is ended: then jobs get its slots.
    cluster.taskmanager(0).start()?;
    cluster.wait_for_rest(what, BOUND, path, shows_it).await?;
    let undrain = ["taskmanager", "undrain", "tm-0", "--address", &second.rest];
    cluster.cli().run(&undrain).await?.success()?;
    cluster.wait_for_state(next.job(), "FINISHED").await?;
    next.check_result()?;
    let leads = cluster.leader().await?;
    ensure!(leads == second, "{leads:?} leads, not {second:?}");
    let outputs = [running.workload.outputs(), next.outputs()].concat();
    cluster.check_nothing_left(&outputs).await
}

/// The ids of the TaskManagers that are shown as drained.
fn drained(body: &Value) -> Vec<&str> {
    let all = body["taskmanagers"].as_array().into_iter().flatten();
    let blocked = all.filter(|it| it["blocked"] == true);
    let mut ids: Vec<&str> = blocked.filter_map(|it| it["id"].as_str()).collect();
    ids.sort_unstable();
    ids
}

/// Each cluster has its own directory in the store's, by its id: this one is known under two ids, as
/// after a careless move.
async fn a_taskmanager_of_another_cluster_is_refused_and_says_why(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.jobmanagers(1).start().await?;
    let store = cluster.store_directory();
    std::os::unix::fs::symlink(store.join(cluster.id()), store.join("other"))
        .context("cannot give the store another name")?;
    let arguments = stranger(&cluster);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = cluster.cli().run(&arguments).await?;
    ensure!(ended.code == Some(REFUSED), "it ended with {ended:?}");
    let last = ended.stderr.lines().last().unwrap_or_default().to_owned();
    let ours = format!("{:?}", cluster.id());
    for told in [
        "refused permanently",
        "configured for cluster",
        "other",
        ours.trim_matches('"'),
    ] {
        ensure!(last.contains(told), "not said: {told}: {last}");
    }
    let body = cluster.get("/v1/taskmanagers").await?;
    ensure!(!body.to_string().contains("tm-9"), "it is listed: {body}");
    cluster.check_nothing_left(&[]).await
}

/// The arguments of a TaskManager with the configuration of this cluster, except the cluster's id.
fn stranger(cluster: &Cluster) -> Vec<String> {
    let is_id = |setting: &String| setting.starts_with("high-availability.cluster-id=");
    let settings = cluster.settings().into_iter();
    let others = settings.map(|it| match is_id(&it) {
        true => "high-availability.cluster-id=other".to_owned(),
        false => it,
    });
    let own = ["-D", "taskmanager.resource-id=tm-9"].map(str::to_owned);
    let command = std::iter::once("taskmanager".to_owned());
    command.chain(others).chain(own).collect()
}
