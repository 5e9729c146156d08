//! A plain model of the store: the records of each job, and whether they can be read.

use std::collections::BTreeMap;

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use crate::{RecoveredJob, RecoveredJobs};

/// Whether a record can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Health {
    #[default]
    Good,
    /// Not for now.
    Unavailable,
    /// Never.
    Damaged(pb::QuarantineKind),
}

/// A record.
#[derive(Debug, Clone, Default)]
pub(super) struct Record<T> {
    pub(super) value: T,
    pub(super) health: Health,
}

/// Why a record can't be read: the kind of the problem; `None`: it may be readable later.
type Unread = Option<pb::QuarantineKind>;

/// The records of all jobs.
#[derive(Debug, Clone, Default)]
pub(super) struct Store {
    pub(super) graphs: BTreeMap<JobId, Record<pb::JobGraph>>,
    pub(super) states: BTreeMap<JobId, Record<pb::JobState>>,
    pub(super) results: BTreeMap<JobId, Record<pb::JobResult>>,
}

fn read<T: Clone>(records: &BTreeMap<JobId, Record<T>>, job: JobId) -> Result<Box<T>, Unread> {
    match records.get(&job) {
        None => Err(Some(pb::QuarantineKind::Unreadable)),
        Some(record) => match record.health {
            Health::Good => Ok(Box::new(record.value.clone())),
            Health::Unavailable => Err(None),
            Health::Damaged(kind) => Err(Some(kind)),
        },
    }
}

impl Store {
    /// Whether it has any record of the job.
    pub(super) fn has(&self, job: JobId) -> bool {
        self.has_begun(job) || self.results.contains_key(&job)
    }

    /// Whether it has a record of a job that has not ended.
    pub(super) fn has_begun(&self, job: JobId) -> bool {
        self.graphs.contains_key(&job) || self.states.contains_key(&job)
    }

    /// Whether all records of a job that has not ended can be read.
    pub(super) fn is_readable(&self, job: JobId) -> bool {
        read(&self.graphs, job).is_ok() && read(&self.states, job).is_ok()
    }

    pub(super) fn submit(&mut self, job: JobId, graph: pb::JobGraph, state: pb::JobState) {
        assert!(!self.has(job), "a submission of {job} overwrites records");
        let health = Health::Good;
        let value = graph;
        self.graphs.insert(job, Record { value, health });
        let value = state;
        self.states.insert(job, Record { value, health });
    }

    pub(super) fn put_state(&mut self, job: JobId, state: pb::JobState) {
        let has_ended = self.results.contains_key(&job);
        assert!(!has_ended, "the state of {job} is written after its result");
        let record = self.states.get_mut(&job).expect("it was submitted");
        record.value = state;
        record.health = Health::Good;
    }

    /// Writes a result instead of the other records.
    pub(super) fn end(&mut self, job: JobId, result: pb::JobResult) {
        let is_first = self.has_begun(job) && !self.results.contains_key(&job);
        assert!(is_first, "a result of {job} for nothing that runs");
        self.graphs.remove(&job);
        self.states.remove(&job);
        let health = Health::Good;
        let value = result;
        self.results.insert(job, Record { value, health });
    }

    /// Writes a result alone.
    pub(super) fn put_result(&mut self, job: JobId, result: pb::JobResult) {
        let health = Health::Good;
        let value = result;
        self.results.insert(job, Record { value, health });
    }

    /// Drops the description that a result has.
    pub(super) fn drop_description(&mut self, result: &pb::JobResult) {
        let job: JobId = result.job_id.parse().expect("a job id");
        let record = self.results.get_mut(&job).expect("it has ended");
        record.value.description = None;
    }

    /// Reads all records of a job.
    pub(super) fn read(&self, job: JobId) -> RecoveredJob {
        let reason = "read in the simulation".to_owned();
        match (read(&self.graphs, job), read(&self.states, job)) {
            (graph, Ok(state)) if state.quarantine.is_some() => {
                let graph = graph.ok();
                RecoveredJob::SetAside { state, graph }
            }
            (Ok(graph), Ok(state)) => RecoveredJob::Readable { graph, state },
            (Err(None), Ok(state)) => {
                let state = Some(state);
                RecoveredJob::Unavailable { state, reason }
            }
            (_, Err(None)) => RecoveredJob::Unavailable {
                state: None,
                reason,
            },
            (Ok(graph), Err(Some(kind))) => RecoveredJob::Unreadable {
                kind,
                reason,
                state: None,
                graph: Some(graph),
            },
            (Err(Some(kind)), state) => RecoveredJob::Unreadable {
                kind,
                reason,
                state: state.ok(),
                graph: None,
            },
            (Err(None), Err(Some(kind))) => RecoveredJob::Unreadable {
                kind,
                reason,
                state: None,
                graph: None,
            },
        }
    }

    /// Reads a result: the kind of the problem if it can't be read; `None`: it may be readable later.
    pub(super) fn read_result(&self, job: JobId) -> Result<Box<pb::JobResult>, Unread> {
        read(&self.results, job)
    }

    /// Reads all results.
    pub(super) fn read_results(&self) -> RecoveredJobs {
        let mut found = RecoveredJobs::default();
        let reason = || "read in the simulation".to_owned();
        for job in self.results.keys() {
            match self.read_result(*job) {
                Ok(result) => found.results.push((*job, *result)),
                Err(None) => found.unavailable_results.push((*job, reason())),
                Err(Some(kind)) => found.unreadable_results.push((*job, kind, reason())),
            }
        }
        found
    }

    /// Reads what a term recovers. Of suspects only the state is read.
    pub(super) fn read_jobs(
        &self,
        is_suspect: impl Fn(JobId) -> bool,
    ) -> Vec<(JobId, RecoveredJob)> {
        let mut jobs: Vec<JobId> = self
            .graphs
            .keys()
            .chain(self.states.keys())
            .copied()
            .collect();
        jobs.sort_unstable();
        jobs.dedup();
        let found = jobs.into_iter().map(|job| {
            let found = match read(&self.states, job) {
                Ok(state) if state.quarantine.is_none() && is_suspect(job) => {
                    RecoveredJob::Suspect { state }
                }
                _ => self.read(job),
            };
            (job, found)
        });
        found.collect()
    }
}
