//! How the end of a job is written: result and description replace graph and state. They are removed after the
//! retention time.

use std::time::Duration;

use prost::Message as _;
use tanist_ha::Error;
use tanist_ha::jobs::store::Prepared;
use tanist_ha::keys::{Key, Kind};
use tanist_ha::retry::Backoff;
use tanist_ha::store::Write;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::{error, warn};

use super::commits::BLOB_TIMEOUT;
use super::descriptions::{self, PreparedDescription};
use super::job_store::{FIRST_RETRY, JobStore, JobStoreError, ResultRecord, job_id, name_of};

/// Maximum delay until a result is written again. Its description is written again each time.
const SLOWEST_RESULT_RETRY: Duration = Duration::from_secs(60);

impl JobStore {
    /// Like [`JobStore::put_result`], but retries; fails only if the term is over. No one else would retry for
    /// a job that has ended.
    pub(super) async fn put_result_surely(
        &self,
        result: pb::JobResult,
    ) -> Result<pb::JobResult, JobStoreError> {
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RESULT_RETRY);
        loop {
            match self.put_result(result.clone()).await {
                Ok(written) => return Ok(written),
                Err(over @ (JobStoreError::NotWritten | JobStoreError::Unknown)) => {
                    return Err(over);
                }
                Err(
                    failure @ (JobStoreError::OutOfSpace(_)
                    | JobStoreError::Refused(_)
                    | JobStoreError::NotUploaded(_)),
                ) => {
                    let job = &result.job_id;
                    error!(%job, %failure, "the result of a job could not be written; writing is retried");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay()) => {}
                () = self.pipeline.ended() => return Err(JobStoreError::NotWritten),
            }
        }
    }

    /// Writes the (dirty) result of a job and removes its graph and state, in one transaction. Returns the
    /// result as written: it also names the blobs and chunks to remove.
    pub async fn put_result(
        &self,
        mut result: pb::JobResult,
    ) -> Result<pb::JobResult, JobStoreError> {
        let job = job_id(&result.job_id)?;
        let objects = self.ledger.objects_of(job);
        if objects != pb::Cleanup::default() {
            let remove = result.remove.get_or_insert_default();
            remove.blobs.extend(objects.blobs);
            remove.chunks.extend(objects.chunks);
            remove.uploads.extend(objects.uploads);
        }
        let details = result.details.take().unwrap_or_default();
        if descriptions::is_short(&details) {
            result.details = Some(details);
            self.put_short_result(job, &mut result, &PreparedDescription::default())
                .await?;
        } else {
            self.put_described_result(job, &mut result, details).await?;
        }
        // From here on the result names them.
        self.ledger.forget_graph_and_state(job);
        Ok(result)
    }

    async fn put_described_result(
        &self,
        job: JobId,
        result: &mut pb::JobResult,
        details: pb::JobDetails,
    ) -> Result<(), JobStoreError> {
        let mut short = descriptions::in_short(&details);
        let prepared = match self.prepare_description(job, &details).await? {
            Ok(prepared) => prepared,
            Err(undescribed) => {
                short.undescribed = undescribed;
                PreparedDescription::default()
            }
        };
        result.details = Some(short);
        result.description = prepared.kept(details.encoded_len());
        if self.put_short_result(job, result, &prepared).await? {
            self.note_described(job, &prepared, details);
        }
        Ok(())
    }

    /// Writes the result. Returns whether the description was written as well.
    async fn put_short_result(
        &self,
        job: JobId,
        result: &mut pb::JobResult,
        prepared: &PreparedDescription,
    ) -> Result<bool, JobStoreError> {
        match self.try_put_result(job, result, prepared).await {
            Err(error @ JobStoreError::Refused(Error::TooLarge { .. })) => {
                warn!(%job, %error, "the result is too large for the store: it is written without details");
                self.take_back(job, &prepared.chunks, &error).await;
                result.details = None;
                result.description = None;
                result.cause = shortened(&result.cause);
                let none = PreparedDescription::default();
                self.try_put_result(job, result, &none).await?;
                Ok(false)
            }
            other => other.map(|()| prepared.write.is_some()),
        }
    }

    async fn try_put_result(
        &self,
        job: JobId,
        result: &pb::JobResult,
        description: &PreparedDescription,
    ) -> Result<(), JobStoreError> {
        let prepared = self
            .prepare_surely(job, ResultRecord(result.clone()))
            .await?;
        let delete = |kind| Write::Delete {
            key: Key::new(kind, name_of(job)),
        };
        let mut writes = vec![prepared.write, delete(Kind::Graphs), delete(Kind::States)];
        writes.extend(description.write.clone());
        let written = vec![
            (job, Kind::Results, prepared.blob),
            (job, Kind::Descriptions, description.blob.clone()),
        ];
        self.commit_surely(writes, written).await
    }

    /// Replaces a result whose cleanup has finished.
    pub async fn put_clean_result(&self, result: &pb::JobResult) -> Result<(), JobStoreError> {
        let job = job_id(&result.job_id)?;
        let prepared = self
            .prepare_surely(job, ResultRecord(result.clone()))
            .await?;
        let written = vec![(job, Kind::Results, prepared.blob)];
        self.commit_surely(vec![prepared.write], written).await
    }

    /// The same, tried once: does not wait for a store without space or a blob store that does not answer.
    pub(super) async fn try_clean_result(
        &self,
        result: &pb::JobResult,
    ) -> Result<(), JobStoreError> {
        let job = job_id(&result.job_id)?;
        let prepared = self.prepare_once(job, result).await?;
        let written = vec![(job, Kind::Results, prepared.blob)];
        self.commit(vec![prepared.write], written).await
    }

    /// Replaces a result by one without a description, and removes the description. Tried once, like the one
    /// above, as expired results are removed after it.
    pub(super) async fn put_undescribed(
        &self,
        job: JobId,
        result: &pb::JobResult,
    ) -> Result<(), JobStoreError> {
        let prepared = self.prepare_once(job, result).await?;
        let written = vec![
            (job, Kind::Results, prepared.blob),
            (job, Kind::Descriptions, None),
        ];
        let writes = vec![prepared.write, descriptions::delete(job)];
        self.commit(writes, written).await
    }

    async fn prepare_once(
        &self,
        job: JobId,
        result: &pb::JobResult,
    ) -> Result<Prepared, JobStoreError> {
        let preparing = self.prepare(job, ResultRecord(result.clone()));
        let prepared = tokio::time::timeout(BLOB_TIMEOUT, preparing).await;
        prepared.unwrap_or_else(|_elapsed| {
            Err(JobStoreError::Refused(Error::Unavailable {
                store: "the blob store",
                reason: format!("it has given no answer for {BLOB_TIMEOUT:?}"),
            }))
        })
    }

    /// Whether the store contains a job that has not ended.
    pub async fn has_unended_jobs(&self) -> Result<bool, Error> {
        for kind in [Kind::Graphs, Kind::States] {
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
        let clean: Vec<JobId> = listed
            .into_iter()
            .filter(|(_, stored)| matches!(stored, Ok(stored) if !stored.record.0.dirty))
            .filter_map(|(name, _)| name.as_str().parse().ok())
            .collect();
        self.delete_results(&clean).await?;
        Ok(clean.len() == number)
    }

    /// Removes results and their descriptions.
    pub async fn delete_results(&self, jobs: &[JobId]) -> Result<(), JobStoreError> {
        for some in jobs.chunks((self.pipeline.limits().writes / 2).max(1)) {
            let delete = |job: &JobId| {
                let key = Key::new(Kind::Results, name_of(*job));
                [Write::Delete { key }, descriptions::delete(*job)]
            };
            let kinds = [Kind::Results, Kind::Descriptions];
            let gone = some
                .iter()
                .flat_map(|job| kinds.map(|kind| (*job, kind, None)));
            self.commit(some.iter().flat_map(delete).collect(), gone.collect())
                .await?;
            self.ledger.forget_unreadable_results(some);
            let chunks = self.forget_descriptions(some);
            self.remove_chunks(&chunks).await?;
        }
        Ok(())
    }
}

/// Returns the beginning of a cause that is too long to keep.
fn shortened(cause: &str) -> String {
    cause.chars().take(4096).collect()
}
