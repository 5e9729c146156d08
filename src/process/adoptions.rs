//! What became of all running tasks that a term found in its records: gathered from the JobMasters of the recovered jobs.
//!
//! It decides nothing and holds nothing up. A JobMaster that ends before it has reconciled (its job is started anew, or the
//! term is over) counts for nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;

use crate::gateway::Adoption;
use crate::job_master::JobMasterHandle;

/// The JobMasters of a term's recovered jobs. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Adoptions {
    lists: Arc<Mutex<Lists>>,
    /// Suspects are started later than others.
    are_all_started: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Lists {
    /// Those whose adoptions are not told yet.
    reconciling: Vec<JobMasterHandle>,
    /// Those of which nobody has waited for the beginning yet.
    beginning: Vec<JobMasterHandle>,
}

impl Adoptions {
    /// This JobMaster was started for a recovered job.
    pub(super) fn started(&self, job_master: &JobMasterHandle) {
        let mut lists = self.lock();
        lists.reconciling.push(job_master.clone());
        lists.beginning.push(job_master.clone());
    }

    /// No further one will be started.
    pub(super) fn all_started(&self) {
        self.are_all_started.send_replace(true);
    }

    /// Waits until all are started and await nothing any more, and lets them go; their adoption together.
    pub(super) async fn reconciled(&self) -> Adoption {
        let mut are_all_started = self.are_all_started.subscribe();
        let known = are_all_started.wait_for(|all| *all).await;
        known.expect("its sender is here");
        let started = std::mem::take(&mut self.lock().reconciling);
        let waits = started.into_iter();
        let waits = waits.map(|job_master| async move { job_master.reconciled().await });
        let mut waits: FuturesUnordered<_> = waits.collect();
        let mut all = Adoption::default();
        while let Some(adoption) = waits.next().await {
            all = all.and(adoption.unwrap_or_default());
        }
        all
    }

    /// Waits until those that were started so far stand, and lets them go: the record names each of them, or it has ended, and not
    /// its process with it.
    pub(super) async fn stand(&self) {
        let started = std::mem::take(&mut self.lock().beginning);
        for job_master in started {
            job_master.begun().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
