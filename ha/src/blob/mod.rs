//! Objects that are too large for a coordination store: in a local or shared directory, or in S3.
//!
//! [`BlobStore`] is a handle without decisions: the Dispatcher's blob ledger knows which objects are needed and when
//! one may be deleted; a JobMaster knows that of its checkpoints. Errors: `Corrupt` for an object that is missing or
//! damaged, `Unavailable` while the storage can't be read or is not the cluster's ([marker](Marker)), `Denied`.
//! Invariants: an object is never overwritten and its name never reused (owner, epoch, cluster, random part);
//! the bytes read are those written, by size and SHA-256, or an error.

mod checkpoints;
mod checksum;
mod marker;
#[cfg(feature = "testing")]
pub mod missing;
mod name;
mod object_directory;
mod places;
mod s3;
#[cfg(test)]
mod tests;
mod upload;
mod user_objects;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload};
use serde::{Deserialize, Serialize};

use crate::election::{ClusterIncarnation, Epoch};
use crate::error::{Error, Result};
use crate::keys::Name;
use crate::own_directory;

use checksum::checksum;
use marker::Guard;
use s3::RequestTimeout;

pub use checkpoints::{CheckpointStorage, object_name};
pub use checksum::{Checksum, InvalidChecksum};
pub use marker::Marker;
pub use name::{BlobName, ClusterTag, Origin};
pub use object_directory::{ObjectDirectory, ObjectRange, ObjectUpload, range_checksum};
pub use places::{BlobOptions, BlobPlaces};
pub use upload::{Upload, UploadPointer};
pub use user_objects::{ObjectStream, read_elsewhere};

/// What errors call a blob store.
pub const STORE: &str = "the blob store";
const URL_HELP: &str = "use an absolute path, file:///path or s3://bucket/prefix";

/// Points to an object; has its size and checksum.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlobPointer {
    /// The object's name.
    #[serde(with = "name_as_text")]
    pub name: Name,
    /// Its size in bytes.
    pub size: u64,
    /// The checksum of its bytes.
    pub sha256: Checksum,
}

pub(crate) mod name_as_text {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use crate::keys::Name;

