//! Tasks are restored from checkpoints: nothing is counted twice, nothing is lost, and no change of leaders costs a
//! checkpoint or restarts a task.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use tanist_chaos::{Cluster, JobView, StoreKind, Submission, wait_for};

use crate::kill_at_every_step::{die_in_turns, kill_at};
use crate::support::{BOUND, cluster_on, job_file, need_failpoints, stop_job};
use crate::verified::{Verified, lines, retaining_cluster_on};

on_stores! {
    each {
        a_killed_taskmanager_costs_what_was_read_since_the_last_checkpoint,
        a_leader_that_dies_costs_no_checkpoint_and_no_task,
        leaders_that_die_when_they_trigger_a_checkpoint_cost_no_task,
        leaders_that_die_when_they_complete_a_checkpoint_cost_no_task,
    }
}
on_stores! {
    usually on anywhere(Embedded) {
        taskmanagers_and_leaders_are_killed_again_and_again,
        output_of_checkpoints_is_visible_once_whoever_is_killed,
        a_sink_that_ended_before_its_region_was_restored_keeps_its_output,
        lines_of_a_followed_file_that_are_lost_with_it_are_an_event_of_the_job,
    }
}

async fn a_killed_taskmanager_costs_what_was_read_since_the_last_checkpoint(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = retaining_cluster_on(kind)
        .await?
        .jobmanagers(1)
        .taskmanagers(2)
        .slots(1);
    let mut cluster = builder.start().await?;
    let job = Verified::start(&mut cluster).await?;
    let number = job.until_completed_above(&mut cluster, 3).await?;
    cluster.taskmanager(0).kill();
    cluster.taskmanager(0).start()?;
    job.until_restored_after(&mut cluster, 0).await?;
    // The restored tasks take part in checkpoints again.
    let number = job.until_completed_above(&mut cluster, number).await?;
    job.until_completed_above(&mut cluster, number + 1).await?;
    job.finish_at_once(&mut cluster).await
}

async fn a_leader_that_dies_costs_no_checkpoint_and_no_task(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = retaining_cluster_on(kind)
        .await?
        .taskmanagers(2)
        .slots(1)
        .start()
        .await?;
    let job = Verified::start(&mut cluster).await?;
    let number = job.until_completed_above(&mut cluster, 3).await?;
    let before = cluster.attempts(job.job).await?;
    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    job.until_completed_above(&mut cluster, number).await?;
    let after = cluster.attempts(job.job).await?;
    ensure!(before.changed(&after) == 0, "{before:?}, {after:?}");
    // What this leader completed is restored by the next one.
    cluster.jobmanager(former.index).start()?;
    let former = cluster.kill_leader().await?;
    cluster.taskmanager(1).kill();
    cluster.taskmanager(1).start()?;
    cluster.successor_of(&former).await?;
    job.until_restored_after(&mut cluster, 0).await?;
    job.finish_at_once(&mut cluster).await
}

async fn leaders_that_die_when_they_trigger_a_checkpoint_cost_no_task(
    kind: StoreKind,
) -> anyhow::Result<()> {
    costs_no_task(kind, ["checkpoint.reserved", "checkpoint.triggered"]).await
}

async fn leaders_that_die_when_they_complete_a_checkpoint_cost_no_task(
    kind: StoreKind,
) -> anyhow::Result<()> {
    costs_no_task(
        kind,
        ["checkpoint.all-acknowledged", "checkpoint.completed"],
    )
    .await
}

/// The first leader is killed between two checkpoints, the next ones at these steps of one. A job whose leaders die
/// more often in so short a time is quarantined.
async fn costs_no_task(kind: StoreKind, steps: [&str; 2]) -> anyhow::Result<()> {
    need_failpoints()?;
    let builder = retaining_cluster_on(kind)
        .await?
        .failpoints(1, &kill_at(steps[0]))
        .taskmanagers(2)
        .slots(1);
    let mut cluster = builder.start().await?;
    let job = Verified::start(&mut cluster).await?;
    job.until_completed_above(&mut cluster, 1).await?;
    let before = cluster.attempts(job.job).await?;
    let former = cluster.kill_leader().await?;
    let former = cluster.jobmanager(former.index);
    former.arm(kill_at(steps[1]));
    former.start()?;
    die_in_turns(&mut cluster, 1, &steps).await?;
    let number = job.until_completed_above(&mut cluster, 1).await?;
    job.until_completed_above(&mut cluster, number).await?;
    let after = cluster.attempts(job.job).await?;
    ensure!(before.changed(&after) == 0, "{before:?}, {after:?}");
    job.finish_at_once(&mut cluster).await
}

