//! The jobs of one term in the store, and which writes are one transaction. `results.rs` has their ends,
//! `recovery.rs` their recovery.

mod blob_ledger;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use tanist_compact::{shrink_graph, shrink_state};
use tanist_gateway::GatewayError;
use tanist_gateway::persistence::{JobStateStore, PersistError};
use tanist_ha::election::Epoch;
use tanist_ha::failpoint::failpoint;
use tanist_ha::jobs::store::{Prepared, Record, RecordStore};
use tanist_ha::keys::{Kind, Name};
use tanist_ha::retry::Backoff;
use tanist_ha::store::pipeline::{CommitError, CommitPipeline};
use tanist_ha::store::{Change, CoordinationStore};
use tanist_ha::{Error, Outcome};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::Semaphore;
use tracing::warn;

use self::blob_ledger::BlobLedger;
use super::descriptions::DescriptionCache;
use super::storage::Storage;
use super::unavailable_records::READ_AT_ONCE;

pub(super) const FIRST_RETRY: Duration = Duration::from_millis(50);
pub(super) const SLOWEST_RETRY: Duration = Duration::from_secs(5);

/// Why something about a job was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JobStoreError {
    /// Not written, and it will not be: the term is over.
    #[error("not written: this JobManager does not lead any more")]
    NotWritten,
    /// The term is over; only the next term can find out whether it was written.
    #[error("this JobManager does not lead any more, and whether this was written is not known")]
    Unknown,
    /// Not written: the store has no space at present.
    #[error("not written: {0}; try again when there is space")]
    OutOfSpace(Error),
    /// The store does not accept it.
    #[error(transparent)]
    Refused(Error),
    /// Not written: an upload that the job needs is missing or about to be deleted.
    #[error("{0}")]
    NotUploaded(String),
}

impl From<CommitError> for JobStoreError {
    fn from(error: CommitError) -> JobStoreError {
        match error {
            CommitError::TooLarge(error) => JobStoreError::Refused(error),
            CommitError::OutOfSpace(error) => JobStoreError::OutOfSpace(error),
            CommitError::NotApplied => JobStoreError::NotWritten,
            CommitError::Unknown => JobStoreError::Unknown,
        }
    }
}

impl From<JobStoreError> for GatewayError {
    fn from(error: JobStoreError) -> GatewayError {
        match &error {
            JobStoreError::NotWritten => GatewayError::NotYet(error.to_string()),
            JobStoreError::OutOfSpace(_) => GatewayError::StoreRefused(error.to_string()),
            JobStoreError::Unknown => GatewayError::Unknown(error.to_string()),
            JobStoreError::Refused(Error::TooLarge { .. }) | JobStoreError::NotUploaded(_) => {
                GatewayError::Invalid(error.to_string())
            }
            // The blob store did not answer or denied access for now: nothing was written.
            JobStoreError::Refused(cause) if may_pass(cause) => {
                GatewayError::StoreRefused(error.to_string())
            }
            JobStoreError::Refused(_) => GatewayError::Internal(error.to_string()),
        }
    }
}

/// Reads and writes the records of one term's jobs.
#[derive(Debug)]
pub struct JobStore {
    pub(super) records: RecordStore,
    pub(super) pipeline: CommitPipeline,
    pub(super) epoch: Epoch,
    pub(super) ledger: BlobLedger,
    descriptions: Mutex<DescriptionCache>,
    /// Newest record format that was too new to be read; 0: none.
    needed_format: AtomicU16,
    /// Limits how many records are reread at the same time after being unreadable.
    pub(super) late_reads: Semaphore,
    pub(super) storage: Storage,
}

/// Default memory limit, in bytes, of the descriptions of ended jobs.
const DEFAULT_CACHE: usize = 50 << 20;

impl JobStore {
    /// Record kinds that a term needs to recover its jobs.
    pub const KINDS: [Kind; 9] = [
        Kind::Graphs,
        Kind::Chunks,
        Kind::States,
        Kind::Results,
        Kind::BlobTombstones,
        Kind::Applications,
        Kind::Workers,
        Kind::Storages,
        Kind::Drains,
    ];

    /// Creates the store of the term that owns `pipeline`.
    pub fn new(records: RecordStore, pipeline: CommitPipeline, epoch: Epoch) -> JobStore {
        JobStore {
            records,
            pipeline,
            epoch,
            ledger: BlobLedger::default(),
            descriptions: Mutex::new(DescriptionCache::new(DEFAULT_CACHE)),
            needed_format: AtomicU16::new(0),
            late_reads: Semaphore::new(READ_AT_ONCE),
            storage: Storage::default(),
        }
    }

