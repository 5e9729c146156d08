//! Answers of the Dispatcher's loop about known jobs: cancellation, stop, descriptions and lists.

use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream;
use tanist_gateway::{
    GatewayError, GatewayResult, JobMasterGateway, ResourceRequirementsGateway, START_BY_HAND,
};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::actor::{DispatcherActor, Event};
use super::core::{
    Described, Entry, describe, describe_without_job_master, ended_details, no_such_job,
    status_name,
};
use super::descriptions::in_short;
use super::handle::Reply;
use super::quarantine::canceled_result;
use super::submissions::suspended;

/// Number of JobMasters that describe their jobs at the same time for a list of all jobs.
const DESCRIBED_AT_ONCE: usize = 256;

/// All jobs, as their JobMasters describe them.
pub(super) struct Listing {
    jobs: Vec<pb::JobDetails>,
    /// Jobs whose JobMaster did not answer, with their index in the list.
    unanswered: Vec<(usize, JobId)>,
    as_of: pb::ReadPosition,
}

impl DispatcherActor {
    pub(super) fn cancel(&mut self, job: JobId, reply: Reply<pb::Ack>) {
        let is_suspended = self.is_suspended();
        match self.jobs.get_mut(&job) {
            None => {
                let _ = reply.send(Err(no_such_job(job)));
            }
            Some(Entry::Persisting { .. }) => {
                let _ = reply.send(Err(GatewayError::NotYet(format!(
                    "job {job} has no JobMaster at present"
                ))));
            }
            // A suspended term decides nothing new.
            Some(Entry::Running { .. } | Entry::Rebuilding { .. } | Entry::Quarantined { .. })
                if is_suspended =>
            {
                let _ = reply.send(Err(suspended()));
            }
            Some(Entry::Rebuilding { .. }) => self.cancel_suspect(job, reply),
            Some(Entry::Running { control, .. }) => {
                let control = control.clone();
                self.spawn_reply(
                    reply,
                    async move { control.cancel().await.map(|()| pb::Ack {}) },
                );
            }
            // Already canceled: mostly the same request, repeated after a takeover.
            Some(Entry::Ended { result, .. }) if result.status() == pb::JobStatus::Canceled => {
                let _ = reply.send(Ok(pb::Ack {}));
            }
            Some(Entry::Ended { result, .. }) => {
                let status = status_name(result.status());
                let text = format!("job {job} has already ended: {status}");
                let _ = reply.send(Err(GatewayError::Conflict(text)));
            }
            Some(Entry::Quarantined { job: quarantined }) if quarantined.has_ended => {
                let text = format!("job {job}: {}", quarantined.quarantine.reason);
                let _ = reply.send(Err(GatewayError::Conflict(text)));
            }
            // It is unknown here what the job leaves behind. A newer version ends it properly.
            Some(Entry::Quarantined { job: quarantined })
                if quarantined.quarantine.kind() == pb::QuarantineKind::TooNew =>
            {
                let text = format!(
                    "job {job}: {}; cancel it there, or delete it from quarantine, which may leave files of it behind",
                    quarantined.quarantine.reason
                );
                let _ = reply.send(Err(GatewayError::Conflict(text)));
            }
            Some(Entry::Quarantined { job: quarantined }) if quarantined.is_busy => {
                let text = format!("something is being written about job {job}");
                let _ = reply.send(Err(GatewayError::NotYet(text)));
            }
            // Part of its output may be visible and stays so; a cancellation would remove the rest. This
            // partial output needs an explicit delete from quarantine.
            Some(Entry::Quarantined { job: quarantined }) if quarantined.has_finished => {
                let text = format!(
                    "job {job} is quarantined, and all its tasks have finished: retry it, so that what they wrote becomes visible, or \
                     delete it from quarantine, which removes what is not visible yet: {}",
                    quarantined.quarantine.reason
                );
                let _ = reply.send(Err(GatewayError::Conflict(text)));
            }
            Some(Entry::Quarantined { job: quarantined }) => {
                quarantined.is_busy = true;
                let epoch = self.context.session.epoch().get();
                let result = canceled_result(quarantined, job, epoch);
                self.cancel_quarantined(job, result, reply);
            }
        }
    }

