//! An ordered set: a sorted list for few entries, a `BTreeSet` for many. Replaces `BTreeSet` where most sets are
//! empty or have an entry or two.
//!
//! It allocates nothing while it is empty, and frees its memory when it becomes empty. A `BTreeSet` allocates a
//! node of eleven entries with the first one, and keeps it. Unlike a [`SmallMap`](super::SmallMap) it may grow large.

use std::collections::{BTreeSet, btree_set};
use std::fmt;
use std::ops::RangeBounds;
use std::{slice, vec};

/// Maximum length of the list.
const FEW: usize = 32;

/// An ordered set; see the module. Iterates in order.
#[derive(Clone)]
pub struct SmallSet<T> {
    entries: Entries<T>,
}

#[derive(Clone)]
enum Entries<T> {
    /// Sorted, without duplicates.
    Few(Vec<T>),
    #[expect(
        clippy::box_collection,
        reason = "most sets are empty: so each takes 24 bytes, not 32"
    )]
    Many(Box<BTreeSet<T>>),
}

impl<T> SmallSet<T> {
    /// Creates an empty set without allocation.
    pub const fn new() -> SmallSet<T> {
        let entries = Entries::Few(Vec::new());
        SmallSet { entries }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        match &self.entries {
            Entries::Few(list) => list.len(),
            Entries::Many(tree) => tree.len(),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the entries.
    pub fn iter(&self) -> Iter<'_, T> {
        match &self.entries {
            Entries::Few(list) => Iter::Few(list.iter()),
            Entries::Many(tree) => Iter::Many(tree.iter()),
        }
    }
}

impl<T: Ord> SmallSet<T> {
    /// Whether the set contains the entry.
    pub fn contains(&self, entry: &T) -> bool {
        match &self.entries {
            Entries::Few(list) => list.binary_search(entry).is_ok(),
            Entries::Many(tree) => tree.contains(entry),
        }
    }

    /// Returns the smallest entry.
    pub fn first(&self) -> Option<&T> {
        match &self.entries {
            Entries::Few(list) => list.first(),
            Entries::Many(tree) => tree.first(),
        }
    }

    /// Iterates over the entries within the bounds.
    pub fn range(&self, bounds: impl RangeBounds<T>) -> impl Iterator<Item = &T> {
        match &self.entries {
            Entries::Few(list) => {
                let is_before = |it: &T| match bounds.start_bound() {
                    std::ops::Bound::Included(first) => it < first,
                    std::ops::Bound::Excluded(before) => it <= before,
                    std::ops::Bound::Unbounded => false,
                };
                let is_not_after = |it: &T| match bounds.end_bound() {
                    std::ops::Bound::Included(last) => it <= last,
                    std::ops::Bound::Excluded(after) => it < after,
                    std::ops::Bound::Unbounded => true,
                };
                let rest = &list[list.partition_point(is_before)..];
                Range::Few(rest[..rest.partition_point(is_not_after)].iter())
            }
            Entries::Many(tree) => Range::Many(tree.range(bounds)),
        }
    }

    /// Inserts an entry. Returns true if it was not there.
    pub fn insert(&mut self, entry: T) -> bool {
        let list = match &mut self.entries {
            Entries::Few(list) => list,
            Entries::Many(tree) => return tree.insert(entry),
        };
        let Err(at) = list.binary_search(&entry) else {
            return false;
        };
        if list.len() == FEW {
            let mut tree: BTreeSet<T> = std::mem::take(list).into_iter().collect();
            tree.insert(entry);
            self.entries = Entries::Many(Box::new(tree));
            return true;
        }
        if list.is_empty() {
            // A list starts with a capacity of four, but most sets stay at one entry.
            list.reserve_exact(1);
        }
        list.insert(at, entry);
        true
    }

