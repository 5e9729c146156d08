//! The index of a page: from the hash of a key to the position of its entry, by linear probing.
//!
//! A slot has the position and, where there is room, some bits of the hash, so that most probes of other keys look at
//! no entry. A page of the usual size has slots of two bytes. Pages become larger only if very many keys share the
//! upper bits of their hash.

/// Slots of an index with two bytes each.
const MOST_NARROW: usize = 1024;
/// Bits of a narrow slot that are the position.
const POSITION_BITS: u32 = 10;

#[derive(Debug, Clone)]
enum Slots {
    Narrow(Box<[u16]>),
    Wide(Box<[u32]>),
}

/// What a slot has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    /// An entry was removed: the probing goes on.
    Left,
    At {
        tag: u32,
        position: usize,
    },
}

/// Numbers of slots without an entry. No position and tag make them: positions end before.
const FREE: u32 = u32::MAX;
const LEFT: u32 = u32::MAX - 1;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Index {
    slots: Slots,
    /// Slots that are not free.
    used: usize,
}

impl Index {
    /// An empty one for this number of entries.
    pub(super) fn with_room(entries: usize) -> Index {
        let slots = (entries * 8).div_ceil(7).next_power_of_two().max(8);
        let slots = match slots <= MOST_NARROW {
            true => Slots::Narrow(vec![u16::MAX; slots].into()),
            false => Slots::Wide(vec![FREE; slots].into()),
        };
        Index { slots, used: 0 }
    }

    #[inline]
    fn length(&self) -> usize {
        match &self.slots {
            Slots::Narrow(slots) => slots.len(),
            Slots::Wide(slots) => slots.len(),
        }
    }

    /// Whether there is room for another entry.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.used < self.length() / 8 * 7
    }

    /// Where the probing for a hash begins. The upper half of the hash says in which page the key is.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        lower_bits(hash, u64::MAX) & (self.length() - 1)
    }

    #[inline]
    fn tag(&self, hash: u64) -> u32 {
        match self.slots {
            Slots::Narrow(_) => u32::try_from(hash >> 26 & 0x3F).expect("6 bits"),
            Slots::Wide(_) => 0,
        }
    }

    #[inline]
    fn slot(&self, at: usize) -> Slot {
        let (number, bits) = match &self.slots {
            Slots::Narrow(slots) => match slots[at] {
                u16::MAX => (FREE, POSITION_BITS),
                number if number == u16::MAX - 1 => (LEFT, POSITION_BITS),
                number => (u32::from(number), POSITION_BITS),
            },
            Slots::Wide(slots) => (slots[at], u32::BITS - 1),
        };
        match number {
            FREE => Slot::Free,
            LEFT => Slot::Left,
            number => Slot::At {
                tag: number >> bits,
                position: lower_bits(u64::from(number), (1 << bits) - 1),
            },
        }
    }

    #[inline]
    fn set(&mut self, at: usize, slot: Slot) {
        match &mut self.slots {
            Slots::Narrow(slots) => {
                slots[at] = match slot {
                    Slot::Free => u16::MAX,
                    Slot::Left => u16::MAX - 1,
                    Slot::At { tag, position } => {
                        let number = tag << POSITION_BITS | low(position);
                        u16::try_from(number).expect("16 bits")
                    }
                }
            }
            Slots::Wide(slots) => {
                slots[at] = match slot {
                    Slot::Free => FREE,
                    Slot::Left => LEFT,
                    Slot::At { position, .. } => low(position),
                }
            }
        }
    }

    /// The slot of the first position of this hash that is the wanted one.
    #[inline]
    fn slot_of(
        &self,
        hash: u64,
        mut is_wanted: impl FnMut(usize) -> bool,
    ) -> Option<(usize, usize)> {
        let (mask, own) = (self.length() - 1, self.tag(hash));
        let mut at = self.home(hash);
        loop {
            match self.slot(at) {
                Slot::Free => return None,
                Slot::At { tag, position } if tag == own && is_wanted(position) => {
                    return Some((at, position));
                }
                Slot::At { .. } | Slot::Left => at = (at + 1) & mask,
            }
        }
    }

    /// The first position of this hash that is the wanted one.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_wanted: impl FnMut(usize) -> bool) -> Option<usize> {
        self.slot_of(hash, is_wanted).map(|(_, position)| position)
    }

    /// Adds a position. There has to be room.
    #[inline]
    pub(super) fn add(&mut self, hash: u64, position: usize) {
        let mask = self.length() - 1;
        let mut at = self.home(hash);
        while self.slot(at) != Slot::Free {
            at = (at + 1) & mask;
        }
        let tag = self.tag(hash);
        self.set(at, Slot::At { tag, position });
        self.used += 1;
    }

    /// Removes a position of this hash.
    pub(super) fn remove(&mut self, hash: u64, position: usize) {
        if let Some((at, _)) = self.slot_of(hash, |it| it == position) {
            self.set(at, Slot::Left);
        }
    }

    /// Replaces a position of this hash.
    pub(super) fn replace(&mut self, hash: u64, before: usize, position: usize) {
        if let Some((at, _)) = self.slot_of(hash, |it| it == before) {
            let tag = self.tag(hash);
            self.set(at, Slot::At { tag, position });
        }
    }
}

#[inline]
fn low(position: usize) -> u32 {
    u32::try_from(position).expect("a page has fewer entries")
}

#[inline]
fn lower_bits(number: u64, mask: u64) -> usize {
    let lowest = number & mask & u64::from(u32::MAX);
    usize::try_from(lowest).expect("32 bits")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_finds_what_was_added_and_not_removed(
            steps in prop::collection::vec((0_u64..40, any::<bool>()), 0..200), room in 0_usize..2_000,
        ) {
            // Few hashes, so that keys share them; those of odd keys differ in the bits of the tag only.
            let hash = |key: u64| (key / 4) | ((key & 1) << 30);
            let mut index = Index::with_room(room.max(300));
            let mut positions: BTreeMap<u64, usize> = BTreeMap::new();
            for (step, (key, is_added)) in steps.into_iter().enumerate() {
                let found = index.find(hash(key), |it| positions.get(&key) == Some(&it));
                prop_assert_eq!(found, positions.get(&key).copied());
                match (found, is_added) {
                    (None, true) => {
                        prop_assert!(index.has_room());
                        index.add(hash(key), step);
                        positions.insert(key, step);
                    }
                    (Some(before), true) => {
                        index.replace(hash(key), before, step);
                        positions.insert(key, step);
                    }
                    (Some(position), false) => {
                        index.remove(hash(key), position);
                        positions.remove(&key);
                    }
                    (None, false) => {}
                }
            }
        }
    }

    #[test]
    fn no_index_is_full_and_any_has_the_room_that_it_was_made_for() {
        for entries in (0..3_000).step_by(7) {
            let mut index = Index::with_room(entries);
            for position in 0..entries {
                assert!(index.has_room(), "{position} of {entries}");
                index.add(position as u64, position);
            }
            let length = index.length();
            for more in entries.. {
                if !index.has_room() {
                    break;
                }
                index.add(more as u64, more);
            }
            assert!(index.used < length);
        }
    }
}
