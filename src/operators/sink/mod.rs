//! Makes a file sink's output visible, exactly once, and removes leftovers.
//!
//! A task writes `<path>/.tanist/<job>-<run>/<vertex>-<subtask>-<generation>-<random>.pending`, makes it
//! durable and reports a `Committable`. The leader makes it visible, any number of times: with [`commit_while`] after
//! it has recorded that all of the job's tasks finished, with [`commit_checkpoint_while`] once a manifest that lists it
//! is durable. A part is renamed into its place once and never over another file. [`cleanup_except`] removes what no
//! commit took, of any generation, when the job has ended, except what a retained checkpoint names; [`hand_over`] gives
//! that to a job that begins from the checkpoint; [`remove_superseded`] removes that of former generations before. All
//! functions block.
//!
//! A directory belongs to one job at a time, from its first task to the cleanup after its end (`owner.rs`).
//!
//! A pending file that a snapshot names belongs to the job: its task does not remove it, and a restored task copies it.
//!
//! No two attempts share a file name, not even in two runs of a job under one id. So a process that removes the
//! files of one attempt removes no others, however late.
//!
//! A commit that has found every part leaves a mark with their names beside the pending files before it takes the
//! first one away (`marks.rs`), one for each checkpoint. From then on, a part that is at neither path was made visible
//! and then taken away by its consumer. A part that no mark names is lost.

mod committing;
mod handover;
mod leftovers;
mod marks;
mod names;
mod owner;
mod part;
mod renaming;
#[cfg(test)]
mod testing;

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use tanist_dataflow::OperatorError;
use tanist_model::operators::FileSink;

#[cfg(test)]
pub(crate) use committing::commit;
pub use committing::{commit_checkpoint_while, commit_while, decoded};
pub use handover::hand_over;
#[cfg(test)]
pub(crate) use leftovers::cleanup;
pub use leftovers::{Below, KeptFiles, cleanup_except, has_pending, remove_superseded};
pub use marks::forget_marks;
pub(crate) use names::{Descent, PartNames};
pub(crate) use part::Part;

/// The kind of committables of file sinks.
pub const KIND: &str = FileSink::OUTPUT;

/// Why output can't be written, made visible or cleaned up.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The directory contains the output of another run.
    #[error(
        "{path:?} is there already: the output of another run is not overwritten; \
         remove it or name another directory"
    )]
    Occupied {
        /// The existing file.
        path: PathBuf,
    },
    /// It was written after the checkpoint from which this job begins, by a job that this one descends from.
    #[error(
        "{path:?} was written after checkpoint {number}, from which this job begins, so it would be there twice: remove \
         it and all later parts of that job, or name another directory"
    )]
    Later {
        /// The existing file.
        path: PathBuf,
        /// The checkpoint.
        number: u64,
    },
    /// The directory belongs to another job.
    #[error(
        "the job {owner} writes into this directory: name another one, or begin when that job has ended \
         (if its cluster is gone, remove {file:?})"
    )]
    Owned {
        /// The other job.
        owner: String,
        /// The file that says so.
        file: PathBuf,
    },
    /// A file is at the directory's path or at a part of it.
    #[error("{path:?} can't be a directory: there is a file, or a part of the path is one")]
    NoDirectory {
        /// Its path.
        path: PathBuf,
    },
    /// Neither the pending nor the visible file exists.
    #[error("output is lost: neither {pending:?} nor {visible:?} is there")]
    Lost {
        /// Path of the pending file.
        pending: PathBuf,
        /// Path of the visible file.
        visible: PathBuf,
    },
    /// A retained checkpoint names a file, which does not exist.
    #[error("output is lost: {path:?} is not there")]
    Removed {
        /// The pending file.
        path: PathBuf,
    },
    /// No sink of the job writes into the directory of a pending file.
    #[error(
        "{path:?} is not visible yet, and no file sink of the job writes into its directory: keep the directory, \
         or begin from a savepoint"
    )]
    Elsewhere {
        /// The pending file.
        path: PathBuf,
    },
    /// Output of a sink that this version does not know.
    #[error("this version can't commit output of kind {kind:?}, of the sink {uid:?}")]
    UnknownKind {
        /// The sink.
        uid: String,
        /// The kind.
        kind: String,
    },
    /// What a sink says about its output can't be read.
    #[error("what the sink {uid:?} says about its output can't be read: {source}")]
    Unreadable {
        /// The sink.
        uid: String,
        /// Error of the decoder.
        source: prost::DecodeError,
    },
    /// The caller no longer waits for the commit.
    #[error("the commit was stopped: its caller no longer waits for it")]
    NotAwaited,
    /// The file system reported an error.
    #[error("can't {action} {path:?}: {source}")]
    Io {
        /// The failed action.
        action: &'static str,
        /// Path of the action.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl SinkError {
    /// Whether only a person can fix it: another run's file or another job is in the way.
    fn is_unrecoverable(&self) -> bool {
        match self {
            SinkError::Occupied { .. }
            | SinkError::Later { .. }
            | SinkError::Owned { .. }
            | SinkError::NoDirectory { .. }
            | SinkError::Elsewhere { .. } => true,
            SinkError::Lost { .. }
            | SinkError::Removed { .. }
            | SinkError::UnknownKind { .. }
            | SinkError::Unreadable { .. }
            | SinkError::NotAwaited
            | SinkError::Io { .. } => false,
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

impl From<SinkError> for OperatorError {
    fn from(error: SinkError) -> OperatorError {
        if error.is_unrecoverable() {
            OperatorError::Unrecoverable(Box::new(error))
        } else {
            OperatorError::Custom(Box::new(error))
        }
    }
}

/// Makes the name of a pending file durable, with the names of the job's directory and of `.tanist`.
pub(super) fn sync_ancestors(pending: &Path) -> io::Result<()> {
    pending
        .ancestors()
        .skip(1)
        .take(3)
        .try_for_each(sync_directory)
}

/// Removes a file that another process may remove at the same time, or has removed before.
fn remove_if_exists(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether a directory does not exist or is not a directory, by the error of a look into it: then nothing is in it.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
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
