//! A TaskExecutor's view of job records in the store. It reads them for jobs whose JobMaster is silent, to learn
//! whether another leader has superseded its tasks.
//!
//! The trait keeps the TaskExecutor independent of store and records. Read-only.
//!
//! Invariant: an answer reflects a moment after the request, and comes from the store of this cluster. An
//! implementation reads linearizably, and returns no answer if it can't guarantee both.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_proto::id::{Generation, JobId};

/// Status of a job in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredGenerations {
    /// Not terminal: the generation of each pipelined region, in the graph's order. Regions that were never
    /// deployed may be absent.
    Present(Vec<Generation>),
    /// It has a result.
    Ended,
    /// It has neither state nor result.
    Absent,
    /// Its state exists, but this version can't read it.
    Unreadable(String),
}

/// An answer of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredJobs {
    /// Incarnation of the cluster whose store this is.
    pub incarnation: ClusterIncarnation,
    /// The highest epoch.
    pub epoch: Epoch,
    /// Status of every requested job.
    pub jobs: BTreeMap<JobId, StoredGenerations>,
}

/// The store gave no reliable answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store gave no answer: {0}")]
pub struct NoAnswer(pub String);

/// Access to job records; see the module.
#[async_trait]
pub trait JobRecords: Send + Sync + fmt::Debug + 'static {
    /// Returns the status of these jobs. Has no timeout of its own; the caller sets one.
    async fn stored_jobs(&self, jobs: &[JobId]) -> Result<StoredJobs, NoAnswer>;
}
