//! Objects of a job's checkpoints: state, and manifests that are too large for a record.
//!
//! ```text
//! checkpoints/<cluster tag>/<job>/<number>-<generation>-<random>     below their place
//! ```
//!
//! When an object is garbage is decided by the job's JobMaster. Invariants: no name is used twice, so no object is
//! overwritten; a written object is as durable as any blob; the bytes of a range are those that were written, by
//! length and XXH3, or an error. An object that is missing or damaged is [`Error::Corrupt`]; a storage that can't be
//! read at present never is.

use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutPayload};
use xxhash_rust::xxh3::xxh3_64;

use super::{BlobStore, METADATA, STORE, failure};
use crate::error::{Error, Result};
use crate::keys::Name;

const DIRECTORY: &str = "checkpoints";

/// XXH3 (64 bit) of bytes: the checksum of a range.
pub fn range_checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// A name for an object that is written for a checkpoint by an execution of this generation. It is used once.
pub fn object_name(number: u64, generation: u64) -> String {
    format!("{number}-{generation}-{:016x}", rand::random::<u64>())
}

/// A range of an object's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRange {
    /// The object's name.
    pub object: String,
    /// Its first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Its [`range_checksum`].
    pub checksum: u64,
}

/// The objects of one job's checkpoints. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CheckpointStorage {
    blobs: BlobStore,
    /// The directory of the objects, below the place of the store; empty: the place itself.
    directory: String,
    /// What is in the place as long as the storage is there.
    witness: &'static str,
}

impl BlobStore {
    /// The objects of a job's checkpoints, under the tag of its cluster.
    pub fn checkpoints(&self, job: &Name) -> CheckpointStorage {
        let place = self.place_of_checkpoints();
        CheckpointStorage {
            directory: format!("{DIRECTORY}/{}/{job}", place.tag.as_str()),
            blobs: place.clone(),
            witness: DIRECTORY,
        }
    }

    /// Whether the objects of checkpoints survive the loss of this host.
    pub fn keeps_checkpoints(&self) -> bool {
        self.place_of_checkpoints().survives_host
    }

    fn place_of_checkpoints(&self) -> &BlobStore {
        self.checkpoints.as_deref().unwrap_or(self)
    }

    /// The jobs of this cluster that have a directory for checkpoints, in order.
    pub async fn jobs_with_checkpoints(&self) -> Result<Vec<Name>> {
        let place = self.place_of_checkpoints();
        let prefix = Path::from(format!("{DIRECTORY}/{}", place.tag.as_str()));
        let listed = place.objects.list_with_delimiter(Some(&prefix)).await;
        let directories = listed.map_err(failure)?.common_prefixes.into_iter();
        let mut jobs: Vec<Name> = directories
            .filter_map(|path| Name::new(path.filename()?).ok())
            .collect();
        jobs.sort();
        Ok(jobs)
    }

    /// The objects of the savepoint that this store is opened at.
    pub(super) fn savepoint(&self) -> CheckpointStorage {
        CheckpointStorage {
            directory: String::new(),
            blobs: self.clone(),
            witness: METADATA,
        }
    }
}

impl CheckpointStorage {
    /// Where the objects are, for people.
    pub fn location(&self) -> String {
        match self.directory.as_str() {
            "" => self.blobs.location.clone(),
            directory => format!("{}/{directory}", self.blobs.location),
        }
    }

    /// Stores an object under a name that was never used. After an error it may exist.
    pub async fn put(&self, object: &str, bytes: Bytes) -> Result<()> {
        self.put_parts(object, [bytes]).await
    }

    /// Stores an object that consists of these parts, under a name that was never used. After an error it may exist.
    pub async fn put_parts(
        &self,
        object: &str,
        parts: impl IntoIterator<Item = Bytes>,
    ) -> Result<()> {
        let content = PutPayload::from_iter(parts);
        self.blobs.put_at(&self.path(object)?, content).await
    }

    /// Reads an object whole; `Corrupt` if it is missing.
    pub async fn get(&self, object: &str) -> Result<Bytes> {
        let path = self.path(object)?;
        match self.blobs.objects.get(&path).await {
            Ok(found) => found.bytes().await.map_err(failure),
            Err(error) => Err(self.unread(object, error).await),
        }
    }

    /// Reads a range; `Corrupt` if the object is missing or shorter, or if the bytes differ.
    pub async fn get_range(&self, range: &ObjectRange) -> Result<Bytes> {
        let object = &range.object;
        let corrupt = |reason: String| Err(self.corrupt(object, reason));
        let Some(end) = range.offset.checked_add(range.length) else {
            return corrupt("its range is not valid".to_owned());
        };
        let bytes = match self.read(object, range.offset..end).await? {
            Some(bytes) => bytes,
            None => return corrupt(format!("it ends before byte {end}")),
        };
        let expected = range.checksum;
        let found = range_checksum(&bytes);
        if found != expected {
            return corrupt(format!(
                "the checksum of {} bytes from {} on is {found:016x}, and {expected:016x} was written",
                range.length, range.offset
            ));
        }
        Ok(bytes)
    }

