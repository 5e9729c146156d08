//! Typed records in a coordination store, encoded with format and checksum; large ones in a blob or in
//! chunks.
//!
//! Generic over the record types; each type names the [`Kind`] of its keys. Writes are prepared here and
//! committed by a term's pipeline, several kinds in one transaction if necessary. A blob or chunks that were
//! written for a record that is never committed are orphans: the caller removes them.
//!
//! Reads separate two failures. The store gives no answer: the whole call fails. A record can't be read (damaged,
//! too new, its blob unreachable): only its own entry is an error.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::sync::watch;

use crate::blob::BlobStore;
use crate::election::Epoch;
use crate::error::{Error, Outcome, Result};
use crate::failpoint::{NEWER, is_armed};
use crate::keys::{Key, Kind, Name};
use crate::records::batches::batches;
use crate::records::blob_timeout::BlobTimeout;
use crate::records::chunks::{self, CHUNK, CHUNKS, ChunkName, ChunksPointer};
use crate::records::record::{self, Encoded, Payload};
use crate::store::cache::Records;
use crate::store::{CoordinationStore, PageToken, Write};

/// Records per read.
const PAGE: usize = 500;
/// Size in bytes up to which a record is encoded on the calling thread.
const SMALL: usize = 16 * 1024;
/// Number of concurrent reads of records that are stored elsewhere.
const FETCHES_IN_FLIGHT: usize = 16;
/// Chunks per read.
const CHUNKS_PAGE: usize = 8;
/// Default limit in bytes for records that are split.
const DEFAULT_MAX_SPLIT: usize = 8 * 1024 * 1024;

/// A type of record.
pub trait Record: Sized + Send + 'static {
    /// The kind of its keys.
    const KIND: Kind;
    /// The format that this version writes, the newest that it reads. Higher ones are [`Error::TooNew`].
    const FORMAT: u16;
    /// Whether a record that is too large for a transaction is split if there is no blob store for it. Only
    /// for immutable records.
    const SPLITS: bool = false;

    /// Its bytes.
    fn encode(&self) -> Vec<u8>;

    /// Decodes bytes of `format`, which is at most [`Record::FORMAT`]. The error says what is wrong with
    /// them.
    fn decode(format: u16, bytes: &[u8]) -> Result<Self, String>;
}

/// A record as found in the store.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored<T> {
    /// The record.
    pub record: T,
    /// The blob that contains it, if it is not inline.
    pub blob: Option<Name>,
    /// The chunks that contain it, if it is split.
    pub chunks: Vec<Name>,
}

impl<T> Stored<T> {
    fn inline(record: T) -> Stored<T> {
        Stored {
            record,
            blob: None,
            chunks: Vec::new(),
        }
    }
}

/// A record that is ready to be committed.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// The write for the transaction.
    pub write: Write,
    /// The blob that was written for it; no record points to it before the transaction.
    pub blob: Option<Name>,
    /// Chunks to commit before the transaction, each in its own transaction; no record points to them before.
    pub chunks: Vec<Write>,
}

/// Reads and prepares records of any type.
#[derive(Debug, Clone)]
pub struct RecordStore {
    store: Arc<dyn CoordinationStore>,
    blobs: Option<Arc<BlobStore>>,
    threshold: usize,
    max_split: usize,
    /// Number of records that were decoded for a recovery.
    decoded: watch::Sender<u64>,
}

