//! How a file sink's output becomes visible, exactly once, and how its leftovers go.
//!
//! A task writes `<path>/.tanist/<job>-<run>/<vertex>-<subtask>-<generation>-<random>.pending`, makes it durable and reports a
//! `Committable`. Who has recorded that all of the job's tasks finished calls [`commit`], as often as it likes: a part is
//! renamed into its place once and never over another file. [`cleanup`] removes what no commit took, of any generation.
//! All functions block.
//!
//! No two attempts have a name in common, not even those of two runs of a job under one id. So whoever removes what it was writing
//! removes nothing else, however late that is.
//!
//! A commit that has found everything leaves a mark beside the pending files before it takes the first one away. From then on what is
//! in neither place was made visible, and taken away by who was waiting for it. Without the mark it is lost.

mod committing;
mod leftovers;
mod names;
#[cfg(test)]
mod testing;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

pub use committing::{commit, commit_while};
pub use leftovers::{cleanup, has_pending};
pub(super) use names::PartNames;
pub use names::{check_output, directories};

/// Why output can't be written, made visible or cleaned up.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The directory has the output of another run.
    #[error(
        "{path:?} is there already: the output of another run is not overwritten; \
         remove it or name another directory"
    )]
    Occupied {
        /// The file in the way.
        path: PathBuf,
    },
    /// There is something else where the directory should be, or be made.
    #[error("{path:?} can't be a directory: there is a file, or a part of the path is one")]
    NoDirectory {
        /// Its path.
        path: PathBuf,
    },
    /// Neither the pending nor the visible file is there.
    #[error("output is lost: neither {pending:?} nor {visible:?} is there")]
    Lost {
        /// Where it should wait.
        pending: PathBuf,
        /// Where it should be visible.
        visible: PathBuf,
    },
    /// Nobody waits for the rest of it.
    #[error("nobody waits any more for output to become visible")]
    NotAwaited,
    /// The file system refuses.
    #[error("can't {action} {path:?}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl SinkError {
    /// Whether only people can mend it: somebody else's file is in the way.
    pub(super) fn is_unrecoverable(&self) -> bool {
        match self {
            SinkError::Occupied { .. } | SinkError::NoDirectory { .. } => true,
            SinkError::Lost { .. } | SinkError::NotAwaited | SinkError::Io { .. } => false,
        }
    }

    fn io(action: &'static str, path: &Path, source: io::Error) -> SinkError {
        SinkError::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

/// Makes the name of a pending file durable, with those of the job's directory and of ours.
pub(super) fn sync_ancestors(pending: &Path) -> io::Result<()> {
    pending
        .ancestors()
        .skip(1)
        .take(3)
        .try_for_each(sync_directory)
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    // The empty path is the working directory.
    let directory = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    File::open(directory)?.sync_all()
}
