//! Typed records in a coordination store: encoded with format and checksum, in a blob when they are large.
//!
//! Generic over the record types; which kinds there are is [`crate::keys::Kind`]'s. Writes are prepared here and
//! committed by a term's pipeline, several kinds in one transaction if need be.

use std::sync::Arc;

use bytes::Bytes;

use crate::blob::BlobStore;
use crate::election::Epoch;
use crate::error::{Error, Result};
use crate::jobs::record::{self, Encoded, Payload};
use crate::keys::{Key, Kind, Name};
use crate::store::{CoordinationStore, PageToken, Write};

/// How many records are read at once.
const PAGE: usize = 500;

/// A type of record.
pub trait Record: Sized + Send + 'static {
    /// Where it is kept.
    const KIND: Kind;
    /// The newest format that this version writes and reads. Higher ones are [`Error::TooNew`].
    const FORMAT: u16;

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
}

/// A record that is ready to be committed.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// The write for the transaction.
    pub write: Write,
    /// The blob that was written for it and that nothing points to before the transaction.
    pub blob: Option<Name>,
}

/// Reads and prepares records of any type.
#[derive(Debug, Clone)]
pub struct RecordStore {
    store: Arc<dyn CoordinationStore>,
    blobs: Option<Arc<BlobStore>>,
    threshold: usize,
}

impl RecordStore {
    /// Records up to `threshold` bytes (compressed) are kept inline, larger ones in `blobs`. Without blobs that survive
    /// the loss of this host, what a transaction takes is kept inline and larger ones are refused.
    pub fn new(
        store: Arc<dyn CoordinationStore>,
        blobs: Option<Arc<BlobStore>>,
        threshold: usize,
    ) -> RecordStore {
        RecordStore {
            store,
            blobs,
            threshold,
        }
    }

    /// The store below.
    pub fn coordination_store(&self) -> &Arc<dyn CoordinationStore> {
        &self.store
    }

    /// Where large records are kept, if anywhere.
    pub fn blobs(&self) -> Option<&Arc<BlobStore>> {
        self.blobs.as_ref()
    }

    /// Encodes a record, and writes its blob if it needs one.
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
            }),
            (Encoded::Oversized(bytes), Some(blobs)) if blobs.survives_host() => {
                let pointer = blobs.put(name, epoch, bytes).await?;
                let value = record::encode_pointer(T::FORMAT, &pointer);
                Ok(Prepared {
                    write: Write::Put { key, value },
                    blob: Some(pointer.name),
                })
            }
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
        self.follow(&name, found).await.map(Some)
    }

    /// Several records, as the store has them now, in the order of `names`; each readable or not.
    pub async fn get_all<T: Record>(
        &self,
        names: &[Name],
    ) -> Result<Vec<Option<Result<Stored<T>>>>> {
        let keys: Vec<Key> = names
            .iter()
            .map(|name| Key::new(T::KIND, name.clone()))
            .collect();
        let values = self.store.get(&keys).await?;
        let named: Vec<_> = names.iter().cloned().zip(values).collect();
        let decoded = off_control(move || {
            let decode = |(name, value): (Name, Option<Bytes>)| {
                value.map(|value| decode_inline::<T>(name, &value))
            };
            Ok(named.into_iter().map(decode).collect::<Vec<_>>())
        })
        .await?;
        let mut all = Vec::with_capacity(decoded.len());
        for found in decoded {
            all.push(match found {
                None => None,
                Some((name, found)) => Some(self.follow(&name, found).await),
            });
        }
        Ok(all)
    }

    /// All records of a type, each readable or not: one that is not never hides the others.
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
                let stored = self.follow(&name, found).await;
                all.push((name, stored));
            }
            match listed.next {
                Some(next) => page = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// The record, from the blob that holds it where there is one.
    async fn follow<T: Record>(&self, name: &Name, found: Result<Found<T>>) -> Result<Stored<T>> {
        match found? {
            Found::Inline(record) => Ok(Stored { record, blob: None }),
            Found::Blob(pointer) => self.fetch(name, &pointer).await,
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
        let name = name.clone();
        let (_, found) = off_control(move || Ok(decode_inline::<T>(name, &bytes))).await?;
        match found? {
            Found::Inline(record) => Ok(Stored {
                record,
                blob: Some(pointer.name.clone()),
            }),
            Found::Blob(_) => Err(Error::Corrupt {
                key: key.to_string(),
                reason: "its blob is a pointer again".to_owned(),
            }),
        }
    }
}

enum Found<T> {
    Inline(T),
    Blob(crate::blob::BlobPointer),
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
