//! A savepoint: a directory that holds a copy of a checkpoint, and needs nothing outside of it.
//!
//! ```text
//! <directory>/<SHA-256 of its bytes>     an object that holds state
//! <directory>/_metadata                  what the savepoint is, and the list of its objects; written last
//! ```
//!
//! Invariants: a directory without `_metadata` is no savepoint; what `_metadata` names was written before it. An
//! object's name is the checksum of its bytes, so a copy that is repeated writes what is there already. A savepoint
//! that is missing or damaged is distinguished from one that can't be read at present.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tanist_ha::Error;
use tanist_ha::blob::{Checksum, ObjectDirectory, ObjectRange, STORE};

use super::copy::{Copied, Sizes, answered, checksum_of, copy_all};
use super::metadata::{self, Unread};

/// The file that makes a directory a savepoint.
const METADATA: &str = "_metadata";
/// What `_metadata` becomes when the removal of a savepoint begins.
const REMOVED: &str = "_removed";
/// Objects that are read or removed at the same time.
const AT_ONCE: usize = 8;

/// Why a savepoint can't be written, read or removed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SavepointError {
    /// Nothing is there.
    #[error("there is no savepoint in {0}: nothing is there")]
    Missing(String),
    /// Some objects are there, and no `_metadata`.
    #[error(
        "{0} is half copied: it has no {METADATA}, which is written last, so it is not a savepoint; if no copy is under way, \
         remove the directory"
    )]
    HalfCopied(String),
    /// Something else is there.
    #[error("{0} is not a savepoint: {1}")]
    NotSavepoint(String, String),
    /// The bytes are not those that were written.
    #[error("the savepoint in {0} is damaged: {1}")]
    Damaged(String, String),
    /// A later version wrote it. Nothing is wrong with it.
    #[error(
        "the savepoint in {0} has format {1}, and this version reads formats up to {2}: use a later version"
    )]
    TooNew(String, u16, u16),
    /// The storage, or the objects of the checkpoint that is copied.
    #[error(transparent)]
    Storage(#[from] Error),
}

impl SavepointError {
    /// Whether the same request may succeed later; see [`Error::may_pass`].
    pub fn may_pass(&self) -> bool {
        matches!(self, SavepointError::Storage(error) if error.may_pass())
    }
}

type Result<T> = std::result::Result<T, SavepointError>;

/// What a savepoint holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavepointContent {
    /// What was given to [`SavepointStorage::write`]: the bytes of a manifest.
    pub manifest: Bytes,
    /// Names of its objects, with their sizes in bytes.
    pub objects: BTreeMap<String, u64>,
}

/// The directory of one savepoint. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SavepointStorage {
    objects: ObjectDirectory,
    sizes: Sizes,
}

impl SavepointStorage {
    /// Names the directory of a savepoint: an absolute path, `file:///path` or `s3://bucket/prefix`. Creates nothing,
    /// and does not look whether it exists. A directory that other users may change is refused.
    pub async fn open(directory: &str) -> Result<SavepointStorage> {
        Ok(SavepointStorage {
            objects: ObjectDirectory::open(directory, METADATA).await?,
            sizes: Sizes::default(),
        })
    }

    /// Where it is, for people.
    pub fn location(&self) -> String {
        self.objects.location()
    }

    /// Its objects, to be read by range as those of a checkpoint.
    pub fn objects(&self) -> &ObjectDirectory {
        &self.objects
    }

    /// Copies all objects of `source` that one of `ranges` is in, and writes `_metadata` last. `manifest` returns its
    /// content, given the name in the savepoint of each object. Does nothing if the same savepoint is there. Each step
    /// has a timeout.
    ///
    /// A later leader may have given the same copy up, and discard it at the same time. Then no savepoint is left: the
    /// writer of `_metadata` looks for the objects afterwards, and the remover of objects looks for `_metadata`
    /// afterwards. So the order of these steps must not change. If this process ends before it has looked, the next
    /// [`SavepointStorage::discard_copy`] removes its files.
    pub async fn write(
        &self,
        source: &ObjectDirectory,
        ranges: &[ObjectRange],
        manifest: impl FnOnce(&BTreeMap<String, String>) -> Bytes + Send,
    ) -> Result<()> {
        let place = self.location();
        answered(&place, self.objects.make()).await?;
        let copied = copy_all(source, ranges, &self.objects, self.sizes).await?;
        let sizes = copied.values().map(|copy| (copy.sha256, copy.size));
        let names = copied.iter();
        let names = names.map(|(object, copy)| (object.clone(), copy.sha256.to_string()));
        let manifest = manifest(&names.collect());
        let bytes = metadata::encode(&sizes.collect(), &manifest);
        let found = answered(&place, async { Ok(self.get(METADATA).await) }).await??;
        match found {
            Some(found) if found == bytes => return Ok(()),
            Some(_) => return Err(self.not_savepoint("another savepoint is there")),
            None => answered(&place, self.objects.put(METADATA, bytes)).await?,
        }
        let listed = answered(&place, self.objects.sizes()).await?;
        let is_there = |copy: &Copied| listed.contains_key(&copy.sha256.to_string());
        if copied.values().all(is_there) {
            return Ok(());
        }
        let discarding = async { Ok(self.discard_copy(|found| *found == manifest).await) };
        answered(&place, discarding).await??;
        Err(SavepointError::HalfCopied(place))
    }

