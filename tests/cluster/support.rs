//! What the tests of this binary share: the program, and the job that most of them run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use tanist_chaos::{Cluster, ClusterBuilder, JobView, Store, StoreKind, Submission, wordcount};
use tanist_proto::id::JobId;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_tanist");

/// A cluster on a store that is shared with other tests.
pub async fn cluster_on(kind: StoreKind) -> anyhow::Result<ClusterBuilder> {
    Ok(ClusterBuilder::new(PROGRAM, Store::shared(kind).await?))
}

/// Fails where failpoints are not compiled in: the test could not kill where it says it does.
pub fn need_failpoints() -> anyhow::Result<()> {
    ensure!(
        cfg!(feature = "failpoints"),
        "this test needs `--features failpoints`: run `cargo xtask test`"
    );
    Ok(())
}

/// A job file of these tests.
pub fn job_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/cluster/jobs")
        .join(name)
}

/// An example that is shipped.
pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples")
        .join(name)
}

/// A job that counts the words of real text and, at a rate, ticks: it lasts as long as the ticks do, and both results are
/// known beforehand.
#[derive(Debug)]
pub struct WordsAndTicks {
    pub submission: Submission,
    ticks: u64,
    expected_words: wordcount::Counts,
    words_output: PathBuf,
    ticks_output: PathBuf,
}

/// Ticks a second.
const RATE: u64 = 1000;

impl WordsAndTicks {
    /// With input and outputs in the cluster's directory; it runs for `seconds` without a failure.
    pub fn prepare(cluster: &Cluster, seconds: u64) -> anyhow::Result<WordsAndTicks> {
        let input = cluster.directory().join("input");
        let expected_words = wordcount::write_input(&input, 8, 40_000)?;
        let words_output = cluster.directory().join("words");
        let ticks_output = cluster.directory().join("ticks");
        let ticks = RATE * seconds;
        let submission = Submission::new(job_file("words-and-ticks.yaml"))
            .path("input", &input.join("*.txt"))
            .path("words", &words_output)
            .path("ticks", &ticks_output)
            .parameter("rate", RATE)
            .parameter("count", ticks);
        Ok(WordsAndTicks {
            submission,
            ticks,
            expected_words,
            words_output,
            ticks_output,
        })
    }

    /// Its id.
    pub fn job(&self) -> JobId {
        self.submission.job
    }

    /// Waits until it has finished, checks both results, and that nothing is left of the job or the cluster.
    pub async fn check_finished(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        cluster.wait_for_state(self.job(), "FINISHED").await?;
        self.check_result()?;
        cluster.check_nothing_left(&self.outputs()).await?;
        // Nor did ending the cluster change anything.
        self.check_result()
    }

    /// Waits until its ticks are made and counted.
    pub async fn wait_until_ticking(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        let ticks = |view: &JobView| view.runs("clock") && view.runs("tick-counts -> ticks-out");
        cluster.wait_for_job(self.job(), "to tick", ticks).await?;
        Ok(())
    }

    /// Waits until it ticks under the leader there is, and checks that this one has adopted every task: `before` are the
    /// attempts from under a former leader.
    pub async fn check_adopted(
        &self,
        cluster: &mut Cluster,
        before: &BTreeMap<String, u64>,
    ) -> anyhow::Result<()> {
        self.wait_until_ticking(cluster).await?;
        let runs = |view: &JobView| view.state() == "RUNNING";
        cluster
            .wait_for_job(self.job(), "to be RUNNING", runs)
            .await?;
        let after = cluster.attempts(self.job()).await?;
        ensure!(
            after == *before,
            "attempts changed from {before:?} to {after:?}"
        );
        Ok(())
    }

    /// Where it writes.
    pub fn outputs(&self) -> [PathBuf; 2] {
        [self.words_output.clone(), self.ticks_output.clone()]
    }

    /// Checks that both results are visible and right.
    pub fn check_result(&self) -> anyhow::Result<()> {
        let words = wordcount::read_output(&self.words_output)?;
        wordcount::check_counts(&self.expected_words, &words)?;
        let ticks: u64 = wordcount::read_output(&self.ticks_output)?.values().sum();
        ensure!(
            ticks == self.ticks,
            "{ticks} ticks were counted, not {}",
            self.ticks
        );
        Ok(())
    }

    /// Checks that no reader sees anything of it.
    pub fn check_nothing_visible(&self) -> anyhow::Result<()> {
        for output in self.outputs() {
            let visible = wordcount::visible_files(&output)?;
            ensure!(
                visible.is_empty(),
                "visible although the job did not finish: {visible:?}"
            );
        }
        Ok(())
    }
}