async fn taskmanagers_and_leaders_are_killed_again_and_again(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = retaining_cluster_on(kind)
        .await?
        .taskmanagers(2)
        .slots(1)
        .start()
        .await?;
    let job = Verified::start(&mut cluster).await?;
    kill_in_rounds(&mut cluster, &job).await?;
    job.finish_at_once(&mut cluster).await
}

async fn output_of_checkpoints_is_visible_once_whoever_is_killed(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = retaining_cluster_on(kind).await?.taskmanagers(2).slots(1);
    let mut cluster = builder.start().await?;
    let job = Verified::start_committing(&mut cluster).await?;
    job.until_visible().await?;
    kill_in_rounds(&mut cluster, &job).await?;
    job.finish_at_once(&mut cluster).await
}

/// Kills leaders, TaskManagers, and both, each after another checkpoint.
async fn kill_in_rounds(cluster: &mut Cluster, job: &Verified) -> anyhow::Result<()> {
    let mut number = 0;
    for round in 0..6 {
        number = job.until_completed_above(cluster, number).await?;
        if round % 2 == 0 {
            let former = cluster.kill_leader().await?;
            cluster.successor_of(&former).await?;
            cluster.jobmanager(former.index).start()?;
        }
        if round % 3 != 1 {
            let killed = round % 2;
            let before = job.last_restore(cluster).await?;
            cluster.taskmanager(killed).kill();
            cluster.taskmanager(killed).start()?;
            job.until_restored_after(cluster, before).await?;
        }
    }
    Ok(())
}

async fn a_sink_that_ended_before_its_region_was_restored_keeps_its_output(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.taskmanagers(2).slots(1);
    let mut cluster = builder.start().await?;
    let [short, all] = ["short", "all"].map(|name| cluster.directory().join(name));
    let submission = Submission::new(job_file("ends-early.yaml"))
        .path("short", &short)
        .path("all", &all);
    let job = cluster.submit(&submission).await?;
    cluster.wait_until_running_or_finished(job).await?;
    let has_ended = |view: &JobView| !view.runs("short-out");
    cluster
        .wait_for_job(job, "to have read its short source", has_ended)
        .await?;
    let job = Verified::of(job, [short, all]);
    let number = job.until_completed_above(&mut cluster, 0).await?;
    job.until_completed_above(&mut cluster, number + 1).await?;
    cluster.taskmanager(0).kill();
    cluster.taskmanager(0).start()?;
    job.until_restored_after(&mut cluster, 0).await?;
    cluster.wait_for_state(job.job, "FINISHED").await?;
    for (directory, expected) in job.outputs[0].iter().zip([500, 20_500]) {
        let lines = lines(directory)?;
        let different: BTreeSet<&String> = lines.iter().collect();
        let found = (lines.len(), different.len());
        ensure!(found == (expected, expected), "{directory:?}: {found:?}");
    }
    cluster.check_nothing_left(&job.outputs.concat()).await
}

/// The file is removed while no task has it open, with a line that none has read.
async fn lines_of_a_followed_file_that_are_lost_with_it_are_an_event_of_the_job(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.taskmanagers(1).slots(1);
    let mut cluster = builder.start().await?;
    let [followed, output] = ["followed", "output"].map(|it| cluster.directory().join(it));
    std::fs::create_dir(&followed)?;
    let file = followed.join("a.log");
    std::fs::write(&file, "one\n")?;
    let submission = Submission::new(job_file("followed.yaml"))
        .path("lines", &followed)
        .path("output", &output);
    let job = cluster.submit(&submission).await?;
    cluster.wait_until_running(job).await?;
    // What is visible is in a checkpoint, and so is its position.
    wait_for("a visible line", BOUND, async || {
        let visible = lines(&output)?;
        ensure!(visible == ["one"], "{visible:?}");
        anyhow::Ok(())
    })
    .await?;
    cluster.taskmanager(0).kill();
    std::fs::write(&file, "one\ntwo\n")?;
    std::fs::remove_file(&file)?;
    cluster.taskmanager(0).start()?;
    let expected = format!("behind offset 4 of the followed file {}", file.display());
    let events = format!("/v1/jobs/{job}/events");
    wait_for("an event about the file", BOUND, async || {
        let events = cluster.get(&events).await?;
        let mut all = events["events"].as_array().into_iter().flatten();
        let notice = all.find(|it| it["kind"] == "NOTICE");
        let notice = notice.with_context(|| events.to_string())?;
        let text = notice["text"].as_str().unwrap_or_default();
        ensure!(text.contains(&expected), "{text}");
        anyhow::Ok(())
    })
    .await?;
    stop_job(&mut cluster, job).await
}