    pub(crate) fn serialize<S: Serializer>(name: &Name, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(name.as_str())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Name, D::Error> {
        Name::new(String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobEntry {
    /// The object's name.
    pub name: Name,
    /// Its size in bytes.
    pub size: u64,
    /// Time since it was written, by the wall clocks of the store and of this process.
    pub age: Duration,
}

/// The options that name the places of a cluster's objects, for messages.
pub mod options {
    /// The place of all objects but those of checkpoints.
    pub const BLOBS: &str = "high-availability.storageDir";
    /// The place of the objects of checkpoints, if it is another one.
    pub const CHECKPOINTS: &str = "execution.checkpointing.dir";
}

/// The objects of a cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BlobStore {
    objects: Arc<dyn ObjectStore>,
    survives_host: bool,
    /// The cluster tag in the names of new objects.
    tag: ClusterTag,
    /// The directory, if the store is one.
    directory: Option<PathBuf>,
    /// The location as configured.
    location: String,
    /// The option that names it, for messages.
    option: Option<&'static str>,
    /// The condition for writes and deletions.
    guard: Option<Guard>,
    /// The place of the objects of checkpoints, if it is another one.
    checkpoints: Option<Arc<BlobStore>>,
}

impl BlobStore {
    /// The same as [`BlobStore::open`] for a place that this option names. Errors of the store name the option, the
    /// place and this host.
    pub async fn open_named(options: &BlobOptions, option: &'static str) -> Result<BlobStore> {
        match BlobStore::open(options).await {
            Ok(store) => Ok(BlobStore {
                option: Some(option),
                ..store
            }),
            Err(Error::Misconfigured(reason)) => {
                let reason = format!("{option}, on host {}: {reason}", host_name());
                Err(Error::Misconfigured(reason.into()))
            }
            Err(error) => Err(error),
        }
    }

    /// The location with what a person needs to correct it.
    fn place(&self) -> String {
        match self.option {
            Some(option) => format!("{} ({option}, on host {})", self.location, host_name()),
            None => self.location.clone(),
        }
    }

    /// The error of a request, with the place if an option names it.
    fn failure(&self, error: object_store::Error) -> Error {
        let at = |reason: String| match self.option {
            Some(_) => format!("{}: {reason}", self.place()),
            None => reason,
        };
        match failure(error) {
            Error::Denied { store, reason } => Error::Denied {
                store,
                reason: at(reason),
            },
            Error::Unavailable { store, reason } => Error::Unavailable {
                store,
                reason: at(reason),
            },
            other => other,
        }
    }

    /// A store without cluster, directory, option and guard.
    fn at(objects: Arc<dyn ObjectStore>, survives_host: bool, location: &str) -> BlobStore {
        BlobStore {
            objects,
            survives_host,
            tag: ClusterTag::default(),
            directory: None,
            location: location.to_owned(),
            option: None,
            guard: None,
            checkpoints: None,
        }
    }

    /// Opens the store. Creates a directory of this host with its parents. A shared directory is not created,
    /// because it may have to be mounted first: see [`BlobStore::make_directory`].
    pub async fn open(options: &BlobOptions) -> Result<BlobStore> {
        let url = options.url.as_str();
        if let Some(rest) = url.strip_prefix("s3://") {
            let objects = s3::open(url, rest, RequestTimeout::Short)?;
            return Ok(BlobStore::at(objects, true, url));
        }
        let path = url.strip_prefix("file://").unwrap_or(url);
        if !path.starts_with('/') {
            return Err(Error::Misconfigured(
                format!("{url} is not a valid place for blobs: {URL_HELP}").into(),
            ));
        }
        let mut store = BlobStore {
            directory: Some(PathBuf::from(path)),
            ..BlobStore::at(Arc::new(LocalFileSystem::new()), options.shared, path)
        };
        if options.shared {
            store.check_directory().await?;
        } else {
            store.make_directory().await?;
        }
        let prefix = Path::from_absolute_path(path).map_err(|error| store.unusable(&error))?;
        // A pointer is committed after its object: the object must be as durable.
        let local = LocalFileSystem::new().with_fsync(true);
        store.objects = Arc::new(PrefixStore::new(local, prefix));
        Ok(store)
    }

    /// Checks that only this user may change an existing directory.
    async fn check_directory(&self) -> Result<()> {
        let Some(directory) = self.directory.clone() else {
            return Ok(());
        };
        let checking = tokio::task::spawn_blocking(move || own_directory::check(&directory)).await;
        match checking.map_err(std::io::Error::other).flatten() {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(self.unusable(&error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn unusable(&self, error: &dyn fmt::Display) -> Error {
        let path = &self.location;
        Error::Misconfigured(format!("{path} can't be used for blobs: {error}").into())
    }

    /// The same store, writing under names that distinguish this cluster's objects from those of other
    /// clusters in the same place.
    #[must_use]
    pub fn of_cluster(&self, incarnation: &ClusterIncarnation) -> BlobStore {
        let of_checkpoints = self.checkpoints.as_ref();
        BlobStore {
            tag: ClusterTag::of(incarnation),
            checkpoints: of_checkpoints.map(|place| Arc::new(place.of_cluster(incarnation))),
            ..self.clone()
        }
    }

    /// The place of the objects of checkpoints, if it is another one.
    pub fn checkpoint_place(&self) -> Option<&BlobStore> {
        self.checkpoints.as_deref()
    }

    /// The cluster tag in the names of new objects.
    pub fn tag(&self) -> &ClusterTag {
        &self.tag
    }

    /// Whether the stored objects survive the loss of this host.
    pub fn survives_host(&self) -> bool {
        self.survives_host
    }

    /// Stores `bytes` for `owner` (a job) in the term `epoch`, under a new name. After an error there may be
    /// an object that no record points to.
    pub async fn put(&self, owner: &Name, epoch: Epoch, bytes: Bytes) -> Result<BlobPointer> {
        let name = BlobName::of_term(owner, epoch, &self.tag)?;
        let size = bytes.len() as u64;
        let sha256 = checksum(bytes.clone()).await?;
        self.put_guarded(&name, bytes).await?;
        Ok(BlobPointer { name, size, sha256 })
    }

    async fn put_guarded(&self, name: &Name, bytes: Bytes) -> Result<()> {
        self.put_at(&Path::from(name.as_str()), bytes).await
    }

    /// Writes an object if the marker allows it. Checks the marker again afterwards: if the storage was
    /// unmounted meanwhile, the object went into the mount point and would be lost.
    async fn put_at(&self, path: &Path, content: impl Into<PutPayload>) -> Result<()> {
        let before = self.marked_storage().await?;
        let put = self.objects.put(path, content.into()).await;
        put.map_err(|error| self.failure(error))?;
        let checked = self.check_marker_after(before).await;
        if checked.is_err() {
            let _it_may_be_gone = self.objects.delete(path).await;
        }
        checked
    }

    /// Reads an object; `Corrupt` if it is missing or differs from the pointer.
    pub async fn get(&self, pointer: &BlobPointer) -> Result<Bytes> {
        let corrupt = |reason: String| Error::Corrupt {
            key: format!("blob {}", pointer.name),
            reason,
        };
        let path = Path::from(pointer.name.as_str());
        let object = match self.objects.get(&path).await {
            Ok(object) => object,
            Err(error) => return Err(self.unread(&pointer.name, &path, error).await),
        };
        let size = object.meta.size;
        if size != pointer.size {
            let wanted = pointer.size;
            return Err(corrupt(format!(
                "it has {size} bytes, and {wanted} were written"
            )));
        }
        let bytes = object.bytes().await.map_err(|error| self.failure(error))?;
        let sha256 = checksum(bytes.clone()).await?;
        if sha256 != pointer.sha256 {
            let wanted = pointer.sha256;
            return Err(corrupt(format!(
                "its SHA-256 is {sha256}, and {wanted} was written"
            )));
        }
        Ok(bytes)
    }

    /// Streams an object's bytes unchecked, for a caller that checks them; `Corrupt` if it is missing.
    pub async fn stream(&self, name: &Name) -> Result<BoxStream<'static, Result<Bytes>>> {
        let path = Path::from(name.as_str());
        match self.objects.get(&path).await {
            Ok(object) => Ok(object.into_stream().map_err(failure).boxed()),
            Err(error) => Err(self.unread(name, &path, error).await),
        }
    }

    /// Converts the error of a read. A missing object is permanent (`Corrupt`), unless the whole storage is missing,
    /// which may be temporary: then its marker is missing, or a bucket can't be listed.
    async fn unread(&self, name: &Name, path: &Path, error: object_store::Error) -> Error {
        if !matches!(error, object_store::Error::NotFound { .. }) {
            return self.failure(error);
        }
        if self.guard.is_some()
            && let Err(error) = self.marked_storage().await
        {
            return error;
        }
        // Only a bucket: any file in the mount point of an unmounted directory would be listed.
        if self.directory.is_none()
            && let Some(Err(error)) = self.objects.list(None).next().await
        {
            return self.failure(error);
        }
        // Again, because these checks came after the first read: the storage may have been missing only until then.
        if self.objects.head(path).await.is_ok() {
            return Error::Unavailable {
                store: STORE,
                reason: format!("{} was missing for a moment", self.place()),
            };
        }
        Error::Corrupt {
            key: format!("blob {name}"),
            reason: "the object is missing".to_owned(),
        }
    }

    /// The size of an object in bytes; `None` if it does not exist.
    pub async fn size_of(&self, name: &Name) -> Result<Option<u64>> {
        match self.objects.head(&Path::from(name.as_str())).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failure(error)),
        }
    }

    /// Removes unfinished files of killed processes from a directory, if they are older than `age`.
    pub async fn remove_unfinished(&self, age: Duration) -> Result<usize> {
        let Some(directory) = self.directory.clone() else {
            return Ok(0);
        };
        let removing =
            tokio::task::spawn_blocking(move || upload::remove_unfinished(&directory, age));
        let removed = removing.await.map_err(|error| error.to_string());
        let removed = removed.and_then(|removed| removed.map_err(|error| error.to_string()));
        removed.map_err(|reason| Error::Unavailable {
            store: STORE,
            reason,
        })
    }

    /// Deletes an object. Does nothing if it does not exist.
    pub async fn delete(&self, name: &Name) -> Result<()> {
        self.delete_at(&Path::from(name.as_str())).await
    }

    async fn delete_at(&self, path: &Path) -> Result<()> {
        self.check_before_deletion().await?;
        match self.objects.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failure(error)),
        }
    }

    /// Lists all objects, except those with names that this crate never generates.
    pub async fn list(&self) -> Result<Vec<BlobEntry>> {
        // Names contain no slash. Subdirectories may be huge or unreadable, and are not this crate's.
        let listed = self.objects.list_with_delimiter(None).await;
        let listed = listed.map_err(|error| self.failure(error))?.objects;
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let entry = |meta: object_store::ObjectMeta| {
            let written = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
            let age = now.saturating_sub(Duration::from_millis(written));
            let name = Name::new(meta.location.as_ref()).ok()?;
            Some(BlobEntry {
                name,
                size: meta.size,
                age,
            })
        };
        let mut entries: Vec<BlobEntry> = listed.into_iter().filter_map(entry).collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }
}

/// The name of this host, for messages.
fn host_name() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

/// Converts an error of a request that names no object: then "not found" means the bucket, which may be
/// temporary.
fn failure(error: object_store::Error) -> Error {
    match error {
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => Error::Denied {
            store: STORE,
            reason: error.to_string(),
        },
        error => Error::Unavailable {
            store: STORE,
            reason: error.to_string(),
        },
    }
}