    /// Reads and checks `_metadata`, and that its objects are there. Does not read them.
    pub async fn read(&self) -> Result<SavepointContent> {
        let bytes = self.get(METADATA).await?;
        let Some(bytes) = bytes else {
            return Err(self.without_metadata().await);
        };
        let content = self.decode(&bytes)?;
        let found = self.objects.sizes().await?;
        for (object, size) in &content.objects {
            match found.get(object) {
                Some(found) if found == size => {}
                Some(found) => {
                    let reason = format!("its object {object} has {found} bytes instead of {size}");
                    return Err(self.damaged(reason));
                }
                None => return Err(self.damaged(format!("its object {object} is missing"))),
            }
        }
        Ok(content)
    }

    /// Reads everything, and checks it against the names of the objects.
    pub async fn verify(&self) -> Result<SavepointContent> {
        let content = self.read().await?;
        let checks: Vec<_> = content.objects.iter().collect();
        let checks = checks.into_iter().map(|(object, size)| async move {
            let sum = checksum_of(&self.objects, object, *size).await;
            match sum {
                Ok(sum) if sum.to_string() == *object => Ok(()),
                Ok(_) => Err(self.damaged(format!("the checksum of its object {object} differs"))),
                Err(Error::Corrupt { reason, .. }) => {
                    Err(self.damaged(format!("its object {object}: {reason}")))
                }
                Err(error) => Err(error.into()),
            }
        });
        let checks: Vec<_> = checks.collect();
        let checks = stream::iter(checks).buffer_unordered(AT_ONCE);
        checks.try_collect::<()>().await?;
        Ok(content)
    }

    /// Removes the savepoint: `_metadata` first, then its objects, then the directory if nothing else is in it.
    /// Refuses what is not a savepoint. A removal that was interrupted is continued.
    pub async fn dispose(&self) -> Result<()> {
        let [whole, removed] = [self.get(METADATA).await?, self.get(REMOVED).await?];
        let content = match (whole, removed) {
            (Some(bytes), _) => {
                let content = self.to_remove(&bytes)?;
                self.objects.put(REMOVED, bytes).await?;
                self.remove([METADATA]).await?;
                content
            }
            (None, Some(bytes)) => self.to_remove(&bytes)?,
            (None, None) => return Err(self.without_metadata().await),
        };
        self.remove(content.objects.keys().map(String::as_str))
            .await?;
        self.remove([REMOVED]).await?;
        self.remove_directory().await
    }

    /// Removes a copy that has failed for good, complete or not. `is_own` says whether a manifest is that of the copy.
    /// A directory with another manifest, or one that can't be read, stays, and so does a savepoint whose removal has
    /// begun.
    ///
    /// The caller knows from a durable record that no process reports this copy as complete, and that no other copy is
    /// written to this directory.
    pub async fn discard_copy(&self, is_own: impl Fn(&Bytes) -> bool) -> Result<()> {
        if self.get(REMOVED).await?.is_some() {
            return Ok(());
        }
        let mut found = self.get(METADATA).await?;
        loop {
            if let Some(bytes) = &found {
                let manifest = metadata::decode(bytes).map(|(_, manifest)| manifest);
                if !manifest.is_ok_and(|manifest| is_own(&manifest)) {
                    return Ok(());
                }
                // Before the objects, so that there is never a savepoint without its objects.
                self.remove([METADATA]).await?;
            }
            let names = self.objects.sizes().await?.into_keys();
            let objects: BTreeSet<String> = names.filter(|name| is_object(name)).collect();
            self.remove(objects.iter().map(String::as_str)).await?;
            // After the objects: a process that does not know of the failure may have written it meanwhile, and objects
            // before it.
            found = self.get(METADATA).await?;
            if found.is_none() {
                break;
            }
        }
        self.remove_directory().await
    }

