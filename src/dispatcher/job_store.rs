//! A term's jobs in the store: what is written in one transaction, and what recovery finds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use prost::Message;
use tanist_ha::election::Epoch;
use tanist_ha::failpoint::failpoint;
use tanist_ha::jobs::store::{Prepared, Record, RecordStore, Stored};
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::retry::Backoff;
use tanist_ha::store::cache::Records;
use tanist_ha::store::pipeline::{CommitError, CommitPipeline};
use tanist_ha::store::{Change, CoordinationStore, Write};
use tanist_ha::{Error, Outcome};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::warn;

use super::parts::KnownParts;
use crate::gateway::GatewayError;
use crate::gateway::persistence::{JobStateStore, PersistError};

pub(super) const FIRST_RETRY: Duration = Duration::from_millis(50);
pub(super) const SLOWEST_RETRY: Duration = Duration::from_secs(5);

/// Why something about a job was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JobStoreError {
    /// It was not and will not be written: the term is over.
    #[error("not written: this JobManager does not lead any more")]
    NotWritten,
    /// The term is over, and the next one knows.
    #[error("this JobManager does not lead any more, and whether this was written is not known")]
    Unknown,
    /// The store has no space for it at present; it was not written.
    #[error("not written: {0}; try again when there is space")]
    OutOfSpace(Error),
    /// The store does not take it.
    #[error(transparent)]
    Refused(Error),
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
            JobStoreError::NotWritten | JobStoreError::OutOfSpace(_) => {
                GatewayError::NotYet(error.to_string())
            }
            JobStoreError::Unknown => GatewayError::Unknown(error.to_string()),
            JobStoreError::Refused(Error::TooLarge { .. }) => {
                GatewayError::Invalid(error.to_string())
            }
            JobStoreError::Refused(_) => GatewayError::Internal(error.to_string()),
        }
    }
}

/// What recovery finds.
#[derive(Debug, Default)]
pub struct RecoveredJobs {
    /// Jobs that are not terminal.
    pub jobs: Vec<(JobId, RecoveredJob)>,
    /// Jobs that ended, clean or not.
    pub results: Vec<(JobId, pb::JobResult)>,
    /// Jobs that ended, with results that can't be read, and why.
    pub unreadable_results: Vec<(JobId, String)>,
}

/// A job that is not terminal.
#[derive(Debug)]
pub enum RecoveredJob {
    /// Both records are there.
    Readable {
        /// What is to run.
        graph: Box<pb::JobGraph>,
        /// How far it is.
        state: Box<pb::JobState>,
    },
    /// One of them is missing or can't be read.
    Unreadable {
        /// Why.
        reason: String,
        /// The state, if at least that can be read.
        state: Option<Box<pb::JobState>>,
    },
}

/// Writes and reads the records of one term's jobs.
#[derive(Debug)]
pub struct JobStore {
    pub(super) records: RecordStore,
    pub(super) pipeline: CommitPipeline,
    pub(super) epoch: Epoch,
    /// The blobs that records point to.
    blobs: Mutex<BTreeMap<(JobId, Kind), Name>>,
    /// The parts that graphs point to.
    parts: Mutex<KnownParts>,
}

impl JobStore {
    /// What a term needs to recover its jobs.
    pub const KINDS: [Kind; 5] = [
        Kind::Graphs,
        Kind::Parts,
        Kind::States,
        Kind::Results,
        Kind::Applications,
    ];

    /// The jobs of the term whose pipeline this is.
    pub fn new(records: RecordStore, pipeline: CommitPipeline, epoch: Epoch) -> JobStore {
        JobStore {
            records,
            pipeline,
            epoch,
            blobs: Mutex::default(),
            parts: Mutex::default(),
        }
    }

    /// What this store writes through.
    pub fn pipeline(&self) -> &CommitPipeline {
        &self.pipeline
    }

    /// The last committed transaction.
    pub fn last_change(&self) -> Change {
        self.pipeline.last()
    }

    /// The store below.
    pub fn coordination_store(&self) -> &Arc<dyn CoordinationStore> {
        self.records.coordination_store()
    }

    /// Writes graph and state of a new job in one transaction; before it the graph's parts, if it is split.
    pub async fn put_submission(
        &self,
        graph: &pb::JobGraph,
        state: &pb::JobState,
    ) -> Result<(), JobStoreError> {
        let job = job_id(&graph.job_id)?;
        // The graph last: what was uploaded for it would be left if anything failed before the commit.
        let state = self.prepare(job, StateRecord(state.clone())).await?;
        let graph = self.prepare(job, GraphRecord(graph.clone())).await?;
        self.write_parts(job, &graph.parts).await?;
        if !graph.parts.is_empty() {
            failpoint("submit.parts-written").await;
        }
        let written = vec![
            (job, Kind::Graphs, graph.blob),
            (job, Kind::States, state.blob),
        ];
        let committed = self.commit(vec![graph.write, state.write], written).await;
        match &committed {
            Ok(()) => {
                let names = graph.parts.iter().map(|part| part.key().name.clone());
                self.lock_parts().note(job, names.collect());
            }
            Err(error) => self.take_back(job, &graph.parts, error).await,
        }
        committed
    }

