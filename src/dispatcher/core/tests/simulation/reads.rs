//! Reads of the store. A read may be done some time before the core hears of it.

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::world::World;
use crate::core::{Effect, Reread};
use crate::{JobStoreError, RecoveredJob, RecoveredJobs};

/// What was read.
#[derive(Debug)]
pub(super) enum Read {
    /// Whether the term is the latest.
    Term(bool),
    Job(Reread),
    Jobs(Vec<(JobId, Reread)>),
    Result(Result<Box<pb::JobResult>, pb::QuarantineKind>),
    Results(Box<RecoveredJobs>),
}

impl Read {
    pub(super) fn into_job(read: Option<Read>) -> Reread {
        match read {
            Some(Read::Job(found)) => found,
            other => unreachable!("{other:?}"),
        }
    }

    pub(super) fn into_jobs(read: Option<Read>) -> Vec<(JobId, Reread)> {
        match read {
            Some(Read::Jobs(found)) => found,
            other => unreachable!("{other:?}"),
        }
    }
}

impl World {
    /// The effect reads, and its answer is on its way.
    pub(in crate::core::tests) fn read_now(&mut self, index: usize) {
        self.pending[index].read = self.read(index);
    }

    /// Reads what the effect asks for; `None` if it is no read, or can't be read now.
    pub(super) fn read(&mut self, index: usize) -> Option<Read> {
        let read = match &self.pending[index].effect {
            Effect::ConfirmTerm => Read::Term(!self.is_fenced),
            Effect::ReadWaitingJobs { jobs, .. } => {
                let found = jobs.iter().map(|job| (*job, self.reread(*job)));
                Read::Jobs(found.collect())
            }
            Effect::AwaitRecords { job, .. } => match self.store.read(*job) {
                RecoveredJob::Unavailable { .. } => return None,
                found => Read::Jobs(vec![(*job, Ok(found))]),
            },
            Effect::AwaitResult { job } => match self.store.read_result(*job) {
                Err(None) => return None,
                Err(Some(kind)) => Read::Result(Err(kind)),
                Ok(result) => Read::Result(Ok(result)),
            },
            Effect::ReadResults => Read::Results(Box::new(self.store.read_results())),
            Effect::ReadQuarantined { job, .. } => Read::Job(self.reread(*job)),
            Effect::RemoveJobMaster { job, .. } => {
                let job = *job;
                self.job_masters.remove(&job);
                Read::Job(self.reread(job))
            }
            _ => return None,
        };
        Some(read)
    }

    fn reread(&self, job: JobId) -> Reread {
        match self.is_fenced {
            true => Err(JobStoreError::NotWritten),
            false => Ok(self.store.read(job)),
        }
    }
}
