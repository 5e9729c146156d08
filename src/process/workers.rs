//! What the ResourceManager of a term starts TaskManagers with. Nothing is decided here.

use tanist_ha::store::pipeline::CommitPipeline;
use tanist_proto::id::ResourceId;

use super::settings;
use super::term::TermServices;
use crate::resource_manager::workers::{WorkerRecord, WorkersServices};

/// Nothing where no driver is configured. `recorded` are those that the store has.
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