    /// Writes the (dirty) result of a job and removes its graph and state, in one transaction. Gives the result as it was
    /// written: it names the blobs and parts that have to be removed, too.
    pub async fn put_result(
        &self,
        mut result: pb::JobResult,
    ) -> Result<pb::JobResult, JobStoreError> {
        let job = job_id(&result.job_id)?;
        let pointed_to = [Kind::Graphs, Kind::States].map(|kind| (job, kind));
        let blobs: Vec<String> = {
            let known = self.lock_blobs();
            let found = pointed_to.iter().filter_map(|key| known.get(key));
            found.map(Name::to_string).collect()
        };
        if !blobs.is_empty() {
            result.remove.get_or_insert_default().blobs.extend(blobs);
        }
        let parts = self.lock_parts().of(job);
        if !parts.is_empty() {
            result.remove.get_or_insert_default().parts.extend(parts);
        }
        match self.try_put_result(job, &result).await {
            Err(JobStoreError::Refused(Error::TooLarge { size, limit, .. })) => {
                warn!(%job, size, limit, "the result is too large for the store: it is kept without details");
                result.details = None;
                result.cause = shortened(&result.cause);
                self.try_put_result(job, &result).await?;
            }
            other => other?,
        }
        // The result names them from here on.
        self.lock_blobs().retain(|key, _| !pointed_to.contains(key));
        self.lock_parts().forget(job);
        Ok(result)
    }

