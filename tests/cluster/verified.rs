//! A job with checkpoints whose output says by itself whether each of its numbers counts once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::wordcount::visible_files;
use tanist_chaos::{Cluster, ClusterBuilder, StoreKind, Submission, wait_for};
use tanist_proto::id::JobId;

use crate::savepoints::stop_with_savepoint;
use crate::support::{BOUND, cluster_on, job_file};

/// Numbers altogether: more than a test waits for, unless they come at once.
const COUNT: u64 = 200_000;
/// Numbers a second, of a job that runs on while processes are killed.
const STEADILY: u64 = 2_000;
/// As fast as they can.
const AT_ONCE: u64 = 1_000_000;
/// Numbers in a window of the job that has windows.
const WINDOW: i64 = 1_000;
const KEYS: usize = 50;
/// The job file of a job that commits with checkpoints.
const COMMITTING: &str = "committing.yaml";
/// That of one that commits at its end.
const AT_END: &str = "checkpointed.yaml";
/// That of one of two regions, which commits with checkpoints.
const TWO_REGIONS: &str = "verified.yaml";

/// What distinguishes jobs of two independent regions, one of which also counts by window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TwoRegions {
    pub(crate) count: u64,
    /// Numbers a second.
    pub(crate) rate: u64,
    /// With a thousand of them its state is large enough for objects.
    pub(crate) keys: usize,
    /// Time between two checkpoints.
    pub(crate) interval_ms: u64,
}

impl TwoRegions {
    /// The same job, whose numbers come as fast as they can.
    pub(crate) fn without_rate(self) -> TwoRegions {
        TwoRegions {
            rate: AT_ONCE,
            ..self
        }
    }
}

impl Default for TwoRegions {
    fn default() -> TwoRegions {
        TwoRegions {
            count: COUNT,
            rate: STEADILY,
            keys: KEYS,
            interval_ms: 100,
        }
    }
}

/// A job whose output says by itself whether each number counts once.
pub(crate) struct Verified {
    pub(crate) job: JobId,
    /// Its job file.
    file: &'static str,
    /// The directories of the counts and of the numbers; those of the jobs that it continues come first.
    pub(crate) outputs: Vec<[PathBuf; 2]>,
    /// The directories of the counts of windows, of jobs that have any.
    pub(crate) windows: Vec<PathBuf>,
    pub(crate) count: u64,
    pub(crate) keys: usize,
}

/// A cluster where the newest checkpoint of a cancelled job is kept, so that another one continues there.
pub(crate) async fn retaining_cluster_on(kind: StoreKind) -> anyhow::Result<ClusterBuilder> {
    let retention = "execution.checkpointing.externalized-checkpoint-retention";
    let builder = cluster_on(kind).await?;
    Ok(builder.set(retention, "RETAIN_ON_CANCELLATION"))
}

impl Verified {
    /// A job whose output becomes visible at its end. It runs until it is [finished](Verified::finish_at_once).
    pub(crate) async fn start(cluster: &mut Cluster) -> anyhow::Result<Verified> {
        let job = Verified::new(AT_END).begin(cluster, STEADILY, &[]).await?;
        job.once_running(cluster).await
    }

    /// A job whose output becomes visible with its checkpoints. It runs until it is
    /// [finished](Verified::finish_at_once).
    pub(crate) async fn start_committing(cluster: &mut Cluster) -> anyhow::Result<Verified> {
        let job = Verified::new(COMMITTING);
        let job = job.begin(cluster, STEADILY, &[]).await?;
        job.once_running(cluster).await
    }

