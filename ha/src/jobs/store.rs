//! Typed records in a coordination store: encoded with format and checksum, in a blob or in parts when they are large.
//!
//! Generic over the record types; which kinds there are is [`crate::keys::Kind`]'s. Writes are prepared here and
//! committed by a term's pipeline, several kinds in one transaction if need be.

use std::sync::Arc;

use bytes::Bytes;

use crate::blob::BlobStore;
use crate::election::Epoch;
use crate::error::{Error, Outcome, Result};
use crate::jobs::parts::{self, PART, PartName, PartsPointer};
use crate::jobs::record::{self, Encoded, Payload};
use crate::keys::{Key, Kind, Name};
use crate::store::{CoordinationStore, PageToken, Write};

/// How many records are read at once.
const PAGE: usize = 500;
/// How many parts are read at once.
const PARTS_PAGE: usize = 8;
/// Up to this size a record is split, unless it is said otherwise.
const DEFAULT_MAX_SPLIT: usize = 8 * 1024 * 1024;

/// A type of record.
pub trait Record: Sized + Send + 'static {
    /// Where it is kept.
    const KIND: Kind;
    /// The newest format that this version writes and reads. Higher ones are [`Error::TooNew`].
    const FORMAT: u16;
    /// Whether one that is too large for a transaction is split where there is no blob for it. Only for what is immutable.
    const SPLITS: bool = false;

    /// Its bytes.
    fn encode(&self) -> Vec<u8>;

    /// Reads bytes of `format`, which is at most [`Record::FORMAT`]. The error says what is wrong with them.
    fn decode(format: u16, bytes: &[u8]) -> Result<Self, String>;
}

/// A record as it was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored<T> {
    /// The record.
    pub record: T,
    /// The blob that holds it, if it is not inline.
    pub blob: Option<Name>,
    /// The parts that hold it, if it is split.
    pub parts: Vec<Name>,
}

/// A record that is ready to be committed.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// The write for the transaction.
    pub write: Write,
    /// The blob that was written for it and that nothing points to before the transaction.
    pub blob: Option<Name>,
    /// What must be committed before the transaction, each for itself: parts that nothing points to before it.
    pub parts: Vec<Write>,
}

/// Reads and prepares records of any type.
#[derive(Debug, Clone)]
pub struct RecordStore {
    store: Arc<dyn CoordinationStore>,
    blobs: Option<Arc<BlobStore>>,
    threshold: usize,
    max_split: usize,
}

impl RecordStore {
    /// Records up to `threshold` bytes (compressed) are kept inline, larger ones in `blobs`. Without blobs that survive
    /// the loss of this host, what a transaction takes is kept inline; larger ones are split if their type allows that,
    /// else refused.
    pub fn new(
        store: Arc<dyn CoordinationStore>,
        blobs: Option<Arc<BlobStore>>,
        threshold: usize,
    ) -> RecordStore {
        RecordStore {
            store,
            blobs,
            threshold,
            max_split: DEFAULT_MAX_SPLIT,
        }
    }

    /// The same, splitting records up to `bytes` (compressed) and refusing larger ones.
    #[must_use]
    pub fn with_max_split(mut self, bytes: usize) -> RecordStore {
        self.max_split = bytes;
        self
    }

    /// The store below.
    pub fn coordination_store(&self) -> &Arc<dyn CoordinationStore> {
        &self.store
    }

    /// Where large records are kept, if anywhere.
    pub fn blobs(&self) -> Option<&Arc<BlobStore>> {
        self.blobs.as_ref()
    }

