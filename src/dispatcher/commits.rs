//! Commits the records of jobs: which writes wait for space in the store, and which blobs are deleted afterwards.

use std::time::Duration;

use tanist_ha::keys::{Kind, Name};
use tanist_ha::retry::Backoff;
use tanist_ha::store::pipeline::CommitError;
use tanist_ha::store::{Change, Write};
use tanist_proto::id::JobId;
use tracing::warn;

use super::job_store::{FIRST_RETRY, JobStore, JobStoreError, SLOWEST_RETRY};

/// Timeout for deleting a blob. Writes, and the removal of expired results, do not wait longer than this.
pub(super) const BLOB_TIMEOUT: Duration = Duration::from_secs(10);

impl JobStore {
    /// Commits, then deletes the blobs that nothing points to any more: those of the replaced records or, if
    /// nothing was written, those made for this write.
    pub(super) async fn commit(
        &self,
        writes: Vec<Write>,
        written: Vec<(JobId, Kind, Option<Name>)>,
    ) -> Result<(), JobStoreError> {
        let committed = self.pipeline.commit(writes).await;
        self.delete_unused_blobs(written, &committed).await;
        committed?;
        Ok(())
    }

    /// The same for a write that must happen: waits for space until the term ends.
    pub(super) async fn commit_surely(
        &self,
        writes: Vec<Write>,
        written: Vec<(JobId, Kind, Option<Name>)>,
    ) -> Result<(), JobStoreError> {
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        let mut waits = false;
        let committed = loop {
            match self.pipeline.commit(writes.clone()).await {
                Err(CommitError::OutOfSpace(error)) => {
                    let keys: Vec<String> = writes.iter().map(|it| it.key().to_string()).collect();
                    if !waits {
                        warn!(?keys, %error, "the store has no space: the record is written once it has");
                    }
                    waits = true;
                }
                definite => break definite,
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay()) => {}
                () = self.pipeline.ended() => break Err(CommitError::NotApplied),
            }
        };
        self.delete_unused_blobs(written, &committed).await;
        committed?;
        Ok(())
    }

    async fn delete_unused_blobs(
        &self,
        written: Vec<(JobId, Kind, Option<Name>)>,
        committed: &Result<Change, CommitError>,
    ) {
        let unused: Vec<Name> = match committed {
            Ok(_) => self.ledger.replace_blobs(written),
            Err(
                CommitError::TooLarge(_) | CommitError::OutOfSpace(_) | CommitError::NotApplied,
            ) => written.into_iter().filter_map(|(.., blob)| blob).collect(),
            Err(CommitError::Unknown) => Vec::new(),
        };
        for name in unused {
            let Some(blobs) = self.records.blobs() else {
                continue;
            };
            // A later term sweeps blobs that are left.
            match tokio::time::timeout(BLOB_TIMEOUT, blobs.delete(&name)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    warn!(%name, %error, "a blob that nothing points to can't be deleted");
                }
                Err(_elapsed) => {
                    warn!(%name, "a blob that nothing points to is not deleted: the blob store gives no answer");
                }
            }
        }
    }
}
