//! How the end of a job is written: result and description replace graph, state and checkpoints in one transaction.
//! They are removed after the retention time, with the checkpoints that were retained.
//!
//! A job that its JobMaster has ended is not led again, so its result is written in any case: after waiting for space
//! in the store; without its description, if no store accepts that; without details, if it is too large. Only the end
//! of the term stops this. Where a job without a JobMaster is cancelled, the first failure is returned instead.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::{kinds, manifests, savepoints, shorten};
use tanist_ha::Error;
use tanist_ha::keys::Name;
use tanist_ha::records::store::Prepared;
use tanist_ha::retry::Backoff;
use tanist_proto::id::JobId;
use tanist_proto::manifest;
use tanist_proto::v1 as pb;
use tanist_proto::v1::stored_manifest::Place;
use tracing::{error, info, warn};

use super::JobStore;
use super::description_store::reference_to;
use super::error::JobStoreError;
use super::hidden_output::{hidden_output, remove_all};
use super::job_records::chunk_names;
use super::records::{CheckpointsRecord, ResultRecord, job_id};
use super::transaction::Transaction;
use crate::cleanup::HiddenOutput;
use crate::descriptions::{Dropped, in_short, is_short};

const FIRST_RETRY: Duration = Duration::from_millis(50);
/// Maximum delay until a result is written again. Its description is written again each time.
const SLOWEST_RETRY: Duration = Duration::from_secs(60);
/// Timeout for removing what sinks have hidden in one directory, when nothing remembers it any more.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(10);

/// What stays of an ended job until its result is removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kept {
    These {
        /// Objects of its checkpoints.
        objects: BTreeSet<String>,
        output: HiddenOutput,
    },
    /// Everything of its checkpoints and sinks: what is retained can't be read.
    All,
}

impl Default for Kept {
    /// Nothing.
    fn default() -> Kept {
        Kept::These {
            objects: BTreeSet::new(),
            output: HiddenOutput::default(),
        }
    }
}

/// Length in bytes to which the cause of a result is cut that is too large for the store.
const KEPT_CAUSE: usize = 4096;

/// What stays of the checkpoints of a job that ends.
#[derive(Debug, Clone, Default)]
pub(crate) enum Retained {
    /// Nothing: their record goes with the job.
    #[default]
    Nothing,
    /// What this record retains.
    Record(Arc<pb::JobCheckpoints>),
    /// Their record can't be read. It stays as it is, with everything in the job's directory.
    Unread,
}

impl JobStore {
    /// What stays of the checkpoints of a job that ends without a JobMaster. Adds to its result what is to be cleaned
    /// up after savepoints. A read that fails and may succeed later is an error.
    pub(crate) async fn retained_without_job_master(
        &self,
        job: JobId,
        result: &mut pb::JobResult,
    ) -> Result<Retained, JobStoreError> {
        let reading = self.checkpoints.read_once(job, &self.records, &self.ledger);
        let record = match reading.await {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(Retained::Nothing),
            Err(JobStoreError::Refused(error)) if !error.may_pass() => {
                warn!(%job, %error, "the checkpoints of a job that ends can't be read: they are kept until its result is removed");
                return Ok(Retained::Unread);
            }
            Err(error) => return Err(error),
        };
        let is_kept = manifests::is_retained(result.status(), record.retention());
        let newest = record.retained.last().map(newest_alone);
        let record = manifests::ended(record, is_kept);
        if let Some(details) = &mut result.details {
            let kept = record.retained.last().map_or(0, |kept| kept.number);
            let checkpoints = details.checkpoints.get_or_insert_default();
            checkpoints.history.extend(newest);
            checkpoints.started_from.clone_from(&record.started_from);
            checkpoints.set_retention(record.retention());
            checkpoints.kept = kept;
        }
        result.remove.get_or_insert_default().savepoints = savepoints::failed_paths(&record);
        Ok(match record.retained.is_empty() {
            true => Retained::Nothing,
            false => Retained::Record(Arc::new(record)),
        })
    }

    /// Like [`JobStore::put_result`], but retries; fails only if the term is over. Nothing else retries for
    /// a job that has ended.
    pub(crate) async fn put_result_until_written(
        &self,
        result: pb::JobResult,
        retained: &Retained,
    ) -> Result<pb::JobResult, JobStoreError> {
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        loop {
            match self.put_result_with(result.clone(), retained).await {
                Err(failure) if !failure.is_term_over() => {
                    let job = &result.job_id;
                    error!(%job, %failure, "the result of a job could not be written; writing is retried");
                }
                definite => return definite,
            }
            if !self.records.wait_to_retry(&mut backoff).await {
                return Err(JobStoreError::NotWritten);
            }
        }
    }

