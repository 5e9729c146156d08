//! The test of a job: a whole cluster in the test's own process, whose leader is killed while the job runs.
//!
//! ```text
//! cargo run --example testing --features testing
//! ```
//!
//! In your own project, add `tanist = { version = "...", features = ["testing"] }` under
//! `[dev-dependencies]`; then you only have to write tests like those in `tests` below.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, ensure};
use tanist::client::JobStatus;
use tanist::job::{JobBuilder, StreamGraph};
use tanist::testing::TestCluster;

/// The tested job: counts how often each word occurs.
fn counting_words(input: &Path, output: &Path) -> StreamGraph {
    JobBuilder::new("counts")
        .file_source("lines", [input.to_string_lossy()])
        .split_words("words", "line")
        .key_by("by-word", ["word"])
        .count("counts")
        .file_sink("out", output.to_string_lossy())
        .build()
}

/// The lines of all parts of an output. What is hidden, such as `.tanist`, is not output: the cleanup after the job
/// removes it.
fn lines_of(output: &Path) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for part in std::fs::read_dir(output)? {
        let part = part?;
        if !part.file_name().to_string_lossy().starts_with('.') {
            let text = std::fs::read_to_string(part.path())?;
            lines.extend(text.lines().map(str::to_owned));
        }
    }
    Ok(lines)
}

/// The lines are `word count`.
fn counts_in(output: &Path) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for line in lines_of(output)? {
        let (word, count) = line.split_once(' ').context("a word and its count")?;
        let before = counts.insert(word.to_owned(), count.parse()?);
        ensure!(before.is_none(), "{word} is there twice");
    }
    Ok(counts)
}

/// Start, submit, await, assert.
async fn words_are_counted() -> anyhow::Result<()> {
    let cluster = TestCluster::builder().slots(2).start().await?;
    let (input, output) = (
        cluster.directory().join("input.txt"),
        cluster.directory().join("counts"),
    );
    std::fs::write(&input, "to be or not\nto be\n")?;

    let job = counting_words(&input, &output);
    cluster.client().execute(job).await?;

    let expected = [("be", 2), ("not", 1), ("or", 1), ("to", 2)];
    let expected = expected.map(|(word, count)| (word.to_owned(), count));
    ensure!(counts_in(&output)? == BTreeMap::from(expected));
    Ok(())
}

/// Kills the leader while the job runs: the tasks continue, and nothing is started twice.
async fn a_job_outlives_its_leader() -> anyhow::Result<()> {
    let builder = TestCluster::builder().jobmanagers(2).taskmanagers(2);
    let mut cluster = builder.start().await?;
    let output = cluster.directory().join("numbers");
    let job = JobBuilder::new("numbers")
        .parallelism(2)
        .datagen("numbers", Some(100), Some(200), 0, 10)
        .file_sink("out", output.to_string_lossy())
        .build();
    let execution = cluster.client().execute_async(job).await?;
    cluster.wait_until_running(&execution).await?;

    let killed = cluster.kill_leader().await?;
    ensure!(cluster.leader().await? != killed);

    let result = execution.result().await?;
    ensure!(result.status == JobStatus::Finished, "{result}");
    let lines = lines_of(&output)?;
    ensure!(lines.len() == 200, "{lines:?}");
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    words_are_counted().await?;
    println!("words are counted");
    a_job_outlives_its_leader().await?;
    println!("a job outlives its leader");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[tokio::test(flavor = "multi_thread")]
    async fn words_are_counted() -> anyhow::Result<()> {
        super::words_are_counted().await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_job_outlives_its_leader() -> anyhow::Result<()> {
        super::a_job_outlives_its_leader().await
    }
}
