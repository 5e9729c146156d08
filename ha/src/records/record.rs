//! The envelope of every record that this crate stores for its callers: format version, encoding, checksum,
//! payload.
//!
//! The meaning of a payload and the place of the record are the caller's. Invariants: a record that is
//! damaged or truncated is [`Error::Corrupt`], never another payload; an intact one of a newer format is
//! [`Error::TooNew`].
//!
//! ```text
//! 0       magic: 0xA7; another envelope would have another value
//! 1..3    format of the payload, u16, little endian
//! 3       encoding: 0 raw, 1 zstd, 2 pointer to a blob (JSON), 3 pointer to chunks in the store (JSON)
//! 4..12   XXH3 (64 bit), little endian, of bytes 0..4 followed by bytes 12..
//! 12..    payload, as encoded
//! ```
//!
//! A blob, or assembled chunks, contain a record again, raw or zstd, so its format does not depend on the
//! pointer.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Display;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;
use zstd::bulk::{Compressor, Decompressor};

use crate::blob::BlobPointer;
use crate::error::{Error, Result};
use crate::records::chunks::ChunksPointer;

/// The largest payload, in bytes; also the limit for the claimed decompressed size of a small record.
pub const MAX_PAYLOAD: usize = 64 * 1024 * 1024;

const MAGIC: u8 = 0xa7;
const PREFIX: usize = 4;
const HEADER: usize = PREFIX + 8;
/// Smaller payloads stay raw: compression saves little, and raw payloads are human-readable.
const COMPRESS_ABOVE: usize = 512;
const COMPRESSION_LEVEL: i32 = 3;
/// Up to this size, in bytes, a payload is compressed in a context that its thread keeps: there are very many
/// small records, and creating a context costs more than using it. Contexts for larger payloads are large,
/// and are freed after use.
const CONTEXT_KEPT: usize = 16 * 1024;

thread_local! {
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Raw = 0,
    Zstd = 1,
    Pointer = 2,
    Chunks = 3,
}

impl Encoding {
    fn of(byte: u8) -> Option<Encoding> {
        match byte {
            0 => Some(Encoding::Raw),
            1 => Some(Encoding::Zstd),
            2 => Some(Encoding::Pointer),
            3 => Some(Encoding::Chunks),
            _ => None,
        }
    }
}

/// An encoded record, and whether it fits into the coordination store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encoded {
    /// Small enough for the coordination store.
    Inline(Bytes),
    /// Too large for it: written to a blob or to chunks; [`encode_pointer`] or [`encode_chunks_pointer`]
    /// creates the record to store in its place.
    Oversized(Bytes),
}

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// The payload itself.
    Inline {
        /// Its format.
        format: u16,
        /// Its bytes.
        bytes: Bytes,
    },
    /// The payload is in a blob, which contains a record again.
    Blob {
        /// The format of the payload there.
        format: u16,
        /// The blob.
        pointer: BlobPointer,
    },
    /// The payload is in several items of the same store, which together contain a record again.
    Chunks {
        /// The format of the payload there.
        format: u16,
        /// The items.
        pointer: ChunksPointer,
    },
}

/// Encodes `payload`, compressed if that makes it smaller. `threshold` is the maximum size in bytes of an
/// inline record. `TooLarge` above [`MAX_PAYLOAD`].
pub fn encode(format: u16, payload: &[u8], threshold: usize) -> Result<Encoded> {
    if payload.len() > MAX_PAYLOAD {
        return Err(Error::TooLarge {
            store: "a record",
            what: "a payload",
            size: payload.len(),
            limit: MAX_PAYLOAD,
        });
    }
    let compressed = compress(payload);
    let record = match &compressed {
        Some(compressed) => seal(format, Encoding::Zstd, compressed),
        None => seal(format, Encoding::Raw, payload),
    };
    Ok(if record.len() > threshold {
        Encoded::Oversized(record)
    } else {
        Encoded::Inline(record)
    })
}

