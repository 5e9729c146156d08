//! The records of checkpoints as a term finds them.
//!
//! Invariant: only the JobMaster of a job writes its record, after its submission and until its result. So what the
//! term's beginning has proven stays true until a JobMaster of this term takes it; after that the record is read from
//! the store.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tanist_gateway::kinds;
use tanist_ha::Error;
use tanist_ha::keys::Name;
use tanist_ha::records::store::Stored;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::warn;

use super::blob_ledger::BlobLedger;
use super::error::JobStoreError;
use super::job_records::{JobRecords, store_backoff};
use super::origins::Origins;
use super::records::CheckpointsRecord;

/// The records of checkpoints; see the module.
#[derive(Debug, Default)]
pub(super) struct CheckpointRecords {
    state: Mutex<RecordsOfTerm>,
}

#[derive(Debug, Default)]
struct RecordsOfTerm {
    /// Records as proven at the beginning of the term, until they are taken.
    found: BTreeMap<JobId, pb::JobCheckpoints>,
    /// Jobs that have or had a record in this term, and whose record is to be read from the store.
    known: BTreeSet<JobId>,
}

impl CheckpointRecords {
    /// Keeps the records that were found at the beginning of the term.
    pub(super) fn recover(
        &self,
        records: Vec<(Name, Result<Stored<CheckpointsRecord>, Error>)>,
        ledger: &BlobLedger,
        origins: &Origins,
    ) {
        let mut state = self.state.lock();
        for (name, stored) in records {
            let Ok(job) = name.as_str().parse::<JobId>() else {
                warn!(%name, "a record of checkpoints is ignored: its name is not a job id");
                continue;
            };
            match stored {
                Ok(stored) => {
                    ledger.note_blob(job, kinds::CHECKPOINTS, stored.blob);
                    origins.note(job, &stored.record.0);
                    state.found.insert(job, stored.record.0);
                }
                // The job's JobMaster finds out why.
                Err(_) => {
                    origins.note_unreadable(job);
                    state.known.insert(job);
                }
            }
        }
    }

    /// Records that a record is about to be written: from here on it is read from the store.
    pub(super) fn note_written(&self, job: JobId) {
        let mut state = self.state.lock();
        state.found.remove(&job);
        state.known.insert(job);
    }

    /// Records what the transaction of the job's submission, or of its result, has written.
    pub(super) fn note_submitted(&self, job: JobId, record: &pb::JobCheckpoints) {
        self.state.lock().found.insert(job, record.clone());
    }

    /// Whether checkpoints of a job may have been taken.
    pub(super) fn may_have_objects(&self, job: JobId) -> bool {
        let state = self.state.lock();
        state.found.contains_key(&job) || state.known.contains(&job)
    }

    /// The record of a job was deleted.
    pub(super) fn forget(&self, job: JobId) {
        let mut state = self.state.lock();
        state.found.remove(&job);
        state.known.remove(&job);
    }

    /// The record of a job, after all earlier writes of this process. Waits while it can't be read for now.
    pub(super) async fn read(
        &self,
        job: JobId,
        records: &JobRecords,
        ledger: &BlobLedger,
    ) -> Result<Option<pb::JobCheckpoints>, JobStoreError> {
        let mut backoff = store_backoff();
        loop {
            match self.read_once(job, records, ledger).await {
                Err(JobStoreError::Refused(error)) if error.may_pass() => {
                    warn!(%job, %error, "the checkpoints of a job can't be read; reading is retried");
                }
                definite => return definite,
            }
            if !records.wait_to_retry(&mut backoff).await {
                return Err(JobStoreError::NotWritten);
            }
        }
    }

    /// The same, tried once.
    pub(super) async fn read_once(
        &self,
        job: JobId,
        records: &JobRecords,
        ledger: &BlobLedger,
    ) -> Result<Option<pb::JobCheckpoints>, JobStoreError> {
        {
            let mut state = self.state.lock();
            if let Some(found) = state.found.remove(&job) {
                state.known.insert(job);
                return Ok(Some(found));
            }
            if !state.known.contains(&job) {
                return Ok(None);
            }
        }
        records.confirm_term().await?;
        match records.get::<CheckpointsRecord>(job).await {
            Ok(Some(stored)) => {
                ledger.note_blob(job, kinds::CHECKPOINTS, stored.blob);
                Ok(Some(stored.record.0))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                if !error.may_pass() {
                    records.note_unreadable(&error);
                }
                Err(JobStoreError::Refused(error))
            }
        }
    }
}
