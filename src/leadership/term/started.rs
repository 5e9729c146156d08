//! A term whose components run and whose TaskExecutors are dialled. It is not confirmed yet: no other process
//! finds it as the leader.

use std::sync::Arc;
use std::time::Duration;

use tanist_dispatcher::{Dispatcher, DispatcherContext, JobStore, RecoveredJobs};
use tanist_gateway::blobs::BlobFetcher;
use tanist_gateway::refusals::Refusals;
use tanist_ha::Error;
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_proto::id::JobId;
use tanist_resource_manager::DrainsServices;
use tanist_resource_manager::{ResourceManager, ResourceManagerServices, Term};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info};

use super::confirmed::ConfirmedTerm;
use super::recovered::{Recorded, RecoveredTerm};
use super::{FIRST_RETRY, Grant, millis};
use crate::adoptions::Adoptions;
use crate::application::FoundApplication;
use crate::dial::{self, Awaiting, DialServices, Placements};
use crate::history::{Phases, Recovery, TermRecord};
use crate::launcher::{Launcher, LauncherServices};
use crate::peers::{RefusalInquiry, refusals};
use crate::view::TermComponents;
use crate::{recovery_phases, settings, workers};

/// See the module.
pub(super) struct StartedTerm<'a> {
    pub grant: Grant<'a>,
    pub components: TermComponents,
    pub resource_manager: ResourceManager,
    pub adoptions: Adoptions,
    pub pipeline: CommitPipeline,
    pub store: Arc<JobStore>,
    pub record: Arc<TermRecord>,
    /// Number of recovered jobs.
    pub jobs: usize,
    /// The recovered jobs that are started later than others.
    pub suspects: Vec<JobId>,
    pub recovery: Recovery,
    pub phases: Phases,
    pub found_application: FoundApplication,
    /// Inquiries of the components about TaskManagers that refuse calls.
    pub refused: mpsc::Receiver<RefusalInquiry>,
    /// Ends with the term.
    _dialling: JoinSet<()>,
}

impl<'a> StartedTerm<'a> {
    pub(super) fn start(recovered: RecoveredTerm<'a>) -> StartedTerm<'a> {
        let RecoveredTerm {
            grant,
            pipeline,
            store,
            jobs: recovered,
            recovery,
            phases,
            found_application,
            record,
            recorded,
        } = recovered;
        let services = grant.services;
        let suspects = recovery_phases::suspects(&recovered);
        let jobs = recovered.jobs.len();
        if let Some(reports) = services.reports() {
            reports.recovering(0, jobs as u64);
        }
        let placements = Placements::of(&recovered);
        let (refusals, refused) = refusals(services.peers.is_some());
        let dial_services = dial_services(grant);
        let (components, resource_manager, adoptions) = start_components(
            grant,
            store.clone(),
            recovered,
            dial_services.clone(),
            refusals,
            recorded,
        );
        // Before the TaskExecutors are dialled: they register at these components at once.
        services.current.begin(components.clone());
        let mut dialling = JoinSet::new();
        dialling.spawn(dial::dial(placements, dial_services));
        StartedTerm {
            grant,
            components,
            resource_manager,
            adoptions,
            pipeline,
            store,
            record,
            jobs,
            suspects,
            recovery,
            phases,
            found_application,
            refused,
            _dialling: dialling,
        }
    }

    /// Publishes the addresses of this process: from here on other processes find the leader. With the error
    /// comes the term, to be stopped.
    pub(super) async fn confirm(mut self) -> Result<ConfirmedTerm<'a>, (Error, StartedTerm<'a>)> {
        let Grant {
            services,
            session,
            at,
        } = self.grant;
        let election = &services.ha.election;
        let confirmed = election
            .confirm(session, services.addresses.clone(), FIRST_RETRY)
            .await;
        self.phases.confirmed_ms = millis(at);
        if let Err(error) = confirmed {
            return Err((error, self));
        }
        info!(
            epoch = %session.epoch(),
            jobs = self.jobs,
            from_cache = self.recovery.from_cache,
            read = self.recovery.read,
            took_ms = self.phases.confirmed_ms,
            "leadership confirmed, all jobs recovered"
        );
        if let Some(reports) = services.reports() {
            reports.leading();
        }
        Ok(ConfirmedTerm { started: self })
    }

