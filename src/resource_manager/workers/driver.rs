//! The interface behind which TaskManagers are started and stopped: by processes of this host, by Kubernetes, by YARN.
//!
//! A driver decides nothing and remembers nothing that a leader needs: which workers there are is in the store, and a driver
//! of another process must be able to find what this one has started. What it does follows a fenced write: `docs/adr/0016`.

use std::fmt;

use async_trait::async_trait;
use tanist_ha::election::ClusterIncarnation;
use tanist_proto::id::ResourceId;
use tanist_proto::resources::WorkerResourceSpec;

/// Why a driver could not do what it was asked to. The text is for people: it is shown as what keeps jobs from running.
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
    /// Its resource id: no other worker ever has it.
    pub worker: ResourceId,
    /// What it is started with.
    pub spec: WorkerResourceSpec,
    /// The cluster that it is for.
    pub cluster: ClusterIncarnation,
}

/// A worker of which the store has a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedWorker {
    /// Its resource id.
    pub worker: ResourceId,
    /// Where it was to be started: [`ResourceManagerDriver::place`] of that driver.
    pub place: String,
}

/// What has become of a worker, as far as a driver can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It is there: it runs, or is about to.
    Running,
    /// It is not there. If somebody is still about to start it, it will end by itself, as nobody has a record of it any more.
    Gone,
    /// This driver can't see where it is.
    Unseen,
}

/// How a cluster has ended that ends with its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalStatus {
    /// All jobs FINISHED.
    Succeeded,
    /// A job, or the program that submits them, FAILED.
    Failed,
    /// A job was CANCELED.
    Canceled,
    /// Nobody can say: everything is kept, and somebody may lead it again.
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
    /// How it has ended.
    pub status: FinalStatus,
    /// Why, for people; empty where there is nothing to say.
    pub diagnosis: String,
}

/// Starts and stops workers. Each call may be repeated; dropped, it leaves nothing half done that a repetition does not mend.
#[async_trait]
pub trait ResourceManagerDriver: Send + Sync + fmt::Debug + 'static {
    /// Its name, as it is configured.
    fn name(&self) -> &'static str;

    /// Where it starts workers, so that another driver knows whether it can see them. Persisted.
    fn place(&self) -> String;

    /// Starts a worker. Nothing more if it is there already. An error: it was not started, nor will it be.
    async fn start_worker(&self, request: &WorkerRequest) -> Result<(), DriverError>;

    /// Looks for workers of this cluster: what has become of each of the recorded ones, and which others run.
    async fn recover_workers(
        &self,
        cluster: &ClusterIncarnation,
        recorded: &[RecordedWorker],
    ) -> Result<Vec<(ResourceId, Found)>, DriverError>;

    /// Completes when a worker that was started or found has ended: says how.
    async fn worker_ended(&self, worker: &ResourceId) -> String;

    /// Ends a worker if it is there, by force if need be, and waits for its end.
    async fn stop_worker(&self, worker: &ResourceId) -> Result<(), DriverError>;

    /// The cluster has ended, and its workers were told to leave: for a system that keeps a list of what runs, and shows how it
    /// ended. With [`FinalStatus::Unknown`] nothing may be removed. Not called by sessions.
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
            "nobody but the log is told of the end"
        );
        Ok(())
    }
}