/// Encodes a record whose payload, of format `format`, is in a blob.
pub fn encode_pointer(format: u16, pointer: &BlobPointer) -> Bytes {
    let pointer = serde_json::to_vec(pointer).expect("names and numbers are always JSON");
    seal(format, Encoding::Pointer, &pointer)
}

/// Encodes a record whose payload, of format `format`, is in chunks.
pub fn encode_chunks_pointer(format: u16, pointer: &ChunksPointer) -> Bytes {
    let pointer = serde_json::to_vec(pointer).expect("names and numbers are always JSON");
    seal(format, Encoding::Chunks, &pointer)
}

/// Decodes the record at `key`, which errors name; `supported` is the newest format that the caller reads.
pub fn decode(key: impl Display, supported: u16, record: &[u8]) -> Result<Payload> {
    let corrupt = |reason: Cow<'static, str>| Error::Corrupt {
        key: key.to_string(),
        reason: reason.into_owned(),
    };
    let Some((header, payload)) = record.split_first_chunk::<HEADER>() else {
        let size = record.len();
        return Err(corrupt(
            format!("{size} bytes are too short for a record").into(),
        ));
    };
    let [magic, low, high, encoding, sum @ ..] = *header;
    if magic != MAGIC {
        return Err(corrupt("it does not begin like a record".into()));
    }
    if checksum(&header[..PREFIX], payload) != u64::from_le_bytes(sum) {
        return Err(corrupt("its checksum does not match".into()));
    }
    let format = u16::from_le_bytes([low, high]);
    if format > supported {
        return Err(Error::TooNew {
            key: key.to_string(),
            found: format,
            supported,
        });
    }
    let encoding = Encoding::of(encoding)
        .ok_or_else(|| corrupt(format!("its encoding {encoding} is unknown").into()))?;
    match encoding {
        Encoding::Raw => Ok(Payload::Inline {
            format,
            bytes: Bytes::copy_from_slice(payload),
        }),
        Encoding::Zstd => {
            let bytes = decompress(payload).map_err(corrupt)?;
            Ok(Payload::Inline { format, bytes })
        }
        Encoding::Pointer => {
            let pointer = serde_json::from_slice(payload)
                .map_err(|error| corrupt(format!("its pointer is unreadable: {error}").into()))?;
            Ok(Payload::Blob { format, pointer })
        }
        Encoding::Chunks => {
            let pointer = serde_json::from_slice(payload)
                .map_err(|error| corrupt(format!("its pointer is unreadable: {error}").into()))?;
            Ok(Payload::Chunks { format, pointer })
        }
    }
}

/// The decoded size of a record's payload in bytes, as the record claims; unchecked. A payload that is stored
/// elsewhere does not count.
pub fn claimed_size(record: &[u8]) -> usize {
    let Some(([_, _, _, encoding, ..], payload)) = record.split_first_chunk::<HEADER>() else {
        return record.len();
    };
    match Encoding::of(*encoding) {
        Some(Encoding::Zstd) => claimed(payload).map_or(payload.len(), |size| {
            usize::try_from(size).unwrap_or(usize::MAX)
        }),
        Some(Encoding::Raw | Encoding::Pointer | Encoding::Chunks) | None => payload.len(),
    }
}

fn checksum(prefix: &[u8], payload: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(prefix);
    hasher.update(payload);
    hasher.digest()
}

fn seal(format: u16, encoding: Encoding, payload: &[u8]) -> Bytes {
    let [low, high] = format.to_le_bytes();
    let prefix = [MAGIC, low, high, encoding as u8];
    let sum = checksum(&prefix, payload).to_le_bytes();
    Bytes::from([&prefix[..], &sum, payload].concat())
}

