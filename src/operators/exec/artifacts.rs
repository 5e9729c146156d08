//! The artifacts of jobs as files of this TaskManager. There is one file per content, shared by all jobs and
//! programs. It exists while a program uses it or a job for which it was fetched keeps it ([`super::kept`]).
//!
//! Invariant: a file is written under a temporary name and gets its final name only when it has the content
//! that the name states. Programs run as the user who owns the files and can still change them. A changed file
//! is not given to another program but replaced under its name. Programs that found the file before the change
//! see the change.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tanist_dataflow::OperatorError;
use tanist_proto::v1::Artifact;

use crate::host::UploadSource;

/// The artifact files of a process. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct ArtifactCache {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    /// Number of holders of each file, by path.
    holders: Mutex<BTreeMap<PathBuf, Held>>,
    /// One lock per file that is being fetched.
    turns: Mutex<BTreeMap<PathBuf, Weak<tokio::sync::Mutex<()>>>>,
}

/// A file that has at least one holder.
#[derive(Debug)]
struct Held {
    holders: usize,
    /// The file's metadata when it was placed.
    placed: Seal,
}

/// File metadata that shows any change to the file, unless the clock is set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seal {
    inode: (u64, u64),
    mode: u32,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Seal {
    fn of(path: &Path) -> io::Result<Seal> {
        let found = fs::symlink_metadata(path)?;
        Ok(Seal {
            inode: (found.dev(), found.ino()),
            mode: found.mode(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

impl Held {
    /// Whether the file is as it was placed. Logs an error if it is not.
    fn is_intact(&self, path: &Path) -> bool {
        let found = Seal::of(path).ok();
        let is_intact = found == Some(self.placed);
        if !is_intact {
            tracing::error!(
                path = %path.display(),
                placed = ?self.placed,
                ?found,
                "a process, most likely a program of a job, has changed or removed the file of an artifact: it is placed again for \
                 its next user"
            );
        }
        is_intact
    }
}

impl ArtifactCache {
    /// Creates a cache in this directory. The directory is created with the first file.
    pub(crate) fn new(directory: PathBuf) -> ArtifactCache {
        let inner = Inner {
            directory,
            holders: Mutex::default(),
            turns: Mutex::default(),
        };
        ArtifactCache {
            inner: Arc::new(inner),
        }
    }

    /// Returns the artifact's file. Writes the file if it has no holder or was changed. An uploaded artifact
    /// must have been fetched and be held already. Blocks.
    pub(crate) fn hold(&self, artifact: &Artifact) -> Result<HeldArtifact, OperatorError> {
        if artifact.uploaded.is_some() {
            let path = self.path_of(artifact);
            let not_fetched = || {
                OperatorError::unavailable(format!(
                    "artifact {:?} was not fetched, or its file was changed since",
                    artifact.name
                ))
            };
            return self.hold_again(&path).ok_or_else(not_fetched);
        }
        let sha256 = Sha256::digest(&artifact.content);
        if sha256[..] != artifact.sha256[..] {
            let message = format!("artifact {:?} does not have its SHA-256", artifact.name);
            return Err(OperatorError::specification(message));
        }
        let path = self.path_of(artifact);
        // A second caller waits until the file is complete.
        let placed = self.place(path.clone(), |path| write(path, artifact));
        placed.map_err(|error| OperatorError::io("write", &path, error))
    }

    fn path_of(&self, artifact: &Artifact) -> PathBuf {
        let digits = artifact.sha256.iter().map(|byte| format!("{byte:02x}"));
        let mut name: String = digits.collect();
        if artifact.executable {
            name.push_str("-x");
        }
        self.inner.directory.join(name)
    }

    /// Holds the file at `path`. If it has no holder or was changed, `put` places it first. A program that has
    /// the changed file open keeps that one; under the name it then finds the new file.
    fn place(
        &self,
        path: PathBuf,
        put: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<HeldArtifact> {
        let mut all = self.inner.holders.lock();
        let held = all.get_mut(&path);
        let before = held.as_ref().map_or(0, |held| held.holders);
        if !held.is_some_and(|held| held.is_intact(&path)) {
            put(&path)?;
            // The rename is our last change to the file.
            let placed = Seal::of(&path)?;
            let holders = before;
            all.insert(path.clone(), Held { holders, placed });
        }
        if let Some(held) = all.get_mut(&path) {
            held.holders += 1;
        }
        drop(all);
        Ok(HeldArtifact {
            cache: self.clone(),
            path,
        })
    }

    /// Holds the file if it has a holder and is as it was placed.
    fn hold_again(&self, path: &Path) -> Option<HeldArtifact> {
        let mut all = self.inner.holders.lock();
        let held = all.get_mut(path).filter(|held| held.is_intact(path))?;
        held.holders += 1;
        Some(HeldArtifact {
            cache: self.clone(),
            path: path.to_owned(),
        })
    }

    /// Moves a complete file into its place, unless another caller was faster, and holds it. Blocks.
    fn adopt(&self, incomplete: &Path, path: PathBuf) -> io::Result<HeldArtifact> {
        self.place(path, |path| fs::rename(incomplete, path))
    }

    /// Fetches an uploaded artifact piece by piece, unless an unchanged file is held already. If the future is
    /// dropped, it leaves no file.
    pub(crate) async fn fetch(
        &self,
        artifact: &Artifact,
        from: &dyn UploadSource,
    ) -> Result<Option<HeldArtifact>, OperatorError> {
        let Some(uploaded) = &artifact.uploaded else {
            return Ok(None);
        };
        let path = self.path_of(artifact);
        // Tasks of one job start together: one fetches, the others find the file.
        let turn = self.inner.turn_of(&path);
        let _mine = turn.lock().await;
        let failed = |reason: String| {
            let name = &artifact.name;
            OperatorError::unavailable(format!("artifact {name:?} can't be fetched: {reason}"))
        };
        let (cache, held_at) = (self.clone(), path.clone());
        let again = beside(move || Ok(cache.hold_again(&held_at))).await;
        if let Some(held) = again.map_err(&failed)? {
            return Ok(Some(held));
        }
        let (incomplete, executable) = (Incomplete::new(&path), artifact.executable);
        let begun = beside(move || Writing::begin(incomplete, executable)).await;
        let mut writing = begun.map_err(&failed)?;
        for piece in 0..uploaded.pieces {
            let object = format!("{}.{piece:05}", uploaded.object);
            let bytes = from.object(&object).await.map_err(&failed)?;
            let put = beside(move || writing.put(&bytes)).await;
            writing = put.map_err(&failed)?;
        }
        let found = writing.hasher.finalize();
        if found[..] != artifact.sha256[..] {
            return Err(failed("it does not have its SHA-256".to_owned()));
        }
        let (cache, incomplete) = (self.clone(), writing.incomplete);
        let adopt = move || {
            let held = cache.adopt(&incomplete.0, path);
            held.map_err(|error| error.to_string())
        };
        beside(adopt).await.map(Some).map_err(failed)
    }
}

/// Runs work that blocks beside the tasks of the runtime. Another caller may hold the lock of the holders while it
/// writes a whole file.
async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| error.to_string()).flatten()
}

/// A file that is being written. It is removed on drop unless it was moved into its place.
struct Incomplete(PathBuf);

impl Incomplete {
    fn new(path: &Path) -> Incomplete {
        let random = rand::random::<u64>();
        Incomplete(path.with_extension(format!("{random:016x}")))
    }
}

impl Drop for Incomplete {
    fn drop(&mut self) {
        let _it_may_be_in_its_place = fs::remove_file(&self.0);
    }
}

/// A partly written file and the checksum of that part.
struct Writing {
    incomplete: Incomplete,
    file: fs::File,
    hasher: Sha256,
}

impl Writing {
    fn begin(incomplete: Incomplete, executable: bool) -> Result<Writing, String> {
        let file = create(&incomplete.0, executable).map_err(|error| error.to_string())?;
        Ok(Writing {
            incomplete,
            file,
            hasher: Sha256::new(),
        })
    }

    fn put(mut self, bytes: &[u8]) -> Result<Writing, String> {
        self.hasher.update(bytes);
        let written = self.file.write_all(bytes);
        written.map_err(|error| error.to_string())?;
        Ok(self)
    }
}

impl Inner {
    /// Returns the lock that callers who fetch the same file take in turn.
    fn turn_of(&self, path: &Path) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock();
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(path).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        turns.insert(path.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

/// Creates a file, and its directory, that programs must not change.
fn create(path: &Path, executable: bool) -> io::Result<fs::File> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let mode = if executable { 0o500 } else { 0o400 };
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(mode).open(path)
}

/// Writes the content that came with the graph.
fn write(path: &Path, artifact: &Artifact) -> io::Result<()> {
    let incomplete = path.with_extension("incomplete");
    // A file left by an earlier attempt may not be writable.
    let _it_may_not_be_there = fs::remove_file(&incomplete);
    let mut file = create(&incomplete, artifact.executable)?;
    file.write_all(&artifact.content)?;
    drop(file);
    fs::rename(incomplete, path)
}

/// Keeps a file in place while this value lives.
#[derive(Debug)]
pub(crate) struct HeldArtifact {
    cache: ArtifactCache,
    path: PathBuf,
}

impl HeldArtifact {
    /// Path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for HeldArtifact {
    fn drop(&mut self) {
        let mut all = self.cache.inner.holders.lock();
        let Some(held) = all.get_mut(&self.path) else {
            return;
        };
        held.holders -= 1;
        if held.holders == 0 {
            all.remove(&self.path);
            if let Err(error) = fs::remove_file(&self.path) {
                tracing::debug!(path = %self.path.display(), %error, "an artifact can't be removed");
            }
        }
    }
}

#[cfg(test)]
#[path = "artifacts_tests.rs"]
mod tests;
