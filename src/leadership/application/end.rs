//! Carries out an end that is decided: every job ends and is cleaned up, the TaskManagers leave, the cluster's
//! data is removed from the store, and the record becomes a tombstone.
//!
//! Every step may be repeated by the next leader; none changes the status.
//!
//! Invariants: TaskManagers leave only when every job in the store has ended, and results are removed only when
//! they are clean, both according to the store itself. If something of a job could not be removed
//! (`cleanup-strategy.exponential-delay.attempts`), the process ends nevertheless: everything is kept, the
//! record says what is left, and the next leader tries again. If a job can neither be cancelled nor led, the
//! cluster's end is unknown to this process, and everything is kept as well.

use std::time::Duration;

use tanist_dispatcher::JobStoreError;
use tanist_gateway::kinds;
use tanist_ha::Error;
use tanist_ha::failpoint::failpoint;
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::retry::Backoff;
use tanist_ha::store::Write;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_resource_manager::{ClusterEnd, DriverError, FinalStatus, ResourceManagerDriver};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::bootstrap::ApplicationTerm;
use super::cancellations::Cancellations;
use super::record::{ApplicationRecord, ApplicationStatus, LONGEST_TEXT};

const FIRST_POLL: Duration = Duration::from_millis(20);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time for which TaskManagers are requested to leave. One that is cut off for longer finds no leader and leaves for
/// that reason.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Page size when records are listed.
const PAGE: usize = 500;
/// Data of ended jobs and terms, of which readers need no more than the tombstone. A worker that is left over
/// ends when it finds no record of itself.
const REMOVED: [Kind; 6] = [
    kinds::DESCRIPTIONS,
    kinds::WORKERS,
    kinds::DRAINS,
    kinds::BLOB_TOMBSTONES,
    kinds::HISTORY,
    kinds::STORAGES,
];
/// Timeout for the blob store to remove the orphans of earlier leaders.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of jobs whose leftovers are named in a message.
const MAX_NAMED_JOBS: usize = 3;

/// Why an end is not carried out at present.
#[derive(Debug)]
pub(super) enum Unfinished {
    /// The store does not accept the record.
    Refused(Error),
    /// These jobs can't be ended.
    JobsNotEnded(String),
}

impl From<Error> for Unfinished {
    fn from(error: Error) -> Unfinished {
        Unfinished::Refused(error)
    }
}

pub(super) async fn carry_out(
    term: &ApplicationTerm,
    record: &mut ApplicationRecord,
) -> Result<(), Unfinished> {
    loop {
        let leftovers = end_all_jobs(term).await.map_err(Unfinished::JobsNotEnded)?;
        failpoint("application.jobs-ended").await;
        dismiss_task_managers(term).await;
        if let Some(status) = final_status(record.status) {
            notify_driver(term, status, &record.diagnosis).await;
        }
        if !leftovers.is_empty() {
            record.left = leftovers_text(&leftovers);
            warn!(
                left = record.left,
                "not all data of the application's jobs could be removed: the next leader tries again"
            );
            return Ok(term.commit(vec![record.write(&term.cluster_id)]).await?);
        }
        if remove_results(term).await {
            break;
        }
    }
    sweep(term).await;
    for kind in REMOVED {
        remove(term, kind).await?;
    }
    failpoint("application.emptied").await;
    record.left.clear();
    record.cleaned = true;
    term.commit(vec![record.write(&term.cluster_id)]).await?;
    failpoint("application.closed").await;
    Ok(())
}

/// A message about what is left of jobs, for display.
fn leftovers_text(leftovers: &[(JobId, String)]) -> String {
    let first = leftovers.iter().take(MAX_NAMED_JOBS);
    let each = first.map(|(job, why)| format!("data of job {job} could not be removed: {why}"));
    let mut text = each.collect::<Vec<String>>().join("; ");
    let others = leftovers.len().saturating_sub(MAX_NAMED_JOBS);
    if others > 0 {
        text = format!("{text}; and the same for {others} other jobs");
    }
    text.chars().take(LONGEST_TEXT).collect()
}

fn final_status(status: ApplicationStatus) -> Option<FinalStatus> {
    match status {
        ApplicationStatus::Running => None,
        ApplicationStatus::Succeeded => Some(FinalStatus::Succeeded),
        ApplicationStatus::Failed => Some(FinalStatus::Failed),
        ApplicationStatus::Canceled => Some(FinalStatus::Canceled),
        ApplicationStatus::Unknown => Some(FinalStatus::Unknown),
    }
}

/// Tells the driver of TaskManagers how the cluster has ended; gives up after a timeout.
pub(super) async fn notify_driver(term: &ApplicationTerm, status: FinalStatus, diagnosis: &str) {
    let Some(driver) = &term.driver else {
        return;
    };
    let end = ClusterEnd {
        cluster: term.cluster_id.to_string(),
        status,
        diagnosis: diagnosis.to_owned(),
    };
    if let Err(error) = finish(&**driver, &end).await {
        warn!(%error, driver = driver.name(), "the driver did not accept the end of the cluster in time");
    }
}

