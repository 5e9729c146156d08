//! The Tanist part: a cluster of the chaos harness with the program's default settings.

use anyhow::{Context as _, ensure};
use tanist_chaos::process::Process;
use tanist_chaos::store::Store;
use tanist_chaos::wait::wait_for_every;
use tanist_chaos::{Cluster, Leader};
use tanist_proto::id::JobId;

use super::{POLL_INTERVAL, System, Timeouts};
use crate::BenchOptions;
use crate::http::Http;
use crate::jobs::{self, KEYED_COUNT, STREAM};
use crate::watch::{self, BOUND, until, until_led, until_running};

pub(super) struct TanistCluster {
    cluster: Cluster,
    http: Http,
    /// The job that was submitted last.
    job: Option<JobId>,
    /// The leader that was killed.
    former: Option<Leader>,
}

impl TanistCluster {
    fn leader(&self) -> String {
        self.cluster.rest_address(0).to_owned()
    }

    fn job(&self) -> anyhow::Result<JobId> {
        self.job.context("no job was submitted")
    }
}

impl System for TanistCluster {
    const NAME: &'static str = "Tanist";

    async fn prepare(
        options: &BenchOptions,
        _timeouts: Timeouts,
        zookeeper: &str,
    ) -> anyhow::Result<TanistCluster> {
        let builder = options.cluster(Store::zookeeper_at(zookeeper.to_owned()));
        let builder = builder.jobmanagers(2).taskmanagers(1).slots(2);
        Ok(TanistCluster {
            cluster: builder.prepare().await?,
            http: Http::default(),
            job: None,
            former: None,
        })
    }

    async fn start_leader(&mut self) -> anyhow::Result<()> {
        self.cluster.jobmanager(0).start()?;
        until_led(&self.http, &[&self.leader()], 0).await?;
        Ok(())
    }

    async fn start_the_rest(&mut self) -> anyhow::Result<()> {
        self.cluster.jobmanager(1).start()?;
        self.cluster.taskmanager(0).start()?;
        self.cluster.wait_until_complete().await
    }

    fn pids(&mut self) -> anyhow::Result<[u32; 3]> {
        let pid = |process: &mut Process| process.pid().context("it runs");
        let leader = pid(self.cluster.jobmanager(0))?;
        let standby = pid(self.cluster.jobmanager(1))?;
        Ok([leader, standby, pid(self.cluster.taskmanager(0))?])
    }

    async fn submit_count(&mut self, records: u64) -> anyhow::Result<()> {
        let count = records.to_string();
        let parameters = [("count", count.as_str())];
        let leader = self.leader();
        let submitted = jobs::submit(&self.http, &leader, KEYED_COUNT, 2, &parameters);
        self.job = Some(submitted.await?);
        Ok(())
    }

    async fn until_counted(&mut self) -> anyhow::Result<()> {
        let (address, path) = (self.leader(), format!("/v1/jobs/{}", self.job()?));
        wait_for_every(POLL_INTERVAL, "the end of the count", BOUND, async || {
            let body = self.http.get(&address, &path).await?;
            ensure!(body["state"] == "FINISHED", "{body}");
            Ok(())
        })
        .await
    }

    async fn run_endless(&mut self, rate: u64) -> anyhow::Result<()> {
        let rate = rate.to_string();
        let parameters = [("rate", rate.as_str())];
        let leader = self.leader();
        let submitted = jobs::submit(&self.http, &leader, STREAM, 2, &parameters);
        self.job = Some(submitted.await?);
        until_running(&self.http, &leader, self.job()?).await?;
        self.former = Some(self.cluster.leader().await?);
        Ok(())
    }

    fn kill_leader(&mut self) -> anyhow::Result<()> {
        self.cluster.jobmanager(0).kill();
        Ok(())
    }

    async fn until_running_again(&mut self) -> anyhow::Result<()> {
        let former = self.former.as_ref().context("no leader was killed")?;
        let next = self.cluster.rest_address(1).to_owned();
        until_led(&self.http, &[&next], former.epoch).await?;
        let path = format!("/v1/jobs/{}", self.job()?);
        until("the job to run again", async || {
            let body = self.http.get(&next, &path).await?;
            ensure!(watch::all_subtasks_run(&body), "{body}");
            Ok(())
        })
        .await
    }

    fn end(self) {
        self.cluster.discard();
    }
}
