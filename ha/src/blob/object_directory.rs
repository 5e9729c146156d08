//! Directories of named objects in a blob store.
//!
//! The owner decides when an object is garbage. Invariants: a name is used for one content only; a written object
//! is as durable as any blob; the bytes of a range are those that were written, by length and XXH3, or an error. An
//! object that is missing or damaged is [`Error::Corrupt`]; a storage that can't be read at present never is.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};

use bytes::Bytes;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt as _, PutPayload};
use xxhash_rust::xxh3::xxh3_64;

use super::{BlobOptions, BlobStore, STORE, failure};
use crate::error::{Error, Result};
use crate::keys::Name;
use crate::own_directory;

/// XXH3 (64 bit) of bytes: the checksum of a range.
pub fn range_checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
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

/// The objects of one directory. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ObjectDirectory {
    blobs: BlobStore,
    /// The directory below the place of the store; empty: the place itself.
    directory: String,
    /// Name of a file that is in the place while the storage is there; missing: the directory is not mounted.
    presence_file: &'static str,
}

/// An object that is written in pieces. It does not exist before it is [completed](ObjectUpload::complete).
#[derive(Debug)]
pub struct ObjectUpload(Box<dyn MultipartUpload>);

impl ObjectUpload {
    /// Writes the next piece.
    pub async fn put_part(&mut self, bytes: Bytes) -> Result<()> {
        self.0.put_part(bytes.into()).await.map_err(failure)
    }

    /// Makes the object exist.
    pub async fn complete(mut self) -> Result<()> {
        self.0.complete().await.map(drop).map_err(failure)
    }

    /// Removes what was written.
    pub async fn abort(mut self) -> Result<()> {
        self.0.abort().await.map_err(failure)
    }
}

impl ObjectDirectory {
    /// A directory of its own: an absolute path, `file:///path` or `s3://bucket/prefix`. Creates nothing, and does not
    /// look whether it exists. A directory that other users may change is refused. The object `presence_file` is in it
    /// as long as the storage is there.
    pub async fn open(directory: &str, presence_file: &'static str) -> Result<ObjectDirectory> {
        let options = BlobOptions {
            url: directory.to_owned(),
            shared: true,
        };
        Ok(BlobStore::open(&options).await?.itself(presence_file))
    }

    /// A directory below the place of a store, where `presence_file` is as long as the storage is there.
    pub(super) fn below(
        place: &BlobStore,
        directory: String,
        presence_file: &'static str,
    ) -> ObjectDirectory {
        ObjectDirectory {
            blobs: place.clone(),
            directory,
            presence_file,
        }
    }

    /// Where the objects are, for people.
    pub fn location(&self) -> String {
        match self.directory.as_str() {
            "" => self.blobs.location.clone(),
            directory => format!("{}/{directory}", self.blobs.location),
        }
    }

    /// Whether the storage has a marker that is checked.
    pub fn is_guarded(&self) -> bool {
        self.blobs.is_guarded()
    }

    /// Waits until the term knows its storage, for a second at most.
    pub async fn wait_until_known(&self) {
        self.blobs.wait_until_known().await;
    }

    /// The name of its storage; see [`BlobStore::storage`].
    pub fn storage(&self) -> Option<String> {
        self.blobs.storage()
    }

    /// Stores an object. After an error it may exist.
    pub async fn put(&self, object: &str, bytes: Bytes) -> Result<()> {
        self.put_parts(object, [bytes]).await
    }