    /// Asks the job's sources to end, so that the job finishes.
    pub(super) fn stop_job(&mut self, job: JobId, reply: Reply<pb::Ack>) {
        let refusal = match self.jobs.get(&job) {
            None => no_such_job(job),
            Some(Entry::Persisting { .. } | Entry::Rebuilding { .. }) => {
                GatewayError::NotYet(format!("job {job} has no JobMaster at present"))
            }
            // A suspended term decides nothing new.
            Some(Entry::Running { .. }) if self.is_suspended() => suspended(),
            Some(Entry::Running { control, .. }) => {
                let control = control.clone();
                self.spawn_reply(reply, async move {
                    control.stop_job().await.map(|()| pb::Ack {})
                });
                return;
            }
            // Already finished: mostly the same request, repeated after a takeover.
            Some(Entry::Ended { result, .. }) if result.status() == pb::JobStatus::Finished => {
                let _ = reply.send(Ok(pb::Ack {}));
                return;
            }
            // A stop of a job that had not started was a cancellation.
            Some(Entry::Ended { result, .. })
                if result.status() == pb::JobStatus::Canceled && result.never_placed =>
            {
                let _ = reply.send(Ok(pb::Ack {}));
                return;
            }
            Some(Entry::Ended { result, .. }) => {
                let status = status_name(result.status());
                GatewayError::Conflict(format!("job {job} has already ended: {status}"))
            }
            Some(Entry::Quarantined { job: quarantined }) if quarantined.has_finished => {
                GatewayError::Conflict(format!(
                    "job {job} is quarantined, and all its tasks have finished: retry it, so that what they wrote becomes visible: {}",
                    quarantined.quarantine.reason
                ))
            }
            Some(Entry::Quarantined { job: quarantined }) => GatewayError::Conflict(format!(
                "job {job} is quarantined, and can only be retried or cancelled: {}",
                quarantined.quarantine.reason
            )),
        };
        let _ = reply.send(Err(refusal));
    }

