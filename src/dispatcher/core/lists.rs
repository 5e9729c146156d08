//! Answers about jobs: descriptions, lists, counts and JobMasters. They change nothing. What a JobMaster or the store
//! must be asked for is an effect, so a list is made in two steps: `list`, then `on_listed`.

use tanist_gateway::{GatewayError, GatewayResult};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{
    Described, DispatcherCore, Effect, Entry, Replies, describe, describe_without_job_master,
    no_job_master, no_such_job,
};
use crate::descriptions::in_short;

/// All jobs, as their JobMasters describe them.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The descriptions, in short.
    pub jobs: Vec<pb::JobDetails>,
    /// Jobs whose JobMaster did not answer, with their index in the list.
    pub unanswered: Vec<(usize, JobId)>,
    /// When the request was decided.
    pub as_of: pb::ReadPosition,
}

impl<R: Replies> DispatcherCore<R> {
    /// The job whose JobMaster is asked for, if it has one.
    pub(super) fn job_master(&self, job: JobId) -> GatewayResult<JobId> {
        match self.jobs.get(job) {
            Some(Entry::Running { .. }) => Ok(job),
            Some(Entry::Persisting(_) | Entry::Rebuilding(_) | Entry::Quarantined(_)) => {
                Err(no_job_master(job))
            }
            Some(Entry::Ended(_)) => Err(GatewayError::NotFound(format!("job {job} has ended"))),
            None => Err(no_such_job(job)),
        }
    }

    pub(super) fn describe(&mut self, job: JobId, brief: bool, reply: R::To<pb::JobDetails>) {
        let described = match self.jobs.get(job) {
            None => Err(no_such_job(job)),
            Some(Entry::Ended(ended)) if !brief && ended.result().description.is_some() => {
                Ok(Described::Stored {
                    result: Box::new(ended.result().clone()),
                    waiting: ended.waiting(),
                    left: ended.left().map(str::to_owned),
                })
            }
            Some(entry) => Ok(describe(job, entry)),
        };
        let described = described.map(|described| (job, described));
        self.out.effect(Effect::Describe { reply, described });
    }

    pub(super) fn list(&mut self, reply: R::To<pb::ListJobsResponse>) {
        let jobs = self.jobs.iter();
        let jobs = jobs.map(|(job, entry)| (job, describe(job, entry)));
        let jobs = jobs.collect();
        self.out.effect(Effect::List { reply, jobs });
    }

    /// Answers a list request. A JobMaster that did not answer may have ended meanwhile: its job is listed as
    /// known now. No job may be left out: a job that is not in the list never existed or is forgotten.
    pub(super) fn on_listed(&mut self, listing: Listing, reply: R::To<pb::ListJobsResponse>) {
        let Listing {
            mut jobs,
            unanswered,
            as_of,
        } = listing;
        for (place, job) in unanswered.into_iter().rev() {
            match self.jobs.get(job) {
                Some(entry) => jobs[place] = listed(describe_without_job_master(job, entry)),
                None => drop(jobs.remove(place)),
            }
        }
        self.out.effect(Effect::AnswerList { reply, jobs, as_of });
    }

    pub(super) fn overview(&mut self, reply: R::To<pb::ClusterOverview>) {
        let ended = |wanted: pb::JobStatus| {
            let of_status = self.jobs.ended();
            let of_status = of_status.filter(|(_, result)| result.status() == wanted);
            u32::try_from(of_status.count()).unwrap_or(u32::MAX)
        };
        let running = self.jobs.iter();
        let running = running.filter(|(_, entry)| matches!(entry, Entry::Running { .. }));
        let jobs = Box::new(pb::ClusterOverview {
            jobs_running: u32::try_from(running.count()).unwrap_or(u32::MAX),
            jobs_finished: ended(pb::JobStatus::Finished),
            jobs_cancelled: ended(pb::JobStatus::Canceled),
            jobs_failed: ended(pb::JobStatus::Failed),
            ..pb::ClusterOverview::default()
        });
        self.out.effect(Effect::AnswerOverview { reply, jobs });
    }
}

/// The memory of the state of each vertex that has some.
fn state_sizes(vertices: &[pb::VertexDetails]) -> Vec<pb::VertexStateSize> {
    let sizes = vertices.iter().map(|vertex| {
        let metrics = vertex.subtasks.iter().filter_map(|it| it.metrics);
        pb::VertexStateSize {
            vertex: vertex.name.clone(),
            bytes: metrics.map(|it| it.state_bytes).sum(),
        }
    });
    sizes.filter(|size| size.bytes > 0).collect()
}

/// Shortens a description for a list: the number of tasks in each state instead of each task, as there may be
/// very many jobs.
pub(crate) fn listed(mut details: pb::JobDetails) -> pb::JobDetails {
    // Descriptions of ended jobs are short already.
    if details.vertices.is_empty() {
        return details;
    }
    pb::JobDetails {
        blocked_reasons: std::mem::take(&mut details.blocked_reasons),
        checkpoints: details.checkpoints.take(),
        cleaning_up: details.cleaning_up,
        left_behind: std::mem::take(&mut details.left_behind),
        cause: std::mem::take(&mut details.cause),
        state_sizes: state_sizes(&details.vertices),
        ..in_short(&details)
    }
}