    /// Encodes a record, and writes its blob if it needs one. Its parts, if it needs those, are the caller's to commit.
    pub async fn prepare<T: Record>(
        &self,
        name: &Name,
        epoch: Epoch,
        record: &T,
    ) -> Result<Prepared> {
        let payload = record.encode();
        let key = Key::new(T::KIND, name.clone());
        let most = self.store.limits().bytes.saturating_sub(4096);
        let threshold = match &self.blobs {
            Some(blobs) if blobs.survives_host() => self.threshold.min(most),
            Some(_) | None => most,
        };
        let encoded = off_control(move || record::encode(T::FORMAT, &payload, threshold)).await?;
        match (encoded, &self.blobs) {
            (Encoded::Inline(value), _) => Ok(Prepared {
                write: Write::Put { key, value },
                blob: None,
                parts: Vec::new(),
            }),
            (Encoded::Oversized(bytes), Some(blobs)) if blobs.survives_host() => {
                let pointer = blobs.put(name, epoch, bytes).await?;
                let value = record::encode_pointer(T::FORMAT, &pointer);
                Ok(Prepared {
                    write: Write::Put { key, value },
                    blob: Some(pointer.name),
                    parts: Vec::new(),
                })
            }
            (Encoded::Oversized(bytes), _) if T::SPLITS && bytes.len() <= self.max_split => {
                let owner = name.clone();
                let cut = off_control(move || parts::split(&owner, epoch, &bytes, most.min(PART)));
                let (pointer, parts) = cut.await?;
                let value = record::encode_parts_pointer(T::FORMAT, &pointer);
                Ok(Prepared {
                    write: Write::Put { key, value },
                    blob: None,
                    parts,
                })
            }
            (Encoded::Oversized(bytes), _) if T::SPLITS => Err(Error::TooLarge {
                store: "the store without a blob store that survives the loss of this host \
                        (raise high-availability.store.max-graph-size, or set high-availability.storageDir, \
                        and high-availability.storage-shared if it is a shared directory)",
                what: "a record",
                size: bytes.len(),
                limit: self.max_split.max(most),
            }),
            (Encoded::Oversized(bytes), _) => Err(Error::TooLarge {
                store: "the store without a blob store that survives the loss of this host \
                        (set high-availability.storageDir, and high-availability.storage-shared if it is a shared directory)",
                what: "a record",
                size: bytes.len(),
                limit: most,
            }),
        }
    }

    /// One record, as the store has it now; `None`: it is not there.
    pub async fn get<T: Record>(&self, name: &Name) -> Result<Option<Stored<T>>> {
        let key = Key::new(T::KIND, name.clone());
        let Some(value) = self.store.get(&[key]).await?.into_iter().next().flatten() else {
            return Ok(None);
        };
        let of = name.clone();
        let (name, found) = off_control(move || Ok(decode_inline::<T>(of, &value))).await?;
        self.stored(&name, found?).await.map(Some)
    }

