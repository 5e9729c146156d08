//! The pages of one namespace: a directory by the upper bits of a key's *position*, which is its hash as a fraction of
//! the subtask's range. A page that is full is divided by the next bit, and the directory doubles when it needs to.
//! Source: extendible hashing (Fagin et al., 1979).

use triomphe::Arc;

use super::entries::{Entries, Entry};
use super::page::Page;
use super::pages::Pages;
use crate::key::key_hash;
use crate::state::KeyGroups;

/// Most bits of a directory, with those that all its hashes share. A page of this depth is not divided, and becomes
/// larger.
const MOST_BITS: u32 = 22;

/// The hashes of a subtask: those of its key groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HashRange {
    /// Upper half of the lowest hash.
    first: u64,
    /// 2^64 divided by the number of upper halves.
    scale: u64,
    /// Number of upper bits of a position that all hashes share.
    shared: u32,
}

impl HashRange {
    pub(super) fn of(groups: KeyGroups) -> HashRange {
        let max = u64::from(groups.max_parallelism().max(1));
        let lowest = |group: u32| (u64::from(group) << 32).div_ceil(max);
        let (first, end) = groups.range();
        let (first, end) = (lowest(first), lowest(end));
        HashRange {
            first,
            scale: u64::MAX / end.saturating_sub(first).max(1),
            shared: 0,
        }
    }

    /// The range of one of 2^`bits` equal parts.
    pub(super) fn part(self, bits: u32) -> HashRange {
        HashRange {
            shared: bits,
            ..self
        }
    }

    /// Most bits of a directory of these hashes.
    fn most_bits(self) -> u32 {
        MOST_BITS - self.shared
    }

    /// The number of the part that has a hash.
    #[inline]
    pub(super) fn part_of(self, hash: u64, bits: u32) -> u64 {
        self.position(hash) >> (u32::BITS - bits)
    }

