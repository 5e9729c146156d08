//! Keyed state in memory: a table from namespace and key to value, which is frozen for a snapshot without a stop.
//!
//! ```text
//! StateTable ──▶ Directory, by namespace ──▶ Arc<Page>: a range of hashes, about 32 KiB of entries
//!     │ freeze: the list of pages
//!     ▼
//! Frozen ──▶ segment          outside the task's loop
//! ```
//!
//! - A frozen table never changes: who writes to a page that it shares copies that page first.
//! - A change is recorded with the number of the last snapshot before it. So it is known what a snapshot lacks.
//! - All keys are of the key groups of the subtask. What is frozen with another one can't be encoded.

mod directory;
mod frozen;
mod index;
mod key;
mod page;
mod restore;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::vec;

use tanist_proto::v1::StateSegment;

use self::directory::{Directory, HashRange};
use self::frozen::Frozen;
pub use self::key::StateKey;
use self::page::{Entry, Page};
use super::{KeyGroups, Snapshot};
use crate::key::key_hash;
use crate::state::segment::Subject;

/// A keyed state of an operator. A namespace holds the entries that are dropped together, such as those of a window; an
/// operator without such things has all in namespace 0.
#[derive(Debug)]
pub struct StateTable<V> {
    name: &'static str,
    signature: String,
    groups: KeyGroups,
    /// Appends a value.
    write: fn(&V, &mut Vec<u8>),
    range: HashRange,
    namespaces: BTreeMap<i64, Directory<V>>,
    /// The highest snapshot that it was frozen for or restored from; 0: there is none.
    last: u64,
}

impl<V: Clone + Send + Sync + 'static> StateTable<V> {
    /// An empty one, for the key groups of a subtask. A snapshot has it by `name`; `signature` says what it is the state
    /// of, and `write` appends a value.
    pub fn new(
        name: &'static str,
        signature: String,
        groups: KeyGroups,
        write: fn(&V, &mut Vec<u8>),
    ) -> StateTable<V> {
        StateTable {
            name,
            signature,
            groups,
            write,
            range: HashRange::of(groups),
            namespaces: BTreeMap::new(),
            last: 0,
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.namespaces.values().map(Directory::len).sum()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.namespaces.values().all(|it| it.len() == 0)
    }

    /// The value of a key.
    pub fn get(&self, namespace: i64, key: &[u8]) -> Option<&V> {
        self.namespaces.get(&namespace)?.get(key_hash(key), key)
    }

    /// The value of a key, to be changed; `make` makes it if there is none.
    pub fn get_or_insert_with(
        &mut self,
        namespace: i64,
        key: &[u8],
        make: impl FnOnce() -> V,
    ) -> &mut V {
        let (range, last) = (self.range, self.last);
        let directory = self.namespaces.entry(namespace);
        let directory = directory.or_insert_with(|| Directory::with_room(range, 0));
        directory.change(key_hash(key), key, last, make)
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, namespace: i64, key: &[u8], value: V) {
        let mut value = Some(value);
        let place = self.get_or_insert_with(namespace, key, || {
            value.take().expect("it is made at most once")
        });
        if let Some(value) = value {
            *place = value;
        }
    }

    /// Removes a key. Returns its value.
    pub fn remove(&mut self, namespace: i64, key: &[u8]) -> Option<V> {
        let directory = self.namespaces.get_mut(&namespace)?;
        directory.remove(key_hash(key), key, self.last, false)
    }

    /// Removes all entries of a namespace.
    pub fn drop_namespace(&mut self, namespace: i64) {
        self.namespaces.remove(&namespace);
    }

    /// The namespaces that have entries, in order.
    pub fn namespaces(&self) -> impl DoubleEndedIterator<Item = i64> {
        let used = self.namespaces.iter().filter(|(_, it)| it.len() > 0);
        used.map(|(namespace, _)| *namespace)
    }

    /// The entries of a namespace, in any order.
    pub fn entries(&self, namespace: i64) -> impl Iterator<Item = (&[u8], &V)> {
        let directory = self.namespaces.get(&namespace);
        let pages = directory.into_iter().flat_map(Directory::pages);
        let entries = pages.flat_map(|page| page.entries());
        entries.map(|entry| (entry.key.bytes(), &entry.value))
    }

    /// Removes all entries of a namespace, and returns them in any order.
    pub fn take(&mut self, namespace: i64) -> TakenEntries<V> {
        let directory = self.namespaces.remove(&namespace);
        let pages = directory.map_or_else(Vec::new, Directory::into_pages);
        TakenEntries {
            pages: pages.into_iter(),
            entries: Vec::new().into_iter(),
        }
    }

    /// Adds the table, as it is, to a snapshot. Takes about as long as it takes to count its pages: it is encoded later.
    pub fn freeze(&mut self, snapshot: &mut Snapshot) {
        let number = snapshot.number();
        let subject = Subject::whole(self.signature.clone(), self.groups, number);
        let namespaces = self.namespaces.iter().map(|(namespace, directory)| {
            let pages = directory.pages().cloned().collect();
            (*namespace, pages)
        });
        let frozen = Frozen {
            subject,
            namespaces: namespaces.collect(),
            dropped: Vec::new(),
            write: self.write,
        };
        self.last = self.last.max(number);
        let (name, groups) = (self.name, self.groups.range());
        snapshot.freeze(move |is_wanted| {
            let encoded = frozen.encode(is_wanted);
            let encoded = encoded.map_err(|problem| problem.of(name))?;
            Ok(encoded.map(|content| {
                let segment = StateSegment {
                    name: name.to_owned(),
                    length: content.len() as u64,
                    content,
                    first_key_group: groups.0,
                    end_key_group: groups.1,
                    ..StateSegment::default()
                };
                vec![segment]
            }))
        });
    }
}

/// The entries of a namespace that a table has no more: keys and values.
#[derive(Debug)]
pub struct TakenEntries<V> {
    pages: vec::IntoIter<Arc<Page<V>>>,
    entries: vec::IntoIter<Entry<V>>,
}

impl<V: Clone> Iterator for TakenEntries<V> {
    type Item = (StateKey, V);

    fn next(&mut self) -> Option<(StateKey, V)> {
        loop {
            if let Some(Entry { key, value, .. }) = self.entries.next() {
                return Some((key, value));
            }
            let page = Arc::unwrap_or_clone(self.pages.next()?);
            self.entries = page.into_entries().into_iter();
        }
    }
}

#[cfg(test)]
mod tests;
