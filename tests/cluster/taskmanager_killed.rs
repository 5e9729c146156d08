//! A TaskManager is killed by SIGKILL under a running job, alone, together with the leader, and while its
//! job is cancelled.

use std::path::Path;

use anyhow::ensure;
use tanist_chaos::wordcount::visible_files;
use tanist_chaos::{Cluster, JobView, StoreKind, Submission, wait_for};

use crate::regions::TwoRegions;
use crate::support::{
    BOUND, ENDLESS, WordsAndTicks, cluster_on, job_file, records_sent, stop_job, until_restarted,
};

on_stores! {
    each {
        a_killed_taskmanager_costs_a_restart_and_changes_no_result,
        a_leader_and_a_taskmanager_that_are_killed_together_cost_a_restart,
        a_killed_taskmanager_is_replaced_by_a_spare_one_without_a_heartbeat,
    }
}
on_stores! {
    on_embedded(Embedded) {
        the_region_on_another_taskmanager_than_the_killed_one_is_adopted,
        subtasks_that_nothing_connects_with_those_of_a_killed_taskmanager_run_on,
        a_job_is_canceled_though_its_taskmanager_is_killed_meanwhile,
    }
    on_etcd(Etcd) { the_region_on_another_taskmanager_than_the_killed_one_is_adopted }
}

/// Two TaskManagers with one slot each, and one JobManager.
async fn with_one_jobmanager(kind: StoreKind) -> anyhow::Result<Cluster> {
    let builder = cluster_on(kind).await?.jobmanagers(1).taskmanagers(2);
    builder.slots(1).start().await
}

async fn a_killed_taskmanager_costs_a_restart_and_changes_no_result(
    kind: StoreKind,
) -> anyhow::Result<()> {
    // Every slot is in use, so that the job can't continue without a new TaskManager.
    let mut cluster = with_one_jobmanager(kind).await?;
    let workload = WordsAndTicks::prepare_endless(&cluster)?;
    let job = cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    cluster.taskmanager(0).kill();
    let waits = |view: &JobView| !view.runs("clock");
    cluster
        .wait_for_job(job, "to notice that a TaskManager is gone", waits)
        .await?;
    workload.check_nothing_visible()?;
    cluster.taskmanager(0).start()?;
    workload.wait_until_ticking(&mut cluster).await?;
    let exceptions = cluster.get(&format!("/v1/jobs/{job}/exceptions")).await?;
    let entries = exceptions["exceptionHistory"]["entries"].as_array();
    ensure!(
        entries.is_some_and(|entries| !entries.is_empty()),
        "the loss is not among the job's exceptions: {exceptions}"
    );
    workload.stop_and_check(&mut cluster).await
}

async fn a_killed_taskmanager_is_replaced_by_a_spare_one_without_a_heartbeat(
    kind: StoreKind,
) -> anyhow::Result<()> {
    // Past the first one after a registration, no heartbeat is sent while this test lasts.
    let builder = cluster_on(kind).await?.jobmanagers(1).taskmanagers(3);
    let builder = builder.slots(1).set("heartbeat.interval", "2 min");
    let mut cluster = builder.set("heartbeat.timeout", "4 min").start().await?;
    let workload = WordsAndTicks::prepare_endless(&cluster)?;
    let job = cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    for _ in 0..2 {
        let (killed, _) = cluster.place_of(job, "clock").await?;
        cluster.taskmanager(killed).kill();
        wait_for("the clock to run elsewhere", BOUND, async || {
            let (place, _) = cluster.place_of(job, "clock").await?;
            ensure!(place != killed, "it is still at {killed}");
            anyhow::Ok(())
        })
        .await?;
        workload.wait_until_ticking(&mut cluster).await?;
        cluster.taskmanager(killed).start()?;
    }
    workload.stop_and_check(&mut cluster).await
}

async fn a_leader_and_a_taskmanager_that_are_killed_together_cost_a_restart(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.taskmanagers(2).slots(1);
    let mut cluster = builder.start().await?;
    let workload = WordsAndTicks::prepare_endless(&cluster)?;
    cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    let before = workload.ticking_attempts(&mut cluster).await?;
    let former = cluster.kill_leader().await?;
    cluster.taskmanager(0).kill();
    cluster.taskmanager(0).start()?;
    cluster.successor_of(&former).await?;
    cluster.jobmanager(former.index).start()?;
    until_restarted(&mut cluster, workload.job(), &before).await?;
    workload.check_nothing_visible()?;
    workload.stop_and_check(&mut cluster).await
}

async fn the_region_on_another_taskmanager_than_the_killed_one_is_adopted(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.taskmanagers(2).slots(1);
    let mut cluster = builder.start().await?;
    let regions = TwoRegions::start(&mut cluster).await?;
    let [left, _] = regions.taskmanagers;
    let former = cluster.kill_leader().await?;
    cluster.taskmanager(left).kill();
    cluster.taskmanager(left).start()?;
    cluster.successor_of(&former).await?;
    regions.until_left_is_superseded(&mut cluster).await?;
    regions.stop_and_check(&mut cluster).await
}

async fn subtasks_that_nothing_connects_with_those_of_a_killed_taskmanager_run_on(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = with_one_jobmanager(kind).await?;
    let output = cluster.directory().join("output");
    let submission = Submission::new(job_file("side-by-side.yaml"))
        .path("output", &output)
        .parameter("count", ENDLESS);
    let job = cluster.submit(&submission).await?;
    cluster.wait_until_running(job).await?;
    let (killed, _) = cluster.place_of(job, "numbers").await?;
    let before = cluster.attempts(job).await?;
    ensure!(before.count() == 4, "{before:?}");
    cluster.taskmanager(killed).kill();
    cluster.taskmanager(killed).start()?;
    wait_for("two tasks to run again", BOUND, async || {
        let after = cluster.attempts(job).await?;
        ensure!(before.changed(&after) == 2, "{before:?}, {after:?}");
        anyhow::Ok(())
    })
    .await?;
    cluster.wait_until_running(job).await?;
    stop_job(&mut cluster, job).await?;
    let after = cluster.attempts(job).await?;
    ensure!(before.changed(&after) == 2, "{before:?}, {after:?}");
    let sent = records_sent(&mut cluster, job, "numbers").await?;
    let lines = visible_lines(&output)?;
    ensure!(lines > 0 && lines == sent, "{lines} lines, not {sent}");
    cluster.check_nothing_left(&[output]).await
}

fn visible_lines(directory: &Path) -> anyhow::Result<u64> {
    let mut lines = 0;
    for file in visible_files(directory)? {
        lines += std::fs::read_to_string(file)?.lines().count() as u64;
    }
    Ok(lines)
}

/// Its programs ignore the request to end, so that they end late.
async fn a_job_is_canceled_though_its_taskmanager_is_killed_meanwhile(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.taskmanagers(1);
    let mut cluster = builder.start().await?;
    let pids = cluster.directory().join("pids");
    let submission = Submission::new(job_file("family.yaml")).path("pids", &pids);
    let job = cluster.submit(&submission).await?;
    cluster.wait_until_running(job).await?;
    let leader = cluster.leader().await?.rest;
    let arguments = ["cancel", &job.to_string(), "--address", &leader];
    cluster.cli().run(&arguments).await?.success()?;
    cluster.taskmanager(0).kill();
    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    cluster.wait_for_state(job, "CANCELED").await?;
    cluster.check_no_programs().await?;
    cluster.check_nothing_left(&[]).await
}
