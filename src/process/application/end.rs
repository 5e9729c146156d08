//! Carries out an end that is decided: every job ends and is cleaned up after, the TaskManagers leave, what the store has of the
//! cluster is removed, and the record becomes a tombstone.
//!
//! Every step may be done again by the next leader; none changes the status.

use std::time::Duration;

use tanist_ha::failpoint::failpoint;
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::retry::Backoff;
use tanist_ha::store::Write;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::bootstrap::ApplicationTerm;
use super::context::is_terminal;
use super::record::ApplicationRecord;
use crate::dispatcher::JobStoreError;

const FIRST_LOOK: Duration = Duration::from_millis(20);
const SLOWEST_LOOK: Duration = Duration::from_millis(500);
/// How long TaskManagers are told to leave; who is cut off for longer finds no leader.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many records are read at once.
const PAGE: usize = 500;
/// What is left of ended jobs and terms, of which no reader needs more than the tombstone.
/// A worker that is left ends when it finds no record of itself.
const REMOVED: [Kind; 4] = [
    Kind::Results,
    Kind::Descriptions,
    Kind::Workers,
    Kind::History,
];

pub(super) async fn carry_out(term: &ApplicationTerm, record: &mut ApplicationRecord) {
    end_jobs(term).await;
    failpoint("application.jobs-ended").await;
    dismiss_task_managers(term).await;
    forget_jobs(term).await;
    for kind in REMOVED {
        remove(term, kind).await;
    }
    failpoint("application.emptied").await;
    record.cleaned = true;
    term.commit(vec![record.write(&term.cluster_id)]).await;
    failpoint("application.closed").await;
}

/// Cancels what runs, and waits until everything has ended and is cleaned up after.
async fn end_jobs(term: &ApplicationTerm) {
    let mut backoff = Backoff::new(FIRST_LOOK, SLOWEST_LOOK);
    loop {
        let jobs = term.all_jobs().await;
        let is_done =
            |details: &pb::JobDetails| is_terminal(details.status()) && !details.cleaning_up;
        if jobs.iter().all(|(_, details)| is_done(details)) {
            return;
        }
        for (job, details) in jobs {
            if is_terminal(details.status()) || details.status() == pb::JobStatus::Cancelling {
                continue;
            }
            let job_id = job.to_string();
            match term
                .dispatcher
                .cancel_job(pb::CancelJobRequest { job_id })
                .await
            {
                Ok(_) => info!(%job, "a job is cancelled, as its application has ended"),
                Err(error) => debug!(%job, %error, "a job is not cancelled yet"),
            }
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// Tells TaskManagers to leave until none is registered, up to a bound.
async fn dismiss_task_managers(term: &ApplicationTerm) {
    if let Err(error) = term.resources.dismiss_workers().await {
        debug!(%error, "no driver is asked to stop its TaskManagers");
    }
    let deadline = Instant::now() + LEAVE_TIMEOUT;
    let mut backoff = Backoff::new(FIRST_LOOK, SLOWEST_LOOK);
    loop {
        let request = pb::ListTaskManagersRequest { consistent: false };
        let listed = term.dispatcher.list_task_managers(request).await;
        let registered: Vec<String> = listed
            .map(|answer| answer.task_managers.into_iter())
            .into_iter()
            .flatten()
            .filter_map(|it| Some(it.location?.resource_id))
            .collect();
        if registered.is_empty() {
            return;
        }
        if Instant::now() >= deadline {
            warn!(?registered, "these TaskManagers did not leave in time");
            return;
        }
        for resource_id in registered {
            let request = pb::DrainTaskManagerRequest {
                resource_id: resource_id.clone(),
            };
            if let Err(error) = term.dispatcher.drain_task_manager(request).await {
                debug!(resource_id, %error, "a TaskManager was not told to leave yet");
            }
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// Removes the results of all jobs with what belongs to them. Never returns if the term is over.
async fn forget_jobs(term: &ApplicationTerm) {
    let mut backoff = Backoff::new(FIRST_LOOK, SLOWEST_LOOK);
    let jobs = term.all_jobs().await.into_iter();
    let jobs: Vec<JobId> = jobs.map(|(job, _)| job).collect();
    loop {
        match term.jobs.delete_results(&jobs).await {
            Ok(()) => return,
            Err(JobStoreError::NotWritten | JobStoreError::Unknown) => {
                return std::future::pending().await;
            }
            Err(error) => {
                warn!(%error, "the results of the application can't be removed at present");
            }
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// Removes every record of a kind.
async fn remove(term: &ApplicationTerm, kind: Kind) {
    let mut backoff = Backoff::new(FIRST_LOOK, SLOWEST_LOOK);
    let (mut names, mut page): (Vec<Name>, _) = (Vec::new(), None);
    loop {
        match term.store.list(kind, page.clone(), PAGE).await {
            Ok(listed) => {
                names.extend(listed.items.into_iter().map(|(name, _)| name));
                page = listed.next;
                if page.is_none() {
                    break;
                }
            }
            Err(error) => {
                warn!(%error, "what is left of the cluster can't be listed at present");
                tokio::time::sleep(backoff.next_delay()).await;
            }
        }
    }
    let at_once = term.pipeline.limits().writes.max(1);
    for some in names.chunks(at_once) {
        let delete = |name: &Name| Write::Delete {
            key: Key::new(kind, name.clone()),
        };
        term.commit(some.iter().map(delete).collect()).await;
    }
}
