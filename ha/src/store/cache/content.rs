//! Content of a warm cache, within its size limit. Owned by one [`WarmCache`](super::WarmCache). Pure: no reads
//! and no waiting.
//!
//! Invariants: every record that was put and not removed is known at least by name. A value is held only if it
//! fits into the limit together with all names and held values. A record that does not fit is known by name and
//! size; names are kept even above the limit.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::keys::{Key, Kind, Name};

/// Approximate overhead of a record besides its name and value, in bytes.
const OVERHEAD: usize = 96;

/// Records by key: some with their values, the others by name only.
#[derive(Debug, Default)]
pub(super) struct Content {
    held: BTreeMap<Key, Bytes>,
    /// Known by name only, with the last seen size of the value.
    named: BTreeMap<Key, usize>,
    max_bytes: usize,
    bytes: usize,
}

fn cost(key: &Key, value: usize) -> usize {
    key.name.as_str().len() + value + OVERHEAD
}

/// The entries of a kind after a name.
fn keys_from<'a, T>(
    entries: &'a BTreeMap<Key, T>,
    kind: Kind,
    after: Option<&Name>,
) -> impl Iterator<Item = (&'a Key, &'a T)> + use<'a, T> {
    let start = match after {
        Some(name) => Bound::Excluded(Key::new(kind, name.clone())),
        None => Bound::Unbounded,
    };
    let entries = entries.range((start, Bound::Unbounded));
    entries
        .skip_while(move |(key, _)| key.kind != kind)
        .take_while(move |(key, _)| key.kind == kind)
}

impl Content {
    pub(super) fn new(max_bytes: usize) -> Content {
        Content {
            max_bytes,
            ..Content::default()
        }
    }

