//! Collects from the JobMasters of the recovered jobs how many of the running tasks in a term's records were
//! adopted.
//!
//! It makes no decision and delays nothing. A JobMaster that ends before it has reconciled (because its job is
//! started again, or the term is over) is not counted.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tanist_gateway::Adoption;
use tanist_job_master::JobMasterHandle;
use tokio::sync::watch;

/// The JobMasters of a term's recovered jobs. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Adoptions {
    lists: Arc<Mutex<Lists>>,
    /// False until the last JobMaster is started. Suspects of crash-loop detection are started later than
    /// others.
    are_all_started: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Lists {
    /// JobMasters whose adoption result was not collected yet.
    reconciling: Vec<JobMasterHandle>,
    /// JobMasters for which [`Adoptions::begun`] has not waited yet.
    beginning: Vec<JobMasterHandle>,
}

impl Adoptions {
    /// Adds a JobMaster that was started for a recovered job.
    pub(super) fn started(&self, job_master: &JobMasterHandle) {
        let mut lists = self.lists.lock();
        lists.reconciling.push(job_master.clone());
        lists.beginning.push(job_master.clone());
    }

    /// Records that no further JobMaster will be started.
    pub(super) fn all_started(&self) {
        self.are_all_started.send_replace(true);
    }

    /// Waits until all JobMasters are started and none awaits a task any more, then drops their handles.
    /// Returns the sum of their adoptions.
    pub(super) async fn reconciled(&self) -> Adoption {
        let mut are_all_started = self.are_all_started.subscribe();
        let known = are_all_started.wait_for(|all| *all).await;
        known.expect("its sender is here");
        let started = std::mem::take(&mut self.lists.lock().reconciling);
        let waits = started.into_iter();
        let waits = waits.map(|job_master| async move { job_master.reconciled().await });
        let mut waits: FuturesUnordered<_> = waits.collect();
        let mut all = Adoption::default();
        while let Some(adoption) = waits.next().await {
            all = all.and(adoption.unwrap_or_default());
        }
        all
    }

    /// Waits until every JobMaster that was started up to this call has begun, then drops their handles. Begun:
    /// the term's record names the job, or the job has ended and its process has not ended with it.
    pub(super) async fn begun(&self) {
        let started = std::mem::take(&mut self.lists.lock().beginning);
        for job_master in started {
            job_master.begun().await;
        }
    }
}