    /// Stores an object that consists of these parts. After an error it may exist.
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
            Ok(found) => found
                .bytes()
                .await
                .map_err(|error| self.blobs.failure(error)),
            Err(error) => Err(self.unread(object, error).await),
        }
    }

    /// Begins an object that is written in pieces. Does not check the marker: for directories without one, as of
    /// savepoints.
    pub async fn begin(&self, object: &str) -> Result<ObjectUpload> {
        let beginning = self.blobs.objects.put_multipart(&self.path(object)?).await;
        beginning
            .map(ObjectUpload)
            .map_err(|error| self.blobs.failure(error))
    }

    /// Reads an object whole; `None` if it does not exist, also if the storage is not mounted.
    pub async fn find(&self, object: &str) -> Result<Option<Bytes>> {
        match self.blobs.objects.get(&self.path(object)?).await {
            Ok(found) => Ok(Some(
                found
                    .bytes()
                    .await
                    .map_err(|error| self.blobs.failure(error))?,
            )),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.blobs.failure(error)),
        }
    }

    /// The size of an object in bytes; `None` if it does not exist, also if the storage is not mounted.
    pub async fn find_size(&self, object: &str) -> Result<Option<u64>> {
        match self.blobs.objects.head(&self.path(object)?).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.blobs.failure(error)),
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
    pub async fn read(&self, object: &str, range: Range<u64>) -> Result<Option<Bytes>> {
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
    pub async fn size_of(&self, object: &str) -> Result<u64> {
        match self.blobs.objects.head(&self.path(object)?).await {
            Ok(meta) => Ok(meta.size),
            Err(error) => Err(self.unread(object, error).await),
        }
    }

    /// Copies an object of another directory of the same store, under a name that was never used; `Corrupt` if it is
    /// missing. The storage copies it: no bytes are read, so none are checked. After an error the copy may exist.
    pub async fn copy(&self, from: &ObjectDirectory, object: &str, name: &str) -> Result<()> {
        let before = self.blobs.marked_storage().await?;
        let (source, target) = (from.path(object)?, self.path(name)?);
        match self.blobs.objects.copy(&source, &target).await {
            Ok(()) => self.blobs.check_marker_after(before).await,
            Err(error) => Err(from.unread(object, error).await),
        }
    }

    /// The names of all objects, in order. Leaves out files that are none.
    pub async fn list(&self) -> Result<Vec<String>> {
        let names = self.sizes().await?.into_keys();
        Ok(names
            .filter(|name| Name::new(name.as_str()).is_ok())
            .collect())
    }

    /// The names of all files, with their sizes in bytes.
    pub async fn sizes(&self) -> Result<BTreeMap<String, u64>> {
        let prefix = (!self.directory.is_empty()).then(|| Path::from(self.directory.as_str()));
        let listed = self.blobs.objects.list_with_delimiter(prefix.as_ref());
        let listed = listed
            .await
            .map_err(|error| self.blobs.failure(error))?
            .objects
            .into_iter();
        let file = |meta: object_store::ObjectMeta| {
            Some((meta.location.filename()?.to_owned(), meta.size))
        };
        Ok(listed.filter_map(file).collect())
    }

    /// Removes an object. Does nothing if it does not exist.
    pub async fn remove(&self, object: &str) -> Result<()> {
        self.blobs.delete_at(&self.path(object)?).await
    }

    /// Creates the directory with its parents, which survive a loss of power as its files do.
    pub async fn make(&self) -> Result<()> {
        let Some(directory) = self.local_directory() else {
            return Ok(());
        };
        let making = tokio::task::spawn_blocking(move || make_durably(&directory)).await;
        let made = making.map_err(std::io::Error::other).flatten();
        made.map_err(|error| self.blobs.unusable(&error))
    }

    /// Removes the directory with what killed processes left unfinished, unless an object is in it.
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

    fn path(&self, object: &str) -> Result<Path> {
        let name =
            Name::new(object).map_err(|error| self.corrupt(object, format!("as name: {error}")))?;
        Ok(Path::from(format!("{}/{name}", self.directory)))
    }

    /// The directory, if the store is one.
    pub fn local_directory(&self) -> Option<PathBuf> {
        let root = self.blobs.directory.as_ref()?;
        Some(match self.directory.as_str() {
            "" => root.clone(),
            below => root.join(below),
        })
    }

    /// The error for an object that is missing or damaged.
    pub fn corrupt(&self, object: &str, reason: String) -> Error {
        Error::Corrupt {
            key: format!("the object {object} in {}", self.location()),
            reason,
        }
    }

    /// Converts the error of a read. A directory without its presence file is one that is not mounted: nothing says
    /// that the object is missing from the storage.
    async fn unread(&self, object: &str, error: object_store::Error) -> Error {
        let is_missing = matches!(error, object_store::Error::NotFound { .. });
        if is_missing && let Some(absence) = self.absence(object) {
            return absence;
        }
        let (Ok(name), Ok(path)) = (Name::new(object), self.path(object)) else {
            return self.blobs.failure(error);
        };
        match self.blobs.unread(&name, &path, error).await {
            // Again: the directory may have been unmounted after the first check.
            Error::Corrupt { reason, .. } => match self.absence(object) {
                Some(absence) if is_missing => absence,
                _ => self.corrupt(object, reason),
            },
            error => error,
        }
    }

    /// The error for an object of a directory without its presence file; `None` if that is there.
    fn absence(&self, object: &str) -> Option<Error> {
        let root = self.blobs.directory.as_ref()?;
        if root.join(self.presence_file).exists() {
            return None;
        }
        let (place, presence_file) = (self.blobs.place(), self.presence_file);
        if self.directory.is_empty() && was_removed(root) {
            let reason = format!("{place} is missing, and what is beside it is there");
            return Some(self.corrupt(object, reason));
        }
        Some(Error::Unavailable {
            store: STORE,
            reason: format!("{place} has no {presence_file}: is it mounted?"),
        })
    }
}

impl BlobStore {
    /// The objects of the place itself, where `presence_file` is as long as the storage is there.
    pub fn itself(&self, presence_file: &'static str) -> ObjectDirectory {
        ObjectDirectory::below(self, String::new(), presence_file)
    }
}

#[cfg(feature = "testing")]
impl ObjectDirectory {
    /// The same directory in a storage that a test puts around its own.
    #[must_use]
    pub fn in_storage(
        &self,
        wrap: impl FnOnce(
            std::sync::Arc<dyn object_store::ObjectStore>,
        ) -> std::sync::Arc<dyn object_store::ObjectStore>,
    ) -> ObjectDirectory {
        let blobs = BlobStore {
            objects: wrap(self.blobs.objects.clone()),
            ..self.blobs.clone()
        };
        ObjectDirectory {
            blobs,
            ..self.clone()
        }
    }
}

/// Creates a directory with its parents, and syncs each directory that got an entry.
fn make_durably(directory: &FilePath) -> std::io::Result<()> {
    let parents = directory.ancestors().skip(1);
    let missing: Vec<&FilePath> = parents.take_while(|it| !it.exists()).collect();
    own_directory::make(directory)?;
    let first_existing = missing.last().unwrap_or(&directory).parent();
    for parent in missing.iter().copied().chain(first_existing) {
        std::fs::File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// Whether a directory is missing and was removed, as opposed to not mounted: its parent is not empty.
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
        // Another process may write or remove at the same time: then the directory stays.
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
#[path = "object_directory_tests.rs"]
mod tests;
