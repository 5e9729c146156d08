//! Graphs and descriptions that are split over several keys of the store. Their chunks are written before the
//! record that points to them. They are removed after that record, or if it was never written.
//!
//! Invariants: chunks are removed only when nothing points to them and nothing ever will, because a write that
//! would is fenced or was refused. Their names are never reused, so a repeated removal hits nothing else.

use std::collections::{BTreeMap, BTreeSet};

use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::store::Write;
use tanist_proto::id::JobId;
use tracing::{info, warn};

use super::job_store::{JobStore, JobStoreError};

/// Chunks that graphs and descriptions point to.
#[derive(Debug, Default)]
pub(super) struct KnownChunks {
    of_jobs: BTreeMap<JobId, BTreeSet<Name>>,
    of_descriptions: BTreeMap<JobId, BTreeSet<Name>>,
    /// Jobs whose graph or result can't be read, so that their chunks are unknown.
    unreadable: BTreeSet<JobId>,
}

impl KnownChunks {
    /// Records that the job's graph points to these chunks.
    pub(super) fn note(&mut self, job: JobId, chunks: Vec<Name>) {
        self.unreadable.remove(&job);
        if chunks.is_empty() {
            self.of_jobs.remove(&job);
        } else {
            self.of_jobs.insert(job, chunks.into_iter().collect());
        }
    }

    /// Records that the job has a graph that can't be read.
    pub(super) fn note_unreadable(&mut self, job: JobId) {
        self.unreadable.insert(job);
    }

    /// Records that the job's graph is gone.
    pub(super) fn forget(&mut self, job: JobId) {
        self.of_jobs.remove(&job);
        self.unreadable.remove(&job);
    }

    /// Records that the description of an ended job points to these chunks.
    pub(super) fn note_described(&mut self, job: JobId, chunks: BTreeSet<Name>) {
        if !chunks.is_empty() {
            self.of_descriptions.insert(job, chunks);
        }
    }

    /// Forgets the job's description. Returns the chunks that it pointed to.
    pub(super) fn forget_described(&mut self, job: JobId) -> BTreeSet<Name> {
        self.of_descriptions.remove(&job).unwrap_or_default()
    }

    /// Returns the chunks of a job's graph, in order.
    pub(super) fn of(&self, job: JobId) -> Vec<String> {
        let chunks = self.of_jobs.get(&job).into_iter().flatten();
        chunks.map(Name::to_string).collect()
    }

    /// Whether a graph or description may point to a chunk of `owner`.
    fn has(&self, owner: &Name, chunk: &Name) -> bool {
        let Ok(job) = owner.as_str().parse::<JobId>() else {
            // Not a job's chunk; leave it alone.
            return true;
        };
        let known = [&self.of_jobs, &self.of_descriptions];
        let mut known = known.into_iter().filter_map(|chunks| chunks.get(&job));
        self.unreadable.contains(&job) || known.any(|chunks| chunks.contains(chunk))
    }
}

impl JobStore {
    /// Writes the chunks of a graph, each in its own transaction, so that other jobs do not wait for all of them.
    pub(super) async fn write_chunks(
        &self,
        job: JobId,
        chunks: &[Write],
    ) -> Result<(), JobStoreError> {
        for chunk in chunks {
            if let Err(error) = self.pipeline.commit(vec![chunk.clone()]).await {
                let error = JobStoreError::from(error);
                self.take_back(job, chunks, &error).await;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes the chunks of a refused graph. If the term is over, the next one removes them.
    pub(super) async fn take_back(&self, job: JobId, chunks: &[Write], error: &JobStoreError) {
        let is_definite = matches!(
            error,
            JobStoreError::Refused(_) | JobStoreError::OutOfSpace(_)
        );
        if chunks.is_empty() || !is_definite {
            return;
        }
        let names: Vec<Name> = chunks
            .iter()
            .map(|chunk| chunk.key().name.clone())
            .collect();
        if let Err(failure) = self.remove_chunks(&names).await {
            warn!(%job, %failure, "chunks of a refused graph can't be removed: the next term removes them");
        }
    }

    /// Removes chunks that nothing points to; missing ones are ignored.
    pub(super) async fn remove_chunks(&self, names: &[Name]) -> Result<(), JobStoreError> {
        for writes in self.deletions(names) {
            self.pipeline.commit(writes).await?;
        }
        Ok(())
    }

    /// Deletions, split into as many transactions as the store's limit requires.
    fn deletions(&self, names: &[Name]) -> impl Iterator<Item = Vec<Write>> {
        let most = self.pipeline.limits().writes.max(1);
        names.chunks(most).map(|some| {
            let keys = some.iter().map(|name| Key::new(Kind::Chunks, name.clone()));
            keys.map(|key| Write::Delete { key }).collect()
        })
    }

    /// Removes the chunks that a job's result names. Waits for space in the store without limit; fails only if
    /// the term is over.
    pub(super) async fn clean_chunks(
        &self,
        job: JobId,
        names: &[String],
    ) -> Result<(), JobStoreError> {
        let names = names.iter().filter_map(|name| match name.parse::<Name>() {
            Ok(name) => Some(name),
            Err(error) => {
                warn!(%job, %error, "a chunk with an invalid name is ignored");
                None
            }
        });
        let names: Vec<Name> = names.collect();
        for writes in self.deletions(&names) {
            self.commit_surely(writes, Vec::new()).await?;
        }
        Ok(())
    }

    /// Removes chunks of earlier terms that no graph points to: a leader died between writing the chunks and the
    /// graph. Call it once, after the recovery; chunks of this term are not touched.
    pub async fn remove_orphaned_chunks(&self) -> Result<(), JobStoreError> {
        let orphans = self.records.orphaned_chunks(self.epoch, |of, chunk| {
            self.lock_chunks().has(&of.owner, chunk)
        });
        let orphans = orphans.await.map_err(JobStoreError::Refused)?;
        if !orphans.is_empty() {
            info!(
                chunks = orphans.len(),
                "removing chunks of graphs that were never accepted"
            );
        }
        self.remove_chunks(&orphans).await
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
