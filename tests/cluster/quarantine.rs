//! A job that kills every JobManager that starts it is quarantined: the JobManager stays up, another job
//! and the job's own tasks continue, and it is led again when an operator retries it.

use std::time::Duration;

use anyhow::ensure;
use serde_json::Value;
use tanist_chaos::StoreKind;

use crate::support::{WordsAndTicks, cluster_on, need_failpoints};

/// Timeout until a JobManager leads and starts the job that kills it.
const DEATH_BOUND: Duration = Duration::from_secs(60);

on_stores! {
    usually on embedded(Embedded) {
        a_job_that_ends_its_jobmanager_is_quarantined_and_led_again_when_it_is_retried,
    }
}

async fn a_job_that_ends_its_jobmanager_is_quarantined_and_led_again_when_it_is_retried(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let builder = cluster_on(kind).await?.jobmanagers(1).taskmanagers(2);
    let mut cluster = builder.start().await?;
    let culprit = WordsAndTicks::prepare_endless_in(&cluster, "culprit")?;
    let other = WordsAndTicks::prepare_endless_in(&cluster, "other")?;
    for workload in [&culprit, &other] {
        cluster.submit(&workload.submission).await?;
        workload.wait_until_ticking(&mut cluster).await?;
    }
    let of_culprit = cluster.attempts(culprit.job()).await?;
    let of_other = cluster.attempts(other.job()).await?;
    // Until a term has settled, its end counts as one during recovery.
    let settled = |body: &Value| body["terms"][0]["phase"] == "leading";
    cluster
        .wait_for_rest("a settled term", DEATH_BOUND, "/v1/ha/history", settled)
        .await?;
    cluster.kill_leader().await?;
    // Twice with both jobs, then twice alone: the other job is fine, whichever of the two is started first.
    for _ in 0..4 {
        let jobmanager = cluster.jobmanager(0);
        jobmanager.arm(format!("job.recover:{}=kill", culprit.job()));
        jobmanager.start()?;
        jobmanager.ended(DEATH_BOUND).await?;
    }
    cluster.jobmanager(0).start()?;
    cluster.leader().await?;
    cluster.wait_for_state(culprit.job(), "SUSPENDED").await?;
    other.check_adopted(&mut cluster, &of_other).await?;

    let address = cluster.rest_address(0).to_owned();
    let id = culprit.job().to_string();
    let command =
        |action: &'static str| ["--address", address.as_str(), "job", "quarantine", action];
    let listed = cluster.cli().run(&command("list")).await?.success()?;
    for told in [
        &id,
        "ended-process",
        "ended while it started this job alone",
    ] {
        ensure!(listed.contains(told), "not said: {told}: {listed}");
    }
    let mut retry = command("retry").to_vec();
    retry.push(&id);
    cluster.cli().run(&retry).await?.success()?;
    culprit.check_adopted(&mut cluster, &of_culprit).await?;
    other.stop(&mut cluster).await?;
    other.check_result()?;
    culprit.stop_and_check(&mut cluster).await
}
