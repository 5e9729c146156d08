//! The components of one process as those see them who speak to the process, not to a term: a server's services.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tanist_proto::id::JobId;

use super::{DispatcherGateway, GatewayResult, JobMasterGateway, ResourceManagerGateway};

/// Gives the components of this process that are responsible at this moment.
#[async_trait]
pub trait Components: Send + Sync + fmt::Debug + 'static {
    /// The Dispatcher, while this process leads and has recovered.
    fn dispatcher(&self) -> GatewayResult<Arc<dyn DispatcherGateway>>;
    /// The ResourceManager, while this process leads.
    fn resource_manager(&self) -> GatewayResult<Arc<dyn ResourceManagerGateway>>;
    /// The JobMaster of a job, while this process leads.
    async fn job_master(&self, job: JobId) -> GatewayResult<Arc<dyn JobMasterGateway>>;
    /// Those of several jobs, in their order; none where [`Components::job_master`] has to tell why.
    async fn job_masters(
        &self,
        jobs: Vec<JobId>,
    ) -> GatewayResult<Vec<Option<Arc<dyn JobMasterGateway>>>> {
        Ok(jobs.into_iter().map(|_| None).collect())
    }
}
