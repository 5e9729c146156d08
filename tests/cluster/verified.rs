//! A job with checkpoints whose output says by itself whether each of its numbers counts once.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::wordcount::visible_files;
use tanist_chaos::{Cluster, Submission, wait_for};
use tanist_proto::id::JobId;

use crate::support::{BOUND, job_file};

/// Numbers altogether: at least ten seconds of work.
pub(crate) const COUNT: u64 = 20_000;
const KEYS: usize = 50;
/// The job file of a job that commits with checkpoints.
const COMMITTING: &str = "committing.yaml";

/// A job whose output says by itself whether each number counts once.
pub(crate) struct Verified {
    pub(crate) job: JobId,
    /// The directories of the counts and of the numbers; those of the jobs that it continues come first.
    pub(crate) outputs: Vec<[PathBuf; 2]>,
    pub(crate) count: u64,
}

impl Verified {
    /// A job whose output becomes visible at its end.
    pub(crate) async fn start(cluster: &mut Cluster, count: u64) -> anyhow::Result<Verified> {
        Verified::begin(cluster, "checkpointed.yaml", count, Vec::new(), &[]).await
    }

    /// A job whose output becomes visible with its checkpoints.
    pub(crate) async fn start_committing(
        cluster: &mut Cluster,
        count: u64,
    ) -> anyhow::Result<Verified> {
        Verified::begin(cluster, COMMITTING, count, Vec::new(), &[]).await
    }

    /// A job that continues where this one was stopped with a savepoint. `arguments` are those of its submission.
    pub(crate) async fn go_on(
        self,
        cluster: &mut Cluster,
        savepoint: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Verified> {
        let from = [&["--from-savepoint", savepoint], arguments].concat();
        Verified::begin(cluster, COMMITTING, self.count, self.outputs, &from).await
    }

    async fn begin(
        cluster: &mut Cluster,
        file: &str,
        count: u64,
        mut outputs: Vec<[PathBuf; 2]>,
        arguments: &[&str],
    ) -> anyhow::Result<Verified> {
        let number = outputs.len();
        let output = ["counts", "numbers"].map(|name| format!("{name}-{number}"));
        let output = output.map(|name| cluster.directory().join(name));
        let submission = Submission::new(job_file(file))
            .path("counts", &output[0])
            .path("numbers", &output[1])
            .parameter("count", count)
            .arguments(arguments);
        outputs.push(output);
        let job = cluster.submit(&submission).await?;
        cluster.wait_until_running(job).await?;
        Ok(Verified {
            job,
            outputs,
            count,
        })
    }

    /// Waits until some of its numbers are visible.
    pub(crate) async fn until_visible(&self) -> anyhow::Result<()> {
        wait_for("visible output", BOUND, async || {
            let numbers = self.outputs.last().map(|[_, numbers]| lines(numbers));
            let count = numbers.transpose()?.map_or(0, |numbers| numbers.len());
            ensure!(count > 0, "nothing is visible");
            anyhow::Ok(())
        })
        .await
    }

    pub(crate) async fn checkpoints(&self, cluster: &mut Cluster) -> anyhow::Result<Value> {
        cluster
            .get(&format!("/v1/jobs/{}/checkpoints", self.job))
            .await
    }

    /// Waits for a completed checkpoint above this number; returns its number.
    pub(crate) async fn until_completed_above(
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
    pub(crate) async fn last_restore(&self, cluster: &mut Cluster) -> anyhow::Result<u64> {
        let checkpoints = self.checkpoints(cluster).await?;
        let restored = &checkpoints["latest"]["restored"];
        Ok(restored["restore_timestamp"].as_u64().unwrap_or_default())
    }

    /// Waits until a region was restored from a checkpoint after this time. Its own snapshot may be older than the
    /// newest checkpoint, of which other regions are a part.
    pub(crate) async fn until_restored_after(
        &self,
        cluster: &mut Cluster,
        at_ms: u64,
    ) -> anyhow::Result<()> {
        let what = format!("a restore from a checkpoint after {at_ms}");
        wait_for(&what, BOUND, async || {
            let restored = self.last_restore(cluster).await?;
            ensure!(restored > at_ms, "the last one was at {restored}");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits for the end, and checks that each number counts once in both outputs.
    pub(crate) async fn check_result(self, cluster: &mut Cluster) -> anyhow::Result<()> {
        cluster.wait_for_state(self.job, "FINISHED").await?;
        let mut seen = vec![0_u32; usize::try_from(self.count)?];
        let mut expected = BTreeMap::new();
        for [_, numbers] in &self.outputs {
            for line in lines(numbers)? {
                let [seq, key, _value] = fields(&line)?;
                seen[usize::try_from(seq)?] += 1;
                *expected.entry(key).or_insert(0) += 1;
            }
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
        for [of_job, _] in &self.outputs {
            for line in lines(of_job)? {
                let [key, count] = fields(&line)?;
                let before = counts.insert(key, count);
                ensure!(before.is_none(), "two counts of one key: {line}");
            }
        }
        ensure!(counts.len() == KEYS, "{} keys", counts.len());
        ensure!(counts == expected, "{counts:?} are not {expected:?}");
        cluster.check_nothing_left(&self.outputs.concat()).await
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

pub(crate) fn lines(directory: &std::path::Path) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for file in visible_files(directory)? {
        let content = std::fs::read_to_string(file)?;
        lines.extend(content.lines().map(str::to_owned));
    }
    Ok(lines)
}
