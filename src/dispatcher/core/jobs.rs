//! The entries of all jobs: one entry a job. The handlers of the core change them. A method for one kind of entry
//! returns `None` if the entry is of another kind: an event may come late, after the job went on.

use std::collections::BTreeMap;

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{Ended, Entry, Persisting, Quarantined, Rebuilding, Replies};

/// The entries of all jobs.
#[derive(Debug)]
pub(super) struct Jobs<R: Replies> {
    entries: BTreeMap<JobId, Entry<R>>,
}

impl<R: Replies> Jobs<R> {
    pub(super) fn get(&self, job: JobId) -> Option<&Entry<R>> {
        self.entries.get(&job)
    }

    pub(super) fn has(&self, job: JobId) -> bool {
        self.entries.contains_key(&job)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (JobId, &Entry<R>)> {
        self.entries.iter().map(|(job, entry)| (*job, entry))
    }

    /// The jobs with a readable result.
    pub(super) fn ended(&self) -> impl Iterator<Item = (JobId, &pb::JobResult)> {
        self.iter().filter_map(|(job, entry)| match entry {
            Entry::Ended(ended) => Some((job, ended.result())),
            Entry::Persisting(_)
            | Entry::Running { .. }
            | Entry::Rebuilding(_)
            | Entry::Quarantined(_) => None,
        })
    }

    /// Sets the entry of a job. Returns the one before; `None`: the job was unknown.
    pub(super) fn set(&mut self, job: JobId, entry: Entry<R>) -> Option<Entry<R>> {
        self.entries.insert(job, entry)
    }

    pub(super) fn forget(&mut self, job: JobId) {
        self.entries.remove(&job);
    }

    /// Ends the wait for a submission's write.
    pub(super) fn take_persisting(&mut self, job: JobId) -> Option<Persisting<R>> {
        match self.entries.remove(&job)? {
            Entry::Persisting(persisting) => Some(persisting),
            other => {
                self.entries.insert(job, other);
                None
            }
        }
    }

    pub(super) fn persisting_mut(&mut self, job: JobId) -> Option<&mut Persisting<R>> {
        match self.entries.get_mut(&job)? {
            Entry::Persisting(persisting) => Some(persisting),
            _ => None,
        }
    }

    pub(super) fn rebuilding_mut(&mut self, job: JobId) -> Option<&mut Rebuilding> {
        match self.entries.get_mut(&job)? {
            Entry::Rebuilding(rebuilding) => Some(rebuilding),
            _ => None,
        }
    }

    pub(super) fn ended_mut(&mut self, job: JobId) -> Option<&mut Ended<R>> {
        match self.entries.get_mut(&job)? {
            Entry::Ended(ended) => Some(ended),
            _ => None,
        }
    }

    pub(super) fn quarantined_mut(&mut self, job: JobId) -> Option<&mut Quarantined> {
        match self.entries.get_mut(&job)? {
            Entry::Quarantined(quarantined) => Some(quarantined),
            _ => None,
        }
    }
}

impl<R: Replies> Default for Jobs<R> {
    fn default() -> Jobs<R> {
        Jobs {
            entries: BTreeMap::new(),
        }
    }
}