/// Repeats the call until it succeeds, at most until the timeout. The error is the last one.
async fn finish(driver: &dyn ResourceManagerDriver, end: &ClusterEnd) -> Result<(), DriverError> {
    let deadline = Instant::now() + LEAVE_TIMEOUT;
    let mut backoff = Backoff::new(FIRST_POLL, MAX_POLL_INTERVAL);
    let mut last = DriverError::new(format!("it does not answer within {LEAVE_TIMEOUT:?}"));
    loop {
        match tokio::time::timeout_at(deadline, driver.finish(end)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => last = error,
            Err(_elapsed) => return Err(last),
        }
        let next = Instant::now() + backoff.next_delay();
        if next >= deadline {
            return Err(last);
        }
        tokio::time::sleep_until(next).await;
    }
}

/// Ends all jobs in the store, including those that are not listed. Returns the jobs of which something is
/// left, and why. The error names the jobs that can't end, once all others have.
async fn end_all_jobs(term: &ApplicationTerm) -> Result<Vec<(JobId, String)>, String> {
    let mut cancellations = Cancellations::default();
    let mut backoff = Backoff::new(FIRST_POLL, MAX_POLL_INTERVAL);
    loop {
        let leftovers = end_jobs(term, &mut cancellations).await?;
        match term.jobs.has_unended_jobs().await {
            Ok(false) => return Ok(leftovers),
            Ok(true) => info!(
                "the store has jobs of the application that are not listed: waiting until they have ended"
            ),
            Err(error) => warn!(%error, "the jobs of the application can't be read: retrying"),
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// Cancels running jobs, and waits until every listed job has ended and its cleanup is done or given up.
async fn end_jobs(
    term: &ApplicationTerm,
    cancellations: &mut Cancellations,
) -> Result<Vec<(JobId, String)>, String> {
    let mut backoff = Backoff::new(FIRST_POLL, MAX_POLL_INTERVAL);
    loop {
        let jobs = term.all_jobs().await;
        let is_given_up = |details: &pb::JobDetails| !details.left_behind.is_empty();
        let is_done = |details: &pb::JobDetails| {
            details.status().has_ended() && (!details.cleaning_up || is_given_up(details))
        };
        if jobs.iter().all(|(_, details)| is_done(details)) {
            let leftovers = jobs.into_iter().filter(|(_, details)| is_given_up(details));
            return Ok(leftovers.map(|(job, it)| (job, it.left_behind)).collect());
        }
        let (mut blocked, mut others) = (Vec::new(), 0);
        for (job, details) in jobs.iter().filter(|(_, details)| !is_done(details)) {
            let is_ending =
                details.status().has_ended() || details.status() == pb::JobStatus::Cancelling;
            let never_ends = match is_ending {
                true => None,
                false => cancellations.cancel(&*term.dispatcher, *job, details).await,
            };
            match never_ends {
                Some(why) => blocked.push(why),
                None => others += 1,
            }
        }
        if others == 0 {
            return Err(format!("its jobs can't be ended: {}", blocked.join("; ")));
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// Tells TaskManagers to leave until none is registered, at most until the timeout.
async fn dismiss_task_managers(term: &ApplicationTerm) {
    if let Err(error) = term.resources.dismiss_workers().await {
        debug!(%error, "the driver can't be asked to stop its TaskManagers");
    }
    let deadline = Instant::now() + LEAVE_TIMEOUT;
    let mut backoff = Backoff::new(FIRST_POLL, MAX_POLL_INTERVAL);
    loop {
        let request = pb::ListTaskManagersRequest { consistent: false };
        let listed = term.dispatcher.list_task_managers(request).await;
        let is_late = Instant::now() >= deadline;
        let registered: Vec<String> = match listed {
            Ok(listed) => {
                let locations = listed.task_managers.into_iter();
                let locations = locations.filter_map(|it| it.location);
                locations.map(|location| location.resource_id).collect()
            }
            Err(error) if is_late => {
                warn!(%error, "the TaskManagers can't be listed: some may not have left");
                return;
            }
            Err(error) => {
                debug!(%error, "the TaskManagers can't be listed: retrying");
                tokio::time::sleep(backoff.next_delay()).await;
                continue;
            }
        };
        if registered.is_empty() {
            return;
        }
        if is_late {
            warn!(?registered, "these TaskManagers did not leave in time");
            return;
        }
        for resource_id in registered {
            let request = pb::DrainTaskManagerRequest {
                resource_id: resource_id.clone(),
                by: "the application's end".to_owned(),
                ..pb::DrainTaskManagerRequest::default()
            };
            if let Err(error) = term.dispatcher.drain_task_manager(request).await {
                debug!(resource_id, %error, "a TaskManager could not be drained yet: retrying");
            }
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// Removes the results of all jobs and the records that belong to them. False: some are kept, because their
/// cleanup is not done. Never returns if the term is over.
async fn remove_results(term: &ApplicationTerm) -> bool {
    let mut backoff = Backoff::new(FIRST_POLL, MAX_POLL_INTERVAL);
    loop {
        match term.jobs.delete_clean_results().await {
            Ok(are_all_removed) => {
                if !are_all_removed {
                    warn!("the cleanup of the application's jobs is not complete: waiting");
                    tokio::time::sleep(MAX_POLL_INTERVAL).await;
                }
                return are_all_removed;
            }
            Err(JobStoreError::NotWritten | JobStoreError::Unknown) => {
                return std::future::pending().await;
            }
            Err(error) => {
                warn!(%error, "the results of the application can't be removed: retrying");
            }
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// Removes the orphaned objects, regardless of age: nothing is submitted any more, and no later leader sweeps.
/// Objects that the blob store fails to remove are left.
async fn sweep(term: &ApplicationTerm) {
    let sweeping = term.jobs.orphan_gc().sweep_objects(Duration::ZERO);
    match tokio::time::timeout(SWEEP_TIMEOUT, sweeping).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            warn!(%error, "orphaned objects of the cluster are left in the blob store");
        }
        Err(_elapsed) => warn!(
            "the blob store did not answer within {SWEEP_TIMEOUT:?}: objects of the cluster may be left in it"
        ),
    }
    if let Err(error) = term.jobs.storage().remove_marker().await {
        warn!(%error, "the marker of the cluster is left in the blob store");
    }
}

/// Removes every record of a kind.
async fn remove(term: &ApplicationTerm, kind: Kind) -> Result<(), Error> {
    let mut backoff = Backoff::new(FIRST_POLL, MAX_POLL_INTERVAL);
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
                warn!(%error, "the remaining records of the cluster can't be listed: retrying");
                tokio::time::sleep(backoff.next_delay()).await;
            }
        }
    }
    let at_once = term.pipeline.limits().writes.max(1);
    for some in names.chunks(at_once) {
        let delete = |name: &Name| Write::Delete {
            key: Key::new(kind, name.clone()),
        };
        term.commit(some.iter().map(delete).collect()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use parking_lot::Mutex;
    use tanist_ha::election::ClusterIncarnation;
    use tanist_proto::id::ResourceId;

    use super::*;
    use tanist_resource_manager::{Found, RecordedWorker, WorkerRequest};

    /// Refuses this many times, then accepts.
    #[derive(Debug, Default)]
    struct Reluctant {
        refusals: Mutex<u32>,
        taken: Mutex<Vec<ClusterEnd>>,
    }

    #[async_trait]
    impl ResourceManagerDriver for Reluctant {
        fn name(&self) -> &'static str {
            "reluctant"
        }

        fn place(&self) -> String {
            String::new()
        }

        async fn start_worker(&self, _: &WorkerRequest) -> Result<(), DriverError> {
            Ok(())
        }

        async fn recover_workers(
            &self,
            _: &ClusterIncarnation,
            _: &[RecordedWorker],
        ) -> Result<Vec<(ResourceId, Found)>, DriverError> {
            Ok(Vec::new())
        }

        async fn worker_ended(&self, _: &ResourceId) -> String {
            std::future::pending().await
        }

        async fn stop_worker(&self, _: &ResourceId) -> Result<(), DriverError> {
            Ok(())
        }

        async fn finish(&self, end: &ClusterEnd) -> Result<(), DriverError> {
            let mut refusals = self.refusals.lock();
            if *refusals > 0 {
                *refusals -= 1;
                return Err(DriverError::new("busy"));
            }
            self.taken.lock().push(end.clone());
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_receives_the_end_with_its_diagnosis_until_it_accepts_or_the_timeout_is_over()
    {
        let end = ClusterEnd {
            cluster: "c".to_owned(),
            status: FinalStatus::Failed,
            diagnosis: "no input".to_owned(),
        };
        let driver = Reluctant::default();
        *driver.refusals.lock() = 2;
        assert_eq!(finish(&driver, &end).await, Ok(()));
        let taken = driver.taken.lock().clone();
        assert_eq!(taken, std::slice::from_ref(&end));
        *driver.refusals.lock() = u32::MAX;
        let refused = finish(&driver, &end).await;
        assert_eq!(refused, Err(DriverError::new("busy")));
    }

    #[test]
    fn every_end_has_a_status_and_what_runs_has_none() {
        for (status, expected) in [
            (ApplicationStatus::Running, None),
            (ApplicationStatus::Succeeded, Some("SUCCEEDED")),
            (ApplicationStatus::Failed, Some("FAILED")),
            (ApplicationStatus::Canceled, Some("CANCELED")),
            (ApplicationStatus::Unknown, Some("UNKNOWN")),
        ] {
            let given = final_status(status).map(FinalStatus::name);
            assert_eq!(given, expected);
            assert!(given.is_none_or(|name| name == status.name()));
        }
    }
}
