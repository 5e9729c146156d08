//! What a Dispatcher does about JobMasters that broke: they ended without a result while the term goes on.
//!
//! The job's record says how far it is, as for the next term: another JobMaster is started from it, as another incarnation
//! of the job. A job that breaks one after the other is set aside; no other job and not the term suffers from it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tanist_proto::id::JobId;
use tracing::{error, warn};

use super::job_store::{JobStore, JobStoreError};
use super::recovery::RecoveredJob;
use crate::gateway::{Departure, JobMasterControl, ResourceRequirementsGateway};

/// So many JobMasters of a job may break in a term.
pub(super) const TOLERATED: u32 = 3;
const FIRST_DELAY: Duration = Duration::from_millis(500);

/// How often the JobMaster of a job broke in this term.
#[derive(Debug, Default)]
pub(super) struct Breakages {
    times: BTreeMap<JobId, Vec<u64>>,
}

impl Breakages {
    /// Another one broke: how many it are.
    pub(super) fn note(&mut self, job: JobId, now_ms: u64) -> u32 {
        let times = self.times.entry(job).or_default();
        times.push(now_ms);
        u32::try_from(times.len()).unwrap_or(u32::MAX)
    }

    /// When they broke: milliseconds since 1970.
    pub(super) fn times(&self, job: JobId) -> &[u64] {
        self.times.get(&job).map_or(&[], Vec::as_slice)
    }

    /// Begins anew with a job.
    pub(super) fn forget(&mut self, job: JobId) {
        self.times.remove(&job);
    }
}

/// Ends what is left of a broken JobMaster, withdraws what it had stated, and reads the job again.
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

/// Whether a JobMaster that ended without a result broke, which is a bug and has to be seen. A write that the fence refused ends one before
/// the term is known to be over: that is no fault of the job, and the store says so by an error. Nor is a record of which none can be
/// made: that is said when the job is set aside.
pub(super) async fn is_fault_of_job(store: &JobStore, is_fit: bool) -> Result<bool, JobStoreError> {
    store.confirm_term().await?;
    Ok(is_fit)
}
