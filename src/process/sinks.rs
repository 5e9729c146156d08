//! The work on file sinks for JobMasters and Dispatchers: blocking, so neither on the control runtime nor on the
//! threads that stores use.
//!
//! Invariant: work whose caller no longer waits begins nothing more, wherever it hung: no rename and no
//! removal.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tanist_dispatcher::SinkCleaner;
use tanist_job_master::{CommitError, SinkCommitter, Superseded};
use tanist_leadership::Sinks;
use tanist_operators::sink::{self, SinkError};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::file_work::{Awaited, FileWork};

/// The work on the output of file sinks.
pub(super) fn file_sinks() -> Sinks {
    let files = Arc::new(FileSinks::default());
    Sinks {
        committer: files.clone(),
        cleaner: files,
    }
}

/// File sinks, by the paths that TaskManagers use.
#[derive(Debug, Default)]
struct FileSinks {
    files: FileWork,
}

/// The directories in which the parts of an output become visible.
fn directories_of(committables: &[pb::Committable]) -> Vec<PathBuf> {
    let visible = committables.iter().map(|it| Path::new(&it.final_path));
    let directories = visible.filter_map(Path::parent);
    directories.map(Path::to_owned).collect()
}

#[async_trait]
impl SinkCommitter for FileSinks {
    async fn commit(&self, committables: &[pb::Committable]) -> Result<(), CommitError> {
        let directories = directories_of(committables);
        let committables = committables.to_vec();
        let work =
            move |awaited: Awaited<'_>| sink::commit_while(&committables, &|| awaited.is_awaited());
        match self.files.run(directories, work).await {
            Ok(Ok(())) => Ok(()),
            // The files in the way are another run's; only their owner may remove them.
            Ok(Err(error @ (SinkError::Occupied { .. } | SinkError::NoDirectory { .. }))) => {
                Err(CommitError::Refused(error.to_string()))
            }
            // An output that seems lost may come back: its directory may not be mounted.
            Ok(Err(
                error @ (SinkError::Lost { .. } | SinkError::Io { .. } | SinkError::NotAwaited),
            )) => Err(CommitError::Failed(error.to_string())),
            Err(failure) => Err(CommitError::Failed(failure)),
        }
    }

    async fn commit_checkpoint(
        &self,
        number: u64,
        committables: &[pb::CheckpointCommittable],
    ) -> Result<(), CommitError> {
        if committables.is_empty() {
            return Ok(());
        }
        let message = format!("file sinks do not commit with checkpoints; this is number {number}");
        Err(CommitError::Failed(message))
    }

    async fn forget_marks(
        &self,
        _sinks: &pb::SinkDirectories,
        _job: JobId,
        _up_to: u64,
    ) -> Result<(), String> {
        Ok(())
    }

    async fn remove_superseded(
        &self,
        _sinks: &pb::SinkDirectories,
        _job: JobId,
        _superseded: &Superseded,
    ) -> Result<(), String> {
        Ok(())
    }
}

#[async_trait]
impl SinkCleaner for FileSinks {
    async fn clean(&self, directory: &str, job: JobId, run: &str) -> Result<(), String> {
        let (directory, run) = (PathBuf::from(directory), run.to_owned());
        let work = {
            let directory = directory.clone();
            // A hanging file system hangs at this look, where nothing is removed: so nothing is removed after
            // the caller has stopped waiting.
            move |awaited: Awaited<'_>| match sink::has_pending(&directory) {
                Ok(true) if awaited.is_awaited() => sink::cleanup(&directory, job, &run),
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            }
        };
        let done = self.files.run(vec![directory], work).await?;
        done.map_err(|error| error.to_string())
    }
}