    /// The bytes of a range; `None` if the object is shorter.
    pub(super) async fn read(&self, object: &str, range: Range<u64>) -> Result<Option<Bytes>> {
        if range.is_empty() {
            let size = self.size_of(object).await?;
            return Ok((size >= range.end).then(Bytes::new));
        }
        let path = self.path(object)?;
        let length = range.end - range.start;
        let reading = self.blobs.objects.get_range(&path, range.clone());
        let error = match reading.await {
            Ok(bytes) if bytes.len() as u64 == length => return Ok(Some(bytes)),
            Ok(_) => return Ok(None),
            Err(error) => error,
        };
        // Not every store says in its error that a range is too long.
        let is_there = !matches!(error, object_store::Error::NotFound { .. });
        if is_there && self.size_of(object).await? < range.end {
            return Ok(None);
        }
        Err(self.unread(object, error).await)
    }

    /// The size of an object in bytes; `Corrupt` if it is missing.
    pub(super) async fn size_of(&self, object: &str) -> Result<u64> {
        match self.blobs.objects.head(&self.path(object)?).await {
            Ok(meta) => Ok(meta.size),
            Err(error) => Err(self.unread(object, error).await),
        }
    }

    /// Copies an object of another job of the same store, under a name that was never used; `Corrupt` if it is missing.
    /// The storage copies it: no bytes are read, so none are checked. After an error the copy may exist.
    pub async fn copy(&self, from: &CheckpointStorage, object: &str, name: &str) -> Result<()> {
        self.blobs.check_marker().await?;
        let (source, target) = (from.path(object)?, self.path(name)?);
        match self.blobs.objects.copy(&source, &target).await {
            Ok(()) => self.blobs.check_marker().await,
            Err(error) => Err(from.unread(object, error).await),
        }
    }

    /// The names of all objects, in order.
    pub async fn list(&self) -> Result<Vec<String>> {
        let prefix = Path::from(self.directory.as_str());
        let listed = self.blobs.objects.list_with_delimiter(Some(&prefix)).await;
        let listed = listed.map_err(failure)?.objects.into_iter();
        let mut names: Vec<String> = listed
            .filter_map(|meta| meta.location.filename().map(str::to_owned))
            .filter(|name| Name::new(name.as_str()).is_ok())
            .collect();
        names.sort();
        Ok(names)
    }

    /// Removes an object. Does nothing if it does not exist.
    pub async fn remove(&self, object: &str) -> Result<()> {
        self.blobs.delete_at(&self.path(object)?).await
    }

    /// Removes the job's directory with what killed processes left unfinished, unless an object is in it.
    pub async fn remove_directory(&self) -> Result<()> {
        let Some(directory) = self.local_directory() else {
            return Ok(());
        };
        self.blobs.check_before_deletion().await?;
        let removing = tokio::task::spawn_blocking(move || remove_without_objects(&directory));
        let removed = removing.await.map_err(std::io::Error::other).flatten();
        removed.map_err(|error| Error::Unavailable {
            store: STORE,
            reason: error.to_string(),
        })
    }

    pub(super) fn path(&self, object: &str) -> Result<Path> {
        let name =
            Name::new(object).map_err(|error| self.corrupt(object, format!("as name: {error}")))?;
        Ok(Path::from(format!("{}/{name}", self.directory)))
    }

    /// The job's directory, if the store is a directory.
    fn local_directory(&self) -> Option<PathBuf> {
        let root = self.blobs.directory.as_ref();
        root.map(|root| root.join(&self.directory))
    }

    pub(super) fn corrupt(&self, object: &str, reason: String) -> Error {
        Error::Corrupt {
            key: format!("the object {object} in {}", self.location()),
            reason,
        }
    }

    /// Converts the error of a read. A directory without its witness is one that is not mounted: nothing says that the
    /// object is missing from the storage.
    async fn unread(&self, object: &str, error: object_store::Error) -> Error {
        if matches!(error, object_store::Error::NotFound { .. })
            && let Some(root) = &self.blobs.directory
            && !root.join(self.witness).exists()
        {
            let (place, witness) = (&self.blobs.location, self.witness);
            if self.witness == METADATA && was_removed(root) {
                let reason = format!("{place} is missing, and what is beside it is there");
                return self.corrupt(object, reason);
            }
            return Error::Unavailable {
                store: STORE,
                reason: format!("{place} has no {witness}: is it mounted?"),
            };
        }
        let Ok(name) = Name::new(object) else {
            return failure(error);
        };
        match self.blobs.unread(&name, error).await {
            Error::Corrupt { reason, .. } => self.corrupt(object, reason),
            error => error,
        }
    }
}

/// Whether the directory of a savepoint is missing, and the one above it is mounted, as something is in that.
fn was_removed(directory: &FilePath) -> bool {
    let beside = directory.parent().map(std::fs::read_dir);
    let is_mounted = beside.is_some_and(|beside| beside.is_ok_and(|mut it| it.next().is_some()));
    !directory.exists() && is_mounted
}

/// Removes a directory in which there are only unfinished files, `<object>#<number>`.
fn remove_without_objects(directory: &FilePath) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries.collect::<std::io::Result<Vec<_>>>()?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let is_unfinished =
        |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().contains('#');
    if !entries.iter().all(is_unfinished) {
        return Ok(());
    }
    let unless_gone = |result: std::io::Result<()>| match result {
        // A process may be writing beside: then the directory stays.
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::DirectoryNotEmpty
            ) =>
        {
            Ok(())
        }
        result => result,
    };
    for entry in entries {
        unless_gone(std::fs::remove_file(entry.path()))?;
    }
    unless_gone(std::fs::remove_dir(directory))
}

#[cfg(test)]
#[path = "checkpoints_tests.rs"]
mod tests;
