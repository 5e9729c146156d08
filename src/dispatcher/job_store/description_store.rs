//! Full descriptions of ended jobs: written with their results, read only on request.
//!
//! The result of a job says briefly how it ended; a leader keeps that in memory for each ended job. Vertices,
//! subtasks, edges and failures are in the record `descriptions/<job>`, which neither standbys nor a takeover
//! read. It is written in the transaction of the result. If it is too large for that, it is written before, to
//! a blob or to chunks, and the result names them.
//!
//! What a crash leaves: before the transaction, a blob or chunks that nothing points to, which a later term
//! sweeps; the job's record still says how the job ended, so the next term writes result and description. After
//! the transaction: both.
//! Invariant: a description exists as long as its result names it, or the result says why it does not.
//!
//! The lock of the cache is taken and released inside each method, and never held while the store is read.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message as _;
use tanist_ha::failpoint::failpoint;
use tanist_ha::keys::Name;
use tanist_ha::records::store::Prepared;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::warn;

use super::description_cache::DescriptionCache;
use super::error::JobStoreError;
use super::job_records::{JobRecords, chunk_names};
use super::records::DescriptionRecord;

/// Timeout for writing a description to the blob store. Then the job ends without it.
const KEEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for reading a description. Then the answer is the short one from the result.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// The descriptions of ended jobs, in the store and in memory.
#[derive(Debug)]
pub(super) struct DescriptionStore {
    records: Arc<JobRecords>,
    cache: Mutex<DescriptionCache>,
}

impl DescriptionStore {
    /// At most `cache_limit` bytes of descriptions are kept in memory.
    pub(super) fn new(records: Arc<JobRecords>, cache_limit: usize) -> DescriptionStore {
        DescriptionStore {
            records,
            cache: Mutex::new(DescriptionCache::new(cache_limit)),
        }
    }

    /// Prepares a description to be committed with its result: writes its blob or its chunks. Returns the reason
    /// if no store accepts it. Fails only if the term is over.
    pub(super) async fn prepare(
        &self,
        job: JobId,
        details: &pb::JobDetails,
    ) -> Result<Result<Prepared, String>, JobStoreError> {
        // The result's record, which is small, is in the same transaction.
        let share = self.records.pipeline().limits().bytes / 2;
        let record = DescriptionRecord(details.clone());
        let preparing = self
            .records
            .prepare_within_until_accepted(job, record, share);
        let prepared = match tokio::time::timeout(KEEP_TIMEOUT, preparing).await {
            Ok(Ok(prepared)) => prepared,
            Ok(Err(error)) => return not_kept(job, error),
            Err(_elapsed) => {
                warn!(%job, "a job's description is not kept: the blob store did not accept it in time");
                return Ok(Err(
                    "the blob store did not take it when the job ended".to_owned()
                ));
            }
        };
        if let Err(error) = self.records.put_chunks(job, &prepared).await {
            return not_kept(job, error);
        }
        failpoint("job.description-prepared").await;
        Ok(Ok(prepared))
    }

    /// Keeps in memory a description that the store has.
    pub(super) fn keep(&self, job: JobId, details: pb::JobDetails) {
        self.cache.lock().put(job, Arc::new(details));
    }

    /// Forgets descriptions that the store does not have any more.
    pub(super) fn forget(&self, jobs: &[JobId]) {
        let mut cache = self.cache.lock();
        for job in jobs {
            cache.forget(*job);
        }
    }

    /// Returns the full description of an ended job; if there is none, the short one and the reason.
    pub(super) async fn describe(&self, job: JobId, result: &pb::JobResult) -> pb::JobDetails {
        let short = result.details.clone().unwrap_or_default();
        if result.description.is_none() {
            return short;
        }
        let known = self.cache.lock().get(job);
        if let Some(known) = known {
            return (*known).clone();
        }
        match self.read(job).await {
            Ok(details) => (*details).clone(),
            Err(undescribed) => pb::JobDetails {
                undescribed,
                ..short
            },
        }
    }

    /// Reads a description, or returns why there is none.
    async fn read(&self, job: JobId) -> Result<Arc<pb::JobDetails>, String> {
        let reading = self.records.get::<DescriptionRecord>(job);
        match tokio::time::timeout(READ_TIMEOUT, reading).await {
            Ok(Ok(Some(stored))) => {
                let details = Arc::new(stored.record.0);
                self.cache.lock().put(job, details.clone());
                Ok(details)
            }
            Ok(Ok(None)) => Err("it is not kept any more".to_owned()),
            Err(_elapsed) => Err("the store gives no answer at present".to_owned()),
            Ok(Err(error)) => {
                self.records.note_unreadable(&error);
                warn!(%job, %error, "the description of an ended job can't be read");
                Err(format!("it can't be read: {error}"))
            }
        }
    }
}

/// Returns the reference to a prepared description that its result keeps.
pub(super) fn reference_to(prepared: &Prepared, details: &pb::JobDetails) -> pb::KeptDescription {
    pb::KeptDescription {
        size: details.encoded_len() as u64,
        blobs: prepared.blob.iter().map(Name::to_string).collect(),
        chunks: chunk_names(prepared).iter().map(Name::to_string).collect(),
    }
}

/// Returns why a description is not kept. Only the end of the term is an error; a refused description does not
/// keep its job from ending.
fn not_kept(job: JobId, error: JobStoreError) -> Result<Result<Prepared, String>, JobStoreError> {
    let reason = match &error {
        JobStoreError::NotWritten | JobStoreError::Unknown => return Err(error),
        JobStoreError::Refused(cause) if cause.is_over_limit() => {
            format!("it was too large to be kept: {cause}")
        }
        JobStoreError::OutOfSpace(cause) => format!("the store had no space for it: {cause}"),
        JobStoreError::Refused(_)
        | JobStoreError::NotUploaded(_)
        | JobStoreError::NotRestored(_) => {
            format!("it could not be kept: {error}")
        }
    };
    warn!(%job, %error, "a job's description is not kept");
    Ok(Err(reason))
}