    /// Sets the value of a record; `None`: the record does not exist.
    pub(super) fn put(&mut self, key: Key, value: Option<Bytes>) {
        if let Some(before) = self.held.remove(&key) {
            self.bytes -= cost(&key, before.len());
        }
        if self.named.remove(&key).is_some() {
            self.bytes -= cost(&key, 0);
        }
        let Some(value) = value else { return };
        if self.bytes + cost(&key, value.len()) <= self.max_bytes {
            self.bytes += cost(&key, value.len());
            self.held.insert(key, value);
        } else {
            // The name is kept even above the limit: an unknown record would be taken for absent.
            self.bytes += cost(&key, 0);
            self.named.insert(key, value.len());
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Content::new(self.max_bytes);
    }

    /// Records known by name only that would fit by now, at most `limit`. Empty while less than a tenth of
    /// the limit is free, so that records near the limit are not read again and again.
    pub(super) fn fitting(&self, limit: usize) -> Vec<Key> {
        let mut free = self.max_bytes.saturating_sub(self.bytes);
        if self.named.is_empty() || free < self.max_bytes / 10 {
            return Vec::new();
        }
        let fits = |(key, size): (&Key, &usize)| {
            let fits = *size <= free;
            if fits {
                free -= size;
            }
            fits.then(|| key.clone())
        };
        self.named.iter().filter_map(fits).take(limit).collect()
    }

    /// Number of records, with values or without.
    pub(super) fn len(&self) -> usize {
        self.held.len() + self.named.len()
    }

    /// Number of records known by name only.
    pub(super) fn named_only(&self) -> usize {
        self.named.len()
    }

    /// Bytes of names and held values.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a known record differs from `value`. For a record known by name only, compares existence.
    pub(super) fn differs(&self, key: &Key, value: Option<&Bytes>) -> bool {
        match self.held.get(key) {
            Some(held) => value != Some(held),
            None => self.named.contains_key(key) != value.is_some(),
        }
    }

    /// Whether the cache knows this record.
    pub(super) fn knows(&self, key: &Key) -> bool {
        self.held.contains_key(key) || self.named.contains_key(key)
    }

    /// The names of a kind after `after` and up to `last`, unordered.
    pub(super) fn names(
        &self,
        kind: Kind,
        after: Option<&Name>,
        last: Option<&Name>,
    ) -> impl Iterator<Item = &Name> {
        let last = last.cloned();
        let held = keys_from(&self.held, kind, after).map(|(key, _)| key);
        let named = keys_from(&self.named, kind, after).map(|(key, _)| key);
        let is_wanted = move |name: &&Name| last.as_ref().is_none_or(|last| *name <= last);
        let names = held.chain(named).map(|key| &key.name);
        names.filter(is_wanted)
    }

    /// Number of records of a kind after a name that take about `max_bytes`: at least one, and `limit` if all
    /// remaining records take less.
    pub(super) fn page(
        &self,
        kind: Kind,
        after: Option<&Name>,
        limit: usize,
        max_bytes: usize,
    ) -> usize {
        let held = keys_from(&self.held, kind, after).map(|(key, value)| (key, value.len()));
        let named = keys_from(&self.named, kind, after).map(|(key, size)| (key, *size));
        let mut sizes: BTreeMap<&Key, usize> = held.take(limit).collect();
        sizes.extend(named.take(limit));
        let mut bytes = 0;
        let fits = |(key, size): &(&Key, usize)| {
            bytes += cost(key, *size);
            bytes <= max_bytes
        };
        let all = sizes.len();
        match sizes.into_iter().take_while(fits).count() {
            fitting if fitting == all => limit,
            fitting => fitting.clamp(1, limit),
        }
    }

    /// The keys of the records without values.
    pub(super) fn missing(&self) -> Vec<Key> {
        self.named.keys().cloned().collect()
    }

    /// Returns all values and empties the cache.
    pub(super) fn take(&mut self) -> BTreeMap<Key, Bytes> {
        let held = std::mem::take(&mut self.held);
        self.clear();
        held
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::keys::Name;
    use crate::testing::kinds::ITEMS;

    fn key(number: usize) -> Key {
        let name = Name::new(format!("item-{number}")).expect("a name");
        Key::new(ITEMS, name)
    }

    fn value(size: usize) -> Option<Bytes> {
        Some(Bytes::from(vec![1; size]))
    }

    #[test]
    fn what_does_not_fit_is_known_by_name_and_fits_once_there_is_room() {
        let mut content = Content::new(2000);
        content.put(key(1), value(1500));
        content.put(key(2), value(800));
        assert_eq!((content.len(), content.named_only()), (2, 1));
        assert!(content.fitting(10).is_empty());
        content.put(key(1), None);
        assert_eq!(content.fitting(10), [key(2)]);
        content.put(key(2), value(800));
        assert_eq!((content.len(), content.named_only()), (1, 0));
    }

    #[test]
    fn a_value_that_grows_beyond_the_bound_is_not_kept_as_it_was() {
        let mut content = Content::new(1000);
        content.put(key(1), value(10));
        content.put(key(1), value(5000));
        assert_eq!(content.missing(), [key(1)]);
        assert!(content.take().is_empty());
        assert_eq!((content.len(), content.bytes()), (0, 0));
    }

    proptest! {
        #[test]
        fn values_stay_within_the_bound_and_no_name_is_lost(
            puts in prop::collection::vec((0_usize..8, prop::option::of(0_usize..900)), 0..60)
        ) {
            let mut content = Content::new(2000);
            let mut expected = BTreeMap::new();
            for (number, size) in puts {
                content.put(key(number), size.and_then(value));
                match size {
                    Some(size) => expected.insert(key(number), size),
                    None => expected.remove(&key(number)),
                };
                let values: usize = content.held.values().map(Bytes::len).sum();
                prop_assert!(values <= 2000);
                let all = content.held.keys().chain(content.named.keys());
                let mut all: Vec<_> = all.cloned().collect();
                all.sort();
                prop_assert!(all.iter().eq(expected.keys()));
                let bytes: usize = content.held.iter().map(|(key, value)| cost(key, value.len())).sum();
                let names: usize = content.named.keys().map(|key| cost(key, 0)).sum();
                prop_assert_eq!(content.bytes(), bytes + names);
                for (key, value) in &content.held {
                    prop_assert_eq!(value.len(), expected[key]);
                }
            }
        }
    }
}
