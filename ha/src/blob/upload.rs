//! Content of any size, written as a stream in pieces of a few megabytes: neither writer nor reader holds
//! more in memory.
//!
//! Pieces are separate objects, so an aborted upload leaves only whole objects with recognisable names. The caller
//! owns the [`Upload`] and aborts it after an error; the Dispatcher's orphan collection removes what is left.
//! Invariant: the content that a pointer names existed completely when the pointer was created.

use std::io;
use std::path::Path as FilePath;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{BlobName, BlobStore, Checksum, STORE, name_as_text};
use crate::error::{Error, Result};
use crate::keys::Name;

/// The size of a piece in bytes.
const PIECE: usize = 8 * 1024 * 1024;

/// The maximum number of pieces of an upload.
const MOST_PIECES: u32 = 100_000;
/// Pieces that are checked concurrently: a check may take 100 ms, and there may be hundreds.
const MAX_CONCURRENT_CHECKS: usize = 32;

/// Points to an upload; has its size and checksum.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UploadPointer {
    /// Its name; the name of a piece has the piece number appended.
    #[serde(with = "name_as_text")]
    pub name: Name,
    /// Number of pieces.
    pub pieces: u32,
    /// Their total size, in bytes.
    pub size: u64,
    /// The checksum of all their bytes, in order.
    pub sha256: Checksum,
}

impl UploadPointer {
    /// The names of the pieces, in order. `Corrupt` if the count is above the limit.
    pub fn piece_names(&self) -> Result<Vec<Name>> {
        if self.pieces > MOST_PIECES {
            return Err(Error::Corrupt {
                key: format!("blob {}", self.name),
                reason: format!("it claims to have {} pieces", self.pieces),
            });
        }
        (0..self.pieces)
            .map(|number| piece_name(&self.name, number))
            .collect()
    }
}

fn piece_name(base: &Name, number: u32) -> Result<Name> {
    let name = Name::new(format!("{base}.{number:05}"));
    name.map_err(|error| Error::Misconfigured(error.to_string().into()))
}

/// An upload in progress. If dropped, it leaves pieces that no record points to.
#[derive(Debug)]
pub struct Upload {
    store: BlobStore,
    name: Name,
    pieces: u32,
    size: u64,
    hasher: Sha256,
    /// Bytes that are not written yet.
    rest: BytesMut,
}

impl BlobStore {
    /// Begins an upload of content of `owner` (a job) that is about to be submitted.
    pub fn upload(&self, owner: &Name) -> Result<Upload> {
        Ok(Upload {
            name: BlobName::of_upload(owner, &self.tag)?,
            store: self.clone(),
            pieces: 0,
            size: 0,
            hasher: Sha256::new(),
            rest: BytesMut::new(),
        })
    }

    /// Whether an upload exists completely.
    pub async fn has_upload(&self, pointer: &UploadPointer) -> Result<bool> {
        let names = pointer.piece_names()?;
        let sizes: Vec<_> = names.iter().map(|name| self.size_of(name)).collect();
        let mut sizes = stream::iter(sizes).buffer_unordered(MAX_CONCURRENT_CHECKS);
        let mut size: u64 = 0;
        while let Some(of_piece) = sizes.try_next().await? {
            match of_piece {
                Some(of_piece) => size = size.saturating_add(of_piece),
                None => return Ok(false),
            }
        }
        Ok(size == pointer.size)
    }
}

impl Upload {
    /// Number of bytes so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Writes the next bytes. After an error the upload can only be aborted: a piece is missing.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut bytes = bytes;
        self.size = self.size.saturating_add(bytes.len() as u64);
        while !bytes.is_empty() {
            let (fitting, others) = bytes.split_at(bytes.len().min(PIECE - self.rest.len()));
            self.rest.extend_from_slice(fitting);
            bytes = others;
            if self.rest.len() == PIECE {
                self.put_piece().await?;
            }
        }
        Ok(())
    }

    /// Completes the upload.
    pub async fn finish(mut self) -> Result<UploadPointer> {
        // Empty content has one piece, too.
        if !self.rest.is_empty() || self.pieces == 0 {
            self.put_piece().await?;
        }
        Ok(UploadPointer {
            name: self.name,
            pieces: self.pieces,
            size: self.size,
            sha256: Checksum::from(<[u8; 32]>::from(self.hasher.finalize())),
        })
    }

    /// Cancels the upload and removes the written pieces.
    pub async fn abort(self) -> Result<()> {
        for number in 0..self.pieces {
            self.store.delete(&piece_name(&self.name, number)?).await?;
        }
        Ok(())
    }

    async fn put_piece(&mut self) -> Result<()> {
        let piece = self.rest.split().freeze();
        let mut hasher = std::mem::take(&mut self.hasher);
        let hashed: Bytes = piece.clone();
        let hashing = tokio::task::spawn_blocking(move || {
            hasher.update(&hashed);
            hasher
        });
        let name = piece_name(&self.name, self.pieces)?;
        // Counted before it is written, so that an abort removes it also if the answer is lost.
        self.pieces += 1;
        let put = self.store.put_guarded(&name, piece).await;
        self.hasher = hashing.await.map_err(|error| Error::Unavailable {
            store: STORE,
            reason: error.to_string(),
        })?;
        put
    }
}