    /// Sets the memory limit, in bytes, for descriptions of ended jobs.
    #[must_use]
    pub fn with_description_cache(mut self, bytes: usize) -> JobStore {
        self.descriptions = Mutex::new(DescriptionCache::new(bytes));
        self
    }

    /// Returns the record format that a process must be able to read to read every record; `None`: this process can.
    pub fn needed_format(&self) -> Option<u16> {
        let needed = self.needed_format.load(Ordering::Relaxed);
        (needed > 0).then_some(needed)
    }

    /// Records that a record can't be read.
    pub(super) fn note_unreadable(&self, error: &Error) {
        if let Error::TooNew { found, .. } = error {
            self.needed_format.fetch_max(*found, Ordering::Relaxed);
        }
    }

    /// Returns the pipeline that this store writes through.
    pub fn pipeline(&self) -> &CommitPipeline {
        &self.pipeline
    }

    /// Returns the last committed transaction.
    pub fn last_change(&self) -> Change {
        self.pipeline.last()
    }

    /// Returns the underlying store.
    pub fn coordination_store(&self) -> &Arc<dyn CoordinationStore> {
        self.records.coordination_store()
    }

    /// Writes graph and state of a new job in one transaction. The chunks of a split graph are written before it.
    pub async fn put_submission(
        &self,
        graph: &pb::JobGraph,
        state: &pb::JobState,
    ) -> Result<(), JobStoreError> {
        let job = job_id(&graph.job_id)?;
        let is_first = self.ledger.protect(job);
        let written = match self.check_uploads(graph).await {
            Ok(()) => self.try_put_submission(job, graph, state).await,
            Err(error) => Err(error),
        };
        match &written {
            // If it may be stored, by this term or another one, its uploads stay protected until it has ended.
            Ok(()) | Err(JobStoreError::Unknown | JobStoreError::NotWritten) => {}
            Err(
                JobStoreError::OutOfSpace(_)
                | JobStoreError::Refused(_)
                | JobStoreError::NotUploaded(_),
            ) => {
                if is_first {
                    self.ledger.unprotect(job);
                }
            }
        }
        written
    }

    async fn try_put_submission(
        &self,
        job: JobId,
        graph: &pb::JobGraph,
        state: &pb::JobState,
    ) -> Result<(), JobStoreError> {
        // The graph is prepared last: its blob would be orphaned if a step before the commit failed.
        let state = self.prepare(job, StateRecord(state.clone())).await?;
        let prepared = self.prepare(job, GraphRecord(graph.clone())).await?;
        self.write_chunks(job, &prepared.chunks).await?;
        if !prepared.chunks.is_empty() {
            failpoint("submit.chunks-written").await;
        }
        let written = vec![
            (job, Kind::Graphs, prepared.blob),
            (job, Kind::States, state.blob),
        ];
        let committed = self
            .commit(vec![prepared.write, state.write], written)
            .await;
        match &committed {
            Ok(()) => {
                let chunks = prepared.chunks.iter();
                let chunks = chunks.map(|chunk| chunk.key().name.clone()).collect();
                self.ledger.note_graph(job, chunks, graph);
            }
            Err(error) => self.take_back(job, &prepared.chunks, error).await,
        }
        committed
    }

    pub(super) async fn prepare<T: Record>(
        &self,
        job: JobId,
        record: T,
    ) -> Result<Prepared, JobStoreError> {
        let prepared = self
            .records
            .prepare(&name_of(job), self.epoch, &record)
            .await;
        prepared.map_err(JobStoreError::Refused)
    }

    /// The same for a record that must be written: retries until the blob store accepts it or the term is over.
    pub(super) async fn prepare_surely<T: Record + Clone>(
        &self,
        job: JobId,
        record: T,
    ) -> Result<Prepared, JobStoreError> {
        self.prepare_surely_within(job, record, usize::MAX).await
    }

