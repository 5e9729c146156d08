//! The demo's view of its cluster: the leader, by watching the store, and the jobs, by asking the leader.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use hyper::{Method, StatusCode};
use tanist_ha::election::ElectionDriver;
use tanist_ha::retrieval::{self, LeaderView};
use tanist_proto::id::JobId;
use tokio::sync::watch;

use super::settings::{self, CLUSTER_ID};
use crate::continuity::Attempts;
use crate::jobs::JobView;
use crate::rest::RestClient;
use crate::store::{Store, StoreKind};

/// Interval between two queries to the leader about a job.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A confirmed leader.
#[derive(Debug, Clone)]
pub(super) struct Leader {
    pub(super) process: String,
    pub(super) epoch: u64,
    rest: String,
}

/// Follows the leader of the demo's cluster. Clones share the watch of the store.
#[derive(Clone)]
pub(super) struct ClusterWatch {
    leaders: watch::Receiver<LeaderView>,
    rest: RestClient,
    /// Keeps the watch going.
    _driver: Arc<dyn ElectionDriver>,
}

impl ClusterWatch {
    /// Watches the cluster of a demo in `directory`.
    pub(super) async fn open(directory: &Path) -> anyhow::Result<ClusterWatch> {
        let store = Store::shared(StoreKind::Embedded).await?;
        let path = settings::store(directory);
        let driver = store.observe(&path, CLUSTER_ID).await;
        let driver = driver.context("the store can't be watched")?;
        Ok(ClusterWatch {
            leaders: retrieval::follow(driver.observed()),
            rest: RestClient::default(),
            _driver: driver,
        })
    }

    /// The first confirmed leader of an epoch above `epoch`.
    pub(super) async fn leader_above(&mut self, epoch: u64) -> anyhow::Result<Leader> {
        let confirmed = |view: &LeaderView| {
            view.leader
                .as_ref()
                .is_some_and(|leader| leader.epoch.get() > epoch)
        };
        let view = self.leaders.wait_for(confirmed).await;
        let view = view.context("the store is not watched any more")?;
        let leader = view.leader.as_ref().context("it was just seen")?;
        Ok(Leader {
            process: leader.process.to_string(),
            epoch: leader.epoch.get(),
            rest: leader.addresses.get("rest").cloned().unwrap_or_default(),
        })
    }

    /// Asks the current leader about `job` until it is as wanted.
    pub(super) async fn until(
        &mut self,
        job: JobId,
        wanted: impl Fn(&JobView) -> bool,
    ) -> anyhow::Result<JobView> {
        let path = format!("/v1/jobs/{job}");
        loop {
            let leader = self.leader_above(0).await?;
            match self.rest.request(Method::GET, &leader.rest, &path).await {
                Ok((StatusCode::OK, body)) => {
                    let view = JobView(body);
                    if wanted(&view) {
                        return Ok(view);
                    }
                }
                Ok((StatusCode::NOT_FOUND, body)) => bail!("the job {job} is lost: {body}"),
                // The leader does not know its jobs yet, or this call failed.
                Ok(_) | Err(_) => {}
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Attempt and place of each task of `job`, as soon as all of them run.
    pub(super) async fn attempts(&mut self, job: JobId) -> anyhow::Result<Attempts> {
        loop {
            let is_known = |view: &JobView| view.all_tasks_run() || view.is_over();
            let view = self.until(job, is_known).await?;
            ensure!(!view.is_over(), "the job {job} ended as {}", view.state());
            let leader = self.leader_above(0).await?;
            let get = async |path: String| self.rest.get(&leader.rest, &path).await;
            // The leader may have been killed from outside meanwhile.
            if let Ok(attempts) = Attempts::read(job, get).await
                && u64::try_from(attempts.count()) == Ok(view.tasks())
            {
                return Ok(attempts);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}
