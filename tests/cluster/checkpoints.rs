//! Tasks are restored from checkpoints: nothing is counted twice, nothing is lost, and no change of leaders costs a
//! checkpoint or restarts a task.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::wordcount::visible_files;
use tanist_chaos::{Cluster, JobView, StoreKind, Submission, wait_for};
use tanist_proto::id::JobId;

use crate::kill_at_every_step::{die_in_turns, kill_at};
use crate::support::{BOUND, cluster_on, job_file, need_failpoints};

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
        a_sink_that_ended_before_its_region_was_restored_keeps_its_output,
    }
}

/// Numbers altogether: at least ten seconds of work.
const COUNT: u64 = 20_000;
const KEYS: usize = 50;

/// A job whose output says by itself whether each number counts once.
struct Verified {
    job: JobId,
    counts: PathBuf,
    numbers: PathBuf,
    count: u64,
}

impl Verified {
    async fn start(cluster: &mut Cluster, count: u64) -> anyhow::Result<Verified> {
        let counts = cluster.directory().join("counts");
        let numbers = cluster.directory().join("numbers");
        let submission = Submission::new(job_file("checkpointed.yaml"))
            .path("counts", &counts)
            .path("numbers", &numbers)
            .parameter("count", count);
        let job = cluster.submit(&submission).await?;
        cluster.wait_until_running(job).await?;
        Ok(Verified {
            job,
            counts,
            numbers,
            count,
        })
    }

    async fn checkpoints(&self, cluster: &mut Cluster) -> anyhow::Result<Value> {
        cluster
            .get(&format!("/v1/jobs/{}/checkpoints", self.job))
            .await
    }

    /// Waits for a completed checkpoint above this number; returns its number.
    async fn until_completed_above(
        &self,
        cluster: &mut Cluster,
        number: u64,
    ) -> anyhow::Result<u64> {
        let what = format!("a checkpoint above {number}");
        wait_for(&what, BOUND, async || {
            let checkpoints = self.checkpoints(cluster).await?;
            let newest = checkpoints["latest"]["completed"]["id"].as_u64();
            let newest = newest.with_context(|| format!("{checkpoints}"))?;
            ensure!(newest > number, "{checkpoints}");
            anyhow::Ok(newest)
        })
        .await
    }

    /// When a region was restored last, as the present JobMaster knows.
    async fn last_restore(&self, cluster: &mut Cluster) -> anyhow::Result<u64> {
        let checkpoints = self.checkpoints(cluster).await?;
        let restored = &checkpoints["latest"]["restored"];
        Ok(restored["restore_timestamp"].as_u64().unwrap_or_default())
    }

