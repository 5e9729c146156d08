//! Removes objects of the blob store, and chunks, that nothing points to: those left by leaders that died between
//! writing an object and the record that names it, and uploads whose submission never came.
//!
//! An object of a *term* gets its first pointer in that term, under its fence: if no record names an object of
//! an earlier term when a term begins, none ever will. An *upload* is named by a submission, which may come in
//! any later term. So a fenced write (`tombstones/<object>`) precedes the deletion of an upload. A submission
//! that names an upload that has a tombstone is refused, also by the next leader; the client uploads it again
//! under a new name.
//!
//! Interleavings, and why no job loses an object that it names:
//! - A submission names an upload while it is swept: both use the blob ledger. Either the submission protects the job
//!   first, and the sweep keeps its uploads; or the upload has its tombstone first, and the submission is refused.
//! - The leader is deposed after the write, and deletes late: its successor reads from the store what is
//!   marked with a tombstone, and refuses submissions that name it; names are never reused.
//! - The leader is deposed before the write: the write is refused, and nothing is deleted.
//! - A crash between write and deletion: the next sweep deletes the object and removes the record.
//! - A crash between deletion and removing the record: the same; deleting a missing object changes nothing.
//! - A submission names an upload that is gone: every piece is checked before the submission is written; it is
//!   refused.
//! - Objects of checkpoints are orphans if their job has no record, or none but a clean result. A failed submission has
//!   left them, or a task of an ended job has written them late; with a clean result, another job may have claimed the
//!   checkpoint. A submission that is being written protects the directory of its job first. The objects are listed
//!   before the term is confirmed, so that those of a later term's submission, perhaps of a job with the same id, are
//!   not among them.
//! - A graph or result can't be read: its objects are unknown, so all objects of that job are kept.
//! - Another cluster keeps its objects in the same place: names contain the cluster.
//! - A cluster with a copy of this store does: the marker shows it, and nothing is deleted ([`Storage`]).
//!
//! `blob.orphan-grace` is for clients, not for safety: the time that an upload may wait for its submission.

use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::kinds;
use tanist_ha::blob::{BlobStore, ObjectDirectory};
use tanist_ha::failpoint::failpoint;
use tanist_ha::keys::{Key, Name};
use tanist_ha::records::record::{self, Encoded};
use tanist_ha::store::Write;
use tanist_proto::id::JobId;
use tracing::{debug, info};

use super::JobStore;
use super::blob_ledger::BlobLedger;
use super::checkpoint_records::CheckpointRecords;
use super::error::JobStoreError;
use super::hidden_output::Note;
use super::job_records::JobRecords;
use super::storage::Storage;
use crate::cleanup::SinkCleaner;

/// Format of the record `tombstones/<object>`, which has no content.
const TOMBSTONE_FORMAT: u16 = 1;
/// Timeout for removing files of sinks that a submission has taken over.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of objects that are deleted after one transaction.
const BATCH: usize = 64;

/// Removes what nothing points to.
#[derive(Debug, Clone, Copy)]
pub struct OrphanGc<'a> {
    records: &'a JobRecords,
    ledger: &'a BlobLedger,
    checkpoints: &'a CheckpointRecords,
    storage: &'a Storage,
    sinks: Option<&'a Arc<dyn SinkCleaner>>,
}

