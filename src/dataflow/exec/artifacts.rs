//! The artifacts of jobs as files of this TaskManager: one file for each content, whichever jobs and programs use it, there as
//! long as one of them does: a program, or a job for which it was fetched ([`super::kept`]).
//!
//! Invariant: a file under its final name has the content that its name says; it is written under another name first.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sha2::{Digest as _, Sha256};
use tanist_proto::v1::Artifact;

use crate::dataflow::host::UploadSource;
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
    /// Files that are being fetched.
    turns: Mutex<BTreeMap<PathBuf, Weak<tokio::sync::Mutex<()>>>>,
}

impl ArtifactCache {
    /// Files in this directory, which is made when there is one.
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

    /// The artifact's file; written if nobody holds it yet. One that was uploaded has to be held already. Blocks.
    pub(crate) fn hold(&self, artifact: &Artifact) -> Result<HeldArtifact, OperatorError> {
        if artifact.uploaded.is_some() {
            let path = self.path_of(artifact);
            let not_fetched = || {
                OperatorError::unavailable(format!("artifact {:?} was not fetched", artifact.name))
            };
            return self.hold_again(&path).ok_or_else(not_fetched);
        }
        let sha256 = Sha256::digest(&artifact.content);
        if sha256[..] != artifact.sha256[..] {
            let message = format!("artifact {:?} does not have its SHA-256", artifact.name);
            return Err(OperatorError::specification(message));
        }
        let path = self.path_of(artifact);
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

impl ArtifactCache {
    fn path_of(&self, artifact: &Artifact) -> PathBuf {
        let digits = artifact.sha256.iter().map(|byte| format!("{byte:02x}"));
        let mut name: String = digits.collect();
        if artifact.executable {
            name.push_str("-x");
        }
        self.inner.directory.join(name)
    }

    /// The file, if somebody holds it.
    pub(super) fn hold_again(&self, path: &Path) -> Option<HeldArtifact> {
        let mut holders = self.inner.lock();
        *holders.get_mut(path)? += 1;
        Some(HeldArtifact {
            cache: self.clone(),
            path: path.to_owned(),
        })
    }

    /// Puts a whole file in its place, unless somebody was faster, and holds it. Blocks.
    fn adopt(&self, incomplete: &Path, path: PathBuf) -> io::Result<HeldArtifact> {
        let mut holders = self.inner.lock();
        if !holders.contains_key(&path) {
            fs::rename(incomplete, &path)?;
        }
        *holders.entry(path.clone()).or_default() += 1;
        drop(holders);
        Ok(HeldArtifact {
            cache: self.clone(),
            path,
        })
    }

    /// Fetches an artifact that was uploaded, piece by piece, unless somebody holds it. Dropped, it leaves nothing.
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
        if let Some(held) = self.hold_again(&path) {
            return Ok(Some(held));
        }
        let cache = self.clone();
        let failed = |reason: String| {
            let name = &artifact.name;
            OperatorError::unavailable(format!("artifact {name:?} can't be fetched: {reason}"))
        };
        let incomplete = Incomplete::new(&path);
        let mut writing = Writing::begin(&incomplete.0, artifact.executable).map_err(&failed)?;
        for piece in 0..uploaded.pieces {
            let object = format!("{}.{piece:05}", uploaded.object);
            let bytes = from.object(&object).await.map_err(&failed)?;
            let put = tokio::task::spawn_blocking(move || writing.put(&bytes));
            writing = put
                .await
                .map_err(|error| failed(error.to_string()))?
                .map_err(&failed)?;
        }
        let found = writing.hasher.finalize();
        if found[..] != artifact.sha256[..] {
            return Err(failed("it does not have its SHA-256".to_owned()));
        }
        let held = cache.adopt(&incomplete.0, path);
        held.map(Some).map_err(|error| failed(error.to_string()))
    }
}

/// A file that is being written, removed unless it went into its place.
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

/// A file of which a part is written, and the checksum of that.
struct Writing {
    file: fs::File,
    hasher: Sha256,
}

impl Writing {
    fn begin(path: &Path, executable: bool) -> Result<Writing, String> {
        let begin = || {
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory)?;
            }
            let mode = if executable { 0o555 } else { 0o444 };
            let mut options = fs::OpenOptions::new();
            options.write(true).create_new(true).mode(mode).open(path)
        };
        let file = begin().map_err(|error: io::Error| error.to_string())?;
        Ok(Writing {
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
    /// By which those take turns that want the same file.
    fn turn_of(&self, path: &Path) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(path).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        turns.insert(path.to_owned(), Arc::downgrade(&turn));
        turn
    }

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
            content: content.into(),
            ..Artifact::default()
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

    /// Gives out pieces, and counts how many.
    #[derive(Debug, Default)]
    struct Pieces(std::sync::atomic::AtomicUsize);

    #[async_trait::async_trait]
    impl UploadSource for Pieces {
        async fn object(&self, name: &str) -> Result<bytes::Bytes, String> {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let content = ["first ", "second"];
            let number: usize = name
                .rsplit('.')
                .next()
                .unwrap_or_default()
                .parse()
                .unwrap_or(9);
            let piece = content.get(number).ok_or("there is no such piece")?;
            Ok(bytes::Bytes::from_static(piece.as_bytes()))
        }
    }

    fn uploaded(content: &[u8], pieces: u32) -> Artifact {
        Artifact {
            name: "model".to_owned(),
            sha256: Sha256::digest(content).to_vec().into(),
            uploaded: Some(tanist_proto::v1::UploadedContent {
                object: "object".to_owned(),
                pieces,
                size: content.len() as u64,
            }),
            ..Artifact::default()
        }
    }

    #[tokio::test]
    async fn what_was_uploaded_is_fetched_once_however_many_want_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = ArtifactCache::new(directory.path().join("artifacts"));
        let source = Pieces::default();
        let artifact = uploaded(b"first second", 2);
        assert!(cache.hold(&artifact).is_err(), "it is not there");
        let fetches = (0..3).map(|_| cache.fetch(&artifact, &source));
        let held = futures::future::try_join_all(fetches)
            .await
            .expect("fetched");
        let count = source.0.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(count, 2, "two pieces, once each");
        let again = cache.hold(&artifact).expect("it is there");
        assert_eq!(fs::read(again.path()).expect("it is held"), b"first second");
        drop((held, again));
        let left = fs::read_dir(directory.path().join("artifacts"));
        assert_eq!(left.expect("it is there").count(), 0);
    }

    #[tokio::test]
    async fn what_is_not_what_was_uploaded_is_refused_and_leaves_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = ArtifactCache::new(directory.path().join("artifacts"));
        for (artifact, reason) in [
            (uploaded(b"other", 2), "does not have its SHA-256"),
            (uploaded(b"first second", 3), "no such piece"),
        ] {
            let fetched = cache.fetch(&artifact, &Pieces::default()).await;
            let error = fetched.expect_err("refused").to_string();
            assert!(error.contains(reason), "{error}");
        }
        let left = fs::read_dir(directory.path().join("artifacts"));
        assert_eq!(left.expect("it is there").count(), 0);
    }
}
