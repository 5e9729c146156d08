//! Reads, prepares and commits the records of one term's jobs. Which writes are one transaction is up to the callers.
//!
//! A record that is too large for a transaction is in a blob, or is split into chunks, which are committed before it.
//! Invariants: chunks are removed only when nothing points to them and nothing ever will, because a write that would
//! is fenced or was refused. Their names are never reused, so a repeated removal hits nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tanist_gateway::kinds;
use tanist_ha::Error;
use tanist_ha::blob::BlobStore;
use tanist_ha::election::Epoch;
use tanist_ha::keys::{Key, Name};
use tanist_ha::records::store::{Prepared, Record, RecordStore, Stored};
use tanist_ha::retry::Backoff;
use tanist_ha::store::cache::Records;
use tanist_ha::store::pipeline::{CommitError, CommitPipeline};
use tanist_ha::store::{CoordinationStore, Write};
use tanist_proto::id::JobId;
use tracing::warn;

use super::error::JobStoreError;
use super::records::{ResultRecord, name_of};

/// Timeout for one attempt of a write that is repeated until the blob store accepts it.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for one use of the blob store by writes that something else waits for.
const BLOB_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for the blob store to accept a record that the job can go on without.
const OPTIONAL_BLOB_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the backoff of what is retried until the store accepts it or the term is over.
pub(super) fn store_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(50), Duration::from_secs(5))
}

/// The records of one term's jobs.
#[derive(Debug)]
pub(super) struct JobRecords {
    store: RecordStore,
    pipeline: CommitPipeline,
    epoch: Epoch,
    /// Newest record format that was too new to be read; 0: none.
    needed_format: AtomicU16,
}

fn no_blob_answer(timeout: Duration) -> Error {
    Error::Unavailable {
        store: "the blob store",
        reason: format!(
            "it has given no answer for {timeout:?}: look whether the directory `high-availability.storageDir` hangs"
        ),
    }
}

