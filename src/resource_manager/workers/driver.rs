//! The interface that starts and stops TaskManagers: as processes of this host, by Kubernetes, by YARN.
//!
//! A driver decides nothing and keeps no state that a leader needs: the workers are recorded in the store, and a
//! driver of another process must be able to find the workers that this one started. It acts only after a fenced
//! write: `docs/adr/0016`.

use std::fmt;

use async_trait::async_trait;
use tanist_ha::election::ClusterIncarnation;
use tanist_proto::id::ResourceId;
use tanist_proto::resources::WorkerResourceSpec;

/// Why a driver could not carry out a request. The text is for display: it is shown as the reason why jobs do not
/// run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DriverError(String);

impl DriverError {
    /// With this text.
    pub fn new(text: impl Into<String>) -> DriverError {
        DriverError(text.into())
    }
}

/// A worker to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRequest {
    /// Its resource id, which no other worker ever has.
    pub worker: ResourceId,
    /// Its resources.
    pub spec: WorkerResourceSpec,
    /// The cluster that it belongs to.
    pub cluster: ClusterIncarnation,
}

/// A worker that has a record in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedWorker {
    /// Its resource id.
    pub worker: ResourceId,
    /// Place of the driver that was to start it: its [`ResourceManagerDriver::place`].
    pub place: String,
}

/// The state of a worker, as far as a driver knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It runs or is about to run.
    Running,
    /// It does not exist. If a late start still creates it, it ends by itself, since it has no record any more.
    Gone,
    /// This driver can't see the place where it is.
    Unseen,
}

/// How a cluster ended that ends with its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalStatus {
    /// All jobs FINISHED.
    Succeeded,
    /// A job, or the program that submits them, FAILED.
    Failed,
    /// A job was CANCELED.
    Canceled,
    /// Unknown: all data is kept, and a later leader may continue the cluster.
    Unknown,
}

impl FinalStatus {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            FinalStatus::Succeeded => "SUCCEEDED",
            FinalStatus::Failed => "FAILED",
            FinalStatus::Canceled => "CANCELED",
            FinalStatus::Unknown => "UNKNOWN",
        }
    }
}

/// The end of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterEnd {
    /// The cluster's id.
    pub cluster: String,
    /// How it ended.
    pub status: FinalStatus,
    /// The reason, for display. Empty if there is none.
    pub diagnosis: String,
}

/// Starts and stops workers. Each call may be repeated; if a call is dropped midway, a repetition completes it.
#[async_trait]
pub trait ResourceManagerDriver: Send + Sync + fmt::Debug + 'static {
    /// The driver's configured name.
    fn name(&self) -> &'static str;

    /// Where it starts workers, so that another driver knows whether it can see them. Persisted.
    fn place(&self) -> String;

    /// Starts a worker. Does nothing if it exists. On an error it was not started and will not be.
    async fn start_worker(&self, request: &WorkerRequest) -> Result<(), DriverError>;

    /// Looks for workers of this cluster. Returns the state of each recorded one, and all others that run.
    async fn recover_workers(
        &self,
        cluster: &ClusterIncarnation,
        recorded: &[RecordedWorker],
    ) -> Result<Vec<(ResourceId, Found)>, DriverError>;

    /// Completes when a worker that was started or found has ended. Returns how it ended.
    async fn worker_ended(&self, worker: &ResourceId) -> String;

    /// Ends a worker if it exists, by force if necessary, and waits for its end.
    async fn stop_worker(&self, worker: &ResourceId) -> Result<(), DriverError>;

    /// Reports the end of the cluster, after its workers were asked to leave: for systems that list applications
    /// and show how they ended. With [`FinalStatus::Unknown`] nothing may be removed. Not called by session
    /// clusters.
    async fn finish(&self, end: &ClusterEnd) -> Result<(), DriverError> {
        let ClusterEnd {
            cluster,
            status,
            diagnosis,
        } = end;
        let (driver, status) = (self.name(), status.name());
        tracing::info!(
            driver,
            cluster,
            status,
            diagnosis,
            "the cluster has ended, no external system is notified"
        );
        Ok(())
    }
}
