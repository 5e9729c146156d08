//! Graphs and descriptions that are split over several keys of the store. Their chunks are written before the
//! record that points to them. They are removed after that record, or if it was never written.
//!
//! Invariants: chunks are removed only when nothing points to them and nothing ever will, because a write that
//! would is fenced or was refused. Their names are never reused, so a repeated removal hits nothing else.

use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::store::Write;
use tanist_proto::id::JobId;
use tracing::{info, warn};

use super::job_store::{JobStore, JobStoreError};

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
            self.ledger.may_need_chunk(&of.owner, chunk)
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
