//! The demo's view of its cluster: the leader, by watching the store, and the job, by asking the leader.

use std::path::PathBuf;
use std::sync::Arc;

use tanist_ha::clock::Clock;
use tanist_ha::election::{ElectionDriver, ProcessId};
use tanist_ha::embedded::{self, EmbeddedOptions};
use tanist_ha::retrieval::{self, LeaderView};
use tanist_proto::id::JobId;
use tanist_proto::v1::{DescribeJobRequest, ExecutionState, JobDetails, JobStatus};
use tokio::sync::watch;

use super::settings::CLUSTER_ID;
use super::{ASK_INTERVAL, DemoError};
use crate::gateway::{Connector as _, GatewayError};
use crate::rpc::{RpcOptions, TonicConnector};

/// A confirmed leader.
#[derive(Debug, Clone)]
pub(super) struct Leader {
    pub(super) process: String,
    pub(super) epoch: u64,
    rpc: String,
}

#[derive(Clone)]
pub(super) struct ClusterWatch {
    leaders: watch::Receiver<LeaderView>,
    connector: Arc<TonicConnector>,
    /// Keeps the watch going.
    _driver: Arc<dyn ElectionDriver>,
}

impl ClusterWatch {
    /// Watches the cluster whose embedded store is in `directory`.
    pub(super) async fn open(directory: PathBuf) -> Result<ClusterWatch, DemoError> {
        let options = EmbeddedOptions::new(directory.join(CLUSTER_ID));
        let observer = ProcessId::new("demo");
        let driver = embedded::open_election(options, observer, false, Clock::Boottime).await;
        let driver: Arc<dyn ElectionDriver> = Arc::new(driver.map_err(DemoError::Store)?);
        Ok(ClusterWatch {
            leaders: retrieval::follow(driver.observed()),
            connector: Arc::new(TonicConnector::new(RpcOptions::default())),
            _driver: driver,
        })
    }

    /// The first confirmed leader of an epoch above `epoch`.
    pub(super) async fn leader_above(&mut self, epoch: u64) -> Result<Leader, DemoError> {
        let confirmed = |view: &LeaderView| {
            view.leader
                .as_ref()
                .is_some_and(|leader| leader.epoch.get() > epoch)
        };
        let gone = || DemoError::Unexpected("the store is not watched any more".to_owned());
        let view = self.leaders.wait_for(confirmed).await.map_err(|_| gone())?;
        let leader = view.leader.clone().ok_or_else(gone)?;
        Ok(Leader {
            process: leader.process.to_string(),
            epoch: leader.epoch.get(),
            rpc: leader.addresses.get("rpc").cloned().unwrap_or_default(),
        })
    }

    /// Asks the current leader about `job` until it is as wanted or has ended.
    pub(super) async fn until(
        &mut self,
        job: JobId,
        wanted: impl Fn(&JobDetails) -> bool,
    ) -> Result<JobDetails, DemoError> {
        loop {
            let leader = self.leader_above(0).await?;
            let dispatcher = self.connector.dispatcher(&leader.rpc);
            match dispatcher
                .describe_job(DescribeJobRequest {
                    job_id: job.to_string(),
                    ..DescribeJobRequest::default()
                })
                .await
            {
                Ok(details) if wanted(&details) => return Ok(details),
                Ok(_) => {}
                Err(GatewayError::NotFound(text)) => return Err(DemoError::Unexpected(text)),
                // The job is not known yet, or this call failed.
                Err(_) => {}
            }
            tokio::time::sleep(ASK_INTERVAL).await;
        }
    }
}

/// Whether the job runs, and no task of it has to be started or found any more.
pub(super) fn all_tasks_run(details: &JobDetails) -> bool {
    let mut subtasks = details.vertices.iter().flat_map(|vertex| &vertex.subtasks);
    let runs = |state| matches!(state, ExecutionState::Running | ExecutionState::Finished);
    details.status() == JobStatus::Running && subtasks.all(|subtask| runs(subtask.state()))
}