    /// All records of a type, each readable or not: one that is not never hides the others. An error: the store does not
    /// answer at present.
    pub async fn list<T: Record>(&self) -> Result<Vec<(Name, Result<Stored<T>>)>> {
        let mut all = Vec::new();
        let mut page: Option<PageToken> = None;
        loop {
            let listed = self.store.list(T::KIND, page, PAGE).await?;
            let items = listed.items;
            let decoded = off_control(move || {
                Ok(items
                    .into_iter()
                    .map(|(name, value)| decode_inline::<T>(name, &value))
                    .collect::<Vec<_>>())
            })
            .await?;
            for (name, found) in decoded {
                let is_split = matches!(&found, Ok(Found::Parts(_)));
                let stored = match found {
                    Ok(found) => self.stored(&name, found).await,
                    Err(error) => Err(error),
                };
                match stored {
                    // The rest of the record is in the store that is being listed.
                    Err(error) if is_split && error.outcome() != Outcome::Fatal => {
                        return Err(error);
                    }
                    stored => all.push((name, stored)),
                }
            }
            match listed.next {
                Some(next) => page = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// The names of parts of terms before `epoch` that nobody `keeps`: what a crash between the parts and the record that
    /// would point to them has left.
    pub async fn orphaned_parts(
        &self,
        epoch: Epoch,
        keeps: impl Fn(&PartName, &Name) -> bool,
    ) -> Result<Vec<Name>> {
        let mut orphans = Vec::new();
        let mut page: Option<PageToken> = None;
        loop {
            let listed = self.store.list(Kind::Parts, page, PARTS_PAGE).await?;
            let names = listed.items.into_iter().map(|(name, _)| name);
            orphans.extend(names.filter(|name| {
                PartName::read(name).is_some_and(|of| of.epoch < epoch && !keeps(&of, name))
            }));
            match listed.next {
                Some(next) => page = Some(next),
                None => return Ok(orphans),
            }
        }
    }

    async fn stored<T: Record>(&self, name: &Name, found: Found<T>) -> Result<Stored<T>> {
        match found {
            Found::Inline(record) => Ok(Stored {
                record,
                blob: None,
                parts: Vec::new(),
            }),
            Found::Blob(pointer) => self.fetch(name, &pointer).await,
            Found::Parts(pointer) => self.put_together(name, pointer).await,
        }
    }

    async fn put_together<T: Record>(
        &self,
        name: &Name,
        pointer: PartsPointer,
    ) -> Result<Stored<T>> {
        let parts = pointer.names()?;
        let mut values = Vec::with_capacity(parts.len());
        for some in parts.chunks(PARTS_PAGE) {
            let keys: Vec<Key> = some
                .iter()
                .map(|part| Key::new(Kind::Parts, part.clone()))
                .collect();
            values.extend(self.store.get(&keys).await?);
        }
        let of = name.clone();
        let decoded = off_control(move || Ok(decode_inline::<T>(of, &pointer.assemble(&values)?)));
        let (_, found) = decoded.await?;
        match found? {
            Found::Inline(record) => Ok(Stored {
                record,
                blob: None,
                parts,
            }),
            Found::Blob(_) | Found::Parts(_) => Err(pointer_again::<T>(name)),
        }
    }

    async fn fetch<T: Record>(
        &self,
        name: &Name,
        pointer: &crate::blob::BlobPointer,
    ) -> Result<Stored<T>> {
        let key = Key::new(T::KIND, name.clone());
        let blobs = self.blobs.as_ref().ok_or_else(|| Error::Corrupt {
            key: key.to_string(),
            reason: format!(
                "it is in blob {}, and no blob store is configured",
                pointer.name
            ),
        })?;
        let bytes = blobs.get(pointer).await?;
        let (of, name) = (name.clone(), name.clone());
        let (_, found) = off_control(move || Ok(decode_inline::<T>(of, &bytes))).await?;
        match found? {
            Found::Inline(record) => Ok(Stored {
                record,
                blob: Some(pointer.name.clone()),
                parts: Vec::new(),
            }),
            Found::Blob(_) | Found::Parts(_) => Err(pointer_again::<T>(&name)),
        }
    }
}

enum Found<T> {
    Inline(T),
    Blob(crate::blob::BlobPointer),
    Parts(PartsPointer),
}

fn pointer_again<T: Record>(name: &Name) -> Error {
    Error::Corrupt {
        key: Key::new(T::KIND, name.clone()).to_string(),
        reason: "what it points to is a pointer again".to_owned(),
    }
}

fn decode_inline<T: Record>(name: Name, value: &Bytes) -> (Name, Result<Found<T>>) {
    let key = Key::new(T::KIND, name.clone());
    let found =
        record::decode(&key, T::FORMAT, value).and_then(|payload| match payload {
            Payload::Inline { format, bytes } => T::decode(format, &bytes)
                .map(Found::Inline)
                .map_err(|reason| Error::Corrupt {
                    key: key.to_string(),
                    reason,
                }),
            Payload::Blob { pointer, .. } => Ok(Found::Blob(pointer)),
            Payload::Parts { pointer, .. } => Ok(Found::Parts(pointer)),
        });
    (name, found)
}

/// Encoding, hashing and compression never run on the control runtime.
async fn off_control<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|failure| {
        Err(Error::Misconfigured(
            format!("a record's codec failed: {failure}").into(),
        ))
    })
}