    /// Removes an entry. Returns true if it was there.
    pub fn remove(&mut self, entry: &T) -> bool {
        let was_there = match &mut self.entries {
            Entries::Few(list) => match list.binary_search(entry) {
                Ok(at) => {
                    list.remove(at);
                    true
                }
                Err(_) => false,
            },
            Entries::Many(tree) => tree.remove(entry),
        };
        if was_there && self.is_empty() {
            *self = SmallSet::new();
        }
        was_there
    }
}

/// The entries of a [`SmallSet`], in order.
#[derive(Debug)]
pub enum Iter<'a, T> {
    /// Iterates over a list.
    Few(slice::Iter<'a, T>),
    /// Iterates over a tree.
    Many(btree_set::Iter<'a, T>),
}

enum Range<'a, T> {
    Few(slice::Iter<'a, T>),
    Many(btree_set::Range<'a, T>),
}

/// Owning iterator over the entries of a [`SmallSet`], in order.
#[derive(Debug)]
pub enum IntoIter<T> {
    /// Iterates over a list.
    Few(vec::IntoIter<T>),
    /// Iterates over a tree.
    Many(btree_set::IntoIter<T>),
}

macro_rules! one_of_two {
    ($name:ident<$($lifetime:lifetime,)? $entry:ident>, $item:ty) => {
        impl<$($lifetime,)? $entry> Iterator for $name<$($lifetime,)? $entry> {
            type Item = $item;

            fn next(&mut self) -> Option<$item> {
                match self {
                    $name::Few(entries) => entries.next(),
                    $name::Many(entries) => entries.next(),
                }
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                match self {
                    $name::Few(entries) => entries.size_hint(),
                    $name::Many(entries) => entries.size_hint(),
                }
            }
        }
    };
}
one_of_two!(Iter<'a, T>, &'a T);
one_of_two!(Range<'a, T>, &'a T);
one_of_two!(IntoIter<T>, T);

impl<'a, T> IntoIterator for &'a SmallSet<T> {
    type Item = &'a T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<T> IntoIterator for SmallSet<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        match self.entries {
            Entries::Few(list) => IntoIter::Few(list.into_iter()),
            Entries::Many(tree) => IntoIter::Many(tree.into_iter()),
        }
    }
}

impl<T: Ord> Extend<T> for SmallSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, entries: I) {
        for entry in entries {
            self.insert(entry);
        }
    }
}

impl<T: Ord> FromIterator<T> for SmallSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> SmallSet<T> {
        let mut set = SmallSet::new();
        set.extend(entries);
        set
    }
}

impl<T: Ord, const N: usize> From<[T; N]> for SmallSet<T> {
    fn from(entries: [T; N]) -> SmallSet<T> {
        entries.into_iter().collect()
    }
}

impl<T> Default for SmallSet<T> {
    fn default() -> SmallSet<T> {
        SmallSet::new()
    }
}

/// Compares the entries.
impl<T: PartialEq> PartialEq for SmallSet<T> {
    fn eq(&self, other: &SmallSet<T>) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: Eq> Eq for SmallSet<T> {}

impl<T: fmt::Debug> fmt::Debug for SmallSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_does_what_a_larger_set_does(steps in prop::collection::vec((0_u8..5, 0_u8..60, 0_u8..60), 0..200)) {
            let (mut small, mut large) = (SmallSet::new(), BTreeSet::new());
            for (what, entry, other) in steps {
                match what {
                    0..=2 => prop_assert_eq!(small.insert(entry), large.insert(entry)),
                    _ => prop_assert_eq!(small.remove(&entry), large.remove(&entry)),
                }
                prop_assert_eq!(small.contains(&entry), large.contains(&entry));
                prop_assert_eq!(small.len(), large.len());
                prop_assert_eq!(small.first(), large.first());
                prop_assert!(small.iter().eq(&large));
                let (from, to) = (entry.min(other), entry.max(other));
                prop_assert!(small.range(from..to).eq(large.range(from..to)));
                prop_assert!(small.range(from..=to).eq(large.range(from..=to)));
                prop_assert!(small.range(from..).eq(large.range(from..)));
                prop_assert!(small.clone().into_iter().eq(large.clone()));
                prop_assert_eq!(&small, &large.iter().copied().collect::<SmallSet<u8>>());
            }
        }
    }

    #[test]
    fn it_takes_no_room_for_what_is_not_in_it() {
        let capacity = |set: &SmallSet<usize>| match &set.entries {
            Entries::Few(list) => Some(list.capacity()),
            Entries::Many(_) => None,
        };
        let mut set = SmallSet::from([1]);
        assert_eq!(capacity(&set), Some(1));
        set.extend(0..=FEW);
        assert_eq!(capacity(&set), None);
        for entry in 0..=FEW {
            set.remove(&entry);
        }
        assert_eq!(capacity(&set), Some(0));
    }

    #[test]
    fn an_empty_one_is_as_small_as_a_list() {
        assert_eq!(size_of::<SmallSet<u64>>(), size_of::<Vec<u64>>());
    }
}