    /// Replaces the job's records with its result. TaskExecutors end its tasks when they see that in the store.
    pub(super) fn cancel_quarantined(
        &mut self,
        job: JobId,
        result: pb::JobResult,
        reply: Reply<pb::Ack>,
    ) {
        let Some((mut result, reply)) = self.cancel_later(job, result, reply) else {
            return;
        };
        self.retention
            .stamp(self.started.uptime(), job, &mut result);
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let written = store.put_result(result).await.map(Box::new);
            let answer = match &written {
                Ok(_) => Ok(pb::Ack {}),
                Err(failure) => Err(GatewayError::from(failure.clone())),
            };
            let _ = reply.send(answer);
            Event::ResultWritten { job, written }
        });
    }

    pub(super) fn job_master(&self, job: JobId) -> GatewayResult<Arc<dyn JobMasterGateway>> {
        match self.jobs.get(&job) {
            Some(Entry::Running { control, .. }) => Ok(control.gateway()),
            Some(
                Entry::Persisting { .. } | Entry::Rebuilding { .. } | Entry::Quarantined { .. },
            ) => {
                let text = format!("job {job} has no JobMaster at present");
                Err(GatewayError::NotYet(text))
            }
            Some(Entry::Ended { .. }) => {
                Err(GatewayError::NotFound(format!("job {job} has ended")))
            }
            None => Err(no_such_job(job)),
        }
    }

    pub(super) fn describe(&mut self, job: JobId, brief: bool, reply: Reply<pb::JobDetails>) {
        match self.jobs.get(&job) {
            None => {
                let _ = reply.send(Err(no_such_job(job)));
            }
            Some(Entry::Ended {
                result,
                waiting,
                left,
                ..
            }) if !brief && result.description.is_some() => {
                let (store, result) = (self.context.store.clone(), result.clone());
                let left = left.clone();
                let (as_of, waiting) = (Some(self.position()), waiting.len());
                self.spawn_reply(reply, async move {
                    let described = store.describe_ended(job, &result).await;
                    Ok(pb::JobDetails {
                        as_of,
                        ..ended_details(described, &result, waiting, left.as_deref())
                    })
                });
            }
            Some(entry) => {
                let described = describe(job, entry).details();
                let as_of = Some(self.position());
                let resources = self.context.resources.clone();
                self.spawn_reply(reply, async move {
                    let mut details = described.await?;
                    tell_of_workers(std::slice::from_mut(&mut details), &*resources).await;
                    Ok(pb::JobDetails { as_of, ..details })
                });
            }
        }
    }

    pub(super) fn list(&mut self, mut reply: Reply<pb::ListJobsResponse>) {
        let described: Vec<_> = self
            .jobs
            .iter()
            .map(|(job, entry)| (*job, describe(*job, entry)))
            .collect();
        let as_of = self.position();
        self.tasks.spawn(async move {
            let listing = async {
                // Growing the list step by step would need twice the memory for ten thousand jobs.
                let mut jobs = Vec::with_capacity(described.len());
                let mut unanswered = Vec::new();
                let described = stream::iter(described)
                    .map(async |(job, described)| (job, described.details().await));
                let mut described = pin!(described.buffered(DESCRIBED_AT_ONCE));
                while let Some((job, details)) = described.next().await {
                    if details.is_err() {
                        unanswered.push((jobs.len(), job));
                    }
                    jobs.push(details.map(listed).unwrap_or_default());
                }
                Listing {
                    jobs,
                    unanswered,
                    as_of,
                }
            };
            let listing = tokio::select! {
                biased;
                listing = listing => Some(listing),
                // The answer may never come.
                () = reply.closed() => None,
            };
            match listing {
                Some(listing) => Event::Listed { listing, reply },
                None => Event::Done,
            }
        });
    }

    /// Answers a list request. A JobMaster that did not answer may have ended meanwhile: its job is listed as
    /// known now. No job may be left out: a job that is not in the list never existed or is forgotten.
    pub(super) fn on_listed(&mut self, listing: Listing, reply: Reply<pb::ListJobsResponse>) {
        let Listing {
            mut jobs,
            unanswered,
            as_of,
        } = listing;
        for (place, job) in unanswered.into_iter().rev() {
            match self.jobs.get(&job) {
                Some(entry) => jobs[place] = listed(describe_without_job_master(job, entry)),
                None => drop(jobs.remove(place)),
            }
        }
        let resources = self.context.resources.clone();
        self.spawn_reply(reply, async move {
            tell_of_workers(&mut jobs, &*resources).await;
            Ok(pb::ListJobsResponse {
                jobs,
                as_of: Some(as_of),
            })
        });
    }

    pub(super) fn overview(&mut self, reply: Reply<pb::ClusterOverview>) {
        let ended = |wanted: pb::JobStatus| {
            let matches = |entry: &&Entry| matches!(entry, Entry::Ended { result, .. } if result.status() == wanted);
            u32::try_from(self.jobs.values().filter(matches).count()).unwrap_or(u32::MAX)
        };
        let running = self
            .jobs
            .values()
            .filter(|entry| matches!(entry, Entry::Running { .. }));
        let mut overview = pb::ClusterOverview {
            jobs_running: u32::try_from(running.count()).unwrap_or(u32::MAX),
            jobs_finished: ended(pb::JobStatus::Finished),
            jobs_cancelled: ended(pb::JobStatus::Canceled),
            jobs_failed: ended(pb::JobStatus::Failed),
            as_of: Some(self.position()),
            ..pb::ClusterOverview::default()
        };
        let resources = self.context.resources.clone();
        self.spawn_reply(reply, async move {
            let resources = resources.resource_overview().await?;
            let task_managers = resources.task_managers;
            overview.workers = resources.workers;
            overview.task_managers = u32::try_from(task_managers.len()).unwrap_or(u32::MAX);
            overview.slots_total = task_managers.iter().map(|worker| worker.slots_number).sum();
            let (blocked, open): (Vec<_>, Vec<_>) =
                task_managers.iter().partition(|worker| worker.draining);
            overview.slots_available = open.iter().map(|worker| worker.free_slots).sum();
            overview.task_managers_blocked = u32::try_from(blocked.len()).unwrap_or(u32::MAX);
            overview.slots_free_and_blocked = blocked.iter().map(|worker| worker.free_slots).sum();
            Ok(overview)
        });
    }

    pub(super) fn position(&self) -> pb::ReadPosition {
        pb::ReadPosition {
            epoch: self.context.session.epoch().get(),
            change: self.context.store.last_change().number,
            suspended: self.is_suspended(),
        }
    }
}