    /// Waits until a region was restored from a checkpoint after this time. Its own snapshot may be older than the
    /// newest checkpoint, of which other regions are a part.
    async fn until_restored_after(&self, cluster: &mut Cluster, at_ms: u64) -> anyhow::Result<()> {
        let what = format!("a restore from a checkpoint after {at_ms}");
        wait_for(&what, BOUND, async || {
            let restored = self.last_restore(cluster).await?;
            ensure!(restored > at_ms, "the last one was at {restored}");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits for the end, and checks that each number counts once in both outputs.
    async fn check_result(self, cluster: &mut Cluster) -> anyhow::Result<()> {
        cluster.wait_for_state(self.job, "FINISHED").await?;
        let mut seen = vec![0_u32; usize::try_from(self.count)?];
        let mut expected = BTreeMap::new();
        for line in lines(&self.numbers)? {
            let [seq, key, _value] = fields(&line)?;
            seen[usize::try_from(seq)?] += 1;
            *expected.entry(key).or_insert(0) += 1;
        }
        let wrong: Vec<_> = seen
            .iter()
            .enumerate()
            .filter(|(_, it)| **it != 1)
            .collect();
        let some = &wrong[..wrong.len().min(20)];
        ensure!(
            wrong.is_empty(),
            "{} (number, times): {some:?}",
            wrong.len()
        );
        let mut counts = BTreeMap::new();
        for line in lines(&self.counts)? {
            let [key, count] = fields(&line)?;
            let before = counts.insert(key, count);
            ensure!(before.is_none(), "two counts of one key: {line}");
        }
        ensure!(counts.len() == KEYS, "{} keys", counts.len());
        ensure!(counts == expected, "{counts:?} are not {expected:?}");
        cluster
            .check_nothing_left(&[self.counts, self.numbers])
            .await
    }
}

/// The columns of a record in a file.
fn fields<const COUNT: usize>(line: &str) -> anyhow::Result<[i64; COUNT]> {
    let columns = line.split(' ').map(str::parse);
    let columns: Vec<i64> = columns.collect::<Result<_, _>>()?;
    let count = columns.len();
    let columns = columns.try_into();
    columns.map_err(|_| anyhow::anyhow!("{count} columns: {line}"))
}

fn lines(directory: &std::path::Path) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for file in visible_files(directory)? {
        let content = std::fs::read_to_string(file)?;
        lines.extend(content.lines().map(str::to_owned));
    }
    Ok(lines)
}

async fn a_killed_taskmanager_costs_what_was_read_since_the_last_checkpoint(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind)
        .await?
        .jobmanagers(1)
        .taskmanagers(2)
        .slots(1);
    let mut cluster = builder.start().await?;
    let job = Verified::start(&mut cluster, COUNT).await?;
    let number = job.until_completed_above(&mut cluster, 3).await?;
    cluster.taskmanager(0).kill();
    cluster.taskmanager(0).start()?;
    job.until_restored_after(&mut cluster, 0).await?;
    // The restored tasks take part in checkpoints again.
    let number = job.until_completed_above(&mut cluster, number).await?;
    job.until_completed_above(&mut cluster, number + 1).await?;
    job.check_result(&mut cluster).await
}

async fn a_leader_that_dies_costs_no_checkpoint_and_no_task(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind)
        .await?
        .taskmanagers(2)
        .slots(1)
        .start()
        .await?;
    let job = Verified::start(&mut cluster, COUNT).await?;
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
    job.check_result(&mut cluster).await
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

/// The first leader is killed between two checkpoints, the next ones at these steps of one. A job whose leaders die more
/// often in so short a time is quarantined.
async fn costs_no_task(kind: StoreKind, steps: [&str; 2]) -> anyhow::Result<()> {
    need_failpoints()?;
    let builder = cluster_on(kind)
        .await?
        .failpoints(1, &kill_at(steps[0]))
        .taskmanagers(2)
        .slots(1);
    let mut cluster = builder.start().await?;
    let job = Verified::start(&mut cluster, COUNT).await?;
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
    job.check_result(&mut cluster).await
}

async fn taskmanagers_and_leaders_are_killed_again_and_again(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind)
        .await?
        .taskmanagers(2)
        .slots(1)
        .start()
        .await?;
    let job = Verified::start(&mut cluster, 2 * COUNT).await?;
    let mut number = 0;
    for round in 0..6 {
        number = job.until_completed_above(&mut cluster, number).await?;
        if round % 2 == 0 {
            let former = cluster.kill_leader().await?;
            cluster.successor_of(&former).await?;
            cluster.jobmanager(former.index).start()?;
        }
        if round % 3 != 1 {
            let killed = round % 2;
            let before = job.last_restore(&mut cluster).await?;
            cluster.taskmanager(killed).kill();
            cluster.taskmanager(killed).start()?;
            job.until_restored_after(&mut cluster, before).await?;
        }
    }
    job.check_result(&mut cluster).await
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
    cluster.wait_until_running(job).await?;
    let has_ended = |view: &JobView| !view.runs("short-out");
    cluster
        .wait_for_job(job, "to have read its short source", has_ended)
        .await?;
    let job = Verified {
        job,
        counts: short,
        numbers: all,
        count: 20_500,
    };
    let number = job.until_completed_above(&mut cluster, 0).await?;
    job.until_completed_above(&mut cluster, number + 1).await?;
    cluster.taskmanager(0).kill();
    cluster.taskmanager(0).start()?;
    job.until_restored_after(&mut cluster, 0).await?;
    cluster.wait_for_state(job.job, "FINISHED").await?;
    for (directory, expected) in [(&job.counts, 500), (&job.numbers, 20_500)] {
        let lines = lines(directory)?;
        let different: BTreeSet<&String> = lines.iter().collect();
        let found = (lines.len(), different.len());
        ensure!(found == (expected, expected), "{directory:?}: {found:?}");
    }
    cluster.check_nothing_left(&[job.counts, job.numbers]).await
}
