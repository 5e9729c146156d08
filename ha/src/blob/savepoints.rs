//! A savepoint: a directory that holds a copy of a checkpoint, and needs nothing outside of it.
//!
//! ```text
//! <directory>/<SHA-256 of its bytes>     an object that holds state
//! <directory>/_metadata                  what the savepoint is, and the list of its objects; written last
//! ```
//!
//! Invariants: a directory without `_metadata` is no savepoint; what `_metadata` names was written before it. An
//! object's name is the checksum of its bytes, so a copy that is repeated writes what is there already. A savepoint
//! that is missing or damaged is told from one that can't be read at present.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{CheckpointStorage, ObjectRange};
use crate::error::Error;

/// The file that makes a directory a savepoint.
pub const METADATA: &str = "_metadata";

/// Why a savepoint can't be written, read or removed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SavepointError {
    /// Nothing is there.
    #[error("there is no savepoint in {0}: nothing is there")]
    Missing(String),
    /// Some objects are there, and no `_metadata`.
    #[error(
        "{0} is half copied: it has no {METADATA}, which is written last, so it is not a savepoint"
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
    objects: CheckpointStorage,
}

impl SavepointStorage {
    /// Names the directory of a savepoint: an absolute path, `file:///path` or `s3://bucket/prefix`. Creates nothing,
    /// and does not look whether it exists.
    pub async fn open(directory: &str) -> Result<SavepointStorage, SavepointError> {
        let _ = directory;
        Err(unfinished())
    }

    /// Where it is, for people.
    pub fn location(&self) -> String {
        self.objects.location()
    }

    /// Its objects, to be read by range as those of a checkpoint.
    pub fn objects(&self) -> &CheckpointStorage {
        &self.objects
    }

    /// Copies all objects of which `source` has a range, and writes `_metadata` last. `manifest` returns its content,
    /// given the name in the savepoint of each object. Does nothing if the same savepoint is there.
    pub async fn write(
        &self,
        source: &CheckpointStorage,
        ranges: &[ObjectRange],
        manifest: impl FnOnce(&BTreeMap<String, String>) -> Bytes + Send,
    ) -> Result<(), SavepointError> {
        let _ = (source, ranges, manifest);
        Err(unfinished())
    }

    /// Reads and checks `_metadata`, and that its objects are there. Does not read them.
    pub async fn read(&self) -> Result<SavepointContent, SavepointError> {
        Err(unfinished())
    }

    /// Reads everything, and checks it against the names of the objects.
    pub async fn verify(&self) -> Result<SavepointContent, SavepointError> {
        Err(unfinished())
    }

    /// Removes the savepoint: `_metadata` first, then its objects, then the directory if nothing else is in it.
    /// Refuses what is not a savepoint.
    pub async fn dispose(&self) -> Result<(), SavepointError> {
        Err(unfinished())
    }
}

fn unfinished() -> SavepointError {
    SavepointError::Storage(Error::Misconfigured(
        "savepoints can't be stored yet".into(),
    ))
}
