//! A page of a state table: the entries of a range of hashes.
//!
//! - A key has an entry, or a removal that a later snapshot has to name, or neither. It never has both.
//! - Entries and removals carry the number of the snapshot after which they were last changed.
//! - A page that a frozen table shares is copied before it is changed.

use super::entries::{Entries, Entry};
use super::index::Index;
use super::key::StateKey;
use crate::key::key_hash;

/// Bytes of the entries of a page.
const BYTES: usize = 32 * 1024;

/// A key that has no entry any more.
#[derive(Debug, Clone)]
pub(super) struct Removal {
    pub(super) key: StateKey,
    /// The last snapshot before it was removed.
    pub(super) changed: u64,
}

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Page<V> {
    entries: Entries<V>,
    index: Index,
    removals: Vec<Removal>,
    /// The highest number of its entries and removals.
    changed: u64,
    /// Number of upper bits of the position that all its keys share.
    depth: u32,
}

impl<V> Page<V> {
    /// Most entries and removals of a page that can be divided.
    pub(super) const MOST: usize = {
        let most = BYTES / size_of::<Entry<V>>();
        if most > 890 {
            890
        } else if most < 16 {
            16
        } else {
            most
        }
    };

    pub(super) fn of_depth(depth: u32) -> Page<V> {
        Page::with_room(depth, 0)
    }

    /// Creates an empty page, whose index has room for this number of entries.
    pub(super) fn with_room(depth: u32, entries: usize) -> Page<V> {
        Page {
            entries: Entries::new(),
            index: Index::with_room(entries.min(Self::MOST)),
            removals: Vec::new(),
            changed: 0,
            depth,
        }
    }

    /// A placeholder without memory, while the page in its place is divided. No key can be looked up in it.
    pub(super) fn hollow() -> Page<V> {
        Page {
            entries: Entries::new(),
            index: Index::hollow(),
            removals: Vec::new(),
            changed: 0,
            depth: 0,
        }
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Turns a page of one of 2^`bits` parts of the hashes into one of all hashes: its keys share these upper bits too.
    pub(super) fn share(&mut self, bits: u32) {
        self.depth += bits;
    }

    pub(super) fn entries(&self) -> &Entries<V> {
        &self.entries
    }

    pub(super) fn into_entries(self) -> Entries<V> {
        self.entries
    }

    pub(super) fn removals(&self) -> &[Removal] {
        &self.removals
    }

    /// The highest number of its entries and removals.
    pub(super) fn changed(&self) -> u64 {
        self.changed
    }

    /// Whether a further key makes it larger than a page should be.
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() + self.removals.len() >= Self::MOST
    }

    /// The place of the entry of a key.
    #[inline]
    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let is_it = |entry: &Entry<V>| entry.key.is(key);
        self.index
            .find(hash, |at| self.entries.get(at).is_some_and(is_it))
    }

    pub(super) fn get(&self, hash: u64, key: &[u8]) -> Option<&V> {
        let at = self.find(hash, key)?;
        Some(&self.entries.get(at)?.value)
    }

    /// The value of a key, which counts as changed after the snapshot of this number.
    pub(super) fn change(&mut self, hash: u64, key: &[u8], changed: u64) -> Option<&mut V> {
        let at = self.find(hash, key)?;
        Some(self.change_at(at, changed))
    }

    /// The value of the entry at a place, which counts as changed after the snapshot of this number.
    #[inline]
    pub(super) fn change_at(&mut self, at: usize, changed: u64) -> &mut V {
        self.changed = self.changed.max(changed);
        let entry = self.entries.get_mut(at).expect("it was found there");
        entry.changed = changed;
        &mut entry.value
    }

    /// Adds a key that has no entry.
    pub(super) fn add(&mut self, hash: u64, key: &[u8], value: V, changed: u64) -> &mut V {
        if !self.removals.is_empty() {
            self.removals.retain(|it| it.key.bytes() != key);
        }
        if !self.index.has_room() {
            self.build_index();
        }
        self.index.add(hash, self.entries.len());
        self.changed = self.changed.max(changed);
        let entry = self.entries.push(Entry {
            key: StateKey::new(key),
            changed,
            value,
        });
        &mut entry.value
    }

    /// Removes a key. `is_recorded`: a snapshot may have it, so later ones have to name its removal.
    pub(super) fn remove(
        &mut self,
        hash: u64,
        key: &[u8],
        changed: u64,
        is_recorded: bool,
    ) -> Option<V> {
        let at = self.find(hash, key)?;
        self.index.remove(hash, at);
        let removed = self.entries.swap_remove(at)?;
        if let Some(moved) = self.entries.get(at) {
            let moved = key_hash(moved.key.bytes());
            self.index.replace(moved, self.entries.len(), at);
        }
        if is_recorded {
            self.removals.push(Removal {
                key: removed.key,
                changed,
            });
            self.changed = self.changed.max(changed);
        }
        Some(removed.value)
    }

    /// Whether there are removals.
    pub(super) fn has_removals(&self) -> bool {
        !self.removals.is_empty()
    }

    /// Whether there are removals that the snapshot of this number has.
    pub(super) fn has_removals_before(&self, number: u64) -> bool {
        self.removals.iter().any(|it| it.changed < number)
    }

    /// Forgets removals that the snapshot of this number has.
    pub(super) fn forget_removals_before(&mut self, number: u64) {
        self.removals.retain(|it| it.changed >= number);
    }

    /// Builds the index again, with room for further entries.
    fn build_index(&mut self) {
        let entries = self.entries.len();
        let room = entries + entries / 16 + 1;
        // A page of the usual size keeps its narrow slots.
        let mut index = Index::with_room(room.min(Self::MOST).max(entries + 1));
        for (at, entry) in self.entries.iter().enumerate() {
            index.add(key_hash(entry.key.bytes()), at);
        }
        self.index = index;
    }

    /// Divides it by the next bit of the position. `bit` says which half a hash is in.
    pub(super) fn divide(self, bit: impl Fn(u64) -> bool) -> [Page<V>; 2] {
        let depth = self.depth + 1;
        let mut halves = [Page::of_depth(depth), Page::of_depth(depth)];
        let is_upper = |key: &StateKey| usize::from(bit(key_hash(key.bytes())));
        for half in &mut halves {
            half.changed = self.changed;
        }
        for entry in self.entries.into_pieces().into_iter().flatten() {
            halves[is_upper(&entry.key)].entries.push(entry);
        }
        for removal in self.removals {
            halves[is_upper(&removal.key)].removals.push(removal);
        }
        halves.iter_mut().for_each(Page::build_index);
        halves
    }
}
