//! Access to the components of this process for its servers, whose clients address the process and not a term. The
//! process answers with the components of the term that it leads at this moment; without one, a call fails, and may be
//! sent again.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tanist_proto::id::JobId;

use super::{DispatcherGateway, GatewayResult, JobMasterGateway, ResourceManagerGateway};

/// Returns the components that are responsible at this moment.
#[async_trait]
pub trait Components: Send + Sync + fmt::Debug + 'static {
    /// The Dispatcher, while this process leads and has recovered.
    fn dispatcher(&self) -> GatewayResult<Arc<dyn DispatcherGateway>>;
    /// The ResourceManager, while this process leads.
    fn resource_manager(&self) -> GatewayResult<Arc<dyn ResourceManagerGateway>>;
    /// The JobMaster of a job, while this process leads.
    async fn job_master(&self, job: JobId) -> GatewayResult<Arc<dyn JobMasterGateway>>;
    /// Returns the JobMasters of several jobs, in order; `None` where [`Components::job_master`] would fail.
    async fn job_masters(
        &self,
        jobs: Vec<JobId>,
    ) -> GatewayResult<Vec<Option<Arc<dyn JobMasterGateway>>>> {
        Ok(jobs.into_iter().map(|_| None).collect())
    }
}
