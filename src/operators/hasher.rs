//! A fast hasher for keys in a task's own tables.
//!
//! Its seed differs from the one that partitions records: with the same hash, the keys of one subtask would
//! share their low bits and collide in a part of its table.

use std::hash::{BuildHasherDefault, Hasher};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Creates [`KeyHasher`]s.
pub(super) type KeyHashing = BuildHasherDefault<KeyHasher>;

/// xxh3 over whole keys.
#[derive(Debug, Clone)]
pub(super) struct KeyHasher(u64);

impl Default for KeyHasher {
    fn default() -> KeyHasher {
        KeyHasher(0x7461_6e69_7374_2e6b)
    }
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    // Slices write their length first; a full round for it would double the cost of short keys.
    fn write_usize(&mut self, length: usize) {
        self.0 = self.0.wrapping_add(length as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
