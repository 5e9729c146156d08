//! The index of a page: from the hash of a key to the position of its entry, by linear probing.
//!
//! A slot has the position and, where there is room, some bits of the hash, so that most probes of other keys look at
//! no entry. A page of the usual size has slots of two bytes. Pages become larger only if very many keys share the
//! upper bits of their hash.

/// Slots of an index with two bytes each.
const MOST_NARROW: usize = 1024;
/// Bits of a narrow slot that are the position.
const POSITION_BITS: u32 = 10;
const POSITION_MASK: u16 = (1 << POSITION_BITS) - 1;

#[derive(Debug, Clone)]
enum Slots {
    Narrow(Box<[u16]>),
    Wide(Box<[u32]>),
}

/// The number of a slot: a tag and a position, or one of two reserved numbers. A page has too few entries for a
/// position that would make a reserved number.
trait SlotNumber: Copy + Eq {
    const FREE: Self;
    /// An entry was removed: the probing goes on.
    const LEFT: Self;

    fn new(hash: u64, position: usize) -> Self;

    /// Whether it may be of a hash: the tag is.
    fn may_be_of(self, hash: u64) -> bool;

    /// The position, if the slot is neither free nor left.
    fn position(self) -> usize;
}

impl SlotNumber for u16 {
    const FREE: u16 = u16::MAX;
    const LEFT: u16 = u16::MAX - 1;

    #[inline]
    fn new(hash: u64, position: usize) -> u16 {
        let position = u16::try_from(position).expect("a page has fewer entries");
        narrow_tag(hash) | position
    }

    #[inline]
    fn may_be_of(self, hash: u64) -> bool {
        self & !POSITION_MASK == narrow_tag(hash)
    }

    #[inline]
    fn position(self) -> usize {
        usize::from(self & POSITION_MASK)
    }
}

impl SlotNumber for u32 {
    const FREE: u32 = u32::MAX;
    const LEFT: u32 = u32::MAX - 1;

    #[inline]
    fn new(_: u64, position: usize) -> u32 {
        u32::try_from(position).expect("a page has fewer entries")
    }

    #[inline]
    fn may_be_of(self, _: u64) -> bool {
        true
    }

    #[inline]
    fn position(self) -> usize {
        usize::try_from(self).expect("32 bits")
    }
}

/// Bits of the hash that neither say in which page a key is nor where its probing begins.
#[inline]
fn narrow_tag(hash: u64) -> u16 {
    let bits = u16::try_from(hash >> 26 & 0x3F).expect("6 bits");
    bits << POSITION_BITS
}

/// Where the probing for a hash begins. The upper half of the hash says in which page the key is.
#[inline]
fn home(hash: u64, slots: usize) -> usize {
    lower_bits(hash) & (slots - 1)
}

/// The slot of the first position of this hash that is the wanted one, and the position. Some slot is free.
#[inline(always)]
fn probe<N: SlotNumber>(
    slots: &[N],
    hash: u64,
    mut is_wanted: impl FnMut(usize) -> bool,
) -> Option<(usize, usize)> {
    let mask = slots.len() - 1;
    let mut at = home(hash, slots.len());
    loop {
        let number = slots[at];
        if number == N::FREE {
            return None;
        }
        if number != N::LEFT && number.may_be_of(hash) && is_wanted(number.position()) {
            return Some((at, number.position()));
        }
        at = (at + 1) & mask;
    }
}

/// [`probe`] for the few wide pages, in a function of its own, so that the code for the others is short.
#[cold]
#[inline(never)]
fn probe_wide(
    slots: &[u32],
    hash: u64,
    is_wanted: impl FnMut(usize) -> bool,
) -> Option<(usize, usize)> {
    probe(slots, hash, is_wanted)
}

#[inline]
fn add<N: SlotNumber>(slots: &mut [N], hash: u64, position: usize) {
    let mask = slots.len() - 1;
    let mut at = home(hash, slots.len());
    while slots[at] != N::FREE {
        at = (at + 1) & mask;
    }
    slots[at] = N::new(hash, position);
}

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Index {
    slots: Slots,
    /// Slots that are not free.
    used: usize,
}

impl Index {
    /// Creates an empty index for this number of entries.
    pub(super) fn with_room(entries: usize) -> Index {
        let slots = (entries * 8).div_ceil(7).next_power_of_two().max(8);
        let slots = match slots <= MOST_NARROW {
            true => Slots::Narrow(vec![u16::FREE; slots].into()),
            false => Slots::Wide(vec![u32::FREE; slots].into()),
        };
        Index { slots, used: 0 }
    }

    /// Creates an index without slots, in which nothing can be looked up.
    pub(super) fn hollow() -> Index {
        Index {
            slots: Slots::Narrow(Box::default()),
            used: 0,
        }
    }

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

    #[inline(always)]
    fn slot_of(&self, hash: u64, is_wanted: impl FnMut(usize) -> bool) -> Option<(usize, usize)> {
        match &self.slots {
            Slots::Narrow(slots) => probe(slots, hash, is_wanted),
            Slots::Wide(slots) => probe_wide(slots, hash, is_wanted),
        }
    }

    /// The first position of this hash that is the wanted one.
    #[inline(always)]
    pub(super) fn find(&self, hash: u64, is_wanted: impl FnMut(usize) -> bool) -> Option<usize> {
        self.slot_of(hash, is_wanted).map(|(_, position)| position)
    }

    /// Adds a position. There has to be room.
    #[inline]
    pub(super) fn add(&mut self, hash: u64, position: usize) {
        match &mut self.slots {
            Slots::Narrow(slots) => add(slots, hash, position),
            Slots::Wide(slots) => add(slots, hash, position),
        }
        self.used += 1;
    }

    /// Removes a position of this hash.
    pub(super) fn remove(&mut self, hash: u64, position: usize) {
        let Some((at, _)) = self.slot_of(hash, |it| it == position) else {
            return;
        };
        match &mut self.slots {
            Slots::Narrow(slots) => slots[at] = u16::LEFT,
            Slots::Wide(slots) => slots[at] = u32::LEFT,
        }
    }

    /// Replaces a position of this hash.
    pub(super) fn replace(&mut self, hash: u64, before: usize, position: usize) {
        let Some((at, _)) = self.slot_of(hash, |it| it == before) else {
            return;
        };
        match &mut self.slots {
            Slots::Narrow(slots) => slots[at] = u16::new(hash, position),
            Slots::Wide(slots) => slots[at] = u32::new(hash, position),
        }
    }
}

#[inline]
fn lower_bits(number: u64) -> usize {
    usize::try_from(number & u64::from(u32::MAX)).expect("32 bits")
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
