//! Marks of commits that have begun: files beside the pending files, with the names of those that the commit takes.
//!
//! Invariant: a mark that names a file was durable before that file was moved, and was written when all files of its
//! commit had been found. So a file that a mark names and that is nowhere was made visible and taken away since.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use tanist_proto::id::JobId;

use super::names::{PENDING_DIRECTORY, run_directory};
use super::{SinkError, is_missing, remove_if_exists, sync_directory};

const PREFIX: &str = "committing";

/// The mark of one commit, in each directory of pending files that it takes files from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark(String);

impl Mark {
    /// The mark of the commit after the job's end.
    pub(super) fn of_end() -> Mark {
        Mark(PREFIX.to_owned())
    }

    /// The mark of the commit of a checkpoint.
    pub(super) fn of_checkpoint(number: u64) -> Mark {
        Mark(format!("{PREFIX}-{number}"))
    }

    /// Makes it durable that a commit has found these files and moves them. It may have been written before, also by
    /// another process at the same time: a commit that is repeated names the same files.
    pub(super) fn write(&self, directory: &Path, names: &[String]) -> io::Result<()> {
        let path = directory.join(&self.0);
        let mut listed = listed(&path)?;
        if !names.iter().all(|name| listed.contains(name)) {
            listed.extend(names.iter().cloned());
            // It has all names or none. A commit that stops here leaves the unfinished one, which means nothing.
            let unfinished = directory.join(format!("{}.{:016x}", self.0, rand::random::<u64>()));
            let mut file = File::create_new(&unfinished)?;
            for name in &listed {
                writeln!(file, "{name}")?;
            }
            file.sync_all()?;
            fs::rename(&unfinished, &path)?;
        }
        // Also if the mark was there before: the process that wrote it may have stopped before it did this.
        sync_directory(directory)
    }
}

/// Whether a file with this name is a mark, or an unfinished one.
pub(super) fn is_mark(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Whether a mark has a random part in its name: its commit stopped before it moved a file.
fn is_unfinished(mark: &str) -> bool {
    mark.contains('.')
}

/// The names in a mark; none if it does not exist.
fn listed(mark: &Path) -> io::Result<BTreeSet<String>> {
    match fs::read_to_string(mark) {
        Ok(names) => Ok(names.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error),
    }
}

/// Whether a commit that is marked, for any checkpoint, moves this file.
pub(super) fn is_marked(pending: &Path) -> io::Result<bool> {
    let (Some(directory), Some(name)) = (pending.parent(), pending.file_name()) else {
        return Ok(false);
    };
    let name = name.to_string_lossy();
    for (mark, _) in marks(directory)? {
        if !is_unfinished(&mark) && listed(&directory.join(mark))?.contains(&*name) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The marks in a directory with the numbers of their checkpoints, also unfinished ones.
fn marks(directory: &Path) -> io::Result<Vec<(String, Option<u64>)>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut marks = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(rest) = name.strip_prefix(PREFIX) {
            let number = rest.split('.').next().unwrap_or_default();
            let number = number.strip_prefix('-').and_then(|it| it.parse().ok());
            marks.push((name, number));
        }
    }
    Ok(marks)
}

/// Removes the marks of a run's checkpoints up to this number, which the job's record says are committed. Idempotent.
/// A mark that a stopped leader leaves later is removed with those of a higher number.
pub fn forget_marks(
    directory: &Path,
    (job, run): (JobId, &str),
    up_to: u64,
    is_awaited: &dyn Fn() -> bool,
) -> Result<(), SinkError> {
    let pending = directory
        .join(PENDING_DIRECTORY)
        .join(run_directory(job, run));
    let marks = marks(&pending).map_err(|error| SinkError::io("read", &pending, error))?;
    for (name, number) in marks {
        if number.is_none_or(|number| number > up_to) {
            continue;
        }
        if !is_awaited() {
            return Err(SinkError::NotAwaited);
        }
        let mark = pending.join(name);
        remove_if_exists(&mark).map_err(|error| SinkError::io("remove", &mark, error))?;
    }
    Ok(())
}
