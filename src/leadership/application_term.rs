//! Connects a term with its application: checks which application owns the cluster, and runs that application with the
//! term's components ([`application::attend`]). Nothing is decided here. If the cluster belongs to another application,
//! or to a session, the process ends with [`ExitCode::Refused`].

use std::sync::Arc;

use tanist_dispatcher::JobStore;
use tanist_ha::store::cache::Records;
use tanist_ha::{Error, Result};
use tanist_resource_manager::ResourceManagerHandle;
use tanist_telemetry::ExitCode;
use tokio::sync::watch;

use super::application::{self, Application, ApplicationTerm, FoundApplication};
use super::term::TermServices;
use super::view::TermComponents;

/// The cluster's application status. An error: the process must end, for the reason in `ending`.
pub(super) fn find_application(
    services: &TermServices,
    records: &Records,
) -> Result<FoundApplication> {
    let own: Option<&Application> = services.application.as_ref();
    let (code, cause) =
        match application::find_application(own, &services.options.ha.cluster_id, records) {
            Ok(FoundApplication::Over(record)) => (
                record.status.exit_code(),
                application::final_message(&record),
            ),
            Ok(found_application) => return Ok(found_application),
            Err(reason) => (ExitCode::Refused, reason),
        };
    services.ending.decide(code, cause.clone());
    Err(Error::Misconfigured(cause.into()))
}

/// Returns when the application has ended; never in a session.
pub(super) async fn attend_application(
    services: &TermServices,
    components: &TermComponents,
    resources: ResourceManagerHandle,
    store: &Arc<JobStore>,
    found_application: FoundApplication,
    has_recovered: watch::Receiver<bool>,
) {
    let Some(application) = services.application.clone() else {
        return std::future::pending().await;
    };
    let term = ApplicationTerm {
        application,
        cluster_id: services.options.ha.cluster_id.clone(),
        dispatcher: Arc::new(components.dispatcher.clone()),
        resources,
        pipeline: components.pipeline.clone(),
        store: store.coordination_store().clone(),
        jobs: store.clone(),
        ending: services.ending.clone(),
        driver: services
            .workers
            .as_ref()
            .map(|workers| workers.driver.clone()),
        has_recovered,
    };
    application::attend(term, found_application).await;
}
