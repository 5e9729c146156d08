//! How a submission is written: graph and state of the job are one transaction, with the record of its checkpoints if
//! it begins from a savepoint.
//!
//! Uploads that the graph names must exist when it is written. A job protects all its uploads from before the check
//! until its result names those to be removed; a graph that names an upload that has a tombstone by then is refused
//! (`orphan_gc.rs`). So the uploads of an acknowledged graph exist as long as the graph.

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tanist_gateway::kinds;
use tanist_ha::failpoint::failpoint;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::JobStore;
use super::error::JobStoreError;
use super::job_records::chunk_names;
use super::records::{CheckpointsRecord, GraphRecord, StateRecord, job_id};
use super::transaction::Transaction;
use crate::uploads::pointer_of;

/// Number of uploads that are checked at the same time.
const CHECKS_IN_FLIGHT: usize = 8;

impl JobStore {
    /// Writes graph and state of a new job in one transaction. The chunks of a split graph are written before it.
    pub async fn put_submission(
        &self,
        graph: &pb::JobGraph,
        state: &pb::JobState,
    ) -> Result<(), JobStoreError> {
        self.put_with_checkpoints(graph, state, None, None).await
    }

    /// The same with the record of its checkpoints, if it begins from a savepoint. The retained checkpoint of the ended
    /// job `claimed` leaves the record of that job, which is deleted.
    pub(super) async fn put_with_checkpoints(
        &self,
        graph: &pb::JobGraph,
        state: &pb::JobState,
        checkpoints: Option<&pb::JobCheckpoints>,
        claimed: Option<JobId>,
    ) -> Result<(), JobStoreError> {
        let job = job_id(&graph.job_id)?;
        let is_first = self.ledger.protect(job);
        let written = self
            .try_put_submission(job, graph, state, (checkpoints, claimed))
            .await;
        // If it may be stored, by this term or another one, its uploads stay protected until it has ended.
        if is_first && written.as_ref().is_err_and(|error| !error.is_term_over()) {
            self.ledger.unprotect(job);
        }
        written
    }

    async fn try_put_submission(
        &self,
        job: JobId,
        graph: &pb::JobGraph,
        state: &pb::JobState,
        (checkpoints, claimed): (Option<&pb::JobCheckpoints>, Option<JobId>),
    ) -> Result<(), JobStoreError> {
        self.check_uploads(graph).await?;
        // The graph is prepared last: its blob would be orphaned if a step before the commit failed.
        let state = self
            .records
            .prepare(job, StateRecord(state.clone()))
            .await?;
        let mut transaction = Transaction::default().put(job, state);
        if let Some(record) = checkpoints {
            let record = CheckpointsRecord(record.clone());
            transaction = transaction.put(job, self.records.prepare(job, record).await?);
        }
        if let Some(ended) = claimed {
            transaction = transaction.delete(ended, kinds::CHECKPOINTS);
        }
        let record = GraphRecord(graph.clone());
        let prepared = self.records.prepare(job, record).await?;
        self.records.put_chunks(job, &prepared).await?;
        if !prepared.chunks.is_empty() {
            failpoint("submit.chunks-written").await;
        }
        let chunks = chunk_names(&prepared);
        if let Err(error) = self.commit(transaction.put(job, prepared)).await {
            let removing = self.records.remove_refused_chunks(job, &chunks, &error);
            removing.await;
            return Err(error);
        }
        self.ledger.note_graph(job, chunks, graph);
        if let Some(record) = checkpoints {
            self.checkpoints.note_submitted(job, record);
            self.origins.note(job, record);
        }
        if let Some(ended) = claimed {
            self.checkpoints.forget(ended);
        }
        Ok(())
    }

    /// Checks that all uploads of a graph exist and will stay. The job must be protected already.
    async fn check_uploads(&self, graph: &pb::JobGraph) -> Result<(), JobStoreError> {
        let named = graph.artifacts.iter();
        let named = named.filter_map(|artifact| Some((artifact, artifact.uploaded.as_ref()?)));
        let checks = named.map(|(artifact, uploaded)| self.check_upload(artifact, uploaded));
        let checks: Vec<_> = checks.collect();
        let checking = stream::iter(checks).buffer_unordered(CHECKS_IN_FLIGHT);
        checking.try_collect::<()>().await
    }

    async fn check_upload(
        &self,
        artifact: &pb::Artifact,
        uploaded: &pb::UploadedContent,
    ) -> Result<(), JobStoreError> {
        let refused = |what: &str| {
            let name = &artifact.name;
            JobStoreError::NotUploaded(format!("artifact `{name}` {what}: upload it again"))
        };
        let Some(blobs) = self.records.blobs().filter(|it| it.survives_host()) else {
            return Err(refused("can't have been uploaded to this cluster"));
        };
        let pointer = pointer_of(artifact, uploaded);
        let pointer = pointer.ok_or_else(|| refused("names no upload"))?;
        let names = pointer.piece_names().map_err(JobStoreError::Refused)?;
        if self.ledger.has_tombstone(&names) {
            return Err(refused("was uploaded too long ago"));
        }
        match blobs.has_upload(&pointer).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(refused("is not there any more")),
            Err(error) => Err(JobStoreError::Refused(error)),
        }
    }
}
