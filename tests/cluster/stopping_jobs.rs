//! A job that is stopped ends with the records read so far, even if the leader that received the request dies.

use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::{StoreKind, wordcount};

use crate::support::{WordsAndTicks, cluster_on, need_failpoints};

const REACH_BOUND: Duration = Duration::from_secs(60);

on_stores! {
    usually on embedded(Embedded) {
        a_stop_outlives_the_leader_that_took_it_and_shows_what_was_read,
    }
}

async fn a_stop_outlives_the_leader_that_took_it_and_shows_what_was_read(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let builder = cluster_on(kind).await?;
    let mut cluster = builder
        .failpoints(0, "job.stop-persisted=kill")
        .start()
        .await?;
    let former = cluster.leader().await?;
    let workload = WordsAndTicks::prepare_endless(&cluster)?;
    let job = cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    let attempts = cluster.attempts(job).await?;
    let standby = cluster.rest_address(1 - former.index).to_owned();
    let id = job.to_string();
    let stop = ["stop", &id, "--address", &standby];
    cluster.cli().run(&stop).await?.success()?;
    cluster
        .jobmanager(0)
        .reached("job.stop-persisted", REACH_BOUND)
        .await?;
    cluster.successor_of(&former).await?;
    cluster.wait_for_state(job, "FINISHED").await?;
    // No task was restarted.
    cluster.check_untouched(job, &attempts).await?;
    let [_, ticks] = workload.outputs();
    let ticks: u64 = wordcount::read_output(&ticks)?.values().sum();
    ensure!(ticks > 0, "nothing was counted");
    let view = cluster.get(&format!("/v1/jobs/{job}")).await?;
    ensure!(
        view["vertices"][0]["name"].is_string(),
        "it is not described: {view}"
    );
    cluster.check_nothing_left(&workload.outputs()).await
}