/// Removes unfinished files that are older than `age`: the library writes `<object>#<number>` before it renames the
/// file to its object. Blocks.
pub(super) fn remove_unfinished(directory: &FilePath, age: Duration) -> io::Result<usize> {
    let now = SystemTime::now();
    let mut removed = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_unfinished = name.to_str().is_some_and(|name| {
            let parts = name.split_once('#');
            parts.is_some_and(|(object, number)| {
                let object = Name::new(object).ok();
                let is_ours = object.is_some_and(|object| BlobName::read(&object).is_some());
                is_ours && number.bytes().all(|byte| byte.is_ascii_digit())
            })
        });
        if !is_unfinished {
            continue;
        }
        let written = entry.metadata()?.modified()?;
        if now.duration_since(written).unwrap_or_default() >= age {
            std::fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::super::{BlobOptions, Origin};
    use super::*;

    async fn open(directory: &tempfile::TempDir) -> BlobStore {
        let url = directory.path().to_string_lossy().into_owned();
        let options = BlobOptions { url, shared: true };
        BlobStore::open(&options).await.expect("opened")
    }

    fn job() -> Name {
        Name::new("0a1b").expect("a name")
    }

    #[tokio::test]
    async fn what_was_uploaded_is_there_in_pieces_and_goes_piece_by_piece() {
        let directory = tempfile::tempdir().expect("a directory");
        let blobs = open(&directory).await;
        let content: Vec<u8> = (0..PIECE + 100_000).map(|at| (at % 251) as u8).collect();
        let mut upload = blobs.upload(&job()).expect("a name");
        for chunk in content.chunks(300_000) {
            upload.write(chunk).await.expect("written");
        }
        assert_eq!(upload.size(), content.len() as u64);
        let pointer = upload.finish().await.expect("finished");
        assert_eq!((pointer.pieces, pointer.size), (2, content.len() as u64));
        assert_eq!(pointer.sha256, Checksum::of(&content));
        assert!(blobs.has_upload(&pointer).await.expect("answered"));
        let listed = blobs.list().await.expect("listed");
        for entry in &listed {
            let name = BlobName::read(&entry.name).expect("one of ours");
            assert_eq!((name.owner, name.origin), (job(), Origin::Upload));
        }
        blobs.delete(&listed[1].name).await.expect("deleted");
        assert!(!blobs.has_upload(&pointer).await.expect("answered"));
        assert!(
            UploadPointer {
                pieces: u32::MAX,
                ..pointer
            }
            .piece_names()
            .is_err()
        );
    }

    #[tokio::test]
    async fn an_empty_file_is_a_piece_and_an_aborted_upload_leaves_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let blobs = open(&directory).await;
        let nothing = blobs.upload(&job()).expect("a name").finish().await;
        assert_eq!(nothing.expect("finished").pieces, 1);
        let mut upload = blobs.upload(&job()).expect("a name");
        upload.write(&vec![1; PIECE + 1]).await.expect("written");
        upload.abort().await.expect("removed");
        assert_eq!(blobs.list().await.expect("listed").len(), 1);
    }

    #[tokio::test]
    async fn what_a_killed_process_was_writing_is_removed_when_it_is_old() {
        let directory = tempfile::tempdir().expect("a directory");
        let blobs = open(&directory).await;
        let of_ours = BlobName::of_upload(&job(), blobs.tag()).expect("a name");
        for name in [format!("{of_ours}.00000#1"), "notes#1".to_owned()] {
            std::fs::write(directory.path().join(name), "x").expect("written");
        }
        let hour = Duration::from_secs(3600);
        assert_eq!(blobs.remove_unfinished(hour).await.expect("looked"), 0);
        let removed = blobs.remove_unfinished(Duration::ZERO).await;
        assert_eq!(removed.expect("looked"), 1);
        assert!(directory.path().join("notes#1").exists());
    }
}