impl<'a> OrphanGc<'a> {
    pub(super) fn new(store: &'a JobStore) -> OrphanGc<'a> {
        OrphanGc {
            records: &store.records,
            ledger: &store.ledger,
            checkpoints: &store.checkpoints,
            storage: &store.storage,
            sinks: store.sinks.as_ref(),
        }
    }

    /// Removes chunks of earlier terms that no record points to: a leader died between writing the chunks and the
    /// record. Call it once, after the recovery; chunks of this term are not touched.
    pub async fn remove_chunks(self) -> Result<(), JobStoreError> {
        let may_need = |owner: &Name, chunk: &Name| self.ledger.may_need_chunk(owner, chunk);
        let orphans = self.records.orphaned_chunks(may_need).await?;
        if !orphans.is_empty() {
            info!(
                chunks = orphans.len(),
                "removing chunks of records that were never written"
            );
        }
        self.records.remove_chunks(&orphans).await
    }

    /// Deletes objects that nothing points to, and unfinished files of ended processes, if they are older than
    /// `grace`. Returns the number of objects. Deletes nothing unless the storage has been exclusive to this
    /// cluster for at least `settled`.
    pub async fn sweep(self, grace: Duration, settled: Duration) -> Result<usize, JobStoreError> {
        let Some(blobs) = self.records.blobs() else {
            return Ok(0);
        };
        if !self.storage.is_exclusive(settled).await? {
            debug!("nothing is swept: the storage may be used by another cluster");
            return Ok(0);
        }
        let swept = self.sweep_objects(grace).await;
        let unfinished = blobs.remove_unfinished(grace).await;
        if let Ok(files) =
            unfinished.inspect_err(|error| debug!(%error, "unfinished files can't be removed"))
            && files > 0
        {
            info!(files, "removed unfinished files of ended processes");
        }
        swept
    }

    /// The same for this cluster's objects only. Unfinished files may be another cluster's; and once no
    /// submissions are accepted any more, objects need no grace time.
    pub async fn sweep_objects(self, grace: Duration) -> Result<usize, JobStoreError> {
        let Some(blobs) = self.records.blobs() else {
            return Ok(0);
        };
        let mut refused = None;
        match self.delete_marked(blobs, &self.ledger.tombstones()).await {
            Err(JobStoreError::Refused(error)) => refused = Some(error),
            other => other?,
        }
        let listed = blobs.list().await.map_err(JobStoreError::Refused)?;
        let old = listed.into_iter().filter(|entry| entry.age >= grace);
        let epoch = self.records.epoch();
        let orphans: Vec<Name> = old
            .map(|entry| entry.name)
            .filter(|name| self.ledger.is_orphan(name, blobs.tag(), epoch))
            .collect();
        let mut swept = 0;
        for some in orphans.chunks(self.records.writes_at_once().min(BATCH)) {
            match self.mark_and_delete(blobs, some).await {
                Err(JobStoreError::Refused(error)) => {
                    refused.get_or_insert(error);
                }
                deleted => swept += deleted?,
            }
        }
        if swept > 0 {
            info!(objects = swept, "removed objects that nothing points to");
        }
        match self.sweep_checkpoints().await {
            Err(JobStoreError::Refused(error)) => {
                refused.get_or_insert(error);
            }
            more => swept += more?,
        }
        refused.map_or(Ok(swept), |error| Err(JobStoreError::Refused(error)))
    }

    /// Removes objects of checkpoints that no record names.
    async fn sweep_checkpoints(self) -> Result<usize, JobStoreError> {
        let Some(blobs) = self.records.blobs() else {
            return Ok(0);
        };
        let jobs = blobs.jobs_with_checkpoints().await;
        let mut swept = 0;
        for name in jobs.map_err(JobStoreError::Refused)? {
            let Ok(job) = name.as_str().parse() else {
                continue;
            };
            let storage = blobs.checkpoints(&name);
            let objects = storage.list().await.map_err(JobStoreError::Refused)?;
            // In this order: a submission that begins after the listing writes objects that are not in it.
            if self.checkpoints.may_have_objects(job) || self.records.needs_checkpoints(job).await?
            {
                continue;
            }
            // A later term, which may know the job, has not begun yet, and so has written none of what is listed.
            self.records.confirm_term().await?;
            let mut removed = 0;
            for object in &objects {
                if self.must_stay(job, &storage, object).await? {
                    continue;
                }
                storage
                    .remove(object)
                    .await
                    .map_err(JobStoreError::Refused)?;
                removed += 1;
            }
            let directory = storage.remove_directory().await;
            directory.map_err(JobStoreError::Refused)?;
            swept += removed;
            if removed > 0 {
                info!(%job, objects = removed, "removed objects of checkpoints that no record names");
            }
        }
        Ok(swept)
    }

    /// Whether an object is a note of files that a submission has taken over, and that can't be removed at present.
    /// Else these files are removed.
    async fn must_stay(
        self,
        job: JobId,
        storage: &ObjectDirectory,
        object: &str,
    ) -> Result<bool, JobStoreError> {
        let note = Note::read(storage, object).await;
        let Some(note) = note.map_err(JobStoreError::Refused)? else {
            return Ok(false);
        };
        let Some(sinks) = self.sinks else {
            return Ok(true);
        };
        let cleaning = tokio::time::timeout(CLEAN_TIMEOUT, note.clean(&**sinks, job, ""));
        match cleaning.await {
            Ok(Ok(())) => Ok(false),
            Ok(Err(reason)) => {
                debug!(%job, reason, "files that a submission has taken over can't be removed");
                Ok(true)
            }
            Err(_elapsed) => Ok(true),
        }
    }

    async fn mark_and_delete(
        &self,
        blobs: &BlobStore,
        names: &[Name],
    ) -> Result<usize, JobStoreError> {
        let tombstones = self.ledger.add_tombstones(names);
        if tombstones.is_empty() {
            return Ok(0);
        }
        let put = |name: &Name| Write::Put {
            key: Key::new(kinds::BLOB_TOMBSTONES, name.clone()),
            value: empty_record(),
        };
        let writes = tombstones.iter().map(put).collect();
        if let Err(error) = self.records.commit(writes).await {
            // Without the record in the store nothing is deleted.
            self.ledger.forget_tombstones(&tombstones);
            return Err(error.into());
        }
        failpoint("blob.tombstones-written").await;
        self.delete_marked(blobs, &tombstones).await?;
        Ok(tombstones.len())
    }

    /// Deletes objects that have a tombstone, then the tombstones. An object that can't be deleted does not
    /// block the others.
    async fn delete_marked(
        &self,
        blobs: &BlobStore,
        tombstones: &[Name],
    ) -> Result<(), JobStoreError> {
        let mut refused = None;
        for some in tombstones.chunks(self.records.writes_at_once().min(BATCH)) {
            let mut deleted = Vec::with_capacity(some.len());
            for name in some {
                match blobs.delete(name).await {
                    Ok(()) => deleted.push(name),
                    Err(error) => {
                        debug!(object = %name, %error, "an object that nothing points to can't be removed");
                        refused.get_or_insert(error);
                    }
                }
            }
            if deleted.is_empty() {
                continue;
            }
            let delete = |name: &Name| Write::Delete {
                key: Key::new(kinds::BLOB_TOMBSTONES, name.clone()),
            };
            let writes = deleted.iter().copied().map(delete).collect();
            self.records.commit(writes).await?;
            self.ledger.forget_tombstones(deleted);
        }
        refused.map_or(Ok(()), |error| Err(JobStoreError::Refused(error)))
    }
}

/// A record without content.
fn empty_record() -> bytes::Bytes {
    match record::encode(TOMBSTONE_FORMAT, &[], usize::MAX) {
        Ok(Encoded::Inline(value) | Encoded::Oversized(value)) => value,
        Err(_) => bytes::Bytes::new(),
    }
}

#[cfg(test)]
#[path = "tests/orphan_gc_tests.rs"]
mod tests;
