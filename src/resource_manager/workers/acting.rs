//! Carries out decisions about workers: the store first, then the driver. Decides nothing.
//!
//! Each act is a future that its actor owns. If it is dropped at any point, the state left behind is in the table
//! of `docs/adr/0016`. A write that the store does not accept before the term is over never returns: then no caller
//! is left.

use std::sync::Arc;
use std::time::Duration;

use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::ClusterIncarnation;
use tanist_ha::failpoint::failpoint;
use tanist_ha::retry::Backoff;
use tanist_ha::store::Write;
use tanist_ha::store::pipeline::{CommitError, CommitPipeline};
use tanist_proto::id::ResourceId;
use tanist_proto::resources::WorkerResourceSpec;

use super::{DriverError, RecordedWorker, ResourceManagerDriver, WorkerRecord, WorkerRequest};
use crate::core::workers::WorkerEvent;

const FIRST_RETRY: Duration = Duration::from_millis(100);
const SLOWEST_RETRY: Duration = Duration::from_secs(5);

/// Carries out acts for one term. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Acts {
    /// Starts and stops workers.
    pub driver: Arc<dyn ResourceManagerDriver>,
    /// Writes decisions.
    pub pipeline: CommitPipeline,
    /// The cluster.
    pub cluster: ClusterIncarnation,
    /// Resources of a worker, unless its record says otherwise.
    pub spec: WorkerResourceSpec,
}

impl Acts {
    /// Asks the driver which workers exist.
    pub(crate) async fn recover(self, recorded: Vec<RecordedWorker>) -> WorkerEvent {
        let found = self.driver.recover_workers(&self.cluster, &recorded).await;
        WorkerEvent::Recovered(found)
    }

    /// Records a worker, then starts it.
    pub(crate) async fn start(self, worker: ResourceId, mut record: WorkerRecord) -> WorkerEvent {
        record.requested_at_ms = wall_clock_ms();
        if let Err(refused) = self.commit(record.write(&worker)).await {
            return WorkerEvent::Started(worker, Err(refused));
        }
        failpoint("worker.recorded").await;
        let request = WorkerRequest {
            worker: worker.clone(),
            spec: record.kind().unwrap_or_else(|| self.spec.clone()),
            cluster: self.cluster.clone(),
        };
        let started = self.driver.start_worker(&request).await;
        failpoint("worker.started").await;
        WorkerEvent::Started(worker, started)
    }

    /// Waits for the end of a worker.
    pub(crate) async fn watch(self, worker: ResourceId) -> WorkerEvent {
        let how = self.driver.worker_ended(&worker).await;
        WorkerEvent::Ended(worker, how)
    }

    /// Records that a worker is being released.
    pub(crate) async fn release(self, worker: ResourceId, record: WorkerRecord) -> WorkerEvent {
        let is_durable = self.commit(record.write(&worker)).await.is_ok();
        failpoint("worker.release-recorded").await;
        WorkerEvent::ReleaseRecorded(worker, is_durable)
    }

    /// Removes the record of a worker. Retries until the term ends.
    pub(crate) async fn remove_record(self, worker: ResourceId) -> WorkerEvent {
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        while let Err(error) = self.commit(WorkerRecord::removal(&worker)).await {
            tracing::warn!(%worker, %error, "the record of a worker can't be removed yet");
            tokio::time::sleep(backoff.next_delay()).await;
        }
        failpoint("worker.stop-recorded").await;
        WorkerEvent::Removed(worker)
    }

    /// Stops a worker that has no record. Retries until the term ends.
    pub(crate) async fn stop(self, worker: ResourceId) -> WorkerEvent {
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        while let Err(error) = self.driver.stop_worker(&worker).await {
            tracing::warn!(%worker, %error, "a worker can't be stopped yet");
            tokio::time::sleep(backoff.next_delay()).await;
        }
        WorkerEvent::Stopped(worker)
    }

    async fn commit(&self, write: Write) -> Result<(), DriverError> {
        match self.pipeline.commit(vec![write]).await {
            Ok(_change) => Ok(()),
            Err(error @ (CommitError::TooLarge(_) | CommitError::OutOfSpace(_))) => {
                Err(DriverError::new(error.to_string()))
            }
            Err(CommitError::NotApplied | CommitError::Unknown) => std::future::pending().await,
        }
    }
}
