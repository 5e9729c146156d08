//! Savepoints: a job is stopped with one, and another job goes on where it was. Nothing is lost, and nothing is in the
//! output twice.

use std::path::Path;

use anyhow::ensure;
use tanist_chaos::{Cluster, StoreKind};

use crate::kill_at_every_step::{die_in_turns, kill_at};
use crate::support::{cluster_on, need_failpoints};
use crate::verified::{TwoRegions, Verified, retaining_cluster_on};

on_stores! {
    each {
        a_job_goes_on_at_another_parallelism_where_another_one_was_stopped,
        a_moved_savepoint_starts_a_changed_job_in_another_cluster_on_another_store,
    }
}
on_stores! {
    usually on anywhere(Embedded) {
        a_savepoint_is_taken_though_its_leaders_die,
        a_damaged_savepoint_is_refused,
        output_that_a_cancelled_job_has_not_shown_is_finished_by_the_next_one,
    }
}

/// Stops the job with a savepoint; returns its path.
pub(crate) async fn stop_with_savepoint(
    cluster: &mut Cluster,
    job: &Verified,
) -> anyhow::Result<String> {
    let leader = cluster.leader().await?;
    let directory = cluster.directory().join("savepoints");
    let savepoint = format!("--savepoint={}", directory.display());
    let job = job.job.to_string();
    let arguments = ["stop", &savepoint, &job, "--address", &leader.rest];
    let said = cluster.cli().run(&arguments).await?.success()?;
    let path = said.lines().last().unwrap_or_default().trim().to_owned();
    ensure!(Path::new(&path).starts_with(&directory), "{said:?}");
    ensure!(Path::new(&path).join("_metadata").is_file(), "{said:?}");
    Ok(path)
}

/// All vertices of a stopped job are FINISHED, as it is: in REST and on the command line.
async fn check_vertices_finished(cluster: &mut Cluster, job: &Verified) -> anyhow::Result<()> {
    let shown = cluster.get(&format!("/v1/jobs/{}", job.job)).await?;
    let vertices = shown["vertices"].as_array().cloned().unwrap_or_default();
    let is_finished = |vertex: &serde_json::Value| vertex["status"] == "FINISHED";
    ensure!(
        !vertices.is_empty() && vertices.iter().all(is_finished),
        "{shown}"
    );
    let leader = cluster.leader().await?;
    let id = job.job.to_string();
    let arguments = ["info", &id, "--address", &leader.rest];
    let told = cluster.cli().run(&arguments).await?.success()?;
    ensure!(!told.contains("CANCELED"), "{told}");
    Ok(())
}

async fn a_job_goes_on_at_another_parallelism_where_another_one_was_stopped(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = retaining_cluster_on(kind).await?.taskmanagers(3).slots(1);
    let mut cluster = builder.start().await?;
    let mut job = Verified::start_committing(&mut cluster).await?;
    job.until_visible().await?;
    for parallelism in ["3", "1"] {
        job.until_completed_above(&mut cluster, 0).await?;
        let path = stop_with_savepoint(&mut cluster, &job).await?;
        cluster.wait_for_state(job.job, "FINISHED").await?;
        check_vertices_finished(&mut cluster, &job).await?;
        let arguments = ["--parallelism", parallelism];
        job = job.go_on(&mut cluster, &path, &arguments).await?;
        job.until_visible().await?;
    }
    // It is restored from its own checkpoints from now on.
    let number = job.until_completed_above(&mut cluster, 0).await?;
    job.until_completed_above(&mut cluster, number).await?;
    for taskmanager in 0..3 {
        cluster.taskmanager(taskmanager).kill();
        cluster.taskmanager(taskmanager).start()?;
    }
    job.until_restored_after(&mut cluster, 0).await?;
    job.finish_at_once(&mut cluster).await
}