    /// The content of a savepoint that is to be removed.
    fn to_remove(&self, bytes: &Bytes) -> Result<SavepointContent> {
        self.decode(bytes).map_err(|error| match error {
            SavepointError::Damaged(path, reason) => SavepointError::Damaged(
                path,
                format!(
                    "{reason}; which objects are its own is not known: remove its directory by hand"
                ),
            ),
            other => other,
        })
    }

    fn decode(&self, bytes: &Bytes) -> Result<SavepointContent> {
        match metadata::decode(bytes) {
            Ok((objects, manifest)) => Ok(SavepointContent { manifest, objects }),
            Err(Unread::Damaged(reason)) => Err(self.damaged(reason)),
            Err(Unread::TooNew(found)) => Err(SavepointError::TooNew(
                self.location(),
                found,
                metadata::FORMAT,
            )),
        }
    }

    /// Reads a file; `None` if it does not exist.
    async fn get(&self, name: &str) -> Result<Option<Bytes>> {
        match self.objects.find(name).await {
            Err(_) if self.local().as_deref().is_some_and(Path::is_file) => {
                Err(self.not_savepoint("it is a file"))
            }
            found => Ok(found?),
        }
    }

    fn local(&self) -> Option<PathBuf> {
        self.objects.local_directory()
    }

    /// The error about a directory without `_metadata`, by its content.
    async fn without_metadata(&self) -> SavepointError {
        match self.get(REMOVED).await {
            Ok(None) => {}
            Ok(Some(_)) => {
                return self.not_savepoint("its removal has begun: dispose of it again to end it");
            }
            Err(error) => return error,
        }
        if self.local().is_some_and(|it| !it.exists()) {
            return SavepointError::Missing(self.location());
        }
        let names = match self.objects.sizes().await {
            Ok(files) => files.into_keys(),
            Err(error) => return error.into(),
        };
        let names: Vec<String> = names.collect();
        match names.iter().any(|name| is_object(name)) {
            true => SavepointError::HalfCopied(self.location()),
            false if !names.is_empty() => {
                self.not_savepoint(&format!("it has no {METADATA}, and other files are in it"))
            }
            false if self.local().is_some() => self.not_savepoint(&format!(
                "it has no {METADATA}, and no other file. If savepoints are in it, name one of them"
            )),
            false => SavepointError::Missing(self.location()),
        }
    }

    async fn remove<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let removals = names.into_iter().map(|name| self.objects.remove(name));
        let removals: Vec<_> = removals.collect();
        let removals = stream::iter(removals).buffer_unordered(AT_ONCE);
        Ok(removals.try_collect::<()>().await?)
    }

    async fn remove_directory(&self) -> Result<()> {
        let Some(directory) = self.local() else {
            return Ok(());
        };
        let removing = tokio::task::spawn_blocking(move || remove_without_files(&directory)).await;
        let removed = removing.map_err(std::io::Error::other).flatten();
        Ok(removed.map_err(|error| Error::Unavailable {
            store: STORE,
            reason: error.to_string(),
        })?)
    }

    fn damaged(&self, reason: String) -> SavepointError {
        SavepointError::Damaged(self.location(), reason)
    }

    fn not_savepoint(&self, reason: &str) -> SavepointError {
        SavepointError::NotSavepoint(self.location(), reason.to_owned())
    }
}

fn is_object(name: &str) -> bool {
    name.parse::<Checksum>().is_ok()
}

/// Removes a directory in which there are at most unfinished files of objects, `<object>#<number>`.
fn remove_without_files(directory: &Path) -> std::io::Result<()> {
    use std::io::ErrorKind::{DirectoryNotEmpty, NotFound};
    // A link to it can't be removed as a directory.
    let directory = match std::fs::canonicalize(directory) {
        Ok(directory) => directory,
        Err(error) if error.kind() == NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries.collect::<std::io::Result<Vec<_>>>()?,
        Err(error) if error.kind() == NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let is_unfinished = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        let parts = name.to_str().and_then(|name| name.split_once('#'));
        parts.is_some_and(|(object, _)| is_object(object) || [METADATA, REMOVED].contains(&object))
    };
    for entry in entries.iter().filter(|entry| is_unfinished(entry)) {
        std::fs::remove_file(entry.path())?;
    }
    match std::fs::remove_dir(directory) {
        Err(error) if [DirectoryNotEmpty, NotFound].contains(&error.kind()) => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
#[cfg(test)]
pub(super) use tests::source;
