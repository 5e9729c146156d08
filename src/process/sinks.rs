//! What JobMasters and Dispatchers do with files of sinks: blocking file work, off the control runtime.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use crate::dataflow::sink::{self, SinkError};
use crate::dispatcher::SinkCleaner;
use crate::job_master::{CommitError, SinkCommitter};

/// Who commits what sinks wrote, and who removes what is left of it.
#[derive(Debug, Clone)]
pub(super) struct Sinks {
    pub committer: Arc<dyn SinkCommitter>,
    pub cleaner: Arc<dyn SinkCleaner>,
}

impl Sinks {
    /// Those of file sinks.
    pub(super) fn files() -> Sinks {
        Sinks {
            committer: Arc::new(FileSinks),
            cleaner: Arc::new(FileSinks),
        }
    }
}

/// File sinks, by the paths that TaskManagers use.
#[derive(Debug, Clone, Copy)]
struct FileSinks;

#[async_trait]
impl SinkCommitter for FileSinks {
    async fn commit(&self, committables: &[pb::Committable]) -> Result<(), CommitError> {
        let committables = committables.to_vec();
        let done = tokio::task::spawn_blocking(move || sink::commit(&committables)).await;
        match done {
            Ok(Ok(())) => Ok(()),
            // What is in the way is another run's, and nobody but its owner removes it.
            Ok(Err(error @ (SinkError::Occupied { .. } | SinkError::NoDirectory { .. }))) => {
                Err(CommitError::Refused(error.to_string()))
            }
            // Also what seems lost may be there again: its directory may not be mounted.
            Ok(Err(error @ (SinkError::Lost { .. } | SinkError::Io { .. }))) => {
                Err(CommitError::Failed(error.to_string()))
            }
            Err(failure) => Err(CommitError::Failed(failure.to_string())),
        }
    }
}

#[async_trait]
impl SinkCleaner for FileSinks {
    async fn clean(&self, directory: &str, job: JobId) -> Result<(), String> {
        let directory = PathBuf::from(directory);
        // Where a file system hangs it does so here, where nothing is removed: whoever waits no longer is not surprised by it later.
        let looked_at = directory.clone();
        let looking = tokio::task::spawn_blocking(move || sink::has_pending(&looked_at));
        let found = looking.await.map_err(|failure| failure.to_string())?;
        if !found.map_err(|error| error.to_string())? {
            return Ok(());
        }
        let done = tokio::task::spawn_blocking(move || sink::cleanup(&directory, job)).await;
        done.map_err(|failure| failure.to_string())?
            .map_err(|error| error.to_string())
    }
}
