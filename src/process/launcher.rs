//! Starts the JobMasters of a term for its Dispatcher, which knows them only as [`JobMasterControl`].

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tanist_ha::election::Epoch;
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

use super::adoptions::Adoptions;
use super::dial::Awaiting;
use super::peers::Reports;
use crate::dispatcher::JobStore;
use crate::gateway::blobs::ServedBlobs;
use crate::gateway::{
    Adoption, Connector, GatewayResult, JobMasterControl, JobMasterGateway, JobMasterLauncher,
    ResourceRequirementsGateway,
};
use crate::job_master::{
    JobMaster, JobMasterContext, JobMasterHandle, JobMasterOptions, SinkCommitter,
};

/// What every JobMaster of a term gets.
pub(super) struct LauncherServices {
    pub options: JobMasterOptions,
    pub sender: pb::Sender,
    pub rpc_address: String,
    pub store: Arc<JobStore>,
    pub resources: Arc<dyn ResourceRequirementsGateway>,
    pub connector: Arc<dyn Connector>,
    pub committer: Arc<dyn SinkCommitter>,
    pub on_higher_epoch: Arc<dyn Fn(Epoch) + Send + Sync>,
    /// Hears of each JobMaster of a recovered job.
    pub adoptions: Adoptions,
    pub awaiting: Awaiting,
    pub blobs: ServedBlobs,
    /// Hears of each recovered job that goes on.
    pub reports: Option<Arc<Reports>>,
}

/// Starts JobMasters within one term.
pub(super) struct Launcher {
    services: LauncherServices,
}

impl Launcher {
    pub(super) fn new(services: LauncherServices) -> Launcher {
        Launcher { services }
    }
}

impl fmt::Debug for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launcher")
            .field("sender", &self.services.sender)
            .finish_non_exhaustive()
    }
}

impl JobMasterLauncher for Launcher {
    fn launch(
        &self,
        graph: pb::JobGraph,
        state: pb::JobState,
        recovered: bool,
    ) -> Arc<dyn JobMasterControl> {
        let services = &self.services;
        let context = JobMasterContext {
            graph: Arc::new(graph),
            state,
            is_recovered: recovered,
            sender: services.sender.clone(),
            rpc_address: services.rpc_address.clone(),
            state_store: services.store.clone(),
            resources: services.resources.clone(),
            connector: services.connector.clone(),
            committer: services.committer.clone(),
            on_higher_epoch: services.on_higher_epoch.clone(),
            blobs: services.blobs.clone(),
        };
        let job_id = context.graph.job_id.clone();
        let job_master = JobMaster::start(services.options.clone(), context);
        if recovered {
            if let Some(reports) = &services.reports {
                reports.one_more();
            }
            services.adoptions.started(&job_master);
            services.awaiting.started(&job_id, &job_master);
        }
        Arc::new(Started(job_master))
    }
}

/// A JobMaster as its Dispatcher sees it.
#[derive(Debug)]
struct Started(JobMasterHandle);

#[async_trait]
impl JobMasterControl for Started {
    fn gateway(&self) -> Arc<dyn JobMasterGateway> {
        Arc::new(self.0.clone())
    }

    async fn cancel(&self) -> GatewayResult<()> {
        self.0.cancel().await
    }

    async fn describe(&self) -> GatewayResult<pb::JobDetails> {
        self.0.describe().await
    }

    async fn ended(&self) -> Option<pb::JobResult> {
        self.0.ended().await.map(|result| (*result).clone())
    }

    fn task_manager_gone(&self, resource_id: ResourceId, incarnation: String) {
        self.0.task_manager_gone(resource_id, incarnation);
    }

    async fn reconciled(&self) -> Option<Adoption> {
        self.0.reconciled().await
    }

    async fn result_written(&self) {
        if let Err(error) = self.0.result_written().await {
            tracing::debug!(%error, "the JobMaster ended before it heard that its result is written");
        }
    }

    async fn stop(&self) {
        self.0.stop().await;
    }
}
