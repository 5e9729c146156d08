//! The checksum in the headers of stored messages.

use xxhash_rust::xxh3::Xxh3;

/// XXH3 of the part of a header before the checksum and of what follows the header. A reader needs it to know the
/// format, so it never changes.
pub fn checksum(header: &[u8], content: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(header);
    hasher.update(content);
    hasher.digest()
}
