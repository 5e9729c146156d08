//! The Tanist part: a cluster of the chaos harness with the program's default settings.

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::process::Process;
use tanist_chaos::store::Store;
use tanist_chaos::{Cluster, Leader};
use tanist_proto::id::JobId;

use super::{System, Timeouts, until_slots};
use crate::BenchOptions;
use crate::http::Http;
use crate::jobs::{self, CHECKPOINTED_COUNT, KEYED_COUNT, UNTHROTTLED};
use crate::watch::{self, until, until_led};

/// Records of a job that does not end while it is measured.
const ENDLESS: &str = "1000000000000";

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

    fn path_of_job(&self, path: &str) -> anyhow::Result<String> {
        Ok(format!("/jobs/{}{path}", self.job()?))
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
        let builder = builder.jobmanagers(2).taskmanagers(2).slots(2);
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
        until_slots(self, 2).await
    }

    async fn start_spare_worker(&mut self) -> anyhow::Result<()> {
        self.cluster.taskmanager(1).start()?;
        until_slots(self, 4).await
    }

    fn pids(&mut self) -> anyhow::Result<[u32; 3]> {
        let pid = |process: &mut Process| process.pid().context("it runs");
        let leader = pid(self.cluster.jobmanager(0))?;
        let standby = pid(self.cluster.jobmanager(1))?;
        Ok([leader, standby, pid(self.cluster.taskmanager(0))?])
    }

    async fn submit_count(&mut self, records: u64, with_checkpoints: bool) -> anyhow::Result<()> {
        let count = records.to_string();
        let checkpointed = [
            ("count", count.as_str()),
            ("keys", "1000"),
            ("rate", UNTHROTTLED),
            ("interval", "1s"),
        ];
        let (file, parameters) = match with_checkpoints {
            true => (CHECKPOINTED_COUNT, &checkpointed[..]),
            false => (KEYED_COUNT, &checkpointed[..1]),
        };
        let leader = self.leader();
        let submitted = jobs::submit(&self.http, &leader, file, 2, parameters);
        self.job = Some(submitted.await?);
        Ok(())
    }

    async fn submit_endless(&mut self, rate: u64, savepoint: Option<&str>) -> anyhow::Result<()> {
        let rate = rate.to_string();
        let parameters = [
            ("count", ENDLESS),
            ("keys", "1000"),
            ("rate", rate.as_str()),
            ("interval", "1s"),
        ];
        let leader = self.leader();
        let submitted = jobs::submit_from(
            &self.http,
            &leader,
            CHECKPOINTED_COUNT,
            2,
            &parameters,
            savepoint,
        );
        self.job = Some(submitted.await?);
        self.former = Some(self.cluster.leader().await?);
        Ok(())
    }

    async fn get(&self, jobmanager: usize, path: &str) -> anyhow::Result<Value> {
        let address = self.cluster.rest_address(jobmanager);
        self.http.get(address, &format!("/v1{path}")).await
    }

    async fn get_of_job(&self, path: &str) -> anyhow::Result<Value> {
        self.get(0, &self.path_of_job(path)?).await
    }

    async fn post_of_job(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let path = format!("/v1{}", self.path_of_job(path)?);
        self.http.post(&self.leader(), &path, body).await
    }

    fn savepoints(&self) -> String {
        let directory = self.cluster.directory().join("savepoints");
        directory.to_string_lossy().into_owned()
    }

    fn kill_worker(&mut self) -> anyhow::Result<()> {
        self.cluster.taskmanager(0).kill();
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
