//! What a TaskExecutor asks the store about jobs whose JobMaster it does not hear: whether somebody superseded its tasks.
//!
//! The trait that it is given, so that it knows neither store nor records. Read-only.
//!
//! Invariant: an answer is as of a moment after the question, and of the store of this cluster. Whoever implements it reads
//! linearizably, and gives no answer where it can't be sure of either.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_proto::id::{Generation, JobId};

/// How a job stands in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobStanding {
    /// It is not terminal: the generation of each pipelined region, in the graph's order. Regions that were never deployed
    /// may be absent.
    Present(Vec<Generation>),
    /// It has a result.
    Ended,
    /// It has neither state nor result.
    Absent,
    /// Its state is there, and this version can't read it.
    Unreadable(String),
}

/// What the store answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobStandings {
    /// The cluster whose store this is.
    pub incarnation: ClusterIncarnation,
    /// The youngest epoch.
    pub epoch: Epoch,
    /// Every job that was asked about.
    pub jobs: BTreeMap<JobId, JobStanding>,
}

/// The store gave no answer that can be relied on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store gave no answer: {0}")]
pub struct NoAnswer(pub String);

/// See the module.
#[async_trait]
pub trait JobRecords: Send + Sync + fmt::Debug + 'static {
    /// How these jobs stand. It may take as long as the store does; the caller bounds it.
    async fn standings(&self, jobs: &[JobId]) -> Result<JobStandings, NoAnswer>;
}