impl RecordStore {
    /// Records up to `threshold` bytes (compressed) are stored inline, larger ones in `blobs`. Without a blob
    /// store that survives the loss of this host, records are inline up to the transaction limit; larger ones
    /// are split if their type allows that, and refused otherwise.
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
            decoded: watch::Sender::new(0),
        }
    }

    /// The number of records that [`RecordStore::decode`] has decoded, in this store and its clones. A record
    /// that is decoded again counts again.
    pub fn decoded(&self) -> watch::Receiver<u64> {
        self.decoded.subscribe()
    }

    /// The same store, but splits records up to `bytes` (compressed) and refuses larger ones.
    #[must_use]
    pub fn with_max_split(mut self, bytes: usize) -> RecordStore {
        self.max_split = bytes;
        self
    }

    /// The underlying coordination store.
    pub fn coordination_store(&self) -> &Arc<dyn CoordinationStore> {
        &self.store
    }

    /// The store for large records, if there is one.
    pub fn blobs(&self) -> Option<&Arc<BlobStore>> {
        self.blobs.as_ref()
    }

    /// Encodes a record, and writes its blob if it needs one. The caller commits its chunks if it has some.
    pub async fn prepare<T: Record>(
        &self,
        name: &Name,
        epoch: Epoch,
        record: &T,
    ) -> Result<Prepared> {
        self.prepare_within(name, epoch, record, usize::MAX).await
    }

    /// Same as [`RecordStore::prepare`], for a record that shares its transaction: it takes at most `share`
    /// bytes inline.
    pub async fn prepare_within<T: Record>(
        &self,
        name: &Name,
        epoch: Epoch,
        record: &T,
        share: usize,
    ) -> Result<Prepared> {
        let (format, payload) = (T::FORMAT, record.encode());
        let key = Key::new(T::KIND, name.clone());
        let most = self.store.limits().bytes.saturating_sub(4096).min(share);
        let threshold = match &self.blobs {
            Some(blobs) if blobs.survives_host() => self.threshold.min(most),
            Some(_) | None => most,
        };
        // Passing a small record to another thread takes longer than encoding it.
        let encoded = if payload.len() <= SMALL {
            record::encode(format, &payload, threshold)?
        } else {
            off_control(move || record::encode(format, &payload, threshold)).await?
        };
        match (encoded, &self.blobs) {
            (Encoded::Inline(value), _) => Ok(Prepared {
                write: Write::Put { key, value },
                blob: None,
                chunks: Vec::new(),
            }),
            (Encoded::Oversized(bytes), Some(blobs)) if blobs.survives_host() => {
                let pointer = blobs.put(name, epoch, bytes).await?;
                let value = record::encode_pointer(format, &pointer);
                Ok(Prepared {
                    write: Write::Put { key, value },
                    blob: Some(pointer.name),
                    chunks: Vec::new(),
                })
            }
            (Encoded::Oversized(bytes), _) if T::SPLITS && bytes.len() <= self.max_split => {
                let owner = name.clone();
                let cut =
                    off_control(move || chunks::split(&owner, epoch, &bytes, most.min(CHUNK)));
                let (pointer, chunks) = cut.await?;
                let value = record::encode_chunks_pointer(format, &pointer);
                Ok(Prepared {
                    write: Write::Put { key, value },
                    blob: None,
                    chunks,
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

    /// Reads one record from the store; `None` if it does not exist.
    pub async fn get<T: Record>(&self, name: &Name) -> Result<Option<Stored<T>>> {
        let key = Key::new(T::KIND, name.clone());
        let Some(value) = self.store.get(&[key]).await?.into_iter().next().flatten() else {
            return Ok(None);
        };
        let of = name.clone();
        let (name, found) = off_control(move || Ok(decode_inline::<T>(of, &value))).await?;
        self.stored(&name, found?, &Records::default())
            .await
            .map(Some)
    }

    /// Reads several records from the store, in the order of `names`; each one is readable or an error.
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
            let Some((name, found)) = found else {
                all.push(None);
                continue;
            };
            let is_split = matches!(&found, Ok(Found::Chunks(_)));
            let stored = match found {
                Ok(found) => self.stored(&name, found, &Records::default()).await,
                Err(error) => Err(error),
            };
            match stored {
                // The rest of the record is in the same store, so the whole read fails.
                Err(error) if is_split && error.outcome() != Outcome::Fatal => return Err(error),
                stored => all.push(Some(stored)),
            }
        }
        Ok(all)
    }

    /// Reads all records of a type from the store. Each one is readable or an error: an unreadable one never
    /// hides the others. The outer error: the store does not answer at present.
    pub async fn list<T: Record>(&self) -> Result<Vec<(Name, Result<Stored<T>>)>> {
        let mut all = Vec::new();
        let mut page: Option<PageToken> = None;
        loop {
            let listed = self.store.list(T::KIND, page, PAGE).await?;
            let items = listed.items.into_iter();
            all.extend(items.map(|(name, value)| (Key::new(T::KIND, name), value)));
            page = listed.next;
            if page.is_none() {
                return self.decode(&all.into_iter().collect()).await;
            }
        }
    }

    /// Decodes the records of a type in `records`, unordered; each one is readable or an error. Decodes on as
    /// many threads as there are cores, then reads the payloads that are stored elsewhere, several at a time;
    /// chunks in `records` are not read again. The outer error: the store does not answer at present. An
    /// unreadable blob, permanently or at present, fails only its record; after one blob read timed out,
    /// later ones fail at once.
    pub async fn decode<T: Record>(
        &self,
        records: &Records,
    ) -> Result<Vec<(Name, Result<Stored<T>>)>> {
        let of_kind = records.of(T::KIND);
        let batches = batches(of_kind);
        let number = batches.iter().map(|batch| batch.records.len()).sum();
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let decoded = stream::iter(batches).map(|batch| {
            let decoded = self.decoded.clone();
            let is_small = batch.is_small();
            let decode = move || {
                let decode = |(name, value)| decode_inline::<T>(name, &value);
                let all = batch.records.into_iter().map(decode).collect::<Vec<_>>();
                let ready = |found: &Result<Found<T>>| {
                    !matches!(found, Ok(Found::Blob(_) | Found::Chunks(_)))
                };
                let ready = all.iter().filter(|(_, found)| ready(found)).count();
                decoded.send_modify(|count| *count += ready as u64);
                Ok(all)
            };
            async move {
                match is_small {
                    true => joined(tokio::spawn(async { decode() }).await),
                    false => off_control(decode).await,
                }
            }
        });
        let decoded: Vec<Vec<(Name, Result<Found<T>>)>> =
            decoded.buffered(threads).try_collect().await?;
        let (mut all, mut elsewhere) = (Vec::with_capacity(number), Vec::new());
        for (name, found) in decoded.into_iter().flatten() {
            match found {
                Ok(Found::Inline(record)) => all.push((name, Ok(Stored::inline(record)))),
                Ok(found @ (Found::Blob(_) | Found::Chunks(_))) => elsewhere.push((name, found)),
                Err(error) => all.push((name, Err(error))),
            }
        }
        let blob_timeout = BlobTimeout::default();
        let fetches = elsewhere.into_iter().map(async |(name, found)| {
            let is_split = matches!(&found, Found::Chunks(_));
            let reading = self.stored(&name, found, records);
            let stored = match is_split {
                true => reading.await,
                false => blob_timeout.wait_for(reading).await,
            };
            match stored {
                // The rest of the record is in the same store as the records, so the whole read fails.
                Err(error) if is_split && error.outcome() != Outcome::Fatal => Err(error),
                stored => Ok((name, stored)),
            }
        });
        let mut fetched = stream::iter(fetches).buffer_unordered(FETCHES_IN_FLIGHT);
        while let Some(stored) = fetched.try_next().await? {
            self.decoded.send_modify(|count| *count += 1);
            all.push(stored);
        }
        Ok(all)
    }

    /// The names of chunks of terms before `epoch` that `keeps` does not claim. They are left by a crash
    /// between writing the chunks and the record that would point to them.
    pub async fn orphaned_chunks(
        &self,
        epoch: Epoch,
        keeps: impl Fn(&ChunkName, &Name) -> bool,
    ) -> Result<Vec<Name>> {
        let keys = self.store.keys(&[CHUNKS]).await?;
        let names = keys.into_iter().map(|key| key.name);
        let is_orphan = |name: &Name| {
            ChunkName::read(name).is_some_and(|of| of.epoch < epoch && !keeps(&of, name))
        };
        Ok(names.filter(is_orphan).collect())
    }

    /// Completes a record; chunks in `known` are not read again.
    async fn stored<T: Record>(
        &self,
        name: &Name,
        found: Found<T>,
        known: &Records,
    ) -> Result<Stored<T>> {
        match found {
            Found::Inline(record) => Ok(Stored::inline(record)),
            Found::Blob(pointer) => self.fetch_blob(name, &pointer).await,
            Found::Chunks(pointer) => self.assemble(name, pointer, known).await,
        }
    }

    async fn assemble<T: Record>(
        &self,
        name: &Name,
        pointer: ChunksPointer,
        known: &Records,
    ) -> Result<Stored<T>> {
        let chunks = pointer.names()?;
        let keys = chunks.iter().map(|chunk| Key::new(CHUNKS, chunk.clone()));
        let keys: Vec<Key> = keys.collect();
        let mut values = Vec::with_capacity(chunks.len());
        for some in keys.chunks(CHUNKS_PAGE) {
            // Chunks are immutable, so a known chunk is the right one.
            let known: Vec<_> = some.iter().map(|key| known.get(key).cloned()).collect();
            if known.iter().all(Option::is_some) {
                values.extend(known);
            } else {
                values.extend(self.store.get(some).await?);
            }
        }
        let of = name.clone();
        let decoded = off_control(move || Ok(decode_inline::<T>(of, &pointer.assemble(&values)?)));
        let (_, found) = decoded.await?;
        match found? {
            Found::Inline(record) => Ok(Stored {
                record,
                blob: None,
                chunks,
            }),
            Found::Blob(_) | Found::Chunks(_) => Err(pointer_again::<T>(name)),
        }
    }

    async fn fetch_blob<T: Record>(
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
                chunks: Vec::new(),
            }),
            Found::Blob(_) | Found::Chunks(_) => Err(pointer_again::<T>(&name)),
        }
    }
}

