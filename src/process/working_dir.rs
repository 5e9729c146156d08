//! The directory that a process has for itself below `process.working-dir`: made at start, removed at an orderly end;
//! what a dead process left is removed by the next one that starts.
//!
//! A process holds an OS lock on a file in its directory for life, so a lock that can be taken proves its owner dead.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tracing::{info, warn};

use crate::config::ProcessOptions;

const LOCK: &str = "in-use";
/// Only directories that begin so are ever removed.
const PREFIX: &str = "tanist-";

/// A directory that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {path} can't be used: {source}")]
pub struct DirectoryError {
    key: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The directory of this process. Removed when dropped.
#[derive(Debug)]
pub struct WorkingDir {
    path: PathBuf,
    _locked: File,
}

impl WorkingDir {
    /// Checks the configured directories, creates this process's own one, and removes what dead processes left.
    pub fn create(options: &ProcessOptions, kind: &str) -> Result<WorkingDir, DirectoryError> {
        for directory in &options.tmp_dirs {
            check_writable(directory).map_err(|source| DirectoryError {
                key: "io.tmp.dirs",
                path: directory.clone(),
                source,
            })?;
        }
        let parent = &options.working_dir;
        let failed = |source| DirectoryError {
            key: "process.working-dir",
            path: parent.clone(),
            source,
        };
        fs::create_dir_all(parent).map_err(failed)?;
        remove_leftovers(parent);
        let name = format!("{PREFIX}{kind}-{:016x}", rand::random::<u64>());
        let path = parent.join(name);
        fs::create_dir(&path).map_err(failed)?;
        let locked = lock(&path).map_err(failed)?.ok_or_else(|| {
            failed(io::Error::other(
                "another process took the directory that was just made",
            ))
        })?;
        Ok(WorkingDir {
            path,
            _locked: locked,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkingDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            warn!(path = %self.path.display(), %error, "the working directory could not be removed");
        }
    }
}

/// The lock of a process's directory, if it can be taken.
fn lock(directory: &Path) -> io::Result<Option<File>> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(directory.join(LOCK))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn remove_leftovers(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        // A directory without a lock file is being made at this moment.
        if !ours || !path.join(LOCK).exists() {
            continue;
        }
        if let Ok(Some(_dead)) = lock(&path) {
            match fs::remove_dir_all(&path) {
                Ok(()) => info!(path = %path.display(), "removed what a dead process left"),
                Err(error) => {
                    warn!(path = %path.display(), %error, "what a dead process left can't be removed");
                }
            }
        }
    }
}

fn check_writable(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let probe = directory.join(format!(".tanist-{:016x}", rand::random::<u64>()));
    File::create_new(&probe)?;
    fs::remove_file(probe)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(root: &Path) -> ProcessOptions {
        ProcessOptions {
            working_dir: root.join("work"),
            tmp_dirs: vec![root.join("tmp")],
            shutdown_timeout: std::time::Duration::from_secs(1),
        }
    }

    #[test]
    fn a_directory_lives_as_long_as_its_process_and_leftovers_are_removed() -> anyhow::Result<()> {
        let root = tempfile::tempdir()?;
        let options = options(root.path());
        let first = WorkingDir::create(&options, "jobmanager")?;
        let dead = options.working_dir.join("tanist-taskmanager-dead");
        fs::create_dir(&dead)?;
        fs::write(dead.join(LOCK), "")?;
        let foreign = options.working_dir.join("somebody-elses");
        fs::create_dir(&foreign)?;

        let second = WorkingDir::create(&options, "jobmanager")?;
        assert!(first.path().exists() && second.path().exists() && foreign.exists());
        assert!(!dead.exists());
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists());
        Ok(())
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named_with_its_key() -> anyhow::Result<()> {
        let root = tempfile::tempdir()?;
        let file = root.path().join("file");
        fs::write(&file, "")?;
        let options = ProcessOptions {
            working_dir: file.join("below"),
            ..options(root.path())
        };
        let error = WorkingDir::create(&options, "jobmanager").expect_err("a file is in the way");
        assert!(
            error.to_string().starts_with("process.working-dir: "),
            "{error}"
        );
        Ok(())
    }
}