    /// The same for a record that takes at most `share` bytes of a transaction.
    pub(super) async fn prepare_surely_within<T: Record + Clone>(
        &self,
        job: JobId,
        record: T,
        share: usize,
    ) -> Result<Prepared, JobStoreError> {
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        let name = name_of(job);
        loop {
            let prepared = self
                .records
                .prepare_within(&name, self.epoch, &record, share);
            match prepared.await.map_err(JobStoreError::Refused) {
                Err(JobStoreError::Refused(error)) if may_pass(&error) => {
                    warn!(%job, %error, "a record is prepared again");
                }
                definite => return definite,
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay()) => {}
                () = self.pipeline.ended() => return Err(JobStoreError::NotWritten),
            }
        }
    }

    pub(super) fn lock_descriptions(&self) -> MutexGuard<'_, DescriptionCache> {
        self.descriptions.lock()
    }
}

#[async_trait]
impl JobStateStore for JobStore {
    async fn put_state(&self, state: &pb::JobState) -> Result<(), PersistError> {
        let refused = |error: JobStoreError| match error {
            JobStoreError::NotWritten | JobStoreError::Unknown => PersistError::TermOver,
            JobStoreError::Refused(Error::TooLarge { size, limit, .. }) => {
                PersistError::TooLarge { size, limit }
            }
            JobStoreError::OutOfSpace(error) | JobStoreError::Refused(error) => {
                PersistError::Refused(error.to_string())
            }
            JobStoreError::NotUploaded(reason) => PersistError::Refused(reason),
        };
        let job = job_id(&state.job_id).map_err(refused)?;
        // After a takeover ten thousand are written at once. Boxed, so that a write waiting for the commit does
        // not keep the memory of its preparation.
        let preparing = self.prepare_surely(job, StateRecord(state.clone()));
        let prepared = Box::pin(preparing).await.map_err(refused)?;
        let written = vec![(job, Kind::States, prepared.blob)];
        let committing = self.commit_surely(vec![prepared.write], written);
        Box::pin(committing).await.map_err(refused)
    }
}

pub(super) fn job_id(text: &str) -> Result<JobId, JobStoreError> {
    text.parse()
        .map_err(|error| JobStoreError::Refused(Error::Misconfigured(format!("{error}").into())))
}

/// Whether an error of preparing or reading a record may be temporary. Credentials of a blob store are renewed
/// and its permissions repaired; no job or result may be lost for that.
pub(super) fn may_pass(error: &Error) -> bool {
    error.outcome() != Outcome::Fatal || matches!(error, Error::Denied { .. })
}

pub(super) fn name_of(job: JobId) -> Name {
    Name::new(job.to_string()).expect("32 hexadecimal digits are a name")
}

macro_rules! protobuf_record {
    ($(#[$doc:meta])* $name:ident($message:ty), $kind:expr, splits: $splits:literal $(, $shrink:path)?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name(pub $message);

        impl Record for $name {
            const KIND: Kind = $kind;
            const FORMAT: u16 = 1;
            const SPLITS: bool = $splits;

            fn encode(&self) -> Vec<u8> {
                self.0.encode_to_vec()
            }

            fn decode(_format: u16, bytes: &[u8]) -> Result<$name, String> {
                #[allow(unused_mut, reason = "not every message is shrunk")]
                let mut message = <$message>::decode(bytes).map_err(|error| error.to_string())?;
                $($shrink(&mut message);)?
                Ok($name(message))
            }
        }
    };
}

protobuf_record! {
    /// `graphs/<job>`.
    GraphRecord(pb::JobGraph), Kind::Graphs, splits: true, shrink_graph
}
protobuf_record! {
    /// `states/<job>`.
    StateRecord(pb::JobState), Kind::States, splits: false, shrink_state
}
protobuf_record! {
    /// `results/<job>`.
    ResultRecord(pb::JobResult), Kind::Results, splits: false
}
protobuf_record! {
    /// `descriptions/<job>`.
    DescriptionRecord(pb::JobDetails), Kind::Descriptions, splits: true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_blob_store_denies_is_tried_again_and_what_is_too_large_is_not() {
        let denied = Error::Denied {
            store: "the blob store",
            reason: "the token has expired".to_owned(),
        };
        assert!(may_pass(&denied));
        let refusal = GatewayError::from(JobStoreError::Refused(denied));
        assert!(refusal.is_retryable(), "{refusal:?}");
        let too_large = Error::TooLarge {
            store: "etcd",
            what: "a record",
            size: 2,
            limit: 1,
        };
        assert!(!may_pass(&too_large));
        let refusal = GatewayError::from(JobStoreError::Refused(too_large));
        assert!(!refusal.is_retryable(), "{refusal:?}");
    }
}
