//! Answers that wait: for the description of a JobMaster, for a description in the store, or for the ResourceManager.
//!
//! Each is a task of [`Calls`] that only reads, and that ends when its caller is gone. A JobMaster that does not
//! describe its job fails the description of this job, but not a list: the core describes the job instead.

use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream;
use tanist_gateway::{
    Detail, GatewayError, GatewayResult, JobMasterControl, ResourceRequirementsGateway,
    START_BY_HAND,
};
use tanist_ha::election::NotLeading;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::calls::{Calls, Event, started};
use super::core::{Described, Listing, ended_details, listed};
use super::handle::Reply;
use super::job_store::JobStore;

/// Number of JobMasters that describe their jobs at the same time for a list of all jobs.
const DESCRIBED_AT_ONCE: usize = 256;

/// Source of a job's description, with the JobMaster to ask.
struct Source {
    described: Described,
    job_master: Option<Arc<dyn JobMasterControl>>,
}

impl Source {
    fn of(calls: &Calls, job: JobId, described: Described) -> Source {
        Source {
            described,
            job_master: calls.job_master(job),
        }
    }

    /// Returns the description.
    async fn details(
        self,
        job: JobId,
        detail: Detail,
        store: &JobStore,
    ) -> GatewayResult<pb::JobDetails> {
        match self.described {
            Described::ByJobMaster => started(job, self.job_master)?.describe(detail).await,
            Described::Known(details) => Ok(*details),
            Described::Stored {
                result,
                waiting,
                left,
            } => {
                let described = store.describe_ended(job, &result).await;
                Ok(ended_details(described, &result, waiting, left.as_deref()))
            }
        }
    }
}

impl Calls {
    /// Answers with a description.
    pub(super) fn describe(
        &mut self,
        reply: Reply<pb::JobDetails>,
        described: GatewayResult<(JobId, Described)>,
    ) {
        let source = described.map(|(job, described)| (job, Source::of(self, job, described)));
        let as_of = Some(self.position());
        let context = self.context();
        let (store, resources) = (context.store.clone(), context.resources.clone());
        self.spawn_reply(reply, async move {
            let (job, source) = source?;
            let mut details = source.details(job, Detail::Full, &store).await?;
            tell_of_workers(std::slice::from_mut(&mut details), &*resources).await;
            Ok(pb::JobDetails { as_of, ..details })
        });
    }

    /// Describes all jobs for a list.
    pub(super) fn list(
        &mut self,
        reply: Reply<pb::ListJobsResponse>,
        jobs: Vec<(JobId, Described)>,
    ) {
        let as_of = self.position();
        let sources = jobs.into_iter().map(|(job, described)| {
            let source = Source::of(self, job, described);
            (job, source)
        });
        let sources: Vec<_> = sources.collect();
        let store = self.context().store.clone();
        let listing = async move {
            // Growing the list step by step would need twice the memory for ten thousand jobs.
            let mut jobs = Vec::with_capacity(sources.len());
            let mut unanswered = Vec::new();
            let described = stream::iter(sources)
                .map(async |(job, source)| (job, source.details(job, Detail::Brief, &store).await));
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
        self.spawn_event(reply, listing, |reply, listing| Event::Listed {
            listing,
            reply,
        });
    }

    /// Answers with a list.
    pub(super) fn answer_list(
        &mut self,
        reply: Reply<pb::ListJobsResponse>,
        mut jobs: Vec<pb::JobDetails>,
        as_of: pb::ReadPosition,
    ) {
        let resources = self.context().resources.clone();
        self.spawn_reply(reply, async move {
            tell_of_workers(&mut jobs, &*resources).await;
            Ok(pb::ListJobsResponse {
                jobs,
                as_of: Some(as_of),
            })
        });
    }

    /// Adds the numbers of slots to those of jobs.
    pub(super) fn answer_overview(
        &mut self,
        reply: Reply<pb::ClusterOverview>,
        mut overview: pb::ClusterOverview,
    ) {
        overview.as_of = Some(self.position());
        let resources = self.context().resources.clone();
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

    /// Answers with the TaskManagers of the ResourceManager.
    pub(super) fn list_task_managers(&mut self, reply: Reply<pb::ListTaskManagersResponse>) {
        let resources = self.context().resources.clone();
        let as_of = Some(self.position());
        self.spawn_reply(reply, async move {
            let overview = resources.resource_overview().await?;
            Ok(pb::ListTaskManagersResponse {
                task_managers: overview.task_managers,
                unmatched_drains: overview.unmatched_drains,
                workers: overview.workers,
                as_of,
            })
        });
    }

    /// Answers whether a job that runs was quarantined before and retried: then this is the same request, repeated
    /// after a takeover.
    pub(super) fn answer_retried(&mut self, job: JobId, reply: Reply<pb::Ack>) {
        let job_master = self.job_master(job);
        self.spawn_reply(reply, async move {
            let details = started(job, job_master)?.describe(Detail::Brief).await?;
            let is_retried = |event: &pb::JobEvent| event.kind() == pb::JobEventKind::Retry;
            if details.events.iter().any(is_retried) {
                return Ok(pb::Ack {});
            }
            Err(GatewayError::Conflict(format!(
                "job {job} is not quarantined"
            )))
        });
    }

    fn position(&self) -> pb::ReadPosition {
        let context = self.context();
        pb::ReadPosition {
            epoch: context.session.epoch().get(),
            change: context.store.last_change().number,
            suspended: context.session.check() == Err(NotLeading::Suspended),
        }
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