impl JobRecords {
    /// The records of the term that owns `pipeline`.
    pub(super) fn new(store: RecordStore, pipeline: CommitPipeline, epoch: Epoch) -> JobRecords {
        JobRecords {
            store,
            pipeline,
            epoch,
            needed_format: AtomicU16::new(0),
        }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn pipeline(&self) -> &CommitPipeline {
        &self.pipeline
    }

    pub(super) fn coordination_store(&self) -> &Arc<dyn CoordinationStore> {
        self.store.coordination_store()
    }

    pub(super) fn blobs(&self) -> Option<&Arc<BlobStore>> {
        self.store.blobs()
    }

    /// Returns the maximum number of writes of one transaction.
    pub(super) fn writes_at_once(&self) -> usize {
        self.pipeline.limits().writes.max(1)
    }

    /// Returns the record format that a process must be able to read to read every record; `None`: this process can.
    pub(super) fn needed_format(&self) -> Option<u16> {
        let needed = self.needed_format.load(Ordering::Relaxed);
        (needed > 0).then_some(needed)
    }

    /// Records that a record can't be read.
    pub(super) fn note_unreadable(&self, error: &Error) {
        if let Error::TooNew { found, .. } = error {
            self.needed_format.fetch_max(*found, Ordering::Relaxed);
        }
    }

    /// Reads a job's record of one type from the store.
    pub(super) async fn get<T: Record>(&self, job: JobId) -> Result<Option<Stored<T>>, Error> {
        self.store.get(&name_of(job)).await
    }

    /// Whether objects of a job's checkpoints may be needed, after all earlier writes of this process: it runs, it is
    /// not cleaned up, or some of them were retained.
    pub(super) async fn needs_checkpoints(&self, job: JobId) -> Result<bool, JobStoreError> {
        let kinds = [kinds::GRAPHS, kinds::STATES, kinds::CHECKPOINTS];
        let keys = kinds.map(|kind| Key::new(kind, name_of(job)));
        let found = self.coordination_store().get(&keys).await;
        let found = found.map_err(JobStoreError::Refused)?;
        if found.iter().any(Option::is_some) {
            return Ok(true);
        }
        match self.get::<ResultRecord>(job).await {
            Ok(result) => Ok(result.is_some_and(|it| it.record.0.dirty)),
            Err(error) if error.may_pass() => Err(JobStoreError::Refused(error)),
            Err(_) => Ok(true),
        }
    }

    /// Reads all records of one type from the store.
    pub(super) async fn list<T: Record>(
        &self,
    ) -> Result<Vec<(Name, Result<Stored<T>, Error>)>, Error> {
        self.store.list().await
    }

    /// Decodes the records of one type among `records`.
    pub(super) async fn decode<T: Record>(
        &self,
        records: &Records,
    ) -> Result<Vec<(Name, Result<Stored<T>, Error>)>, Error> {
        self.store.decode(records).await
    }

    /// Encodes a record for a transaction, and writes its blob if it needs one.
    pub(super) async fn prepare<T: Record>(
        &self,
        job: JobId,
        record: T,
    ) -> Result<Prepared, JobStoreError> {
        self.try_prepare(job, &record, usize::MAX).await
    }

    /// The same, but fails if the blob store gives no answer.
    pub(super) async fn prepare_or_time_out<T: Record>(
        &self,
        job: JobId,
        record: T,
    ) -> Result<Prepared, JobStoreError> {
        let prepared = tokio::time::timeout(BLOB_TIMEOUT, self.prepare(job, record)).await;
        prepared
            .unwrap_or_else(|_elapsed| Err(JobStoreError::Refused(no_blob_answer(BLOB_TIMEOUT))))
    }

    /// The same for a record without which the job goes on for now: retries for a few seconds. After an error nothing
    /// is written.
    pub(super) async fn prepare_or_give_up<T: Record>(
        &self,
        job: JobId,
        record: T,
    ) -> Result<Prepared, JobStoreError> {
        let mut last = no_blob_answer(OPTIONAL_BLOB_TIMEOUT);
        let trying = async {
            let mut backoff = store_backoff();
            loop {
                match self.try_prepare(job, &record, usize::MAX).await {
                    Err(JobStoreError::Refused(error)) if error.may_pass() => last = error,
                    definite => return definite,
                }
                if !self.wait_to_retry(&mut backoff).await {
                    return Err(JobStoreError::NotWritten);
                }
            }
        };
        let tried = tokio::time::timeout(OPTIONAL_BLOB_TIMEOUT, trying).await;
        tried.unwrap_or_else(|_elapsed| Err(JobStoreError::Refused(last)))
    }

    /// The same for a record that must be written: retries until the blob store accepts it or the term is over.
    pub(super) async fn prepare_until_accepted<T: Record>(
        &self,
        job: JobId,
        record: T,
    ) -> Result<Prepared, JobStoreError> {
        let share = usize::MAX;
        self.prepare_within_until_accepted(job, record, share).await
    }

    /// The same for a record that takes at most `share` bytes of a transaction.
    pub(super) async fn prepare_within_until_accepted<T: Record>(
        &self,
        job: JobId,
        record: T,
        share: usize,
    ) -> Result<Prepared, JobStoreError> {
        let mut backoff = store_backoff();
        loop {
            // A blob store that hangs may answer the next attempt. What it stores late has a name that nothing
            // refers to: each attempt has one of its own.
            let preparing = self.try_prepare(job, &record, share);
            let prepared = tokio::time::timeout(ATTEMPT_TIMEOUT, preparing).await;
            let no_answer = || JobStoreError::Refused(no_blob_answer(ATTEMPT_TIMEOUT));
            match prepared.unwrap_or_else(|_elapsed| Err(no_answer())) {
                Err(JobStoreError::Refused(error)) if error.may_pass() => {
                    warn!(%job, %error, "a record is prepared again");
                }
                definite => return definite,
            }
            if !self.wait_to_retry(&mut backoff).await {
                return Err(JobStoreError::NotWritten);
            }
        }
    }

    async fn try_prepare<T: Record>(
        &self,
        job: JobId,
        record: &T,
        share: usize,
    ) -> Result<Prepared, JobStoreError> {
        let name = name_of(job);
        let preparing = self.store.prepare_within(&name, self.epoch, record, share);
        preparing.await.map_err(JobStoreError::Refused)
    }

    /// Waits before a retry. Returns false if the term is over.
    pub(super) async fn wait_to_retry(&self, backoff: &mut Backoff) -> bool {
        tokio::select! {
            () = tokio::time::sleep(backoff.next_delay()) => true,
            () = self.pipeline.ended() => false,
        }
    }

    /// Commits one transaction.
    pub(super) async fn commit(&self, writes: Vec<Write>) -> Result<(), CommitError> {
        self.pipeline.commit(writes).await.map(drop)
    }

    /// The same for a write that must happen: waits for space until the term ends.
    pub(super) async fn commit_until_space(&self, writes: Vec<Write>) -> Result<(), CommitError> {
        let mut backoff = store_backoff();
        let mut is_first = true;
        loop {
            match self.commit(writes.clone()).await {
                Err(CommitError::OutOfSpace(error)) if is_first => {
                    let keys: Vec<String> = writes.iter().map(|it| it.key().to_string()).collect();
                    warn!(?keys, %error, "the store has no space: the record is written once it has");
                }
                Err(CommitError::OutOfSpace(_)) => {}
                definite => return definite,
            }
            is_first = false;
            if !self.wait_to_retry(&mut backoff).await {
                return Err(CommitError::NotApplied);
            }
        }
    }

    /// Returns once the store has confirmed that the term continues, after all earlier writes of this process.
    /// Fails if the term is over.
    pub(super) async fn confirm_term(&self) -> Result<(), JobStoreError> {
        match self.commit(Vec::new()).await {
            // Refused for lack of space, but ordered after all earlier writes.
            Ok(()) | Err(CommitError::OutOfSpace(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Commits the chunks of a record, each in its own transaction, so that other jobs do not wait for all of them.
    pub(super) async fn put_chunks(
        &self,
        job: JobId,
        prepared: &Prepared,
    ) -> Result<(), JobStoreError> {
        for chunk in &prepared.chunks {
            if let Err(error) = self.commit(vec![chunk.clone()]).await {
                let error = JobStoreError::from(error);
                let chunks = chunk_names(prepared);
                self.remove_refused_chunks(job, &chunks, &error).await;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes the chunks of a record that was not written. If the term is over, the next one removes them.
    pub(super) async fn remove_refused_chunks(
        &self,
        job: JobId,
        chunks: &[Name],
        error: &JobStoreError,
    ) {
        if error.is_term_over() {
            return;
        }
        if let Err(failure) = self.remove_chunks(chunks).await {
            warn!(%job, %failure, "chunks of a refused record can't be removed: the next term removes them");
        }
    }

    /// Removes chunks that nothing points to; missing ones are ignored.
    pub(super) async fn remove_chunks(&self, names: &[Name]) -> Result<(), JobStoreError> {
        for writes in self.deletions(names) {
            self.commit(writes).await?;
        }
        Ok(())
    }

    /// The same, but waits for space in the store without limit; fails only if the term is over.
    pub(super) async fn remove_chunks_until_space(
        &self,
        names: &[Name],
    ) -> Result<(), JobStoreError> {
        for writes in self.deletions(names) {
            self.commit_until_space(writes).await?;
        }
        Ok(())
    }

    /// Deletions, split into as many transactions as the store's limit requires.
    fn deletions(&self, names: &[Name]) -> impl Iterator<Item = Vec<Write>> {
        names.chunks(self.writes_at_once()).map(|some| {
            let keys = some
                .iter()
                .map(|name| Key::new(kinds::CHUNKS, name.clone()));
            keys.map(|key| Write::Delete { key }).collect()
        })
    }

    /// Returns the chunks of earlier terms that no record needs. `may_need` gets owner and name of a chunk.
    pub(super) async fn orphaned_chunks(
        &self,
        may_need: impl Fn(&Name, &Name) -> bool,
    ) -> Result<Vec<Name>, JobStoreError> {
        let orphans = self
            .store
            .orphaned_chunks(self.epoch, |chunk, name| may_need(&chunk.owner, name));
        orphans.await.map_err(JobStoreError::Refused)
    }

    /// Deletes blobs that nothing points to. Those that can't be deleted are left to the garbage collection of a
    /// later term.
    pub(super) async fn delete_blobs(&self, names: Vec<Name>) {
        let Some(blobs) = self.store.blobs() else {
            return;
        };
        for name in names {
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

/// Returns the names of a prepared record's chunks.
pub(super) fn chunk_names(prepared: &Prepared) -> Vec<Name> {
    let chunks = prepared.chunks.iter();
    chunks.map(|chunk| chunk.key().name.clone()).collect()
}
