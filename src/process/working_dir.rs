//! The directory that a process has for itself below `process.working-dir`: created at start, removed at an
//! orderly end. A directory that a dead process left is removed by the next process that starts.
//!
//! A process holds an OS lock on a file in its directory for life, so a lock that can be taken proves that its
//! owner is dead. A directory gets its final name only when it is locked. Before, another process that starts at the
//! same moment may take it for a leftover and remove it: then its own process makes another one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tanist_config::ProcessOptions;
use tanist_ha::own_directory;
use tanist_leadership::ha::DirectoryError;
use tracing::{info, warn};

const LOCK: &str = "in-use";
/// Prefix of a directory that its process has locked. Only directories with this prefix or [`UNLOCKED_PREFIX`] are
/// ever removed.
const PREFIX: &str = "tanist-";
/// Prefix of a directory until its process has locked it.
const UNLOCKED_PREFIX: &str = "new-tanist-";
/// Maximum number of attempts to remove a directory in which files are still created.
const REMOVALS: u32 = 1_000;
/// Maximum number of directories that a process makes until it has locked one. Each process that starts at the same
/// moment can remove one of them.
const DRAFTS: u32 = 1_000;

/// The directory of this process. Removed when dropped.
#[derive(Debug)]
pub struct WorkingDir {
    path: PathBuf,
    _locked: File,
}

impl WorkingDir {
    /// Checks the configured directories, creates this process's own one, and removes those of dead processes.
    pub fn create(options: &ProcessOptions, kind: &str) -> Result<WorkingDir, DirectoryError> {
        for directory in &options.tmp_dirs {
            check_writable(directory)
                .map_err(|source| DirectoryError::new("io.tmp.dirs", directory.clone(), source))?;
        }
        let parent = &options.working_dir;
        let failed = |source| DirectoryError::new("process.working-dir", parent.clone(), source);
        own_directory::make(parent).map_err(failed)?;
        remove_leftovers(parent);
        for _ in 0..DRAFTS {
            let name = format!("{kind}-{:016x}", rand::random::<u64>());
            let unlocked = parent.join(format!("{UNLOCKED_PREFIX}{name}"));
            let Some(locked) = draft(&unlocked).map_err(failed)? else {
                continue;
            };
            let path = parent.join(format!("{PREFIX}{name}"));
            fs::rename(&unlocked, &path).map_err(failed)?;
            return Ok(WorkingDir {
                path,
                _locked: locked,
            });
        }
        Err(failed(io::Error::other(
            "other processes removed each directory that was made",
        )))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkingDir {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            warn!(path = %self.path.display(), %error, "the working directory could not be removed");
        }
    }
}

/// Removes a directory with its content, even while files are created in it: a thread of an embedded store may
/// be in the middle of its last transaction, and create its journal during the removal.
fn remove(path: &Path) -> io::Result<()> {
    for _ in 1..REMOVALS {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                std::thread::yield_now();
            }
            done => return done,
        }
    }
    fs::remove_dir_all(path)
}

/// Makes a directory and locks it. None: another process takes it for a leftover, and removes it.
fn draft(directory: &Path) -> io::Result<Option<File>> {
    let mut builder = fs::DirBuilder::new();
    builder
        .mode(own_directory::DIRECTORY_MODE)
        .create(directory)?;
    match lock(directory, true) {
        // The other process may have removed the file before it was locked here. From now on it can't.
        Ok(Some(file)) => Ok(own_directory::is_at(&file, &directory.join(LOCK)).then_some(file)),
        Ok(None) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The lock of a process's directory, if it can be taken. `is_own`: the directory was just created, and the
/// lock's file is created too. In another process's directory no file is created, as that process may be about
/// to remove it.
fn lock(directory: &Path, is_own: bool) -> io::Result<Option<File>> {
    let file = File::options()
        .create(is_own)
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
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_draft = name.starts_with(UNLOCKED_PREFIX);
        if !is_draft && !name.starts_with(PREFIX) {
            continue;
        }
        let removed = match lock(&path, false) {
            Ok(Some(_dead)) => fs::remove_dir_all(&path),
            // Its process died before it made the file, or is about to make it: that fails then, or this does.
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_draft => {
                fs::remove_dir(&path)
            }
            // Its process lives, or the directory is not of a process.
            Ok(None) | Err(_) => continue,
        };
        match removed {
            Ok(()) => info!(path = %path.display(), "removed the directory of a dead process"),
            // Its process has made the file meanwhile, and lives.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) => {
                warn!(path = %path.display(), %error, "the directory of a dead process can't be removed");
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
            control_groups: tanist_config::ControlGroupsOption::Off,
            output_umask: None,
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
        let died_at_start = ["locked", "empty"].map(|name| {
            let name = format!("{UNLOCKED_PREFIX}taskmanager-{name}");
            options.working_dir.join(name)
        });
        for directory in &died_at_start {
            fs::create_dir(directory)?;
        }
        fs::write(died_at_start[0].join(LOCK), "")?;
        let foreign = ["somebody-elses", "tanist-elsewhere"];
        let foreign = foreign.map(|name| options.working_dir.join(name));
        for directory in &foreign {
            fs::create_dir(directory)?;
        }

        let second = WorkingDir::create(&options, "jobmanager")?;
        assert!(first.path().exists() && second.path().exists());
        assert!(foreign.iter().all(|directory| directory.exists()));
        assert!(!dead.exists());
        assert!(!died_at_start.iter().any(|directory| directory.exists()));
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists());
        Ok(())
    }

    #[test]
    fn processes_that_start_together_do_not_take_each_others_directories() -> anyhow::Result<()> {
        let root = tempfile::tempdir()?;
        let options = options(root.path());
        std::thread::scope(|scope| {
            let start = || {
                for _ in 0..200 {
                    let directory = WorkingDir::create(&options, "taskmanager")?;
                    let file = directory.path().join("file");
                    let path = directory.path().to_owned();
                    fs::write(file, "").map_err(|source| {
                        DirectoryError::new("process.working-dir", path, source)
                    })?;
                }
                Ok::<_, DirectoryError>(())
            };
            let starting: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
            for started in starting {
                started.join().expect("it does not panic")?;
            }
            anyhow::Ok(())
        })?;
        assert_eq!(fs::read_dir(&options.working_dir)?.count(), 0);
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
