//! Records that are too large for one transaction, stored as several items (chunks) of the same store.
//!
//! A record is cut into chunks, which together are its *set*. First the chunks are written, each in its own
//! transaction, and then the record that points to the set, together with all other writes of that change.
//! This module only names, cuts and assembles them: the record's owner commits and deletes them. A crash between
//! two of these transactions leaves a set without a pointer
//! ([`orphaned_chunks`](super::store::RecordStore::orphaned_chunks)).
//!
//! Invariants: the name of a set is never reused (owner, epoch, random part), so deleting a set can't hit
//! another one; the assembled record is the one that was cut, by size and SHA-256, or an error; a set of an
//! earlier term without a pointer never gets one, because the transaction that would write it is fenced.

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::blob::{Checksum, name_as_text};
use crate::election::Epoch;
use crate::error::{Error, Result};
use crate::keys::{Key, Kind, Name};
use crate::store::Write;

/// The kind of chunks.
pub const CHUNKS: Kind = Kind::new("chunks");

/// The size of a chunk, in bytes. Below the stores' limits, so that other transactions of the term do not
/// wait long.
pub const CHUNK: usize = 256 * 1024;

/// The maximum number of chunks in a set.
const MAX_CHUNKS: u32 = 4096;

/// Points to the chunks of a record; has their count, size and checksum.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChunksPointer {
    /// The name of the set.
    #[serde(with = "name_as_text")]
    pub set: Name,
    /// Number of chunks.
    pub chunks: u32,
    /// Their total size, in bytes.
    pub size: u64,
    /// The checksum of all their bytes, in order.
    pub sha256: Checksum,
}

impl ChunksPointer {
    /// The names of the chunks, in order. `Corrupt` if the count is above the limit.
    pub fn names(&self) -> Result<Vec<Name>> {
        if self.chunks > MAX_CHUNKS {
            return Err(self.corrupt(format!("it claims to have {} chunks", self.chunks)));
        }
        (0..self.chunks)
            .map(|number| chunk_name(&self.set, number))
            .collect()
    }

    /// Assembles the record from the values of its chunks, in order.
    pub fn assemble(&self, values: &[Option<Bytes>]) -> Result<Bytes> {
        let mut record = BytesMut::new();
        for (number, value) in values.iter().enumerate() {
            let missing = || self.corrupt(format!("chunk {number} of {} is missing", self.chunks));
            record.extend_from_slice(value.as_ref().ok_or_else(missing)?);
        }
        let (found, wanted) = (record.len(), self.size);
        if found as u64 != wanted {
            let reason = format!("its chunks have {found} bytes, and {wanted} were written");
            return Err(self.corrupt(reason));
        }
        let (found, wanted) = (Checksum::of(&record), self.sha256);
        if found != wanted {
            let reason = format!("the SHA-256 of its chunks is {found}, and {wanted} was written");
            return Err(self.corrupt(reason));
        }
        Ok(record.freeze())
    }

    fn corrupt(&self, reason: String) -> Error {
        Error::Corrupt {
            key: format!("{}/{}.*", CHUNKS.directory(), self.set),
            reason,
        }
    }
}

/// Cuts the record of `owner` into chunks of at most `size` bytes, under new names of the term
/// `epoch`. Each write is for its own transaction.
pub fn split(
    owner: &Name,
    epoch: Epoch,
    record: &Bytes,
    size: usize,
) -> Result<(ChunksPointer, Vec<Write>)> {
    let set = Name::new(format!("{owner}-{epoch}-{:016x}", rand::random::<u64>()));
    let set = set.map_err(|error| Error::Misconfigured(error.to_string().into()))?;
    let size = size.clamp(1, CHUNK);
    let mut writes = Vec::new();
    for (number, at) in (0..record.len()).step_by(size).enumerate() {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let end = record.len().min(at + size);
        writes.push(Write::Put {
            key: Key::new(CHUNKS, chunk_name(&set, number)?),
            value: record.slice(at..end),
        });
    }
    let pointer = ChunksPointer {
        set,
        chunks: u32::try_from(writes.len()).unwrap_or(u32::MAX),
        size: record.len() as u64,
        sha256: Checksum::of(record),
    };
    Ok((pointer, writes))
}

fn chunk_name(set: &Name, number: u32) -> Result<Name> {
    let name = Name::new(format!("{set}.{number:04}"));
    name.map_err(|error| Error::Misconfigured(error.to_string().into()))
}

/// The fields of a chunk's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkName {
    /// The owner of the record.
    pub owner: Name,
    /// The term that wrote it.
    pub epoch: Epoch,
}

impl ChunkName {
    /// `None` for a name that this module never generates.
    pub fn read(name: &Name) -> Option<ChunkName> {
        let (set, _number) = name.as_str().rsplit_once('.')?;
        let (rest, _random) = set.rsplit_once('-')?;
        let (owner, epoch) = rest.rsplit_once('-')?;
        Some(ChunkName {
            owner: Name::new(owner).ok()?,
            epoch: Epoch::new(epoch.parse().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Name {
        Name::new("0a-1b").expect("a name")
    }

    fn cut(size: usize) -> (Bytes, ChunksPointer, Vec<Write>) {
        let bytes: Vec<u8> = (0..1000u32).flat_map(u32::to_le_bytes).collect();
        let record = Bytes::from(bytes);
        let (pointer, writes) = split(&owner(), Epoch::new(7), &record, size).expect("cut");
        (record, pointer, writes)
    }

    fn value(write: &Write) -> Option<Bytes> {
        match write {
            Write::Put { value, .. } => Some(value.clone()),
            Write::Delete { .. } => None,
        }
    }

    #[test]
    fn what_was_cut_is_put_together_again() {
        for size in [1, 999, 1000, 4000, 5000] {
            let (record, pointer, writes) = cut(size);
            let names: Vec<Name> = writes
                .iter()
                .map(|write| write.key().name.clone())
                .collect();
            assert_eq!(pointer.names().expect("few"), names);
            let values: Vec<Option<Bytes>> = writes.iter().map(value).collect();
            assert_eq!(pointer.assemble(&values).expect("whole"), record);
        }
    }

    #[test]
    fn chunks_that_are_missing_cut_off_or_changed_are_corrupt() {
        let (_, pointer, writes) = cut(1000);
        let whole: Vec<Option<Bytes>> = writes.iter().map(value).collect();
        let damaged = |at: usize, value: Option<Bytes>| {
            let mut values = whole.clone();
            values[at] = value;
            pointer.assemble(&values).expect_err("damaged").to_string()
        };
        let missing = damaged(2, None);
        assert!(missing.contains("chunk 2 of 4 is missing"), "{missing}");
        let short = damaged(1, Some(Bytes::from(vec![0; 999])));
        assert!(short.contains("3999 bytes"), "{short}");
        let changed = damaged(3, Some(Bytes::from(vec![7; 1000])));
        assert!(changed.contains("SHA-256"), "{changed}");
        let swapped: Vec<Option<Bytes>> = whole.iter().rev().cloned().collect();
        assert!(pointer.assemble(&swapped).is_err());
    }

    #[test]
    fn the_name_of_a_chunk_says_whose_it_is_and_of_which_term() {
        let (_, first, writes) = cut(1000);
        let epoch = Epoch::new(7);
        let read = ChunkName::read(&writes[3].key().name);
        assert_eq!(
            read,
            Some(ChunkName {
                owner: owner(),
                epoch
            })
        );
        assert_eq!(ChunkName::read(&owner()), None);
        let (_, second, _) = cut(1000);
        assert_ne!(first.set, second.set, "a name is never used again");
    }
}
