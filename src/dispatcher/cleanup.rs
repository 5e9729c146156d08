//! Removes what an ended job leaves outside the store: idempotent, repeated until it succeeds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tanist_ha::blob::BlobStore;
use tanist_ha::keys::Name;
use tanist_ha::retry::Backoff;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::warn;

use super::uploads;

/// Removes a job's pending files from a sink's directory.
#[async_trait]
pub trait SinkCleaner: Send + Sync + fmt::Debug + 'static {
    /// Idempotent. The error says what could not be removed.
    async fn clean(&self, directory: &str, job: JobId) -> Result<(), String>;
}

/// What cleans up after jobs.
#[derive(Debug, Clone)]
pub struct Cleaner {
    /// For sinks' directories.
    pub sinks: Arc<dyn SinkCleaner>,
    /// For blobs, where graphs can be in one.
    pub blobs: Option<Arc<BlobStore>>,
    /// The delays between tries (`cleanup-strategy.exponential-delay`).
    pub initial_backoff: Duration,
    /// See `initial_backoff`.
    pub max_backoff: Duration,
}

impl Cleaner {
    /// Removes all that `remove` names. Returns when all of it is gone.
    pub async fn run(&self, job: JobId, remove: &pb::Cleanup) {
        let mut backoff = Backoff::new(self.initial_backoff, self.max_backoff);
        while let Err(reason) = self.try_once(job, remove).await {
            let delay = backoff.next_delay();
            warn!(%job, reason, ?delay, "cleanup is tried again");
            tokio::time::sleep(delay).await;
        }
    }

    /// The same, once: what can't be removed now is only said.
    pub async fn run_once(&self, job: JobId, remove: &pb::Cleanup) {
        if let Err(reason) = self.try_once(job, remove).await {
            warn!(%job, reason, "something of a job that is forgotten may be left behind");
        }
    }

    async fn try_once(&self, job: JobId, remove: &pb::Cleanup) -> Result<(), String> {
        for directory in &remove.sink_directories {
            self.sinks.clean(directory, job).await?;
        }
        let named = remove.blobs.iter().map(|name| name.parse::<Name>());
        let named = named.collect::<Result<Vec<Name>, _>>();
        let mut objects = named.map_err(|error| error.to_string())?;
        objects.extend(remove.uploads.iter().flat_map(uploads::objects_of));
        for name in objects {
            let Some(blobs) = &self.blobs else {
                return Err(format!(
                    "blob {name} can't be removed: no blob store is configured"
                ));
            };
            blobs
                .delete(&name)
                .await
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
