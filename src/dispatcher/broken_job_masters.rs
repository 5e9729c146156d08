//! Runs `RemoveJobMaster`: removes what is left of a JobMaster that ended without a result while the term
//! continues. The core decided this and owns the job's entry (`Rebuilding`) meanwhile; see
//! `core/broken_job_masters.rs`.

use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::{Departure, JobMasterControl};
use tanist_proto::id::JobId;
use tracing::{error, warn};

use super::actor::DispatcherContext;
use super::core::Reread;
use super::job_store::{JobStore, JobStoreError};

/// Stops the rest of a broken JobMaster, withdraws its resource requirements, and reads the job again after a pause.
/// An error means that the term is over.
///
/// `broken`: how many JobMasters of this job broke in this term. `is_fit`: false if none could be created from the
/// records. `pause`: before another one starts; `None` if the job will be quarantined.
pub(super) async fn remove(
    job: JobId,
    broken: u32,
    is_fit: bool,
    control: Option<Arc<dyn JobMasterControl>>,
    context: DispatcherContext,
    pause: Option<Duration>,
) -> Reread {
    if let Some(control) = control {
        control.stop().await;
    }
    let resources = context.resources;
    let left = resources.disconnect_job_master(job, Departure::Broke);
    if let Err(error) = left.await {
        warn!(%job, %error, "the requirements of a broken JobMaster could not be withdrawn");
    }
    if is_bug(&context.store, is_fit).await? {
        error!(%job, broken, "a JobMaster broke");
    }
    if let Some(pause) = pause {
        tokio::time::sleep(pause).await;
    }
    context.store.reread(job).await
}

/// Whether a JobMaster that ended without a result broke, which is a bug and must be logged. Two cases are no
/// bug: a write refused by the fence, which ends a JobMaster before the term is known to be over
/// (the store reports it as an error), and a record from which no JobMaster can be created (reported when the
/// job is quarantined).
pub(super) async fn is_bug(store: &JobStore, is_fit: bool) -> Result<bool, JobStoreError> {
    store.confirm_term().await?;
    Ok(is_fit)
}
