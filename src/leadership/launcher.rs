//! Starts the JobMasters of a term for its Dispatcher, which owns them and knows them only as [`JobMasterControl`].
//! A JobMaster that starts late, or replaces a broken one, is also announced to its job's TaskExecutors.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_compact::{shrink_graph, shrink_state};
use tanist_dispatcher::JobStore;
use tanist_gateway::blobs::ServedBlobs;
use tanist_gateway::fencing::OnHigherEpoch;
use tanist_gateway::refusals::Refusals;
use tanist_gateway::{
    Adoption, Connector, Detail, GatewayResult, JobMasterControl, JobMasterGateway,
    JobMasterLauncher, ResourceRequirementsGateway,
};
use tanist_job_master::{
    JobMaster, JobMasterContext, JobMasterHandle, JobMasterOptions, SinkCommitter, StartLimiter,
};
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;
use tokio::task::JoinSet;

use super::adoptions::Adoptions;
use super::dial::{self, Awaiting, DialServices, Placements};
use super::peers::Reports;

/// What every JobMaster of a term gets.
pub(super) struct LauncherServices {
    pub options: Arc<JobMasterOptions>,
    pub sender: Arc<pb::Sender>,
    pub rpc_address: Arc<str>,
    pub store: Arc<JobStore>,
    pub resources: Arc<dyn ResourceRequirementsGateway>,
    pub connector: Arc<dyn Connector>,
    pub refusals: Arc<dyn Refusals>,
    pub committer: Arc<dyn SinkCommitter>,
    pub on_higher_epoch: OnHigherEpoch,
    /// Receives each JobMaster of a recovered job.
    pub adoptions: Adoptions,
    /// Announces JobMasters, and knows which of them await tasks.
    pub dial: DialServices,
    pub blobs: ServedBlobs,
    /// Counts the JobMasters of recovered jobs that were started.
    pub reports: Option<Arc<Reports>>,
}

/// Starts JobMasters within one term.
pub(super) struct Launcher {
    services: LauncherServices,
    start_limiter: StartLimiter,
    launched: Mutex<Launched>,
}

struct Launched {
    /// The jobs whose JobMaster was started while the term recovers its jobs. `None`: the recovery is over, and
    /// TaskExecutors with tasks of a job may wait long before they try to register at its JobMaster again.
    recovering: Option<BTreeSet<String>>,
    /// Ends with the term.
    announcing: JoinSet<()>,
}

impl Launcher {
    pub(super) fn new(services: LauncherServices) -> Launcher {
        Launcher {
            services,
            start_limiter: StartLimiter::default(),
            launched: Mutex::new(Launched {
                recovering: Some(BTreeSet::new()),
                announcing: JoinSet::new(),
            }),
        }
    }

    /// Records that all jobs that are recovered at the beginning of the term were started.
    pub(super) fn all_recovered(&self) {
        self.launched.lock().recovering = None;
    }

    /// Announces a JobMaster to the job's TaskExecutors as soon as the record names it, if it starts late, or
    /// if another JobMaster of the job, to which they are connected, broke in this term: they then register
    /// again at once, not only when they miss a heartbeat.
    fn announce_if_late(&self, job_id: &str, placements: Placements, job_master: &JobMasterHandle) {
        let mut launched = self.launched.lock();
        while launched.announcing.try_join_next().is_some() {}
        // The first JobMaster of a recovered job: the term dials its TaskExecutors anyway.
        let recovering = launched.recovering.as_mut();
        if recovering.is_some_and(|jobs| jobs.insert(job_id.to_owned())) {
            return;
        }
        let awaiting = Awaiting::default();
        awaiting.started(job_id, job_master);
        let (job_id, job_master) = (job_id.to_owned(), job_master.clone());
        let mut services = DialServices {
            awaiting,
            ..self.services.dial.clone()
        };
        launched.announcing.spawn(async move {
            let Some(job_incarnation) = job_master.begun().await else {
                return;
            };
            services.jobs.push(pb::JobScope {
                job_id,
                job_incarnation,
            });
            dial::dial(placements, services).await;
        });
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
        mut graph: pb::JobGraph,
        mut state: pb::JobState,
        recovered: bool,
    ) -> Arc<dyn JobMasterControl> {
        let services = &self.services;
        if !recovered {
            // What was read from the store has no spare capacity.
            shrink_graph(&mut graph);
            shrink_state(&mut state);
        }
        let context = JobMasterContext {
            graph: Arc::new(graph),
            state,
            is_recovered: recovered,
            sender: services.sender.clone(),
            rpc_address: services.rpc_address.clone(),
            state_store: services.store.clone(),
            resources: services.resources.clone(),
            connector: services.connector.clone(),
            refusals: services.refusals.clone(),
            committer: services.committer.clone(),
            checkpoint_objects: services
                .store
                .blobs()
                .filter(|it| it.keeps_checkpoints())
                .cloned(),
            on_higher_epoch: services.on_higher_epoch.clone(),
            blobs: services.blobs.clone(),
            start_limiter: self.start_limiter.clone(),
        };
        let job_id = context.graph.job_id.clone();
        let placements = Placements::of_states(std::iter::once(&context.state));
        let job_master = JobMaster::start(services.options.clone(), context);
        if recovered {
            if let Some(reports) = &services.reports {
                reports.add_done();
            }
            services.adoptions.started(&job_master);
            services.dial.awaiting.started(&job_id, &job_master);
        }
        self.announce_if_late(&job_id, placements, &job_master);
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

    async fn stop_job(&self) -> GatewayResult<()> {
        self.0.stop_job().await
    }

    async fn trigger_savepoint(&self, request: pb::TriggerSavepointRequest) -> GatewayResult<()> {
        self.0.trigger_savepoint(request).await
    }

    async fn describe(&self, detail: Detail) -> GatewayResult<pb::JobDetails> {
        self.0.describe(detail).await
    }

    async fn ended(&self) -> Option<pb::JobResult> {
        self.0.ended().await.map(|result| (*result).clone())
    }

    fn retained_checkpoints(&self) -> Option<Arc<pb::JobCheckpoints>> {
        self.0.retained_checkpoints()
    }

    fn unfit(&self) -> Option<String> {
        self.0.unfit()
    }

    fn report_task_manager_lost(&self, resource_id: ResourceId, incarnation: String) {
        self.0.report_task_manager_lost(resource_id, incarnation);
    }

    async fn reconciled(&self) -> Option<Adoption> {
        self.0.reconciled().await
    }

    async fn result_written(&self) {
        if let Err(error) = self.0.result_written().await {
            tracing::debug!(%error, "the JobMaster ended before it was notified that its result is written");
        }
    }

    async fn stop(&self) {
        self.0.stop().await;
    }
}
