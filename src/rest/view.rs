//! The REST server's view of its cluster: the leader's Dispatcher, and the state of this process.
//!
//! [`JobManagerView`] implements it, and tests have one that follows a script. A call with a timeout never waits longer
//! for the store or the leader: it returns the reason, or an answer without the parts that are missing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tanist_gateway::{DispatcherGateway, GatewayResult};
use tanist_ha::blob::BlobStore;
use tanist_ha::election::{Claim, Epoch, ProcessId};
use tanist_ha::retrieval::LeaderView;
use tanist_ha::store::cache::CacheStatus;
use tanist_ha::store::pipeline::PipelineStats;
use tanist_leadership::history::HistoryRecord;
use tanist_leadership::{HaStatus, JobManagerView, Role};
use tokio::sync::watch;

/// One JobManager's view of its cluster.
#[async_trait]
pub trait ClusterView: Send + Sync + fmt::Debug + 'static {
    /// The leader's Dispatcher, here or elsewhere; waits for a leader up to `timeout`.
    async fn dispatcher(&self, timeout: Duration) -> GatewayResult<Arc<dyn DispatcherGateway>>;
    /// The cluster's leadership status; without its members if the store takes longer than `timeout` to list
    /// them.
    async fn ha_status(&self, timeout: Duration) -> HaStatus;
    /// The terms that are kept, oldest first; the reason if the store does not return them within `timeout`.
    async fn history(&self, timeout: Duration) -> Result<Vec<HistoryRecord>, String>;
    /// The statistics of the pipeline of this process's term; `None` while it does not lead.
    fn pipeline_stats(&self) -> Option<PipelineStats>;
    /// This JobManager.
    fn process(&self) -> ProcessId;
    /// Makes the current leader hand over to `to`, or to the most current standby. Returns the successor's
    /// epoch; `Conflict` if no process took over.
    async fn transfer(&self, to: Option<&ProcessId>) -> GatewayResult<Epoch>;
    /// The storage for content that is uploaded for a submission. `Conflict`: there is none; says what to
    /// configure.
    fn uploads(&self) -> GatewayResult<BlobStore>;
    /// How current this process's cache of the jobs' records is.
    fn cache(&self) -> CacheStatus;
    /// The rights in the store that a leader needs and this process lacks, in words; `None`: not known.
    fn missing_permissions(&self) -> Option<Vec<String>>;
    /// The epochs that messages named to this process, and that its store does not have.
    fn claims(&self) -> Vec<Claim>;
    /// What is wrong with the storage of large objects, if this process leads and knows.
    fn storage_problem(&self) -> Option<String> {
        None
    }
    /// The role of this JobManager.
    fn role(&self) -> Role;
    /// What it knows of the leader.
    fn leader(&self) -> LeaderView;
    /// Follows the leader.
    fn leaders(&self) -> watch::Receiver<LeaderView>;
}

#[async_trait]
impl ClusterView for JobManagerView {
    async fn dispatcher(&self, timeout: Duration) -> GatewayResult<Arc<dyn DispatcherGateway>> {
        self.dispatcher(timeout).await
    }

    async fn ha_status(&self, timeout: Duration) -> HaStatus {
        self.ha_status(timeout).await
    }

    async fn history(&self, timeout: Duration) -> Result<Vec<HistoryRecord>, String> {
        self.history(timeout).await
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

    fn missing_permissions(&self) -> Option<Vec<String>> {
        self.missing_permissions()
    }

    fn claims(&self) -> Vec<Claim> {
        self.claims()
    }

    fn storage_problem(&self) -> Option<String> {
        self.storage_problem()
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
