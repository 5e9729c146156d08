//! The bytes of a savepoint's file `_metadata`: magic, format, checksum, the list of objects, and the manifest.
//!
//! Invariants: changed or truncated bytes are damaged, never another savepoint; intact ones of a later format are too
//! new, never damaged.
//!
//! ```text
//! 0..4    magic: "tnSP"
//! 4..6    format, u16, little endian
//! 6..14   XXH3 (64 bit), little endian, of bytes 0..6 followed by bytes 14..
//! 14..22  number of objects, u64, little endian
//! 22..    for each object, by name: its SHA-256 (32 bytes), its size in bytes (u64, little endian)
//! ..      the bytes of the manifest
//! ```

use std::collections::BTreeMap;

use bytes::Bytes;
use tanist_ha::blob::Checksum;
use tanist_proto::checksum;

/// The newest format that this version reads.
pub const FORMAT: u16 = 1;

const MAGIC: [u8; 4] = *b"tnSP";
const PREFIX: usize = MAGIC.len() + 2;
const HEADER: usize = PREFIX + 8;
/// Bytes of an object's entry.
const ENTRY: usize = 32 + 8;

/// Why bytes are no `_metadata` that this version reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unread {
    /// The reason.
    Damaged(String),
    /// Its format.
    TooNew(u16),
}

/// Encodes the sizes of the objects by their checksums, and the manifest.
pub(super) fn encode(objects: &BTreeMap<Checksum, u64>, manifest: &[u8]) -> Bytes {
    let mut content = Vec::with_capacity(8 + objects.len() * ENTRY + manifest.len());
    content.extend((objects.len() as u64).to_le_bytes());
    for (sum, size) in objects {
        content.extend(sum.as_bytes());
        content.extend(size.to_le_bytes());
    }
    content.extend(manifest);
    seal(FORMAT, &content)
}

/// Decodes the names of the objects with their sizes, and the manifest.
pub(super) fn decode(bytes: &Bytes) -> Result<(BTreeMap<String, u64>, Bytes), Unread> {
    let damaged = |reason: &str| Unread::Damaged(reason.to_owned());
    let Some((header, content)) = bytes.split_first_chunk::<HEADER>() else {
        return Err(damaged("its _metadata is too short"));
    };
    let [magic @ .., low, high] = header.first_chunk::<PREFIX>().expect("longer").to_owned();
    if magic != MAGIC {
        return Err(damaged("its _metadata does not begin like one"));
    }
    let sum = header.last_chunk::<8>().expect("longer");
    if checksum(&header[..PREFIX], content) != u64::from_le_bytes(*sum) {
        return Err(damaged("the checksum of its _metadata does not match"));
    }
    let found = u16::from_le_bytes([low, high]);
    if found > FORMAT {
        return Err(Unread::TooNew(found));
    }
    let (objects, rest) =
        entries(content).ok_or_else(|| damaged("its list of objects ends early"))?;
    Ok((objects, bytes.slice_ref(rest)))
}

/// The list of objects, and what follows it.
fn entries(content: &[u8]) -> Option<(BTreeMap<String, u64>, &[u8])> {
    let (number, content) = content.split_first_chunk::<8>()?;
    let number = usize::try_from(u64::from_le_bytes(*number)).ok()?;
    let (entries, rest) = content.split_at_checked(number.checked_mul(ENTRY)?)?;
    let entry = |entry: &[u8]| {
        let (sum, size) = entry.split_first_chunk::<32>()?;
        let size = u64::from_le_bytes(*size.first_chunk::<8>()?);
        Some((Checksum::from(*sum).to_string(), size))
    };
    let objects = entries.chunks(ENTRY).map(entry).collect::<Option<_>>()?;
    Some((objects, rest))
}

/// Prepends magic, format and checksum to the content.
pub(super) fn seal(format: u16, content: &[u8]) -> Bytes {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(format.to_le_bytes());
    let sum = checksum(&bytes, content);
    bytes.extend(sum.to_le_bytes());
    bytes.extend(content);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bytes of format 1 stay as they are: savepoints outlive the version that wrote them.
    #[test]
    fn a_sample_of_format_1_is_read_and_written_as_it_is() {
        let objects = BTreeMap::from([(Checksum::of(b"abc"), 3)]);
        let bytes = encode(&objects, b"the manifest");
        assert_eq!(bytes[..6], *b"tnSP\x01\x00");
        let digits = hex::encode(&bytes[6..]);
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let rest = format!("0100000000000000{sum}0300000000000000746865206d616e6966657374");
        assert_eq!(digits[16..], rest);
        let (read, manifest) = decode(&bytes).expect("read");
        assert_eq!(read, BTreeMap::from([(sum.to_owned(), 3)]));
        assert_eq!(manifest, "the manifest");
    }

    #[test]
    fn each_changed_byte_and_each_missing_end_is_found() {
        let objects = BTreeMap::from([(Checksum::of(b"abc"), 3), (Checksum::of(b""), 0)]);
        let whole = encode(&objects, b"the manifest");
        for at in 0..whole.len() {
            for mask in [1, 0x80, 0xff] {
                let mut bytes = whole.to_vec();
                bytes[at] ^= mask;
                let read = decode(&bytes.into());
                assert!(matches!(read, Err(Unread::Damaged(_))), "{at}: {read:?}");
            }
            let read = decode(&whole.slice(..at));
            assert!(matches!(read, Err(Unread::Damaged(_))), "{at}: {read:?}");
        }
    }

    #[test]
    fn a_later_format_is_too_new_and_a_list_that_ends_early_is_damaged() {
        assert_eq!(
            decode(&seal(FORMAT + 1, b"?")),
            Err(Unread::TooNew(FORMAT + 1))
        );
        for number in [1, u64::MAX] {
            let read = decode(&seal(FORMAT, &number.to_le_bytes()));
            assert!(matches!(read, Err(Unread::Damaged(_))), "{read:?}");
        }
    }

    proptest! {
        #[test]
        fn any_content_that_is_sealed_is_read_within_its_size_or_damaged(
            number in prop_oneof![0_u64..5, any::<u64>()], content: Vec<u8>,
        ) {
            let content = [&number.to_le_bytes()[..], &content].concat();
            match decode(&seal(FORMAT, &content)) {
                Ok((objects, manifest)) => {
                    prop_assert!(objects.len() as u64 <= number);
                    let entries = usize::try_from(number).expect("few") * ENTRY;
                    prop_assert_eq!(&manifest[..], &content[8 + entries..]);
                }
                Err(unread) => prop_assert!(matches!(unread, Unread::Damaged(_))),
            }
        }
    }
}
