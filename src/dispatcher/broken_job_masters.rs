//! Handling of broken JobMasters: those that ended without a result while the term continues.
//!
//! The job's record says how far the job is, as it does for the next term: another JobMaster is started from
//! it, as another incarnation of the job. A job whose JobMasters break repeatedly is quarantined. Neither other
//! jobs nor the term are affected.

use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::{Departure, JobMasterControl, ResourceRequirementsGateway};
use tanist_proto::id::JobId;
use tracing::{error, warn};

use super::job_store::{JobStore, JobStoreError};
use super::recovery::RecoveredJob;

/// Number of JobMasters of one job that may break in a term before the job is quarantined.
pub(super) const TOLERATED: u32 = 3;
const FIRST_DELAY: Duration = Duration::from_millis(500);

/// Stops the rest of a broken JobMaster, withdraws its resource requirements, and reads the job again.
pub(super) async fn clear_away(
    job: JobId,
    broken: u32,
    is_fit: bool,
    control: Arc<dyn JobMasterControl>,
    resources: Arc<dyn ResourceRequirementsGateway>,
    store: Arc<JobStore>,
) -> Result<RecoveredJob, JobStoreError> {
    control.stop().await;
    let left = resources.disconnect_job_master(job, Departure::Broke);
    if let Err(error) = left.await {
        warn!(%job, %error, "the requirements of a broken JobMaster could not be withdrawn");
    }
    if is_fault_of_job(&store, is_fit).await? {
        error!(%job, broken, "a JobMaster broke");
    }
    if broken <= TOLERATED {
        tokio::time::sleep(FIRST_DELAY * 2u32.pow(broken)).await;
    }
    store.reread(job).await
}

/// Whether a JobMaster that ended without a result broke, which is a bug and must be logged. Two cases are not
/// the job's fault: a write refused by the fence, which ends a JobMaster before the term is known to be over
/// (the store reports it as an error), and a record from which no JobMaster can be created (reported when the
/// job is quarantined).
pub(super) async fn is_fault_of_job(store: &JobStore, is_fit: bool) -> Result<bool, JobStoreError> {
    store.confirm_term().await?;
    Ok(is_fit)
}