impl Described {
    /// Returns the description.
    async fn details(self) -> GatewayResult<pb::JobDetails> {
        match self {
            Described::ByJobMaster(control) => control.describe().await,
            Described::Known(details) => Ok(*details),
        }
    }
}

/// Shortens a description for a list: the number of tasks in each state instead of each task, as there may be
/// very many jobs.
fn listed(mut details: pb::JobDetails) -> pb::JobDetails {
    // Descriptions of ended jobs are short already.
    if details.vertices.is_empty() {
        return details;
    }
    pb::JobDetails {
        blocked_reasons: std::mem::take(&mut details.blocked_reasons),
        cleaning_up: details.cleaning_up,
        left_behind: std::mem::take(&mut details.left_behind),
        cause: std::mem::take(&mut details.cause),
        ..in_short(&details)
    }
}

/// Adds, to jobs that wait for slots, the number of free slots and the progress of TaskManagers that a driver
/// is starting.
async fn tell_of_workers(jobs: &mut [pb::JobDetails], resources: &dyn ResourceRequirementsGateway) {
    let mut waiting: Vec<&mut pb::BlockedReason> = jobs
        .iter_mut()
        .flat_map(|job| &mut job.blocked_reasons)
        .filter(|it| it.kind() == pb::BlockedReasonKind::NoSlots && it.slots_missing > 0)
        .collect();
    if waiting.is_empty() {
        return;
    }
    let Ok(overview) = resources.resource_overview().await else {
        return;
    };
    let open = overview.task_managers.iter().filter(|it| !it.draining);
    let free = open.map(|it| it.free_slots).sum();
    for it in &mut waiting {
        if let Some(workers) = &overview.workers {
            let lacking = it.text.strip_suffix(START_BY_HAND).unwrap_or(&it.text);
            it.text = format!("{lacking}: {}", workers.text);
            it.retry_at_ms = workers.retry_at_ms;
        }
        tell_of_free_slots(it, free);
    }
}

/// Adds the number of free slots. A job that needs all its slots at once holds none until all are free, so free
/// slots count as missing.
fn tell_of_free_slots(waiting: &mut pb::BlockedReason, free: u32) {
    if (1..waiting.slots_missing).contains(&free) {
        let there = format!(
            "; {free} of the missing slots are free, and will be given when enough are free"
        );
        waiting.text.push_str(&there);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_that_are_free_and_too_few_are_told() {
        let told = |free| {
            let mut waiting = pb::BlockedReason {
                slots_missing: 6,
                text: "6 of 6 slots are missing".to_owned(),
                ..pb::BlockedReason::default()
            };
            tell_of_free_slots(&mut waiting, free);
            waiting.text
        };
        assert_eq!(told(0), "6 of 6 slots are missing");
        assert_eq!(
            told(5),
            "6 of 6 slots are missing; 5 of the missing slots are free, and will be given when enough are free"
        );
        // All are free and will be given at once.
        assert_eq!(told(6), "6 of 6 slots are missing");
    }
}