    /// Writes the (dirty) result of a job and removes its graph, state and checkpoints, in one transaction. Returns the
    /// result as written: it also names the blobs and chunks to remove.
    pub async fn put_result(&self, result: pb::JobResult) -> Result<pb::JobResult, JobStoreError> {
        self.put_result_with(result, &Retained::Nothing).await
    }

    /// The same, but the record of the checkpoints stays as `retained`, until the result is removed.
    pub(crate) async fn put_result_with(
        &self,
        mut result: pb::JobResult,
        retained: &Retained,
    ) -> Result<pb::JobResult, JobStoreError> {
        let job = job_id(&result.job_id)?;
        let objects = self.ledger.objects_of(job);
        if objects != pb::Cleanup::default() {
            let remove = result.remove.get_or_insert_default();
            remove.blobs.extend(objects.blobs);
            remove.chunks.extend(objects.chunks);
            remove.uploads.extend(objects.uploads);
        }
        if self.checkpoints.may_have_objects(job) {
            result.remove.get_or_insert_default().checkpoints = true;
        }
        let details = result.details.take().unwrap_or_default();
        if is_short(&details) {
            result.details = Some(details);
            self.put_short_result(job, &mut result, None, retained)
                .await?;
        } else {
            let putting = self.put_described_result(job, &mut result, details, retained);
            putting.await?;
        }
        // From here on the result names them.
        self.ledger.forget_running(job);
        // At no moment is a record that is retained unknown: another job may begin from it already.
        match retained {
            Retained::Record(record) => self.checkpoints.note_submitted(job, record),
            Retained::Unread => self.checkpoints.note_written(job),
            Retained::Nothing => self.checkpoints.forget(job),
        }
        self.origins.forget(job);
        Ok(result)
    }

    async fn put_described_result(
        &self,
        job: JobId,
        result: &mut pb::JobResult,
        details: pb::JobDetails,
        retained: &Retained,
    ) -> Result<(), JobStoreError> {
        let mut short = in_short(&details);
        let prepared = match self.descriptions.prepare(job, &details).await? {
            Ok(prepared) => Some(prepared),
            Err(undescribed) => {
                short.undescribed = undescribed;
                None
            }
        };
        result.details = Some(short);
        result.description = prepared.as_ref().map(|it| reference_to(it, &details));
        let description = prepared.as_ref();
        let putting = self.put_short_result(job, result, description, retained);
        let is_written = putting.await?;
        if is_written && let Some(prepared) = prepared {
            self.ledger.note_description(job, chunk_names(&prepared));
            self.descriptions.keep(job, details);
        }
        Ok(())
    }

    /// Writes the result. Returns whether the description was written as well.
    async fn put_short_result(
        &self,
        job: JobId,
        result: &mut pb::JobResult,
        description: Option<&Prepared>,
        retained: &Retained,
    ) -> Result<bool, JobStoreError> {
        let putting = self.try_put_result(job, result, description, retained);
        match putting.await {
            Err(error) if error.is_over_limit() => {
                warn!(%job, %error, "the result is too large for the store: it is written without details");
                if let Some(description) = description {
                    let chunks = chunk_names(description);
                    let removing = self.records.remove_refused_chunks(job, &chunks, &error);
                    removing.await;
                }
                result.details = None;
                result.description = None;
                shorten(&mut result.cause, KEPT_CAUSE);
                self.try_put_result(job, result, None, retained).await?;
                Ok(false)
            }
            other => other.map(|()| description.is_some()),
        }
    }

    async fn try_put_result(
        &self,
        job: JobId,
        result: &pb::JobResult,
        description: Option<&Prepared>,
        retained: &Retained,
    ) -> Result<(), JobStoreError> {
        let record = ResultRecord(result.clone());
        let prepared = self.records.prepare_until_accepted(job, record).await?;
        let mut transaction = Transaction::default()
            .put(job, prepared)
            .delete_but_keep_blob(job, kinds::GRAPHS)
            .delete_but_keep_blob(job, kinds::STATES);
        match retained {
            Retained::Record(record) => {
                let record = CheckpointsRecord((**record).clone());
                let prepared = self.records.prepare_until_accepted(job, record).await?;
                transaction = transaction.put(job, prepared);
            }
            Retained::Nothing if self.checkpoints.may_have_objects(job) => {
                transaction = transaction.delete_but_keep_blob(job, kinds::CHECKPOINTS);
            }
            Retained::Nothing | Retained::Unread => {}
        }
        if let Some(description) = description {
            transaction = transaction.put(job, description.clone());
        }
        self.commit_until_space(transaction).await
    }

