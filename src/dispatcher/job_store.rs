//! The jobs of one term in the store, and which writes are one transaction.
//!
//! Each part owns its state and its lock. Two locks are held while a store is read or written: the storage's, and
//! `retained_starts`.
//!
//! ```text
//!   JobStore     what spans the parts: submission, state, result
//!     JobRecords        reads, prepares and commits records
//!     BlobLedger        which blobs, chunks and uploads the jobs need
//!     DescriptionStore  descriptions of ended jobs
//!     CheckpointRecords records of checkpoints, as this term found them
//!     go_back           returns a quarantined job to an older checkpoint
//!     Origins           which savepoints jobs begin from
//!     Storage           the marker of the blob storage
//!     JobReader         reads jobs and results: recovery, and later reads (LateReads)
//!     OrphanGc          removes what nothing points to
//! ```

mod blob_ledger;
mod checkpoint_records;
mod description_cache;
mod description_store;
mod error;
mod go_back;
mod hidden_output;
mod job_reader;
mod job_records;
mod late_reads;
mod origins;
mod orphan_gc;
mod records;
mod restore;
mod results;
mod storage;
mod submissions;
mod transaction;

use std::sync::Arc;

use async_trait::async_trait;
use tanist_gateway::kinds;
use tanist_gateway::persistence::{CheckpointsUnread, JobStateStore, PersistError};
use tanist_ha::Error;
use tanist_ha::blob::BlobStore;
use tanist_ha::election::Epoch;
use tanist_ha::keys::Kind;
use tanist_ha::records::store::RecordStore;
use tanist_ha::store::cache::Records;
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_ha::store::{Change, CoordinationStore};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::RwLock;
use tracing::warn;

use self::blob_ledger::BlobLedger;
use self::checkpoint_records::CheckpointRecords;
use self::description_store::DescriptionStore;
pub use self::error::JobStoreError;
pub(crate) use self::hidden_output::Note;
use self::job_reader::JobReader;
use self::job_records::{JobRecords, store_backoff};
use self::late_reads::LateReads;
use self::origins::Origins;
pub(crate) use self::orphan_gc::OrphanGc;
pub use self::records::StateRecord;
use self::records::{CheckpointsRecord, job_id};
pub(crate) use self::restore::fits;
pub(crate) use self::results::{Kept, Retained};
pub(crate) use self::storage::Storage;
pub use self::storage::StorageUser;
use self::transaction::Transaction;
use super::cleanup::SinkCleaner;
use super::recovery::{Caution, RecoveredJob, RecoveredJobs};

/// Reads and writes the records of one term's jobs.
#[derive(Debug)]
pub struct JobStore {
    records: Arc<JobRecords>,
    ledger: BlobLedger,
    checkpoints: CheckpointRecords,
    origins: Origins,
    /// Held to read while a submission copies a retained checkpoint, to write while one claims it: a claim makes the
    /// copied objects garbage.
    retained_starts: RwLock<()>,
    descriptions: DescriptionStore,
    storage: Storage,
    late_reads: LateReads,
    /// Removes files that failed submissions have taken over ([`hidden_output`]).
    sinks: Option<Arc<dyn SinkCleaner>>,
}

/// Default memory limit, in bytes, of the descriptions of ended jobs.
const DEFAULT_CACHE: usize = 50 << 20;

impl JobStore {
    /// Record kinds that a term needs to recover its jobs.
    pub const KINDS: [Kind; 10] = [
        kinds::GRAPHS,
        kinds::CHUNKS,
        kinds::STATES,
        kinds::CHECKPOINTS,
        kinds::RESULTS,
        kinds::BLOB_TOMBSTONES,
        kinds::APPLICATIONS,
        kinds::WORKERS,
        kinds::STORAGES,
        kinds::DRAINS,
    ];

    /// Creates the store of the term that owns `pipeline`.
    pub fn new(records: RecordStore, pipeline: CommitPipeline, epoch: Epoch) -> JobStore {
        let records = Arc::new(JobRecords::new(records, pipeline, epoch));
        JobStore {
            ledger: BlobLedger::default(),
            checkpoints: CheckpointRecords::default(),
            origins: Origins::default(),
            retained_starts: RwLock::default(),
            descriptions: DescriptionStore::new(records.clone(), DEFAULT_CACHE),
            storage: Storage::new(records.clone()),
            late_reads: LateReads::new(),
            sinks: None,
            records,
        }
    }

    /// Sets the memory limit, in bytes, for descriptions of ended jobs.
    #[must_use]
    pub fn with_description_cache(mut self, bytes: usize) -> JobStore {
        self.descriptions = DescriptionStore::new(self.records.clone(), bytes);
        self
    }

    /// Sets what knows the files of sinks. Without it the sweep of orphans leaves them.
    #[must_use]
    pub fn with_sinks(mut self, sinks: Arc<dyn SinkCleaner>) -> JobStore {
        self.sinks = Some(sinks);
        self
    }

    /// Returns the record format that a process must be able to read to read every record; `None`: this process can.
    pub fn needed_format(&self) -> Option<u16> {
        self.records.needed_format()
    }

    /// Returns the pipeline that this store writes through.
    pub fn pipeline(&self) -> &CommitPipeline {
        self.records.pipeline()
    }

    /// Returns the last committed transaction.
    pub fn last_change(&self) -> Change {
        self.pipeline().last()
    }

    /// Returns the underlying store.
    pub fn coordination_store(&self) -> &Arc<dyn CoordinationStore> {
        self.records.coordination_store()
    }

    /// Returns the blob store of this term.
    pub fn blobs(&self) -> Option<&Arc<BlobStore>> {
        self.records.blobs()
    }