/// A decoded record, or where the rest of it is.
enum Found<T> {
    Inline(T),
    Blob(crate::blob::BlobPointer),
    Chunks(ChunksPointer),
}

fn pointer_again<T: Record>(name: &Name) -> Error {
    Error::Corrupt {
        key: Key::new(T::KIND, name.clone()).to_string(),
        reason: "its pointer leads to another pointer".to_owned(),
    }
}

/// The newest format of a record that this process reads.
fn reads<T: Record>() -> u16 {
    T::FORMAT + u16::from(is_armed(NEWER))
}

fn decode_inline<T: Record>(name: Name, value: &Bytes) -> (Name, Result<Found<T>>) {
    let key = Key::new(T::KIND, name.clone());
    let found = record::decode(&key, reads::<T>(), value).and_then(|payload| match payload {
        Payload::Inline { format, bytes } => T::decode(format.min(T::FORMAT), &bytes)
            .map(Found::Inline)
            .map_err(|reason| Error::Corrupt {
                key: key.to_string(),
                reason,
            }),
        Payload::Blob { pointer, .. } => Ok(Found::Blob(pointer)),
        Payload::Chunks { pointer, .. } => Ok(Found::Chunks(pointer)),
    });
    (name, found)
}

/// Runs the work on a blocking thread: encoding, hashing and compression of large records must not delay the control
/// runtime.
async fn off_control<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    joined(tokio::task::spawn_blocking(work).await)
}

fn joined<T>(done: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    done.unwrap_or_else(|failure| {
        Err(Error::Misconfigured(
            format!("a record's codec failed: {failure}").into(),
        ))
    })
}