    /// Replaces a result whose cleanup has finished.
    pub async fn put_clean_result(&self, result: &pb::JobResult) -> Result<(), JobStoreError> {
        let job = job_id(&result.job_id)?;
        let record = ResultRecord(result.clone());
        let prepared = self.records.prepare_until_accepted(job, record).await?;
        let transaction = Transaction::default().put(job, prepared);
        self.commit_until_space(transaction).await
    }

    /// The same, tried once: does not wait for a store without space or a blob store that does not answer.
    pub(crate) async fn try_clean_result(
        &self,
        result: &pb::JobResult,
    ) -> Result<(), JobStoreError> {
        let job = job_id(&result.job_id)?;
        let record = ResultRecord(result.clone());
        let prepared = self.records.prepare_or_time_out(job, record).await?;
        self.commit(Transaction::default().put(job, prepared)).await
    }

    /// Drops surplus descriptions and keeps their results. Each is tried once, as expired results are removed
    /// afterwards; the first failure stops it.
    pub(crate) async fn drop_descriptions(&self, results: Vec<pb::JobResult>) -> Dropped {
        let mut left = Vec::with_capacity(results.len());
        for mut result in results {
            result.description = None;
            result.details.get_or_insert_default().undescribed =
                "it was dropped: more jobs have ended than jobstore.max-capacity keeps descriptions for"
                    .to_owned();
            match self.drop_description(&result).await {
                Ok(()) => left.push(result),
                Err(failure) => {
                    let failure = Some(failure);
                    return Dropped { left, failure };
                }
            }
        }
        Dropped {
            left,
            failure: None,
        }
    }

    /// Replaces a result by one without a description, and removes the description.
    async fn drop_description(&self, result: &pb::JobResult) -> Result<(), JobStoreError> {
        let job = job_id(&result.job_id)?;
        let record = ResultRecord(result.clone());
        let prepared = self.records.prepare_or_time_out(job, record).await?;
        let transaction = Transaction::default().put(job, prepared);
        let transaction = transaction.delete(job, kinds::DESCRIPTIONS);
        self.commit(transaction).await?;
        info!(%job, "the description of an ended job is dropped: it was the oldest beyond jobstore.max-capacity");
        let chunks = self.forget_descriptions(&[job]);
        if let Err(failure) = self.records.remove_chunks(&chunks).await {
            warn!(%job, %failure, "the chunks of a description are left to the next term");
        }
        Ok(())
    }

    /// Forgets dropped descriptions. Returns the chunks that held them.
    fn forget_descriptions(&self, jobs: &[JobId]) -> Vec<Name> {
        self.descriptions.forget(jobs);
        self.ledger.forget_descriptions(jobs)
    }