    /// The position of a hash: a fraction of 2^32, which grows with the hash. That in a part is without the bits that
    /// its hashes share.
    #[inline]
    fn position(self, hash: u64) -> u64 {
        let from_first = (hash >> 32).saturating_sub(self.first);
        let position = from_first.saturating_mul(self.scale) >> 32;
        (position.min(u64::from(u32::MAX)) << self.shared) & u64::from(u32::MAX)
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Directory<V> {
    range: HashRange,
    /// Number of upper bits of a position by which `slots` are numbered.
    bits: u32,
    /// Numbers of pages. The slots of one page are beside each other.
    slots: Vec<u32>,
    pages: Pages<V>,
    entries: usize,
    removals: Removals,
}

/// Where removals may be. They are forgotten a few pages at a time, so that no snapshot stops the task for all pages.
#[derive(Debug, Clone, Copy, Default)]
struct Removals {
    /// Whether there are any.
    any: bool,
    /// Whether the pages before `next` have some left.
    stay: bool,
    /// The page that is looked at next.
    next: usize,
}

impl<V: Clone> Directory<V> {
    /// Creates an empty directory with as many pages as this number of entries needs, so that none is divided while
    /// they are loaded.
    pub(super) fn with_room(range: HashRange, entries: usize) -> Directory<V> {
        let pages = (entries / (Page::<V>::MOST * 7 / 8)).next_power_of_two();
        let bits = pages.ilog2().min(range.most_bits());
        let pages = 1_u32 << bits;
        let of_page = entries >> bits;
        let page = || Page::with_room(bits, of_page + of_page / 8);
        Directory {
            range,
            bits,
            slots: (0..pages).collect(),
            pages: (0..pages).map(|_| page()).collect(),
            entries: 0,
            removals: Removals::default(),
        }
    }

    /// Joins the directories of the 2^n parts of a range, in order.
    pub(super) fn join(range: HashRange, parts: Vec<Directory<V>>) -> Directory<V> {
        let entries = parts.iter().map(Directory::len).sum();
        if entries <= Page::<V>::MOST / 2 {
            let mut joined = Directory::with_room(range, entries);
            for entry in parts.into_iter().flat_map(Directory::into_entries) {
                let key = entry.key.bytes();
                joined.load_new(key_hash(key), key, entry.value);
            }
            return joined;
        }
        let shared = parts.len().ilog2();
        let bits = parts.iter().map(|part| part.bits).max().unwrap_or(0);
        let (mut slots, mut pages) = (Vec::with_capacity(parts.len() << bits), Pages::new());
        for part in parts {
            let first = u32::try_from(pages.len()).expect("a slot has 22 bits");
            let each = 1 << (bits - part.bits);
            let numbers = part.slots.into_iter().map(|number| number + first);
            slots.extend(numbers.flat_map(|number| std::iter::repeat_n(number, each)));
            pages.append(part.pages);
        }
        for number in 0..pages.len() {
            pages.get_mut(number).share(shared);
        }
        Directory {
            range,
            bits: bits + shared,
            slots,
            pages,
            entries,
            removals: Removals::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries
    }

    /// The pages, in any order.
    pub(super) fn pages(&self) -> impl Iterator<Item = &Page<V>> {
        self.pages.iter()
    }

    /// Shares the pages with a snapshot. The result never changes.
    pub(super) fn share(&self) -> FrozenDirectory<V> {
        FrozenDirectory {
            slots: self.slots.clone(),
            pages: self.pages.clone(),
        }
    }

    /// Number of pages.
    pub(super) fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// A page, by its place in any order.
    pub(super) fn page_at(&self, at: usize) -> &Page<V> {
        self.pages.get(at)
    }

    /// The entries, in any order. A page that a snapshot has is copied when its entries are taken, and not before.
    pub(super) fn into_entries(self) -> impl Iterator<Item = Entry<V>> + use<V> {
        let entries = self
            .pages
            .into_iter()
            .map(|page| Arc::unwrap_or_clone(page).into_entries());
        entries.flat_map(Entries::into_pieces).flatten()
    }

    #[inline]
    fn slot(&self, hash: u64) -> usize {
        let slot = self.range.position(hash) >> (u32::BITS - self.bits);
        usize::try_from(slot).expect("at most 32 bits")
    }

    #[inline]
    fn page(&self, hash: u64) -> &Page<V> {
        self.pages.get(as_index(self.slots[self.slot(hash)]))
    }

    #[inline]
    fn page_mut(&mut self, hash: u64) -> &mut Page<V> {
        let page = as_index(self.slots[self.slot(hash)]);
        self.pages.get_mut(page)
    }

    pub(super) fn get(&self, hash: u64, key: &[u8]) -> Option<&V> {
        self.page(hash).get(hash, key)
    }

    /// The value of a key, which counts as changed; it is made if there is none.
    #[inline]
    pub(super) fn change(
        &mut self,
        hash: u64,
        key: &[u8],
        changed: u64,
        make: impl FnOnce() -> V,
    ) -> &mut V {
        let number = as_index(self.slots[self.slot(hash)]);
        if let Some(at) = self.pages.get(number).find(hash, key) {
            return self.pages.get_mut(number).change_at(at, changed);
        }
        self.add(hash, key, changed, make())
    }

    /// Adds a key that it does not have.
    #[cold]
    #[inline(never)]
    fn add(&mut self, hash: u64, key: &[u8], changed: u64, value: V) -> &mut V {
        while self.page(hash).is_full() && self.page(hash).depth() < self.range.most_bits() {
            self.divide(hash);
        }
        self.entries += 1;
        self.page_mut(hash).add(hash, key, value, changed)
    }

    /// Sets the value of a key, which a durable snapshot has.
    pub(super) fn load(&mut self, hash: u64, key: &[u8], value: V) {
        let page = self.page_mut(hash);
        if let Some(place) = page.change(hash, key, 0) {
            *place = value;
            return;
        }
        if !page.is_full() {
            page.add(hash, key, value, 0);
            self.entries += 1;
            return;
        }
        self.change(hash, key, 0, || value);
    }

    /// Adds a key that it does not have, and a durable snapshot has.
    pub(super) fn load_new(&mut self, hash: u64, key: &[u8], value: V) {
        let page = self.page_mut(hash);
        if page.is_full() {
            self.change(hash, key, 0, || value);
            return;
        }
        page.add(hash, key, value, 0);
        self.entries += 1;
    }

    /// Removes a key.
    pub(super) fn remove(
        &mut self,
        hash: u64,
        key: &[u8],
        changed: u64,
        is_recorded: bool,
    ) -> Option<V> {
        // Looked up first: a page that does not have it is not copied.
        self.page(hash).get(hash, key)?;
        let removed = self.page_mut(hash).remove(hash, key, changed, is_recorded);
        self.entries -= usize::from(removed.is_some());
        if is_recorded {
            (self.removals.any, self.removals.stay) = (true, true);
        }
        removed
    }

    /// Whether it has no entry, and no removal that a snapshot has to name.
    pub(super) fn is_unused(&self) -> bool {
        self.entries == 0 && !self.removals.any
    }

    /// Forgets removals that the snapshot of this number has. Looks at `most` pages at most; returns how many of these
    /// are left.
    pub(super) fn forget_removals(&mut self, number: u64, mut most: usize) -> usize {
        let removals = &mut self.removals;
        while removals.any && most > 0 {
            if self.pages.get(removals.next).has_removals_before(number) {
                let page = self.pages.get_mut(removals.next);
                page.forget_removals_before(number);
            }
            removals.stay |= self.pages.get(removals.next).has_removals();
            removals.next += 1;
            most -= 1;
            if removals.next == self.pages.len() {
                removals.any = removals.stay;
                (removals.stay, removals.next) = (false, 0);
                break;
            }
        }
        most
    }

    /// Divides the page of a hash.
    fn divide(&mut self, hash: u64) {
        let number = self.slots[self.slot(hash)];
        let page = self.pages.get_mut(as_index(number));
        let page = std::mem::replace(page, Page::hollow());
        let depth = page.depth() + 1;
        if depth > self.bits {
            self.slots = self.slots.iter().flat_map(|it| [*it, *it]).collect();
            self.bits = depth;
        }
        let range = self.range;
        let [lower, upper] =
            page.divide(|hash| range.position(hash) >> (u32::BITS - depth) & 1 == 1);
        *self.pages.get_mut(as_index(number)) = lower;
        let other = u32::try_from(self.pages.push(upper)).expect("a slot has 22 bits");
        // The slots of the page: all that share its upper bits.
        let shared = self.bits - depth;
        let first = self.slot(hash) >> shared | 1;
        // The slot of the hash is in either half: the upper half follows the lower one.
        let upper = first << shared;
        self.slots[upper..upper + (1 << shared)].fill(other);
    }
}

/// The pages of a namespace as they were when a snapshot was taken.
#[derive(Debug)]
pub(super) struct FrozenDirectory<V> {
    slots: Vec<u32>,
    pages: Pages<V>,
}

impl<V> FrozenDirectory<V> {
    /// Returns the pages in the order of hashes. The caller drops each one when it is done with it: while it is held, a
    /// change copies it. Takes time for each page.
    pub(super) fn into_pages(self) -> Vec<Arc<Page<V>>> {
        let slots = self.slots.chunk_by(|one, next| one == next);
        self.pages.shared(slots.map(|slots| as_index(slots[0])))
    }
}

#[inline]
fn as_index(number: u32) -> usize {
    usize::try_from(number).expect("32 bits")
}