    /// A job that continues where this one was stopped with a savepoint. `arguments` are those of its submission.
    pub(crate) async fn go_on(
        self,
        cluster: &mut Cluster,
        savepoint: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Verified> {
        let from = [&["--from-savepoint", savepoint], arguments].concat();
        let job = self.begin(cluster, STEADILY, &from).await?;
        job.once_running(cluster).await
    }

    /// The same, whose numbers come at once.
    pub(crate) async fn go_on_at_once(
        self,
        cluster: &mut Cluster,
        savepoint: &str,
    ) -> anyhow::Result<Verified> {
        let from = ["--from-savepoint", savepoint];
        self.begin(cluster, AT_ONCE, &from).await
    }

    /// Cancels it, and waits until it is cleaned up: its checkpoint can be claimed then.
    pub(crate) async fn cancel(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        let leader = cluster.leader().await?;
        let id = self.job.to_string();
        let arguments = ["cancel", &id, "--address", &leader.rest];
        cluster.cli().run(&arguments).await?.success()?;
        cluster.wait_for_state(self.job, "CANCELED").await?;
        wait_for("the cleanup", BOUND, async || {
            let dump = cluster.store_dump().await?;
            let mut results = dump.results.values();
            ensure!(results.all(|it| !it.dirty), "its result is dirty");
            anyhow::Ok(())
        })
        .await
    }

    /// Cancels it, in a cluster that [retains its checkpoint](retaining_cluster_on), and has another job take the rest
    /// of its numbers at once. Checks the results of all jobs.
    pub(crate) async fn finish_at_once(self, cluster: &mut Cluster) -> anyhow::Result<()> {
        let cancelled = self.job.to_string();
        self.cancel(cluster).await?;
        let claim = ["--claim-mode", "CLAIM"];
        let rest = self.resume_with(cluster, AT_ONCE, &claim).await?;
        cluster.wait_for_state(rest.job, "FINISHED").await?;
        rest.check_output()?;
        // What the cancelled job has not made visible goes with its result.
        wait_for("only files of a cancelled job", BOUND, async || {
            for output in rest.directories() {
                let runs = std::fs::read_dir(output.join(".tanist"));
                for run in runs.into_iter().flatten() {
                    let name = run?.file_name().to_string_lossy().into_owned();
                    ensure!(name.starts_with(&cancelled), "{name} is in {output:?}");
                }
            }
            anyhow::Ok(())
        })
        .await?;
        cluster.check_nothing_left(&[]).await
    }

    /// The same job with the same output directories, which continues where this one was cancelled.
    pub(crate) async fn resume(
        self,
        cluster: &mut Cluster,
        arguments: &[&str],
    ) -> anyhow::Result<Verified> {
        let job = self.resume_with(cluster, STEADILY, arguments).await?;
        job.once_running(cluster).await
    }

    /// The same, whose numbers come at once.
    pub(crate) async fn resume_at_once(self, cluster: &mut Cluster) -> anyhow::Result<Verified> {
        self.resume_with(cluster, AT_ONCE, &[]).await
    }

    async fn resume_with(
        mut self,
        cluster: &mut Cluster,
        rate: u64,
        arguments: &[&str],
    ) -> anyhow::Result<Verified> {
        let output = self.outputs.pop().context("it has output")?;
        let from = format!("job:{}", self.job);
        let arguments = [&["--from-savepoint", &from], arguments].concat();
        self.begin_in(cluster, output, rate, &arguments).await
    }

    /// Another job, whose output is not checked here.
    pub(crate) fn of(job: JobId, output: [PathBuf; 2]) -> Verified {
        Verified {
            job,
            outputs: vec![output],
            ..Verified::new(AT_END)
        }
    }

    /// One that was not submitted.
    fn new(file: &'static str) -> Verified {
        Verified {
            job: JobId::from_bits(0),
            file,
            outputs: Vec::new(),
            windows: Vec::new(),
            count: COUNT,
            keys: KEYS,
        }
    }

    async fn once_running(self, cluster: &mut Cluster) -> anyhow::Result<Verified> {
        cluster.wait_until_running(self.job).await?;
        Ok(self)
    }

    async fn begin(
        self,
        cluster: &mut Cluster,
        rate: u64,
        arguments: &[&str],
    ) -> anyhow::Result<Verified> {
        let number = self.outputs.len();
        let output = ["counts", "numbers"].map(|name| format!("{name}-{number}"));
        let output = output.map(|name| cluster.directory().join(name));
        self.begin_in(cluster, output, rate, arguments).await
    }

    async fn begin_in(
        mut self,
        cluster: &mut Cluster,
        output: [PathBuf; 2],
        rate: u64,
        arguments: &[&str],
    ) -> anyhow::Result<Verified> {
        let submission = Submission::new(job_file(self.file))
            .path("counts", &output[0])
            .path("numbers", &output[1])
            .parameter("count", self.count)
            .parameter("rate", rate)
            .arguments(arguments);
        self.outputs.push(output);
        self.job = cluster.submit(&submission).await?;
        Ok(self)
    }

    /// A job of two independent regions, whose output becomes visible with its checkpoints. Returns once the submission
    /// is acknowledged.
    pub(crate) async fn submit(cluster: &mut Cluster, job: TwoRegions) -> anyhow::Result<Verified> {
        let none = Verified {
            count: job.count,
            keys: job.keys,
            ..Verified::new(TWO_REGIONS)
        };
        none.submit_next(cluster, job, &[]).await
    }

    /// The same job, which continues where this one was stopped with a savepoint.
    pub(crate) async fn submit_next_from(
        self,
        cluster: &mut Cluster,
        job: TwoRegions,
        savepoint: &str,
    ) -> anyhow::Result<Verified> {
        let from = ["--from-savepoint", savepoint];
        self.submit_next(cluster, job, &from).await
    }

    async fn submit_next(
        mut self,
        cluster: &mut Cluster,
        job: TwoRegions,
        arguments: &[&str],
    ) -> anyhow::Result<Verified> {
        let submission = Submission::new(job_file(self.file));
        let directory = cluster.directory().join(submission.job.to_string());
        let output = ["counts", "numbers"].map(|name| directory.join(name));
        let windows = directory.join("windows");
        let submission = submission
            .path("counts", &output[0])
            .path("numbers", &output[1])
            .path("windows", &windows)
            .parameter("count", job.count)
            .parameter("rate", job.rate)
            .parameter("keys", job.keys)
            .parameter("interval", format!("{}ms", job.interval_ms))
            .arguments(arguments);
        self.job = cluster.submit(&submission).await?;
        self.outputs.push(output);
        self.windows.push(windows);
        Ok(self)
    }

    /// Makes the job of `changed.yaml`, which has no windows, go on where this one was stopped with a savepoint.
    pub(crate) async fn go_on_changed(
        &mut self,
        cluster: &mut Cluster,
        savepoint: &str,
        arguments: &[&str],
    ) -> anyhow::Result<()> {
        let directory = cluster.directory().join("changed");
        let output = ["counts", "numbers"].map(|name| directory.join(name));
        let submission = Submission::new(job_file("changed.yaml"))
            .path("counts", &output[0])
            .path("numbers", &output[1])
            .parameter("count", self.count)
            .arguments(&[&["--from-savepoint", savepoint], arguments].concat());
        self.job = cluster.submit(&submission).await?;
        self.outputs.push(output);
        self.windows.clear();
        Ok(())
    }

    /// Moves its output to another directory, where it outlives the cluster.
    pub(crate) fn keep_output_in(&mut self, directory: &Path) -> anyhow::Result<()> {
        for (number, output) in self.outputs.iter_mut().flatten().enumerate() {
            let kept = directory.join(format!("output-{number}"));
            std::fs::rename(&*output, &kept)?;
            *output = kept;
        }
        Ok(())
    }

    /// All its output directories.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let windows = self.windows.iter().cloned();
        let outputs = self.outputs.iter().flatten().cloned();
        outputs.chain(windows).collect()
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

    /// Waits for the end, and checks that each number counts once in all outputs, and that nothing is left.
    pub(crate) async fn check_result(self, cluster: &mut Cluster) -> anyhow::Result<()> {
        cluster.wait_for_state(self.job, "FINISHED").await?;
        self.check_output()?;
        cluster.check_nothing_left(&self.directories()).await
    }

    /// Ends a job that would last long: stops it with a savepoint, and has another one take the rest of its numbers at
    /// once. Checks the results of both.
    pub(crate) async fn finish(self, cluster: &mut Cluster, job: TwoRegions) -> anyhow::Result<()> {
        let path = stop_with_savepoint(cluster, &self).await?;
        cluster.wait_for_state(self.job, "FINISHED").await?;
        let rest = self.submit_next_from(cluster, job.without_rate(), &path);
        rest.await?.check_result(cluster).await
    }

    /// The same for a job that went back to an older checkpoint: checks that each number is there, at most twice, and
    /// some are. Its counts are those of one run.
    pub(crate) async fn finish_with_duplicates(
        self,
        cluster: &mut Cluster,
        job: TwoRegions,
    ) -> anyhow::Result<()> {
        let path = stop_with_savepoint(cluster, &self).await?;
        cluster.wait_for_state(self.job, "FINISHED").await?;
        let rest = self.submit_next_from(cluster, job.without_rate(), &path);
        let rest = rest.await?;
        cluster.wait_for_state(rest.job, "FINISHED").await?;
        let mut seen = vec![0_u32; usize::try_from(rest.count)?];
        for [_, numbers] in &rest.outputs {
            for line in lines(numbers)? {
                let [seq, ..]: [i64; 3] = fields(&line)?;
                seen[usize::try_from(seq)?] += 1;
            }
        }
        let lost = seen.iter().filter(|times| **times == 0).count();
        let most = seen.iter().max().copied().unwrap_or_default();
        let twice = seen.iter().filter(|times| **times == 2).count();
        ensure!(
            lost == 0 && most == 2,
            "{lost} are lost, {twice} are there twice, at most {most} times"
        );
        let mut counted = 0;
        for [counts, _] in &rest.outputs {
            for line in lines(counts)? {
                let [_, count] = fields(&line)?;
                counted += count;
            }
        }
        ensure!(
            counted == i64::try_from(rest.count)?,
            "{counted} are counted"
        );
        cluster.check_nothing_left(&rest.directories()).await
    }

    /// Checks that each number counts once in all outputs of the finished job.
    pub(crate) fn check_output(&self) -> anyhow::Result<()> {
        let (mut expected, mut in_windows) = (BTreeMap::new(), BTreeMap::new());
        let mut seen = vec![0_u32; usize::try_from(self.count)?];
        for [_, numbers] in &self.outputs {
            for line in lines(numbers)? {
                let [seq, key, _value] = fields(&line)?;
                seen[usize::try_from(seq)?] += 1;
                *expected.entry(key).or_insert(0) += 1;
                *in_windows.entry((key, seq / WINDOW)).or_insert(0) += 1;
            }
        }
        let wrong = seen.iter().enumerate();
        let wrong: Vec<_> = wrong.filter(|(_, times)| **times != 1).collect();
        let lost = wrong.iter().filter(|(_, times)| **times == 0).count();
        let some = &wrong[..wrong.len().min(20)];
        ensure!(
            wrong.is_empty(),
            "{lost} numbers are lost, {} are there several times; (number, times): {some:?}",
            wrong.len() - lost
        );
        let mut counts = BTreeMap::new();
        for [of_job, _] in &self.outputs {
            for line in lines(of_job)? {
                let [key, count] = fields(&line)?;
                let before = counts.insert(key, count);
                ensure!(before.is_none(), "two counts of one key: {line}");
            }
        }
        ensure!(counts.len() == self.keys, "{} keys", counts.len());
        ensure!(counts == expected, "{counts:?} are not {expected:?}");
        match self.windows.is_empty() {
            true => Ok(()),
            false => check_windows(&self.windows, &in_windows),
        }
    }
}

/// Checks the counts by key and window.
fn check_windows(
    directories: &[PathBuf],
    expected: &BTreeMap<(i64, i64), i64>,
) -> anyhow::Result<()> {
    let mut counts = BTreeMap::new();
    let mut all = Vec::new();
    for directory in directories {
        all.extend(lines(directory)?);
    }
    for line in all {
        let [key, start, end, count] = columns(&line)?;
        let (start, end) = (milliseconds(start)?, milliseconds(end)?);
        ensure!(end - start == WINDOW, "not a window: {line}");
        let window = (key.parse()?, start / WINDOW);
        let before = counts.insert(window, count.parse()?);
        ensure!(before.is_none(), "two counts of one key and window: {line}");
    }
    let of = |window| (expected.get(window), counts.get(window));
    let windows: BTreeSet<_> = expected.keys().chain(counts.keys()).collect();
    let different: Vec<_> = windows
        .into_iter()
        .filter(|window| expected.get(window) != counts.get(window))
        .map(|window| (window, of(window)))
        .collect();
    let some = &different[..different.len().min(20)];
    ensure!(
        different.is_empty(),
        "{} counts of windows are wrong; (key and window, expected and found): {some:?}",
        different.len()
    );
    Ok(())
}

/// Milliseconds since 1970 of a time as a sink writes it.
fn milliseconds(time: &str) -> anyhow::Result<i64> {
    Ok(chrono::DateTime::parse_from_rfc3339(time)?.timestamp_millis())
}

/// The columns of a record in a file.
fn columns<const COUNT: usize>(line: &str) -> anyhow::Result<[&str; COUNT]> {
    let columns: Vec<&str> = line.split(' ').collect();
    let count = columns.len();
    let columns = columns.try_into();
    columns.map_err(|_| anyhow::anyhow!("{count} columns: {line}"))
}

/// The columns of a record of numbers.
fn fields<const COUNT: usize>(line: &str) -> anyhow::Result<[i64; COUNT]> {
    let mut numbers = [0; COUNT];
    for (number, column) in numbers.iter_mut().zip(columns::<COUNT>(line)?) {
        *number = column.parse()?;
    }
    Ok(numbers)
}

pub(crate) fn lines(directory: &Path) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for file in visible_files(directory)? {
        let content = std::fs::read_to_string(file)?;
        lines.extend(content.lines().map(str::to_owned));
    }
    Ok(lines)
}

