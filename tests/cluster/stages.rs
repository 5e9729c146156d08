//! A job whose second stage reads the kept output of the first over a blocking edge: its leader is killed
//! between both, and a TaskManager with half of the output.

use anyhow::ensure;
use tanist_chaos::{Cluster, JobView, StoreKind, Submission, wordcount};
use tanist_proto::id::JobId;

use crate::support::{cluster_on, job_file};

on_stores! {
    embedded(Embedded) {
        a_stage_that_has_finished_is_kept_over_a_change_of_leader,
        a_stage_whose_output_is_lost_runs_again,
    }
    etcd(Etcd) { a_stage_that_has_finished_is_kept_over_a_change_of_leader }
    zookeeper(ZooKeeper) { a_stage_that_has_finished_is_kept_over_a_change_of_leader }
}

/// The name of the second stage's vertex.
const SECOND: &str = "counts -> slowly -> out";

struct Stages {
    job: JobId,
    expected: wordcount::Counts,
    output: std::path::PathBuf,
}

impl Stages {
    /// Returns when the first stage has finished and the second one runs.
    async fn start(cluster: &mut Cluster, parallelism: u32) -> anyhow::Result<Stages> {
        let input = cluster.directory().join("input");
        let output = cluster.directory().join("output");
        let expected = wordcount::write_input(&input, 4, 50_000)?;
        let submission = Submission::new(job_file("words-in-stages.yaml"))
            .path("input", &input.join("*.txt"))
            .path("output", &output)
            .parameter("parallelism", parallelism);
        let job = cluster.submit(&submission).await?;
        let is_second =
            |view: &JobView| view.is_over() || (view.runs(SECOND) && view.all_tasks_run());
        let view = cluster
            .wait_for_job(job, "to run its second stage", is_second)
            .await?;
        ensure!(!view.is_over(), "it is over before anything was killed");
        ensure!(
            wordcount::visible_files(&output)?.is_empty(),
            "output is visible before the job has finished"
        );
        Ok(Stages {
            job,
            expected,
            output,
        })
    }

    async fn check_finished(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        cluster.wait_for_state(self.job, "FINISHED").await?;
        wordcount::check_counts(&self.expected, &wordcount::read_output(&self.output)?)?;
        cluster
            .check_nothing_left(std::slice::from_ref(&self.output))
            .await
    }
}

async fn a_stage_that_has_finished_is_kept_over_a_change_of_leader(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.start().await?;
    let stages = Stages::start(&mut cluster, 1).await?;
    let before = cluster.attempts(stages.job).await?;
    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    cluster.wait_for_state(stages.job, "FINISHED").await?;
    let after = cluster.attempts(stages.job).await?;
    ensure!(
        before.changed(&after) == 0,
        "{before:?} before, {after:?} after"
    );
    stages.check_finished(&mut cluster).await
}

async fn a_stage_whose_output_is_lost_runs_again(kind: StoreKind) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?;
    let builder = builder.jobmanagers(1).taskmanagers(2).slots(1);
    let mut cluster = builder.start().await?;
    let stages = Stages::start(&mut cluster, 2).await?;
    let before = cluster.attempts(stages.job).await?;
    cluster.taskmanager(0).kill();
    cluster.taskmanager(0).start()?;
    cluster.wait_for_state(stages.job, "FINISHED").await?;
    let after = cluster.attempts(stages.job).await?;
    // The outputs of the first stage on one TaskManager were lost; the whole second stage reads them, and
    // no subtask mixes two runs.
    ensure!(
        before.changed(&after) == 3,
        "{before:?} before, {after:?} after"
    );
    stages.check_finished(&mut cluster).await
}
