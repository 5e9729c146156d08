//! The chunks that graphs and descriptions point to. Pure.

use std::collections::{BTreeMap, BTreeSet};

use tanist_ha::keys::Name;
use tanist_proto::id::JobId;

/// Chunks that graphs and descriptions point to.
#[derive(Debug, Default)]
pub struct KnownChunks {
    of_jobs: BTreeMap<JobId, BTreeSet<Name>>,
    of_descriptions: BTreeMap<JobId, BTreeSet<Name>>,
    /// Jobs whose graph or result can't be read, so that their chunks are unknown.
    unreadable: BTreeSet<JobId>,
}

impl KnownChunks {
    /// Records that the job's graph points to these chunks.
    pub fn note(&mut self, job: JobId, chunks: Vec<Name>) {
        self.unreadable.remove(&job);
        if chunks.is_empty() {
            self.of_jobs.remove(&job);
        } else {
            self.of_jobs.insert(job, chunks.into_iter().collect());
        }
    }

    /// Records that the job has a graph that can't be read.
    pub fn note_unreadable(&mut self, job: JobId) {
        self.unreadable.insert(job);
    }

    /// Records that the job's graph is gone.
    pub fn forget(&mut self, job: JobId) {
        self.of_jobs.remove(&job);
        self.unreadable.remove(&job);
    }

    /// Records that the description of an ended job points to these chunks.
    pub fn note_described(&mut self, job: JobId, chunks: BTreeSet<Name>) {
        if !chunks.is_empty() {
            self.of_descriptions.insert(job, chunks);
        }
    }

    /// Forgets the job's description. Returns the chunks that it pointed to.
    pub fn forget_described(&mut self, job: JobId) -> BTreeSet<Name> {
        self.of_descriptions.remove(&job).unwrap_or_default()
    }

    /// Returns the chunks of a job's graph, in order.
    pub fn of(&self, job: JobId) -> Vec<String> {
        let chunks = self.of_jobs.get(&job).into_iter().flatten();
        chunks.map(Name::to_string).collect()
    }

    /// Whether a graph or description may point to a chunk of `owner`.
    pub fn has(&self, owner: &Name, chunk: &Name) -> bool {
        let Ok(job) = owner.as_str().parse::<JobId>() else {
            // Not a job's chunk; leave it alone.
            return true;
        };
        let known = [&self.of_jobs, &self.of_descriptions];
        let mut known = known.into_iter().filter_map(|chunks| chunks.get(&job));
        self.unreadable.contains(&job) || known.any(|chunks| chunks.contains(chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    #[test]
    fn chunks_of_unknown_owners_and_of_unreadable_graphs_are_kept() {
        let job = JobId::from_bits(7);
        let owner = name(&job.to_string());
        let mut known = KnownChunks::default();
        let (ours, other) = (name("set.0000"), name("other.0000"));
        assert!(!known.has(&owner, &ours));
        known.note(job, vec![ours.clone()]);
        assert!(known.has(&owner, &ours) && !known.has(&owner, &other));
        known.note_unreadable(job);
        assert!(known.has(&owner, &other));
        known.forget(job);
        assert!(!known.has(&owner, &ours));
        known.note_described(job, BTreeSet::from([ours.clone()]));
        known.forget(job);
        assert!(known.has(&owner, &ours) && known.of(job).is_empty());
        assert_eq!(known.forget_described(job).len(), 1);
        assert!(!known.has(&owner, &ours));
        assert!(known.has(&name("no-job"), &ours));
    }
}
