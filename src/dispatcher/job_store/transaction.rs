//! A transaction of records that may be in blobs, and what becomes of the blobs: those of the replaced records, or, if
//! nothing was written, those made for it, are deleted afterwards.

use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::records::store::Prepared;
use tanist_ha::store::Write;
use tanist_ha::store::pipeline::CommitError;
use tanist_proto::id::JobId;

use super::JobStore;
use super::error::JobStoreError;
use super::records::name_of;

/// The writes of one transaction, and the blobs that its records point to.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    writes: Vec<Write>,
    blobs: Vec<(JobId, Kind, Option<Name>)>,
}

impl Transaction {
    /// Adds a record. Nothing needs the blob of the replaced one afterwards.
    pub(super) fn put(mut self, job: JobId, prepared: Prepared) -> Transaction {
        let kind = prepared.write.key().kind;
        self.writes.push(prepared.write);
        self.blobs.push((job, kind, prepared.blob));
        self
    }

    /// Adds the deletion of a record. Nothing needs its blob afterwards.
    pub(super) fn delete(mut self, job: JobId, kind: Kind) -> Transaction {
        self.blobs.push((job, kind, None));
        self.delete_but_keep_blob(job, kind)
    }

    /// Adds the deletion of a record whose blob the job's result names: the cleanup removes it.
    pub(super) fn delete_but_keep_blob(mut self, job: JobId, kind: Kind) -> Transaction {
        let key = Key::new(kind, name_of(job));
        self.writes.push(Write::Delete { key });
        self
    }
}

impl JobStore {
    pub(super) async fn commit(&self, transaction: Transaction) -> Result<(), JobStoreError> {
        let committed = self.records.commit(transaction.writes).await;
        self.delete_unused_blobs(transaction.blobs, committed).await
    }

    /// The same for a write that must happen: waits for space until the term ends.
    pub(super) async fn commit_until_space(
        &self,
        transaction: Transaction,
    ) -> Result<(), JobStoreError> {
        let committed = self.records.commit_until_space(transaction.writes).await;
        self.delete_unused_blobs(transaction.blobs, committed).await
    }

    async fn delete_unused_blobs(
        &self,
        written: Vec<(JobId, Kind, Option<Name>)>,
        committed: Result<(), CommitError>,
    ) -> Result<(), JobStoreError> {
        let unused = match &committed {
            Ok(()) => self.ledger.replace_blobs(written),
            Err(
                CommitError::TooLarge(_) | CommitError::OutOfSpace(_) | CommitError::NotApplied,
            ) => written.into_iter().filter_map(|(.., blob)| blob).collect(),
            // The records may point to them.
            Err(CommitError::Unknown) => Vec::new(),
        };
        self.records.delete_blobs(unused).await;
        committed.map_err(JobStoreError::from)
    }
}
