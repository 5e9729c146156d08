//! A map for few entries: a sorted list. Replaces `BTreeMap` where most maps have no entry, one or two.
//!
//! It allocates room for one entry with the first one, and then grows as a `Vec` does. A `BTreeMap` allocates a
//! node of eleven entries with the first one.
//!
//! Not for large maps with unordered inserts: each insert moves the entries after it.

use std::fmt;
use std::slice;
use std::vec;

/// A map for few entries; see the module. Iterates in key order.
#[derive(Clone, PartialEq, Eq)]
pub struct SmallMap<K, V> {
    /// Sorted by key, without duplicates.
    entries: Vec<(K, V)>,
}

impl<K: Ord, V> SmallMap<K, V> {
    /// Returns the value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let at = self.find(key).ok()?;
        Some(&self.entries[at].1)
    }

    /// The same, mutable.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.find(key).ok()?;
        Some(&mut self.entries[at].1)
    }

    /// Whether the key exists.
    pub fn contains_key(&self, key: &K) -> bool {
        self.find(key).is_ok()
    }

    /// Inserts an entry. Returns the previous value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.entries[at].1, value)),
            Err(at) => {
                self.insert_at(at, key, value);
                None
            }
        }
    }

    /// Returns the value of a key, which is inserted if missing.
    pub fn get_or_insert_with(&mut self, key: K, value: impl FnOnce() -> V) -> &mut V {
        let at = match self.find(&key) {
            Ok(at) => at,
            Err(at) => {
                self.insert_at(at, key, value());
                at
            }
        };
        &mut self.entries[at].1
    }

    /// Removes an entry.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.find(key).ok()?;
        let (_, value) = self.entries.remove(at);
        self.free_if_empty();
        Some(value)
    }

    /// Keeps only the entries for which `is_kept` returns true.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&K, &mut V) -> bool) {
        self.entries.retain_mut(|(key, value)| is_kept(key, value));
        self.free_if_empty();
    }

    fn find(&self, key: &K) -> Result<usize, usize> {
        self.entries.binary_search_by(|(it, _)| it.cmp(key))
    }

    fn insert_at(&mut self, at: usize, key: K, value: V) {
        if self.entries.is_empty() {
            // A list starts with a capacity of four, but most maps stay at one entry.
            self.entries.reserve_exact(1);
        }
        self.entries.insert(at, (key, value));
    }

    /// Frees the memory of an empty list.
    fn free_if_empty(&mut self) {
        if self.entries.is_empty() {
            self.entries = Vec::new();
        }
    }
}

impl<K, V> SmallMap<K, V> {
    /// Creates an empty map without allocation.
    pub const fn new() -> SmallMap<K, V> {
        let entries = Vec::new();
        SmallMap { entries }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Iterates over the entries.
    pub fn iter(&self) -> Iter<'_, K, V> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// The same, with mutable values.
    pub fn iter_mut(&mut self) -> IterMut<'_, K, V> {
        let entries = self.entries.iter_mut();
        entries.map(|(key, value)| (&*key, value))
    }

    /// Iterates over the keys.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.iter().map(|(key, _)| key)
    }

    /// Iterates over the values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|(_, value)| value)
    }

    /// The same, mutable.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().map(|(_, value)| value)
    }
}

/// The entries of a [`SmallMap`].
pub(crate) type Iter<'a, K, V> =
    std::iter::Map<slice::Iter<'a, (K, V)>, fn(&'a (K, V)) -> (&'a K, &'a V)>;

/// The same, with mutable values.
pub(crate) type IterMut<'a, K, V> =
    std::iter::Map<slice::IterMut<'a, (K, V)>, fn(&'a mut (K, V)) -> (&'a K, &'a mut V)>;

impl<'a, K, V> IntoIterator for &'a SmallMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<'a, K, V> IntoIterator for &'a mut SmallMap<K, V> {
    type Item = (&'a K, &'a mut V);
    type IntoIter = IterMut<'a, K, V>;

    fn into_iter(self) -> IterMut<'a, K, V> {
        self.iter_mut()
    }
}

impl<K, V> IntoIterator for SmallMap<K, V> {
    type Item = (K, V);
    type IntoIter = vec::IntoIter<(K, V)>;

    fn into_iter(self) -> vec::IntoIter<(K, V)> {
        self.entries.into_iter()
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SmallMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> SmallMap<K, V> {
        let mut map = SmallMap::new();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SmallMap<K, V> {
    fn from(entries: [(K, V); N]) -> SmallMap<K, V> {
        entries.into_iter().collect()
    }
}

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> SmallMap<K, V> {
        SmallMap::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SmallMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_does_what_a_larger_map_does(steps in prop::collection::vec((0_u8..5, 0_u8..12), 0..80)) {
            let (mut small, mut large) = (SmallMap::new(), BTreeMap::new());
            for (number, (what, key)) in steps.into_iter().enumerate() {
                match what {
                    0 | 1 => prop_assert_eq!(small.insert(key, number), large.insert(key, number)),
                    2 => prop_assert_eq!(small.remove(&key), large.remove(&key)),
                    3 => {
                        let there = *small.get_or_insert_with(key, || number);
                        prop_assert_eq!(there, *large.entry(key).or_insert(number));
                    }
                    _ => {
                        small.retain(|it, _| *it >= key);
                        large.retain(|it, _| *it >= key);
                    }
                }
                prop_assert_eq!(small.get(&key), large.get(&key));
                prop_assert_eq!(small.len(), large.len());
                prop_assert!(small.iter().eq(&large));
            }
        }
    }

    #[test]
    fn it_takes_room_for_what_is_in_it() {
        let mut map = SmallMap::new();
        map.insert(1, "a");
        assert_eq!(map.entries.capacity(), 1);
        map.remove(&1);
        assert_eq!(map.entries.capacity(), 0);
    }
}
