//! Graphs and descriptions that are split over several keys of the store. Their parts are written before the
//! record that points to them. They are removed after that record, or if it was never written.
//!
//! Invariants: parts are removed only when nothing points to them and nothing ever will, because a write that
//! would is fenced or was refused. Their names are never reused, so a repeated removal hits nothing else.

use std::collections::{BTreeMap, BTreeSet};

use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::store::Write;
use tanist_proto::id::JobId;
use tracing::{info, warn};

use super::job_store::{JobStore, JobStoreError};

/// Parts that graphs and descriptions point to.
#[derive(Debug, Default)]
pub(super) struct KnownParts {
    of_jobs: BTreeMap<JobId, BTreeSet<Name>>,
    of_descriptions: BTreeMap<JobId, BTreeSet<Name>>,
    /// Jobs whose graph or result can't be read, so that their parts are unknown.
    unreadable: BTreeSet<JobId>,
}

impl KnownParts {
    /// Records that the job's graph points to these parts.
    pub(super) fn note(&mut self, job: JobId, parts: Vec<Name>) {
        self.unreadable.remove(&job);
        if parts.is_empty() {
            self.of_jobs.remove(&job);
        } else {
            self.of_jobs.insert(job, parts.into_iter().collect());
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

    /// Records that the description of an ended job points to these parts.
    pub(super) fn note_described(&mut self, job: JobId, parts: BTreeSet<Name>) {
        if !parts.is_empty() {
            self.of_descriptions.insert(job, parts);
        }
    }

    /// Forgets the job's description. Returns the parts that it pointed to.
    pub(super) fn forget_described(&mut self, job: JobId) -> BTreeSet<Name> {
        self.of_descriptions.remove(&job).unwrap_or_default()
    }

    /// Returns the parts of a job's graph, in order.
    pub(super) fn of(&self, job: JobId) -> Vec<String> {
        let parts = self.of_jobs.get(&job).into_iter().flatten();
        parts.map(Name::to_string).collect()
    }

    /// Whether a graph or description may point to a part of `owner`.
    fn has(&self, owner: &Name, part: &Name) -> bool {
        let Ok(job) = owner.as_str().parse::<JobId>() else {
            // Not a job's part; leave it alone.
            return true;
        };
        let known = [&self.of_jobs, &self.of_descriptions];
        let mut known = known.into_iter().filter_map(|parts| parts.get(&job));
        self.unreadable.contains(&job) || known.any(|parts| parts.contains(part))
    }
}

impl JobStore {
    /// Writes the parts of a graph, each in its own transaction, so that other jobs do not wait for all of them.
    pub(super) async fn write_parts(
        &self,
        job: JobId,
        parts: &[Write],
    ) -> Result<(), JobStoreError> {
        for part in parts {
            if let Err(error) = self.pipeline.commit(vec![part.clone()]).await {
                let error = JobStoreError::from(error);
                self.take_back(job, parts, &error).await;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes the parts of a refused graph. If the term is over, the next one removes them.
    pub(super) async fn take_back(&self, job: JobId, parts: &[Write], error: &JobStoreError) {
        let is_definite = matches!(
            error,
            JobStoreError::Refused(_) | JobStoreError::OutOfSpace(_)
        );
        if parts.is_empty() || !is_definite {
            return;
        }
        let names: Vec<Name> = parts.iter().map(|part| part.key().name.clone()).collect();
        if let Err(failure) = self.remove_parts(&names).await {
            warn!(%job, %failure, "parts of a refused graph can't be removed: the next term removes them");
        }
    }

    /// Removes parts that nothing points to; missing ones are ignored.
    pub(super) async fn remove_parts(&self, names: &[Name]) -> Result<(), JobStoreError> {
        for writes in self.deletions(names) {
            self.pipeline.commit(writes).await?;
        }
        Ok(())
    }

    /// Deletions, split into as many transactions as the store's limit requires.
    fn deletions(&self, names: &[Name]) -> impl Iterator<Item = Vec<Write>> {
        let most = self.pipeline.limits().writes.max(1);
        names.chunks(most).map(|some| {
            let keys = some.iter().map(|name| Key::new(Kind::Parts, name.clone()));
            keys.map(|key| Write::Delete { key }).collect()
        })
    }

    /// Removes the parts that a job's result names. Waits for space in the store without limit; fails only if
    /// the term is over.
    pub(super) async fn clean_parts(
        &self,
        job: JobId,
        names: &[String],
    ) -> Result<(), JobStoreError> {
        let names = names.iter().filter_map(|name| match name.parse::<Name>() {
            Ok(name) => Some(name),
            Err(error) => {
                warn!(%job, %error, "a part with an invalid name is ignored");
                None
            }
        });
        let names: Vec<Name> = names.collect();
        for writes in self.deletions(&names) {
            self.commit_surely(writes, Vec::new()).await?;
        }
        Ok(())
    }

    /// Removes parts of earlier terms that no graph points to: a leader died between writing the parts and the
    /// graph. Call it once, after the recovery; parts of this term are not touched.
    pub async fn remove_orphaned_parts(&self) -> Result<(), JobStoreError> {
        let orphans = self.records.orphaned_parts(self.epoch, |of, part| {
            self.lock_parts().has(&of.owner, part)
        });
        let orphans = orphans.await.map_err(JobStoreError::Refused)?;
        if !orphans.is_empty() {
            info!(
                parts = orphans.len(),
                "removing parts of graphs that were never accepted"
            );
        }
        self.remove_parts(&orphans).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    #[test]
    fn parts_of_unknown_owners_and_of_unreadable_graphs_are_kept() {
        let job = JobId::from_bits(7);
        let owner = name(&job.to_string());
        let mut known = KnownParts::default();
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
