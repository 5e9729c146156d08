//! The entries of a page, in pieces of one size.
//!
//! A vector that grows, or is copied when its page is divided, leaves a hole of each size behind, since all pages grow
//! together: a third more memory than the entries. A piece that is freed has the size of each other one. All pieces but
//! the last one are full.

use super::key::StateKey;

/// An entry.
#[derive(Debug, Clone)]
pub(super) struct Entry<V> {
    pub(super) key: StateKey,
    /// The last snapshot before its last change.
    pub(super) changed: u64,
    pub(super) value: V,
}

/// Most bytes of a piece with several entries.
const BYTES: usize = 2048;

/// See the module.
#[derive(Debug)]
pub(super) struct Entries<V> {
    pieces: Vec<Vec<Entry<V>>>,
    length: usize,
}

impl<V: Clone> Clone for Entries<V> {
    fn clone(&self) -> Entries<V> {
        let pieces = self.pieces.iter().map(|piece| {
            // The copy of a vector has no room left.
            let mut copy = Vec::with_capacity(Self::PIECE);
            copy.extend_from_slice(piece);
            copy
        });
        Entries {
            pieces: pieces.collect(),
            length: self.length,
        }
    }
}

impl<V> Entries<V> {
    /// Entries of a piece, a power of two.
    const PIECE: usize = {
        let most = BYTES / size_of::<Entry<V>>();
        if most == 0 { 1 } else { 1 << most.ilog2() }
    };

    pub(super) const fn new() -> Entries<V> {
        Entries {
            pieces: Vec::new(),
            length: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&Entry<V>> {
        self.pieces.get(at / Self::PIECE)?.get(at % Self::PIECE)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Entry<V>> {
        let piece = self.pieces.get_mut(at / Self::PIECE)?;
        piece.get_mut(at % Self::PIECE)
    }

    pub(super) fn push(&mut self, entry: Entry<V>) -> &mut Entry<V> {
        if self.length.is_multiple_of(Self::PIECE) {
            self.pieces.reserve_exact(1);
            self.pieces.push(Vec::with_capacity(Self::PIECE));
        }
        self.length += 1;
        let piece = self.pieces.last_mut().expect("one with room is there");
        piece.push_mut(entry)
    }

    /// Removes the entry at a place, which the last one takes.
    pub(super) fn swap_remove(&mut self, at: usize) -> Option<Entry<V>> {
        self.get(at)?;
        let last = self.pieces.last_mut()?.pop()?;
        self.length -= 1;
        self.pieces.pop_if(|piece| piece.is_empty());
        Some(match self.get_mut(at) {
            Some(place) => std::mem::replace(place, last),
            None => last,
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry<V>> {
        self.pieces.iter().flatten()
    }

    /// The entries, a piece at a time.
    pub(super) fn into_pieces(self) -> Vec<Vec<Entry<V>>> {
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(number: u16) -> Entry<u16> {
        Entry {
            key: StateKey::new(&number.to_le_bytes()),
            changed: 0,
            value: number,
        }
    }

    fn values<'e>(entries: impl IntoIterator<Item = &'e Entry<u16>>) -> Vec<u16> {
        entries.into_iter().map(|entry| entry.value).collect()
    }

    proptest! {
        #[test]
        fn they_are_a_vector(steps in prop::collection::vec(prop::option::weighted(0.4, 0_usize..150), 0..300)) {
            let (mut entries, mut model) = (Entries::new(), Vec::new());
            for (number, step) in (0..).zip(steps) {
                match step {
                    None => {
                        prop_assert_eq!(entries.push(entry(number)).value, number);
                        model.push(number);
                    }
                    Some(at) if at < model.len() => {
                        let removed = entries.swap_remove(at).map(|entry| entry.value);
                        prop_assert_eq!(removed, Some(model.swap_remove(at)));
                    }
                    Some(at) => prop_assert!(entries.swap_remove(at).is_none()),
                }
                prop_assert_eq!(entries.len(), model.len());
                if let Some(entry) = entries.get_mut(number.into()) {
                    (entry.value, model[usize::from(number)]) = (number, number);
                }
            }
            let copy = entries.clone();
            let at = |at| copy.get(at).map(|entry| entry.value);
            prop_assert!((0..=model.len()).map(at).eq(model.iter().copied().map(Some).chain([None])));
            prop_assert_eq!(values(copy.iter()), model.clone());
            let pieces = copy.into_pieces();
            prop_assert!(pieces.iter().all(|piece| piece.capacity() == Entries::<u16>::PIECE));
            prop_assert_eq!(values(pieces.iter().flatten()), model);
        }
    }
}