    /// Whether the store contains a job that has not ended.
    pub async fn has_unended_jobs(&self) -> Result<bool, Error> {
        for kind in [kinds::GRAPHS, kinds::STATES] {
            let listed = self.coordination_store().list(kind, None, 1).await?;
            if !listed.items.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes all clean results from the store. Returns true if no other result is left. An unreadable result
    /// stays, as it may name leftovers that must be removed.
    pub async fn delete_clean_results(&self) -> Result<bool, JobStoreError> {
        let listed = self.records.list::<ResultRecord>().await;
        let listed = listed.map_err(JobStoreError::Refused)?;
        let number = listed.len();
        let (clean, results): (Vec<JobId>, Vec<pb::JobResult>) = listed
            .into_iter()
            .filter_map(|(name, stored)| Some((name.as_str().parse().ok()?, stored.ok()?.record.0)))
            .filter(|(_, result): &(JobId, pb::JobResult)| !result.dirty)
            .unzip();
        self.remove_hidden_output(&results).await;
        self.delete_results(&clean).await?;
        Ok(clean.len() == number)
    }

    /// Those of these ended jobs of which a checkpoint is retained, or may be.
    pub(crate) async fn with_retained(&self, jobs: &BTreeSet<JobId>) -> BTreeSet<JobId> {
        let mut found = BTreeSet::new();
        for job in jobs {
            let record = self
                .checkpoints
                .read(*job, &self.records, &self.ledger)
                .await;
            let is_none = record.is_ok_and(|record| record.is_none_or(|it| it.retained.is_empty()));
            if !is_none {
                found.insert(*job);
            }
        }
        found
    }

    /// Removes what sinks of these jobs have hidden, as nothing is retained of them any more.
    async fn remove_hidden_output(&self, results: &[pb::JobResult]) {
        let Some(sinks) = &self.sinks else {
            return;
        };
        for result in results {
            let (Ok(job), Some(remove)) = (job_id(&result.job_id), &result.remove) else {
                continue;
            };
            let directories = remove.sink_directories.iter();
            remove_all(&**sinks, directories, (job, &remove.run), CLEAN_TIMEOUT).await;
        }
    }

    /// Removes results and their descriptions.
    pub async fn delete_results(&self, jobs: &[JobId]) -> Result<(), JobStoreError> {
        for some in jobs.chunks((self.records.writes_at_once() / 3).max(1)) {
            let delete = |transaction: Transaction, job: &JobId| {
                let transaction = transaction.delete(*job, kinds::RESULTS);
                let transaction = transaction.delete(*job, kinds::DESCRIPTIONS);
                match self.checkpoints.may_have_objects(*job) {
                    true => transaction.delete(*job, kinds::CHECKPOINTS),
                    false => transaction,
                }
            };
            let transaction = some.iter().fold(Transaction::default(), delete);
            self.commit(transaction).await?;
            self.ledger.forget_results(some);
            for job in some {
                self.checkpoints.forget(*job);
                self.origins.forget(*job);
            }
            let chunks = self.forget_descriptions(some);
            self.records.remove_chunks(&chunks).await?;
        }
        Ok(())
    }

    /// What an ended job's retained checkpoints name: its cleanup leaves it. Waits for the stores without
    /// limit; fails only if the term is over.
    pub(crate) async fn kept_objects(&self, job: JobId) -> Result<Kept, JobStoreError> {
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        loop {
            let reason = match self.try_kept_objects(job).await {
                Ok(kept) => return Ok(kept),
                Err(error) if error.is_term_over() => return Err(error),
                Err(JobStoreError::Refused(error)) if error.may_pass() => error.to_string(),
                Err(error) => {
                    warn!(%job, %error, "a retained checkpoint can't be read: all objects of checkpoints of the job are kept, and its hidden output");
                    return Ok(Kept::All);
                }
            };
            warn!(%job, reason, "a retained checkpoint can't be read; reading is retried");
            if !self.records.wait_to_retry(&mut backoff).await {
                return Err(JobStoreError::NotWritten);
            }
        }
    }

    async fn try_kept_objects(&self, job: JobId) -> Result<Kept, JobStoreError> {
        let record = self
            .checkpoints
            .read(job, &self.records, &self.ledger)
            .await?;
        let (mut objects, mut output) = (BTreeSet::new(), HiddenOutput::default());
        for retained in record.unwrap_or_default().retained {
            let stored = retained.manifest.as_ref();
            let bytes = self.manifest_of(job, stored).await;
            let manifest = manifest::decode(&bytes.map_err(JobStoreError::Refused)?);
            let manifest = manifest.map_err(|error| {
                let key = format!("checkpoints/{job}");
                let reason = error.to_string();
                JobStoreError::Refused(Error::Corrupt { key, reason })
            })?;
            objects.extend(savepoints::objects_of(&manifest));
            let hidden = hidden_output(&retained, &manifest);
            output.files.extend(hidden.files);
            output.uncommitted.extend(hidden.uncommitted);
            if let Some(Place::Object(object)) = stored.and_then(|it| it.place.as_ref()) {
                objects.insert(object.name.clone());
            }
        }
        Ok(Kept::These { objects, output })
    }

    /// Removes the chunks that a job's result names. Waits for space in the store without limit; fails only if
    /// the term is over.
    pub(crate) async fn clean_chunks(
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
        self.records.remove_chunks_until_space(&names).await
    }
}

/// What the description of a job without a JobMaster has of its newest checkpoint.
fn newest_alone(newest: &pb::CompletedCheckpoint) -> pb::CheckpointSummary {
    pb::CheckpointSummary {
        number: newest.number,
        outcome: pb::CheckpointOutcome::Completed.into(),
        triggered_at_ms: newest.triggered_at_ms,
        size: newest.size,
        ..pb::CheckpointSummary::default()
    }
}
