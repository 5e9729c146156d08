//! A client that waits for its job while the leader is killed, and that knows only the cluster's configuration.

use anyhow::ensure;
use tanist_chaos::StoreKind;

use crate::support::{WordsAndTicks, cluster_on};

on_stores! {
    embedded(Embedded) { a_client_with_the_clusters_configuration_waits_for_its_job_over_a_takeover }
    etcd(Etcd) { a_client_with_the_clusters_configuration_waits_for_its_job_over_a_takeover }
    zookeeper(ZooKeeper) { a_client_with_the_clusters_configuration_waits_for_its_job_over_a_takeover }
}

async fn a_client_with_the_clusters_configuration_waits_for_its_job_over_a_takeover(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.start().await?;
    let workload = WordsAndTicks::prepare_endless(&cluster)?;
    let mut arguments = workload.submission.attached_arguments();
    arguments.extend(cluster.settings());
    arguments.extend(["-o", "json"].map(str::to_owned));
    let cli = cluster.cli().clone();
    let waiting = tokio::spawn(async move {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        cli.run(&arguments).await
    });
    workload.wait_until_ticking(&mut cluster).await?;
    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    workload.stop(&mut cluster).await?;
    let end: serde_json::Value = serde_json::from_str(&waiting.await??.success()?)?;
    ensure!(end["state"] == "FINISHED", "{end}");
    workload.check_result()?;

    let mut arguments = cluster.settings();
    arguments.extend(["list", "-o", "json"].map(str::to_owned));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let listed = cluster.cli().run(&arguments).await?.success()?;
    let listed: serde_json::Value = serde_json::from_str(&listed)?;
    let text = listed.to_string();
    ensure!(
        text.contains(&workload.job().to_string()) && text.contains("FINISHED"),
        "the job is not listed as it ended: {text}"
    );
    workload.check_finished(&mut cluster).await
}
