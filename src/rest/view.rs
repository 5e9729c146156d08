//! What the REST server needs to know of its cluster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tanist_ha::blob::BlobStore;
use tanist_ha::election::{Claim, Epoch, ProcessId};
use tanist_ha::retrieval::LeaderView;
use tanist_ha::store::cache::CacheStatus;
use tanist_ha::store::pipeline::PipelineStats;
use tokio::sync::watch;

use crate::gateway::{DispatcherGateway, GatewayResult};
use crate::process::{HaStatus, HistoryRecord, JobManagerView, Role};

/// One JobManager's view of its cluster.
#[async_trait]
pub trait ClusterView: Send + Sync + fmt::Debug + 'static {
    /// The leader's Dispatcher, here or elsewhere; waits for a leader up to `patience`.
    async fn dispatcher(&self, patience: Duration) -> GatewayResult<Arc<dyn DispatcherGateway>>;
    /// How the cluster's leadership stands; without its members if the store takes longer than `patience` to list them.
    async fn ha_status(&self, patience: Duration) -> HaStatus;
    /// The terms that are remembered, oldest first; the reason if the store does not tell them within `patience`.
    async fn history(&self, patience: Duration) -> Result<Vec<HistoryRecord>, String>;
    /// What the pipeline of this process's term has done; `None` while it does not lead.
    fn pipeline_stats(&self) -> Option<PipelineStats>;
    /// This JobManager.
    fn process(&self) -> ProcessId;
    /// Has the leader, whoever it is, hand over to `to`, or to the standby that is most current. Gives the successor's epoch;
    /// `Conflict` if nobody took over.
    async fn transfer(&self, to: Option<&ProcessId>) -> GatewayResult<Epoch>;
    /// Where content goes that is uploaded for a submission. `Conflict`: nowhere, and what to configure.
    fn uploads(&self) -> GatewayResult<BlobStore>;
    /// How far this process's cache of the jobs' records is.
    fn cache(&self) -> CacheStatus;
    /// What a leader must be allowed in the store and this process is not, in words; `None`: not known.
    fn lacking_permissions(&self) -> Option<Vec<String>>;
    /// The epochs that messages told this process of, and that its store does not have.
    fn claims(&self) -> Vec<Claim>;
    /// What is wrong with the storage of large objects, if this process leads and knows.
    fn storage_trouble(&self) -> Option<String> {
        None
    }
    /// How this JobManager stands.
    fn role(&self) -> Role;
    /// What it knows of the leader.
    fn leader(&self) -> LeaderView;
    /// Follows that.
    fn leaders(&self) -> watch::Receiver<LeaderView>;
}

#[async_trait]
impl ClusterView for JobManagerView {
    async fn dispatcher(&self, patience: Duration) -> GatewayResult<Arc<dyn DispatcherGateway>> {
        self.dispatcher(patience).await
    }

    async fn ha_status(&self, patience: Duration) -> HaStatus {
        self.ha_status(patience).await
    }

    async fn history(&self, patience: Duration) -> Result<Vec<HistoryRecord>, String> {
        self.history(patience).await
    }

    fn pipeline_stats(&self) -> Option<PipelineStats> {
        self.pipeline_stats()
    }

    fn process(&self) -> ProcessId {
        self.process().clone()
    }

    async fn transfer(&self, to: Option<&ProcessId>) -> GatewayResult<Epoch> {
        self.transfer(to).await
    }

    fn uploads(&self) -> GatewayResult<BlobStore> {
        self.uploads()
    }

    fn cache(&self) -> CacheStatus {
        *self.cache_status().borrow()
    }

    fn lacking_permissions(&self) -> Option<Vec<String>> {
        self.lacking_permissions()
    }

    fn claims(&self) -> Vec<Claim> {
        self.claims()
    }

    fn storage_trouble(&self) -> Option<String> {
        self.storage_trouble()
    }

    fn role(&self) -> Role {
        self.role()
    }

    fn leader(&self) -> LeaderView {
        self.leader()
    }

    fn leaders(&self) -> watch::Receiver<LeaderView> {
        self.leaders()
    }
}