    /// Stops the components. No other process is informed.
    pub(super) async fn stop(self) {
        let Grant {
            services, session, ..
        } = self.grant;
        // First, so that no message reaches a component that is being stopped.
        services.current.end();
        let stopping = Instant::now();
        tokio::join!(
            self.components.dispatcher.stop(),
            self.resource_manager.stop(),
        );
        debug!(epoch = %session.epoch(), took_ms = millis(stopping), "the term's components have ended");
    }
}

fn start_components(
    grant: Grant<'_>,
    store: Arc<JobStore>,
    recovered: RecoveredJobs,
    dial: DialServices,
    refusals: Arc<dyn Refusals>,
    recorded: Recorded,
) -> (TermComponents, ResourceManager, Adoptions) {
    let Grant {
        services, session, ..
    } = grant;
    let options = &services.options;
    let setup = services.workers.as_ref();
    let workers = workers::services(setup, store.pipeline(), recorded.workers);
    let on_higher_epoch = grant.on_higher_epoch();
    let resource_manager = ResourceManager::start(
        settings::resource_manager(options),
        ResourceManagerServices {
            connector: services.connector.clone(),
            refusals: refusals.clone(),
            term: Term {
                cluster_id: options.ha.cluster_id.to_string(),
                incarnation: session.incarnation().clone(),
                epoch: session.epoch(),
                holder: session.holder().clone(),
                store: session.store().cloned(),
            },
            on_higher_epoch: on_higher_epoch.clone(),
            workers,
            drains: DrainsServices {
                pipeline: Some(store.pipeline().clone()),
                recorded: recorded.drains,
            },
        },
    );
    let resources = Arc::new(resource_manager.handle());
    let adoptions = Adoptions::default();
    let launcher = Arc::new(Launcher::new(LauncherServices {
        options: Arc::new(settings::job_master(options)),
        sender: Arc::new(grant.sender()),
        rpc_address: services.rpc_address.as_str().into(),
        store: store.clone(),
        resources: resources.clone(),
        connector: services.connector.clone(),
        refusals,
        committer: services.sinks.committer.clone(),
        on_higher_epoch,
        dial,
        blobs: services.blobs.clone(),
        adoptions: adoptions.clone(),
        reports: services.peers.as_ref().map(|peers| peers.reports.clone()),
    }));
    let pipeline = store.pipeline().clone();
    let (blobs, storage_problem) = (store.blobs().cloned(), store.storage().trouble());
    let context = DispatcherContext {
        session: session.clone(),
        store,
        launcher: launcher.clone(),
        resources: resources.clone(),
        cleaner: settings::cleaner(&options.cleanup, services.sinks.cleaner.clone(), blobs),
        blobs: BlobFetcher::new(services.connector.clone(), options.rpc.ask_timeout),
        checks: services.checks,
    };
    let mut dispatcher_options = settings::dispatcher(options);
    if services.application.is_some() {
        // If a result were removed, the program's next run would submit its job once more.
        dispatcher_options.result_retention = Duration::MAX;
    }
    let dispatcher = Dispatcher::start(dispatcher_options, context, recovered);
    launcher.all_recovered();
    let components = TermComponents {
        storage_problem,
        dispatcher,
        resource_manager: resources,
        pipeline,
    };
    (components, resource_manager, adoptions)
}

fn dial_services(grant: Grant<'_>) -> DialServices {
    let services = grant.services;
    DialServices {
        connector: services.connector.clone(),
        sender: grant.sender(),
        rpc_address: services.rpc_address.clone(),
        process: grant.session.process().to_string(),
        timeout: services.options.heartbeat.timeout,
        on_higher_epoch: grant.on_higher_epoch(),
        jobs: Vec::new(),
        awaiting: Awaiting::default(),
    }
}
