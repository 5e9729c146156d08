//! The artifacts of jobs as files of this TaskManager: one file for each content, whichever jobs and programs use it, there as
//! long as one of them does.
//!
//! Invariant: a file under its final name has the content that its name says; it is written under another name first.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};
use tanist_proto::v1::Artifact;

use crate::dataflow::operator::OperatorError;

/// The files of a process. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct ArtifactCache {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    /// How many hold each file.
    holders: Mutex<BTreeMap<PathBuf, usize>>,
}

impl ArtifactCache {
    /// Files in this directory, which is made when there is one.
    pub(crate) fn new(directory: PathBuf) -> ArtifactCache {
        let inner = Inner {
            directory,
            holders: Mutex::default(),
        };
        ArtifactCache {
            inner: Arc::new(inner),
        }
    }

    /// The artifact's file; written if nobody holds it yet. Blocks.
    pub(crate) fn hold(&self, artifact: &Artifact) -> Result<HeldArtifact, OperatorError> {
        let sha256 = Sha256::digest(&artifact.content);
        if sha256[..] != artifact.sha256[..] {
            let message = format!("artifact {:?} does not have its SHA-256", artifact.name);
            return Err(OperatorError::specification(message));
        }
        let mut name: String = sha256.iter().map(|byte| format!("{byte:02x}")).collect();
        if artifact.executable {
            name.push_str("-x");
        }
        let path = self.inner.directory.join(name);
        // Whoever comes second waits until the file is whole.
        let mut holders = self.inner.lock();
        if !holders.contains_key(&path) {
            write(&path, artifact).map_err(|error| OperatorError::io("write", &path, error))?;
        }
        *holders.entry(path.clone()).or_default() += 1;
        drop(holders);
        Ok(HeldArtifact {
            cache: self.clone(),
            path,
        })
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, usize>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(path: &Path, artifact: &Artifact) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let incomplete = path.with_extension("incomplete");
    // What an earlier try left may not be writable.
    let _it_may_not_be_there = fs::remove_file(&incomplete);
    let mode = if artifact.executable { 0o555 } else { 0o444 };
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&incomplete)?;
    file.write_all(&artifact.content)?;
    drop(file);
    fs::rename(incomplete, path)
}

/// A file that stays while this lives.
#[derive(Debug)]
pub(crate) struct HeldArtifact {
    cache: ArtifactCache,
    path: PathBuf,
}

impl HeldArtifact {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for HeldArtifact {
    fn drop(&mut self) {
        let mut holders = self.cache.inner.lock();
        let Some(count) = holders.get_mut(&self.path) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            holders.remove(&self.path);
            if let Err(error) = fs::remove_file(&self.path) {
                tracing::debug!(path = %self.path.display(), %error, "an artifact can't be removed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn artifact(name: &str, content: &'static [u8]) -> Artifact {
        Artifact {
            name: name.to_owned(),
            sha256: Sha256::digest(content).to_vec().into(),
            executable: false,
            content: content.into(),
        }
    }

    #[test]
    fn one_content_is_one_file_as_long_as_somebody_holds_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = ArtifactCache::new(directory.path().join("artifacts"));
        let first = cache.hold(&artifact("a", b"content")).expect("held");
        let second = cache.hold(&artifact("b", b"content")).expect("held");
        assert_eq!(first.path(), second.path());
        let path = first.path().to_owned();
        drop(first);
        assert_eq!(fs::read(&path).expect("it is held"), b"content");
        drop(second);
        assert!(!path.exists());
        assert!(cache.inner.lock().is_empty());
    }

    #[test]
    fn a_program_can_be_executed_and_is_a_file_of_its_own() {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = ArtifactCache::new(directory.path().to_owned());
        let plain = cache.hold(&artifact("a", b"content")).expect("held");
        let program = Artifact {
            executable: true,
            ..artifact("a", b"content")
        };
        let program = cache.hold(&program).expect("held");
        let mode = |held: &HeldArtifact| {
            let found = fs::metadata(held.path()).expect("it is held");
            found.permissions().mode() & 0o111
        };
        assert_eq!(mode(&plain), 0);
        assert_ne!(mode(&program), 0);
    }

    #[test]
    fn content_that_is_not_what_it_should_be_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = ArtifactCache::new(directory.path().to_owned());
        let wrong = Artifact {
            content: (&b"other"[..]).into(),
            ..artifact("a", b"content")
        };
        let error = cache.hold(&wrong).expect_err("refused").to_string();
        assert!(error.contains("does not have its SHA-256"), "{error}");
    }
}
