//! The store's server is killed and started again under a running job. The embedded store has no server.

use anyhow::ensure;
use tanist_chaos::{ClusterBuilder, Store, StoreKind};

use crate::support::{PROGRAM, WordsAndTicks};

on_stores! {
    etcd(Etcd) {
        a_job_goes_on_while_its_stores_server_restarts,
        a_job_submitted_while_the_store_is_away_is_acknowledged_when_it_is_back,
    }
    zookeeper(ZooKeeper) {
        a_job_goes_on_while_its_stores_server_restarts,
        a_job_submitted_while_the_store_is_away_is_acknowledged_when_it_is_back,
    }
}

async fn a_job_goes_on_while_its_stores_server_restarts(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
        .start()
        .await?;
    let workload = WordsAndTicks::prepare_endless(&cluster)?;
    let job = cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    cluster.store().kill_server()?;
    // Without its store the leader answers from memory.
    let view = cluster.job(job).await?;
    ensure!(
        view.state() == "RUNNING",
        "the job does not run without the store: {}",
        view.0
    );
    cluster.store().restart_server().await?;
    workload.stop_and_check(&mut cluster).await
}

async fn a_job_submitted_while_the_store_is_away_is_acknowledged_when_it_is_back(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
        .start()
        .await?;
    let leader = cluster.leader().await?;
    let workload = WordsAndTicks::prepare(&cluster, 1)?;
    cluster.store().kill_server()?;
    let cli = cluster.cli().clone();
    let submission = workload.submission.clone();
    let submitting = tokio::spawn(async move { submission.submit(&cli, &leader.rest).await });
    cluster.store().restart_server().await?;
    submitting.await??.success()?;
    workload.check_finished(&mut cluster).await
}