/// From 2 to 128 subtasks. The first cluster and its store are gone by then.
async fn a_moved_savepoint_starts_a_changed_job_in_another_cluster_on_another_store(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let kept = tempfile::tempdir()?;
    let builder = cluster_on(kind).await?.taskmanagers(2).slots(2);
    let mut first = builder.start().await?;
    let mut job = Verified::submit(&mut first, TwoRegions::default()).await?;
    job.until_visible().await?;
    let path = stop_with_savepoint(&mut first, &job).await?;
    first.wait_for_state(job.job, "FINISHED").await?;
    first.check_nothing_left(&job.directories()).await?;
    let moved = kept.path().join("moved");
    std::fs::rename(path, &moved)?;
    job.keep_output_in(kept.path())?;
    first.discard();

    let other = match kind {
        StoreKind::Embedded => StoreKind::Etcd,
        StoreKind::Etcd => StoreKind::ZooKeeper,
        StoreKind::ZooKeeper => StoreKind::Embedded,
    };
    // In one process: 16,384 connections between two would be a test of the machine.
    let builder = cluster_on(other).await?.taskmanagers(1).slots(128);
    let mut second = builder.start().await?;
    let moved = moved.to_string_lossy();
    let wide = ["--parallelism", "128"];
    let refused = job.go_on_changed(&mut second, &moved, &wide).await;
    let refusal = refused.err().map(|error| format!("{error:#}"));
    ensure!(
        refusal.as_ref().is_some_and(|it| it.contains("windows")),
        "{refusal:?}"
    );
    let wide = [&wide[..], &["--allow-non-restored-state"]].concat();
    job.go_on_changed(&mut second, &moved, &wide).await?;
    job.check_result(&mut second).await
}

/// The request is durable before the first leader dies, and the copy is complete before the second one does.
async fn a_savepoint_is_taken_though_its_leaders_die(kind: StoreKind) -> anyhow::Result<()> {
    need_failpoints()?;
    let steps = ["savepoint.requested", "savepoint.copied"];
    let builder = cluster_on(kind)
        .await?
        .failpoints(0, &kill_at(steps[0]))
        .failpoints(1, &kill_at(steps[1]))
        .taskmanagers(2)
        .slots(1);
    let mut cluster = builder.start().await?;
    let job = Verified::start_committing(&mut cluster).await?;
    job.until_completed_above(&mut cluster, 1).await?;
    let leader = cluster.leader().await?;
    let directory = cluster.directory().join("savepoints");
    let savepoint = format!("--savepoint={}", directory.display());
    let id = job.job.to_string();
    let standby = cluster.rest_address(1 - leader.index).to_owned();
    let cli = cluster.cli().clone();
    let arguments = ["stop", &savepoint, &id, "--address", &standby];
    let (said, ()) = tokio::try_join!(cli.run(&arguments), die_in_turns(&mut cluster, 0, &steps))?;
    let said = said.success()?;
    let path = said.lines().last().unwrap_or_default().trim();
    cluster.wait_for_state(job.job, "FINISHED").await?;
    let job = job.go_on_at_once(&mut cluster, path).await?;
    job.check_result(&mut cluster).await
}

async fn a_damaged_savepoint_is_refused(kind: StoreKind) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.taskmanagers(2).slots(1);
    let mut cluster = builder.start().await?;
    let job = Verified::start_committing(&mut cluster).await?;
    job.until_completed_above(&mut cluster, 1).await?;
    let path = stop_with_savepoint(&mut cluster, &job).await?;
    let metadata = Path::new(&path).join("_metadata");
    let mut bytes = std::fs::read(&metadata)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&metadata, &bytes)?;
    let refused = job.go_on(&mut cluster, &path, &[]).await;
    let refusal = refused.err().map(|error| format!("{error:#}"));
    ensure!(
        refusal.as_ref().is_some_and(|it| it.contains("damaged")),
        "{refusal:?}"
    );
    Ok(())
}

/// The sinks have open parts in each checkpoint. Each job begins from that of the one before, in the same directories.
async fn output_that_a_cancelled_job_has_not_shown_is_finished_by_the_next_one(
    kind: StoreKind,
) -> anyhow::Result<()> {
    for shows_at_end in [true, false] {
        let builder = retaining_cluster_on(kind).await?.taskmanagers(2).slots(1);
        let mut cluster = builder.start().await?;
        let mut job = match shows_at_end {
            true => Verified::start(&mut cluster).await?,
            false => Verified::start_committing(&mut cluster).await?,
        };
        for claim_mode in ["NO_CLAIM", "CLAIM"] {
            job.until_completed_above(&mut cluster, 5).await?;
            job.cancel(&mut cluster).await?;
            let arguments = ["--claim-mode", claim_mode];
            job = job.resume(&mut cluster, &arguments).await?;
        }
        // It has begun, and perhaps not taken a checkpoint: then the next one begins where it did.
        job.cancel(&mut cluster).await?;
        let job = job.resume_at_once(&mut cluster).await?;
        cluster.wait_for_state(job.job, "FINISHED").await?;
        job.check_output()?;
    }
    Ok(())
}
