//! Keys of a state table: bytes, inside the entry if there are few.

use std::fmt;

/// Most bytes of a key that takes no memory beside its entry.
const INLINE: usize = 22;

#[derive(Clone)]
enum Bytes {
    Inline { length: u8, bytes: [u8; INLINE] },
    Boxed(Box<[u8]>),
}

/// See the module.
#[derive(Clone)]
pub struct StateKey(Bytes);

// An entry of int64 by int64 has 40 bytes because of it.
const _: () = assert!(size_of::<StateKey>() == 24);

impl StateKey {
    #[inline]
    pub(super) fn new(key: &[u8]) -> StateKey {
        StateKey(match u8::try_from(key.len()) {
            Ok(length) if key.len() <= INLINE => {
                let mut bytes = [0; INLINE];
                bytes[..key.len()].copy_from_slice(key);
                Bytes::Inline { length, bytes }
            }
            _ => Bytes::Boxed(key.into()),
        })
    }

    /// Bytes that it has beside its entry.
    pub(super) fn beside(&self) -> usize {
        match &self.0 {
            Bytes::Inline { .. } => 0,
            Bytes::Boxed(bytes) => bytes.len(),
        }
    }

    /// The key.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline { length, bytes } => &bytes[..usize::from(*length)],
            Bytes::Boxed(bytes) => bytes,
        }
    }

    /// Whether it has these bytes. A key of one number, the usual one, is compared as a number.
    #[inline]
    pub(super) fn is(&self, key: &[u8]) -> bool {
        match (&self.0, key.first_chunk::<8>()) {
            (Bytes::Inline { length: 8, bytes }, Some(number)) => {
                key.len() == 8 && bytes.first_chunk() == Some(number)
            }
            _ => self.bytes() == key,
        }
    }
}

impl fmt::Debug for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_any_length_is_kept() {
        for length in 0..100 {
            let key: Vec<u8> = (0..length).collect();
            let kept = StateKey::new(&key);
            assert_eq!(kept.bytes(), key);
            assert!(kept.is(&key));
            let longer = [&key[..], &[0]].concat();
            assert!(!kept.is(&longer) && !StateKey::new(&longer).is(&key));
            for at in 0..key.len() {
                let mut other = key.clone();
                other[at] ^= 1;
                assert!(!kept.is(&other));
            }
        }
    }
}