    /// Returns the storage of blobs.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Returns once the store has confirmed that the term continues, after all earlier writes of this process.
    /// Fails if the term is over.
    pub(super) async fn confirm_term(&self) -> Result<(), JobStoreError> {
        self.records.confirm_term().await
    }

    fn reader(&self) -> JobReader<'_> {
        JobReader::new(&self.records, &self.ledger)
    }

    /// Recovers every job from the records as proven at the start of the term. Results are left to
    /// [`JobStore::read_results`].
    pub async fn recover(
        &self,
        records: &Records,
        caution: &Caution,
    ) -> Result<RecoveredJobs, Error> {
        let found = self.records.decode::<CheckpointsRecord>(records).await?;
        self.checkpoints.recover(found, &self.ledger, &self.origins);
        self.reader().recover(records, caution).await
    }

    /// Decodes the records of results as proven at the start of the term.
    pub async fn read_results(&self, records: &Records) -> Result<RecoveredJobs, Error> {
        self.reader().read_results(records).await
    }

    /// The same, but retries until the coordination store has returned all of them.
    pub(super) async fn read_results_until_answered(&self, records: &Records) -> RecoveredJobs {
        let mut backoff = store_backoff();
        loop {
            match self.read_results(records).await {
                Ok(read) => return read,
                Err(error) => warn!(%error, "the results can't be read; reading is retried"),
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// Reads all records of a job of this term again, after all pending writes. Waits for the store until the
    /// term ends.
    pub async fn reread(&self, job: JobId) -> Result<RecoveredJob, JobStoreError> {
        self.reader().reread(job).await
    }

    /// Reads a job again until the outcome is definite. Does not decode its graph if that is dangerous.
    pub(super) async fn await_job(&self, job: JobId) -> Result<RecoveredJob, JobStoreError> {
        Ok(self.late_reads.read_job(self.reader(), job).await)
    }

    /// The same for a result.
    pub(super) async fn await_result(
        &self,
        job: JobId,
    ) -> Result<pb::JobResult, (pb::QuarantineKind, String)> {
        self.late_reads.read_result(self.reader(), job).await
    }

    /// Returns the full description of an ended job; if there is none, the short one and the reason.
    pub(super) async fn describe_ended(
        &self,
        job: JobId,
        result: &pb::JobResult,
    ) -> pb::JobDetails {
        self.descriptions.describe(job, result).await
    }

    /// Returns what removes objects that nothing points to.
    pub fn orphan_gc(&self) -> OrphanGc<'_> {
        OrphanGc::new(self)
    }

    /// Writes into the state of a job that it is quarantined; nothing if it has no state. Nothing else may write that
    /// state meanwhile. `Refused` if the state can't be read.
    pub async fn set_aside(
        &self,
        job: JobId,
        quarantine: &pb::Quarantine,
    ) -> Result<(), PersistError> {
        let mut backoff = store_backoff();
        let stored = loop {
            match self.records.get::<StateRecord>(job).await {
                Ok(stored) => break stored,
                Err(error) if error.may_pass() => {
                    warn!(%job, %error, "a job to be quarantined can't be read; reading is retried");
                }
                Err(error) => return Err(PersistError::Refused(error.to_string())),
            }
            tokio::time::sleep(backoff.next_delay()).await;
        };
        let Some(stored) = stored.filter(|it| it.record.0.job_id == job.to_string()) else {
            return Ok(());
        };
        let state = pb::JobState {
            quarantine: Some(quarantine.clone()),
            ..stored.record.0
        };
        self.put_state(&state).await
    }
}

#[async_trait]
impl JobStateStore for JobStore {
    async fn put_state(&self, state: &pb::JobState) -> Result<(), PersistError> {
        let job = job_id(&state.job_id)?;
        // After a takeover ten thousand are written at once. Boxed, so that a write waiting for the commit does
        // not keep the memory of its preparation.
        let record = StateRecord(state.clone());
        let preparing = self.records.prepare_until_accepted(job, record);
        let prepared = Box::pin(preparing).await?;
        let committing = self.commit_until_space(Transaction::default().put(job, prepared));
        Box::pin(committing).await.map_err(PersistError::from)
    }

    async fn put_checkpoints(&self, record: &pb::JobCheckpoints) -> Result<(), PersistError> {
        let job = job_id(&record.job_id)?;
        self.checkpoints.note_written(job);
        let prepared = CheckpointsRecord(record.clone());
        let prepared = self.records.prepare_or_give_up(job, prepared).await;
        let prepared = prepared.map_err(|error| match error {
            JobStoreError::Refused(error) if error.may_pass() => {
                PersistError::NoBlobs(error.to_string())
            }
            error => PersistError::from(error),
        })?;
        let committing = self.commit_until_space(Transaction::default().put(job, prepared));
        committing.await.map_err(PersistError::from)?;
        self.origins.note(job, record);
        Ok(())
    }

    async fn checkpoints(
        &self,
        job_id: &str,
    ) -> Result<Option<pb::JobCheckpoints>, CheckpointsUnread> {
        let unreadable = |reason: String| CheckpointsUnread::Unreadable {
            job: job_id.to_owned(),
            reason,
        };
        let job: JobId = job_id
            .parse()
            .map_err(|error| unreadable(format!("{error}")))?;
        let reading = self.checkpoints.read(job, &self.records, &self.ledger);
        match reading.await {
            Ok(Some(record)) if record.job_id != job_id => {
                Err(unreadable(format!("it is of job {}", record.job_id)))
            }
            Ok(found) => Ok(found),
            Err(JobStoreError::Refused(error)) => Err(unreadable(error.to_string())),
            Err(_) => Err(CheckpointsUnread::TermOver),
        }
    }
}
