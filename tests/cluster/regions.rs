//! A job of two regions on two TaskManagers: a failure of one must not touch the other. For tests that
//! lose or cut off a TaskManager.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::{Attempts, Cluster, Submission, wait_for, wordcount};
use tanist_proto::id::JobId;

use crate::support::{BOUND, ENDLESS, job_file, records_sent, stop_job};

/// Ticks per second.
const RATE: u64 = 1000;
const LEFT: &str = "left-clock";
const RIGHT: &str = "right-clock";

/// The job, running on a cluster whose TaskManagers have one slot each.
#[derive(Debug)]
pub(crate) struct TwoRegions {
    job: JobId,
    outputs: [PathBuf; 2],
    /// The TaskManagers of the left region and of the right one.
    pub taskmanagers: [usize; 2],
    left_attempt: u64,
    right: Attempts,
}

impl TwoRegions {
    /// Submits it, and waits until it ticks, which it does until it is stopped or cancelled.
    pub(crate) async fn start(cluster: &mut Cluster) -> anyhow::Result<TwoRegions> {
        let outputs = ["left", "right"].map(|name| cluster.directory().join(name));
        let [left, right] = &outputs;
        let submission = Submission::new(job_file("two-regions.yaml"))
            .path("left", left)
            .path("right", right)
            .parameter("rate", RATE)
            .parameter("count", ENDLESS);
        let job = cluster.submit(&submission).await?;
        cluster.wait_until_running(job).await?;
        let (left, left_attempt) = cluster.place_of(job, LEFT).await?;
        let (right, _) = cluster.place_of(job, RIGHT).await?;
        ensure!(left != right, "both regions are on tm-{left}");
        let attempts = cluster.attempts(job).await?;
        Ok(TwoRegions {
            job,
            outputs,
            taskmanagers: [left, right],
            left_attempt,
            right: attempts.of_vertices(|vertex| vertex.starts_with("right")),
        })
    }

    /// Its id.
    pub(crate) fn job(&self) -> JobId {
        self.job
    }

    /// Cancels it, and checks that nothing is left.
    pub(crate) async fn cancel(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        let leader = cluster.leader().await?;
        let cancel = ["cancel", &self.job.to_string(), "--address", &leader.rest];
        cluster.cli().run(&cancel).await?.success()?;
        cluster.wait_for_state(self.job, "CANCELED").await?;
        cluster.check_nothing_left(&[]).await
    }

    /// Waits until the left region has a younger generation than at first.
    pub(crate) async fn until_left_is_superseded(
        &self,
        cluster: &mut Cluster,
    ) -> anyhow::Result<()> {
        wait_for("a younger left region", BOUND, async || {
            let is_left = |it: &&Value| it["name"] == LEFT;
            let view = cluster.job(self.job).await?;
            let mut vertices = view.0["vertices"].as_array().into_iter().flatten();
            let left = vertices.find(is_left).context("it is there")?;
            let id = left["id"].as_str().context("an id")?;
            let body = cluster
                .get(&format!("/v1/jobs/{}/vertices/{id}", self.job))
                .await?;
            let attempt = body["subtasks"][0]["attempt"].as_u64();
            ensure!(attempt > Some(self.left_attempt), "{body}");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until the left region runs as a younger generation on another TaskManager.
    pub(crate) async fn until_left_runs_elsewhere(
        &self,
        cluster: &mut Cluster,
    ) -> anyhow::Result<()> {
        cluster.wait_until_running_or_finished(self.job).await?;
        let (taskmanager, attempt) = cluster.place_of(self.job, LEFT).await?;
        ensure!(
            attempt > self.left_attempt && taskmanager != self.taskmanagers[0],
            "attempt {attempt} on tm-{taskmanager}"
        );
        Ok(())
    }

    /// Checks that the right region is unchanged.
    pub(crate) async fn check_right_untouched(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        ensure!(self.right.count() == 2, "{:?}", self.right);
        cluster.check_untouched(self.job, &self.right).await
    }

    /// Stops it when both regions run; checks that the right region was not touched, both results, and that
    /// nothing is left.
    pub(crate) async fn stop_and_check(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        self.check_right_untouched(cluster).await?;
        cluster.wait_until_running(self.job).await?;
        stop_job(cluster, self.job).await?;
        self.check_right_untouched(cluster).await?;
        for (clock, output) in [LEFT, RIGHT].into_iter().zip(&self.outputs) {
            let sent = records_sent(cluster, self.job, clock).await?;
            let ticks: u64 = wordcount::read_output(output)?.values().sum();
            ensure!(
                ticks > 0 && ticks == sent,
                "{ticks} ticks in {}, not {sent}",
                output.display()
            );
        }
        cluster.check_nothing_left(&self.outputs).await
    }
}