/// A finished job of four numbers of two keys, as its sinks have written it.
#[cfg(test)]
fn written(directory: &Path, files: [&str; 3]) -> anyhow::Result<Verified> {
    let outputs = ["counts", "numbers", "windows"].map(|name| directory.join(name));
    for (output, content) in outputs.iter().zip(files) {
        std::fs::create_dir_all(output)?;
        std::fs::write(output.join("part-0"), content)?;
    }
    let [counts, numbers, windows] = outputs;
    Ok(Verified {
        outputs: vec![[counts, numbers]],
        windows: vec![windows],
        count: 4,
        keys: 2,
        ..Verified::new(TWO_REGIONS)
    })
}

#[test]
fn what_is_lost_or_there_twice_is_found_in_each_output() -> anyhow::Result<()> {
    const COUNTS: &str = "5 3\n6 1\n";
    const NUMBERS: &str = "0 5 1\n1 6 1\n2 5 1\n3 5 1\n";
    const WINDOW: &str = "1970-01-01T00:00:00Z 1970-01-01T00:00:01Z";
    let windows = format!("5 {WINDOW} 3\n6 {WINDOW} 1\n");
    let directory = tempfile::tempdir()?;
    let check = |files| written(directory.path(), files)?.check_output();
    check([COUNTS, NUMBERS, &windows])?;
    let fewer = format!("5 {WINDOW} 2\n6 {WINDOW} 1\n");
    let twice = format!("{windows}6 {WINDOW} 1\n");
    let wrong = [
        (
            "1 numbers are lost",
            [COUNTS, "0 5 1\n1 6 1\n2 5 1\n", &windows],
        ),
        (
            "several times",
            [COUNTS, &format!("{NUMBERS}0 5 1\n"), &windows],
        ),
        ("are not", ["5 2\n6 1\n", NUMBERS, &windows]),
        (
            "two counts of one key",
            ["5 3\n6 1\n5 3\n", NUMBERS, &windows],
        ),
        ("counts of windows are wrong", [COUNTS, NUMBERS, &fewer]),
        (
            "two counts of one key and window",
            [COUNTS, NUMBERS, &twice],
        ),
    ];
    for (told, files) in wrong {
        let error = check(files).err().context(told)?;
        ensure!(error.to_string().contains(told), "{error}");
    }
    Ok(())
}
