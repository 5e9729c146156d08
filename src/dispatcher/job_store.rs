//! A term's jobs in the store: what is written in one transaction, and what recovery finds.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use prost::Message;
use tanist_ha::Error;
use tanist_ha::election::Epoch;
use tanist_ha::jobs::store::{Prepared, Record, RecordStore};
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::store::pipeline::{CommitError, CommitPipeline};
use tanist_ha::store::{Change, Write};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::warn;

use crate::gateway::GatewayError;
use crate::gateway::persistence::{JobStateStore, PersistError};

/// Why something about a job was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JobStoreError {
    /// It was not and will not be written: the term is over.
    #[error("not written: this JobManager does not lead any more")]
    NotWritten,
    /// The term is over, and the next one knows.
    #[error("this JobManager does not lead any more, and whether this was written is not known")]
    Unknown,
    /// The store does not take it.
    #[error(transparent)]
    Refused(Error),
}

impl From<CommitError> for JobStoreError {
    fn from(error: CommitError) -> JobStoreError {
        match error {
            CommitError::TooLarge(error) => JobStoreError::Refused(error),
            CommitError::NotApplied => JobStoreError::NotWritten,
            CommitError::Unknown => JobStoreError::Unknown,
        }
    }
}

impl From<JobStoreError> for GatewayError {
    fn from(error: JobStoreError) -> GatewayError {
        match &error {
            JobStoreError::NotWritten => GatewayError::NotYet(error.to_string()),
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
    records: RecordStore,
    pipeline: CommitPipeline,
    epoch: Epoch,
    /// The blobs that hold graphs, by job: named for removal in the job's result.
    blobs: Mutex<BTreeMap<JobId, Name>>,
}

impl JobStore {
    /// The jobs of the term whose pipeline this is.
    pub fn new(records: RecordStore, pipeline: CommitPipeline, epoch: Epoch) -> JobStore {
        JobStore {
            records,
            pipeline,
            epoch,
            blobs: Mutex::default(),
        }
    }

    /// The last committed transaction.
    pub fn last_change(&self) -> Change {
        self.pipeline.last()
    }

    /// Writes graph and state of a new job in one transaction.
    pub async fn put_submission(
        &self,
        graph: &pb::JobGraph,
        state: &pb::JobState,
    ) -> Result<(), JobStoreError> {
        let job = job_id(&graph.job_id)?;
        let graph = self.prepare(job, GraphRecord(graph.clone())).await?;
        let state = self.prepare(job, StateRecord(state.clone())).await?;
        if let Some(blob) = graph.blob {
            self.lock_blobs().insert(job, blob);
        }
        self.pipeline.commit(vec![graph.write, state.write]).await?;
        Ok(())
    }

    /// Writes the (dirty) result of a job and removes its graph and state, in one transaction.
    pub async fn put_result(&self, result: &pb::JobResult) -> Result<(), JobStoreError> {
        let job = job_id(&result.job_id)?;
        let mut result = result.clone();
        if let Some(blob) = self.lock_blobs().get(&job) {
            result
                .remove
                .get_or_insert_default()
                .blobs
                .push(blob.to_string());
        }
        let result = self.prepare(job, ResultRecord(result)).await?;
        let delete = |kind| Write::Delete {
            key: Key::new(kind, name_of(job)),
        };
        let writes = vec![result.write, delete(Kind::Graphs), delete(Kind::States)];
        self.pipeline.commit(writes).await?;
        Ok(())
    }

    /// Replaces a result whose cleanup has finished.
    pub async fn put_clean_result(&self, result: &pb::JobResult) -> Result<(), JobStoreError> {
        let job = job_id(&result.job_id)?;
        let prepared = self.prepare(job, ResultRecord(result.clone())).await?;
        self.pipeline.commit(vec![prepared.write]).await?;
        self.lock_blobs().remove(&job);
        Ok(())
    }

    /// Forgets results whose retention time is over.
    pub async fn delete_results(&self, jobs: &[JobId]) -> Result<(), JobStoreError> {
        for some in jobs.chunks(self.pipeline.limits().writes.max(1)) {
            let delete = |job: &JobId| Write::Delete {
                key: Key::new(Kind::Results, name_of(*job)),
            };
            self.pipeline
                .commit(some.iter().map(delete).collect())
                .await?;
        }
        Ok(())
    }

    /// Reads every job.
    pub async fn recover(&self) -> Result<RecoveredJobs, Error> {
        let (graphs, states, results) = tokio::try_join!(
            self.records.list::<GraphRecord>(),
            self.records.list::<StateRecord>(),
            self.records.list::<ResultRecord>(),
        )?;
        let mut recovered = RecoveredJobs::default();
        for (name, result) in results {
            match (name.as_str().parse(), result) {
                (Ok(job), Ok(stored)) => recovered.results.push((job, stored.record.0)),
                (_, Err(error)) => warn!(%name, %error, "a result can't be read"),
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
            let (state, unreadable) = match state {
                Some(Ok(stored)) => (Some(stored.record.0), None),
                Some(Err(error)) => (None, Some(error.to_string())),
                None => (None, Some(format!("states/{job} is missing"))),
            };
            let readable = match (graph, state, unreadable) {
                (Ok(graph), Some(state), _) => {
                    if let Some(blob) = graph.blob {
                        self.lock_blobs().insert(job, blob);
                    }
                    RecoveredJob::Readable {
                        graph: Box::new(graph.record.0),
                        state: Box::new(state),
                    }
                }
                (Err(error), state, _) => RecoveredJob::Unreadable {
                    reason: error.to_string(),
                    state: state.map(Box::new),
                },
                (Ok(_), None, reason) => RecoveredJob::Unreadable {
                    reason: reason.unwrap_or_default(),
                    state: None,
                },
            };
            recovered.jobs.push((job, readable));
        }
        for (name, state) in states {
            let Ok(job) = name.as_str().parse::<JobId>() else {
                continue;
            };
            let reason = format!("graphs/{job} is missing");
            let state = state.ok().map(|stored| Box::new(stored.record.0));
            recovered
                .jobs
                .push((job, RecoveredJob::Unreadable { reason, state }));
        }
        Ok(recovered)
    }

    async fn prepare<T: Record>(&self, job: JobId, record: T) -> Result<Prepared, JobStoreError> {
        let prepared = self
            .records
            .prepare(&name_of(job), self.epoch, &record)
            .await;
        prepared.map_err(JobStoreError::Refused)
    }

    fn lock_blobs(&self) -> std::sync::MutexGuard<'_, BTreeMap<JobId, Name>> {
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
            JobStoreError::Refused(error) => PersistError::Refused(error.to_string()),
        };
        let job = job_id(&state.job_id).map_err(refused)?;
        let prepared = self
            .prepare(job, StateRecord(state.clone()))
            .await
            .map_err(refused)?;
        let committed = self.pipeline.commit(vec![prepared.write]).await;
        committed.map(|_| ()).map_err(|error| refused(error.into()))
    }
}

fn job_id(text: &str) -> Result<JobId, JobStoreError> {
    text.parse()
        .map_err(|error| JobStoreError::Refused(Error::Misconfigured(format!("{error}").into())))
}

fn name_of(job: JobId) -> Name {
    Name::new(job.to_string()).expect("32 hexadecimal digits are a name")
}

macro_rules! protobuf_record {
    ($(#[$doc:meta])* $name:ident($message:ty), $kind:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name(pub $message);

        impl Record for $name {
            const KIND: Kind = $kind;
            const FORMAT: u16 = 1;

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
    GraphRecord(pb::JobGraph), Kind::Graphs
}
protobuf_record! {
    /// `states/<job>`.
    StateRecord(pb::JobState), Kind::States
}
protobuf_record! {
    /// `results/<job>`.
    ResultRecord(pb::JobResult), Kind::Results
}