/// `None` if compression does not help.
fn compress(payload: &[u8]) -> Option<Vec<u8>> {
    if payload.len() <= COMPRESS_ABOVE {
        return None;
    }
    // Only lack of memory can fail here, and raw is always valid.
    let compressed = if payload.len() <= CONTEXT_KEPT {
        COMPRESSOR.with_borrow_mut(|kept| {
            let compressor = match kept {
                Some(compressor) => compressor,
                None => kept.insert(Compressor::new(COMPRESSION_LEVEL).ok()?),
            };
            compressor.compress(payload).ok()
        })?
    } else {
        zstd::bulk::compress(payload, COMPRESSION_LEVEL).ok()?
    };
    (compressed.len() < payload.len()).then_some(compressed)
}

/// The output of `compress` always contains its size.
fn claimed(compressed: &[u8]) -> Option<u64> {
    let size = zstd::zstd_safe::get_frame_content_size(compressed);
    size.ok().flatten()
}

fn decompress(compressed: &[u8]) -> Result<Bytes, Cow<'static, str>> {
    let claimed = claimed(compressed).ok_or("its compressed payload has no size")?;
    let size = usize::try_from(claimed)
        .ok()
        .filter(|size| *size <= MAX_PAYLOAD)
        .ok_or_else(|| {
            format!("it claims to decompress to {claimed} bytes, and {MAX_PAYLOAD} are the limit")
        })?;
    let payload = DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            None => kept.insert(Decompressor::new()?),
        };
        decompressor.decompress(compressed, size)
    });
    let payload = payload.map_err(|error| format!("it can't be decompressed: {error}"))?;
    Ok(Bytes::from(payload))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::keys::Name;

    fn inline(encoded: Encoded) -> Bytes {
        match encoded {
            Encoded::Inline(record) => record,
            Encoded::Oversized(record) => panic!("{} bytes are oversized", record.len()),
        }
    }

    fn pointer() -> BlobPointer {
        BlobPointer {
            name: Name::new("job-7-0123456789abcdef").expect("a name"),
            size: 70_000,
            sha256: format!("{:064x}", 0xfeed).parse().expect("a digest"),
        }
    }

    fn chunks_pointer() -> ChunksPointer {
        ChunksPointer {
            set: Name::new("job-7-0123456789abcdef").expect("a name"),
            chunks: 3,
            size: 700_000,
            sha256: format!("{:064x}", 0xfeed).parse().expect("a digest"),
        }
    }

    const RAW: &str = "a7010000951123f4c774d14061207061796c6f6164206f6620666f726d6174206f6e65";
    const COMPRESSED: &str =
        "a70100016da161865be3a74628b52ffd60bc017500003874616e697374200100b2541523";
    const POINTER: &str = concat!(
        "a701000295c427072ceb5fbb7b226e616d65223a226a6f622d372d30313233343536373839616263",
        "646566222c2273697a65223a37303030302c22736861323536223a22303030303030303030303030",
        "30303030303030303030303030303030303030303030303030303030303030303030303030303030",
        "303030303030303066656564227d",
    );

    #[test]
    fn records_kept_from_format_one_are_still_read() {
        let kept = |record: &str| {
            let bytes = hex::decode(record).expect("digits");
            decode("items/kept", 1, &bytes).expect("decoded")
        };
        let raw = Bytes::from_static(b"a payload of format one");
        assert_eq!(
            kept(RAW),
            Payload::Inline {
                format: 1,
                bytes: raw
            }
        );
        let long = Bytes::from("tanist ".repeat(100));
        assert_eq!(
            kept(COMPRESSED),
            Payload::Inline {
                format: 1,
                bytes: long
            }
        );
        assert_eq!(
            kept(POINTER),
            Payload::Blob {
                format: 1,
                pointer: pointer()
            }
        );
    }

    #[test]
    fn records_are_still_written_as_they_were_in_format_one() {
        let raw = encode(1, b"a payload of format one", 1024).expect("encoded");
        assert_eq!(hex::encode(inline(raw)), RAW);
        assert_eq!(hex::encode(encode_pointer(1, &pointer())), POINTER);
    }

    #[test]
    fn a_pointer_to_chunks_is_read_as_it_was_written() {
        let record = encode_chunks_pointer(1, &chunks_pointer());
        let pointer = chunks_pointer();
        let json = r#"{"set":"job-7-0123456789abcdef","chunks":3,"size":700000,"sha256":"#;
        assert_eq!(&record[HEADER..HEADER + json.len()], json.as_bytes());
        assert_eq!(
            decode("items/kept", 1, &record).expect("decoded"),
            Payload::Chunks { format: 1, pointer }
        );
    }

    #[test]
    fn a_payload_that_compresses_well_stays_inline_and_another_one_goes_to_a_blob() {
        let zeros = encode(1, &vec![0; 1_000_000], 1024).expect("encoded");
        let record = inline(zeros);
        assert!(record.len() < 200, "{}", record.len());
        let noise: Vec<u8> = (0..2000u32).flat_map(|i| Xxh3Noise(i).bytes()).collect();
        let oversized = encode(1, &noise, 1024).expect("encoded");
        let Encoded::Oversized(record) = oversized else {
            panic!("{oversized:?}")
        };
        assert_eq!(record.len(), noise.len() + HEADER);
        let decoded = decode("items/noise", 1, &record).expect("decoded");
        assert_eq!(
            decoded,
            Payload::Inline {
                format: 1,
                bytes: Bytes::from(noise)
            }
        );
    }

    struct Xxh3Noise(u32);

    impl Xxh3Noise {
        fn bytes(&self) -> [u8; 8] {
            xxhash_rust::xxh3::xxh3_64(&self.0.to_le_bytes()).to_le_bytes()
        }
    }

    #[test]
    fn a_newer_format_is_too_new_and_names_the_key() {
        let record = inline(encode(3, b"x", 1024).expect("encoded"));
        let error = decode("items/future", 2, &record).expect_err("too new");
        assert!(
            matches!(
                error,
                Error::TooNew {
                    found: 3,
                    supported: 2,
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("items/future"), "{error}");
    }

    #[test]
    fn a_claim_of_more_than_the_limit_is_refused_before_anything_is_decompressed() {
        let bomb = zstd::bulk::compress(&vec![0; MAX_PAYLOAD + 1], 1).expect("compressed");
        let error = decode("items/bomb", 1, &seal(1, Encoding::Zstd, &bomb)).expect_err("refused");
        assert!(error.to_string().contains("are the limit"), "{error}");
        assert!(encode(1, &vec![0; MAX_PAYLOAD + 1], 1024).is_err());
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(payload: Vec<u8>, repeat in 1usize..200, format: u16) {
            let payload = payload.repeat(repeat);
            let record = inline(encode(format, &payload, usize::MAX).expect("encoded"));
            let decoded = decode("k", format, &record).expect("decoded");
            prop_assert_eq!(decoded, Payload::Inline { format, bytes: Bytes::from(payload) });
        }

        #[test]
        fn a_damaged_record_is_corrupt(payload: Vec<u8>, at: prop::sample::Index, bit in 0u8..8) {
            let mut record = inline(encode(1, &payload, usize::MAX).expect("encoded")).to_vec();
            let at = at.index(record.len());
            record[at] ^= 1 << bit;
            let damaged = decode("items/k", 1, &record);
            let named = matches!(&damaged, Err(Error::Corrupt { key, .. }) if key == "items/k");
            prop_assert!(named, "{:?}", damaged);
            record[at] ^= 1 << bit;
            let cut = decode("items/k", 1, &record[..at]);
            let corrupt = matches!(cut, Err(Error::Corrupt { .. }));
            prop_assert!(corrupt, "{:?}", cut);
        }

        #[test]
        fn any_bytes_are_an_error_and_no_panic(bytes: Vec<u8>) {
            prop_assert!(decode("k", 1, &bytes).is_err());
        }
    }
}
