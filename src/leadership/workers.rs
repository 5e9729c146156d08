//! The services with which a term's ResourceManager starts TaskManagers. Nothing is decided here.

use std::sync::Arc;

use tanist_ha::store::pipeline::CommitPipeline;
use tanist_proto::id::ResourceId;
use tanist_resource_manager::{
    ResourceManagerDriver, WorkerRecord, WorkersOptions, WorkersServices,
};

/// How a process starts TaskManagers.
#[derive(Debug, Clone)]
pub struct WorkersSetup {
    /// Starts and stops them.
    pub driver: Arc<dyn ResourceManagerDriver>,
    /// Their resources, and limits on their number.
    pub options: WorkersOptions,
}

/// `None` if no driver is configured. `recorded` are the workers in the store.
pub(super) fn services(
    setup: Option<&WorkersSetup>,
    pipeline: &CommitPipeline,
    recorded: Vec<(ResourceId, WorkerRecord)>,
) -> Option<WorkersServices> {
    let setup = setup?;
    Some(WorkersServices {
        options: setup.options.clone(),
        driver: setup.driver.clone(),
        pipeline: pipeline.clone(),
        recorded,
    })
}
