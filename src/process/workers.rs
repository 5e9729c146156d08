//! The services with which a term's ResourceManager starts TaskManagers. Nothing is decided here.

use tanist_ha::store::pipeline::CommitPipeline;
use tanist_proto::id::ResourceId;

use super::settings;
use super::term::TermServices;
use crate::resource_manager::workers::{WorkerRecord, WorkersServices};

/// `None` if no driver is configured. `recorded` are the workers in the store.
pub(super) fn services(
    services: &TermServices,
    pipeline: &CommitPipeline,
    recorded: Vec<(ResourceId, WorkerRecord)>,
) -> Option<WorkersServices> {
    let driver = services.driver.clone()?;
    Some(WorkersServices {
        options: settings::workers(&services.options),
        driver,
        pipeline: pipeline.clone(),
        recorded,
    })
}
