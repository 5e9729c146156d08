//! The state of custom operators: the example with such an operator goes on at other parallelisms from savepoints.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use tanist_client::{Job, Restore};
use tanist_compile::JobBuilder;

use super::*;

/// The example is a test of this module.
#[path = "../../examples/changes.rs"]
#[allow(dead_code, reason = "a test has no use for the example's main")]
mod example;

/// Number of records. At the rate of the first jobs they would last for a minute.
const COUNT: u64 = 120_000;
const RATE: u64 = 2_000;

/// The visible lines of a file sink, sorted.
pub(super) fn lines(directory: &Path) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for part in std::fs::read_dir(directory)? {
        let part = part?.path();
        if part.is_file() {
            let text = std::fs::read_to_string(part)?;
            lines.extend(text.lines().map(str::to_owned));
        }
    }
    lines.sort();
    Ok(lines)
}

/// What the job should write, from its input.
fn expected(input: &[String]) -> anyhow::Result<Vec<String>> {
    let mut values: BTreeMap<(i64, i64), BTreeMap<i64, i64>> = BTreeMap::new();
    for line in input {
        let numbers: Vec<i64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [time, key, value] = numbers[..] else {
            anyhow::bail!("{line:?} has not three numbers");
        };
        let end = time - time % 1_000 + 1_000;
        values.entry((key, end)).or_default().insert(time, value);
    }
    let mut lines = Vec::new();
    for ((key, end), values) in values {
        let (first, last) = (values.values().next(), values.values().next_back());
        let change = last.context("a span has a value")? - first.context("the same")?;
        lines.push(format!("{key} {end} {change}"));
    }
    lines.sort();
    Ok(lines)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_operator_goes_on_with_its_keys_and_timers_at_other_parallelisms()
-> anyhow::Result<()> {
    // Its operator is known to the process from here on.
    let _ = example::application().job(|_| Err("no process of the application is started".into()));
    let cluster = TestCluster::builder().slots(4).start().await?;
    let path = |name: &str| cluster.directory().join(name);
    let input = JobBuilder::new("input")
        .datagen("values", None, Some(COUNT), 0, example::SENSORS)
        .file_sink("out", path("in").to_string_lossy())
        .build();
    cluster.client().execute(input).await?;
    let (output, savepoints) = (path("out"), path("savepoints"));
    let job = |rate| example::job(&output.to_string_lossy(), rate, COUNT);
    let mut savepoint: Option<String> = None;
    for (parallelism, rate) in [(2, Some(RATE)), (3, Some(RATE)), (1, None)] {
        let mut job = Job::from(job(rate)).with_parallelism(parallelism);
        if let Some(savepoint) = &savepoint {
            job = job.beginning_from(Restore::new(savepoint.parse().map_err(anyhow::Error::msg)?));
        }
        let before = lines(&output).map_or(0, |lines| lines.len());
        let execution = cluster.client().execute_async(job).await?;
        if rate.is_none() {
            execution.finished().await?;
            break;
        }
        wait_for("it writes", async || match lines(&output) {
            Ok(lines) if lines.len() > before => Ok(()),
            other => Err(format!("{:?}", other.map(|lines| lines.len()))),
        })
        .await?;
        let directory = savepoints.to_string_lossy();
        savepoint = Some(execution.stop_with_savepoint(Some(&directory)).await?);
    }
    assert_eq!(lines(&output)?, expected(&lines(&path("in"))?)?);
    Ok(())
}