    async fn try_put_result(
        &self,
        job: JobId,
        result: &pb::JobResult,
    ) -> Result<(), JobStoreError> {
        let prepared = self
            .prepare_surely(job, ResultRecord(result.clone()))
            .await?;
        let delete = |kind| Write::Delete {
            key: Key::new(kind, name_of(job)),
        };
        let writes = vec![prepared.write, delete(Kind::Graphs), delete(Kind::States)];
        self.commit_surely(writes, vec![(job, Kind::Results, prepared.blob)])
            .await
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

    /// Forgets results whose retention time is over.
    pub async fn delete_results(&self, jobs: &[JobId]) -> Result<(), JobStoreError> {
        for some in jobs.chunks(self.pipeline.limits().writes.max(1)) {
            let delete = |job: &JobId| Write::Delete {
                key: Key::new(Kind::Results, name_of(*job)),
            };
            let gone = some.iter().map(|job| (*job, Kind::Results, None)).collect();
            self.commit(some.iter().map(delete).collect(), gone).await?;
        }
        Ok(())
    }

    /// Every job, from the records as they were proven to be at the beginning of the term.
    pub async fn recover(&self, records: &Records) -> Result<RecoveredJobs, Error> {
        let (graphs, states, results) = tokio::try_join!(
            self.records.decode::<GraphRecord>(records),
            self.records.decode::<StateRecord>(records),
            self.records.decode::<ResultRecord>(records),
        )?;
        let mut recovered = RecoveredJobs::default();
        for (name, result) in results {
            match (name.as_str().parse(), result) {
                (Ok(job), Ok(stored)) => {
                    self.note_blob(job, Kind::Results, stored.blob);
                    recovered.results.push((job, stored.record.0));
                }
                (Ok(job), Err(error)) => {
                    let unreadable = (job, error.to_string());
                    recovered.unreadable_results.push(unreadable);
                }
                (Err(error), _) => warn!(%name, %error, "a result that is no job's is ignored"),
            }
        }
        let mut states: BTreeMap<Name, _> = states.into_iter().collect();
        for (name, graph) in graphs {
            let state = states.remove(&name);
            let Ok(job) = name.as_str().parse::<JobId>() else {
                warn!(%name, "a graph that is no job's is ignored");
                continue;
            };
            let readable = self.recovered_job(job, Some(graph), state);
            recovered.jobs.push((job, readable));
        }
        for (name, state) in states {
            let Ok(job) = name.as_str().parse::<JobId>() else {
                continue;
            };
            let unreadable = self.recovered_job(job, None, Some(state));
            recovered.jobs.push((job, unreadable));
        }
        Ok(recovered)
    }

    /// Reads a job of this term again, after all that was to be written before. Waits for the store as long as the term
    /// lasts.
    pub async fn reread(&self, job: JobId) -> Result<RecoveredJob, JobStoreError> {
        let name = name_of(job);
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        loop {
            // What a JobMaster had under way when it ended is before this, or was never sent.
            match self.pipeline.commit(Vec::new()).await {
                // Refused after all that came before it.
                Ok(_) | Err(CommitError::OutOfSpace(_)) => {}
                Err(error) => return Err(error.into()),
            }
            let graph = self.records.get::<GraphRecord>(&name).await;
            let state = self.records.get::<StateRecord>(&name).await;
            let passes = |error: &Error| error.outcome() != Outcome::Fatal;
            let failure = graph.as_ref().err().or(state.as_ref().err());
            match failure.filter(|error| passes(error)) {
                Some(error) => warn!(%job, %error, "a job can't be read again at present"),
                None => return Ok(self.recovered_job(job, graph.transpose(), state.transpose())),
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    fn recovered_job(
        &self,
        job: JobId,
        graph: Option<Result<Stored<GraphRecord>, Error>>,
        state: Option<Result<Stored<StateRecord>, Error>>,
    ) -> RecoveredJob {
        let missing = |kind: &str| format!("{kind}/{job} is missing");
        let state = match state {
            Some(Ok(stored)) => {
                self.note_blob(job, Kind::States, stored.blob);
                Ok(Box::new(stored.record.0))
            }
            Some(Err(error)) => Err(error.to_string()),
            None => Err(missing("states")),
        };
        let graph = match graph {
            Some(Ok(stored)) => {
                self.note_blob(job, Kind::Graphs, stored.blob);
                self.lock_parts().note(job, stored.parts);
                Ok(Box::new(stored.record.0))
            }
            Some(Err(error)) => {
                self.lock_parts().note_unreadable(job);
                Err(error.to_string())
            }
            None => Err(missing("graphs")),
        };
        match (graph, state) {
            (Ok(graph), Ok(state)) => RecoveredJob::Readable { graph, state },
            (Err(reason), state) => {
                let state = state.ok();
                RecoveredJob::Unreadable { reason, state }
            }
            (Ok(_), Err(reason)) => {
                let state = None;
                RecoveredJob::Unreadable { reason, state }
            }
        }
    }

    async fn prepare<T: Record>(&self, job: JobId, record: T) -> Result<Prepared, JobStoreError> {
        let prepared = self
            .records
            .prepare(&name_of(job), self.epoch, &record)
            .await;
        prepared.map_err(JobStoreError::Refused)
    }

    /// The same for what has to be written: tries until the blob store answers or the term is over.
    async fn prepare_surely<T: Record + Clone>(
        &self,
        job: JobId,
        record: T,
    ) -> Result<Prepared, JobStoreError> {
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        loop {
            match self.prepare(job, record.clone()).await {
                Err(JobStoreError::Refused(error)) if error.outcome() != Outcome::Fatal => {
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

    fn note_blob(&self, job: JobId, kind: Kind, blob: Option<Name>) {
        if let Some(blob) = blob {
            self.lock_blobs().insert((job, kind), blob);
        }
    }

    pub(super) fn lock_parts(&self) -> std::sync::MutexGuard<'_, KnownParts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_blobs(&self) -> std::sync::MutexGuard<'_, BTreeMap<(JobId, Kind), Name>> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
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
        };
        let job = job_id(&state.job_id).map_err(refused)?;
        let prepared = self
            .prepare_surely(job, StateRecord(state.clone()))
            .await
            .map_err(refused)?;
        let written = vec![(job, Kind::States, prepared.blob)];
        let committed = self.commit_surely(vec![prepared.write], written).await;
        committed.map_err(refused)
    }
}

fn job_id(text: &str) -> Result<JobId, JobStoreError> {
    text.parse()
        .map_err(|error| JobStoreError::Refused(Error::Misconfigured(format!("{error}").into())))
}

/// The beginning of a cause that is too long to be kept.
fn shortened(cause: &str) -> String {
    cause.chars().take(4096).collect()
}

fn name_of(job: JobId) -> Name {
    Name::new(job.to_string()).expect("32 hexadecimal digits are a name")
}

macro_rules! protobuf_record {
    ($(#[$doc:meta])* $name:ident($message:ty), $kind:expr, splits: $splits:literal) => {
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
                <$message>::decode(bytes).map($name).map_err(|error| error.to_string())
            }
        }
    };
}

protobuf_record! {
    /// `graphs/<job>`.
    GraphRecord(pb::JobGraph), Kind::Graphs, splits: true
}
protobuf_record! {
    /// `states/<job>`.
    StateRecord(pb::JobState), Kind::States, splits: false
}
protobuf_record! {
    /// `results/<job>`.
    ResultRecord(pb::JobResult), Kind::Results, splits: false
}
