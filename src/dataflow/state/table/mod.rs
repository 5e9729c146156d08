//! Keyed state in memory: a table from namespace and key to value. An operator owns it. A snapshot freezes it in well
//! below a millisecond, and it is encoded while the operator changes it.
//!
//! ```text
//! StateTable ──▶ Directory, by namespace ──▶ Pages ──▶ Page: a range of hashes, about 32 KiB of entries
//!     │ freeze: the pages, which are shared from then on
//!     ▼
//! Frozen ──▶ segment          outside the task's loop
//! ```
//!
//! - A frozen table never changes: a write to a page that it shares copies that page first.
//! - A change is recorded with the number of the last snapshot before it. So it is known which changes a snapshot
//!   lacks.
//! - A snapshot has the changes since the newest durable one, and names the segments of that one beside them
//!   (`lineage.rs`). Removals are forgotten once a durable snapshot has them.
//! - All keys are of the key groups of the subtask. A frozen table with another key can't be encoded: the task declines
//!   the checkpoint.

mod directory;
mod entries;
mod faults;
mod frozen;
mod index;
mod key;
mod lineage;
mod page;
mod pages;
mod restore;
mod size;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tanist_proto::v1::StateSegment;

use self::directory::{Directory, HashRange};
use self::faults::{Fault, is_planted};
use self::frozen::Frozen;
pub use self::key::StateKey;
use self::lineage::{KnownSlices, Limits, plan};
pub use self::restore::SavedEntry;
use super::{KeyGroups, Snapshot};
use crate::key::key_hash;
use crate::state::segment::Subject;

/// Pages whose removals are looked at when a table is frozen.
const SWEPT_PAGES: usize = 256;

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
    /// Namespaces that were dropped, with the last snapshot before.
    dropped: BTreeMap<i64, u64>,
    /// The highest snapshot that it was frozen for or restored from; 0: there is none.
    last: u64,
    /// The newest snapshot that is known to be durable; 0: there is none.
    durable: u64,
    /// The slices of segments, by the snapshot that they were written for, of those that a later snapshot may name.
    known: BTreeMap<u64, KnownSlices>,
    limits: Limits,
    /// A restore loads 2^`parts` parts, each in a thread; `None`: as many as are worth it.
    parts: Option<u32>,
}

impl<V: Clone + Send + Sync + 'static> StateTable<V> {
    /// Creates an empty table for the key groups of a subtask. `name` is its name in snapshots; `signature` says what
    /// the values are, and `write` appends one.
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
            dropped: BTreeMap::new(),
            last: 0,
            durable: 0,
            known: BTreeMap::new(),
            limits: Limits::default(),
            parts: None,
        }
    }

    /// A small state goes on from its segments too.
    #[cfg(test)]
    pub(super) fn write_changes_always(&mut self) {
        self.limits.small = 0;
    }

    /// Any state is restored in four parts, each in a thread.
    #[cfg(test)]
    pub(super) fn load_in_parts(&mut self) {
        self.parts = Some(2);
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.namespaces.values().map(Directory::len).sum()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.namespaces.values().all(|it| it.len() == 0)
    }

    /// Memory of the entries, without what a snapshot shares, and without what values have beside their entries. What
    /// keys have beside them is estimated from some. Costs a look at each namespace.
    pub fn memory(&self) -> u64 {
        size::memory(self.namespaces.values())
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
        let NamespaceMut { directory, last } = self.namespace_mut(namespace);
        directory.change(key_hash(key), key, last, make)
    }

    /// The entries of a namespace, to be changed: it is looked up once for many keys.
    pub fn namespace_mut(&mut self, namespace: i64) -> NamespaceMut<'_, V> {
        let range = self.range;
        let directory = self.namespaces.entry(namespace);
        NamespaceMut {
            directory: directory.or_insert_with(|| Directory::with_room(range, 0)),
            last: self.last,
        }
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
        let is_recorded = self.last > 0;
        let directory = self.namespaces.get_mut(&namespace)?;
        let removed = directory.remove(key_hash(key), key, self.last, is_recorded);
        // Namespaces come and go, such as the times of timers: one without entries has no pages.
        if directory.len() == 0 {
            self.drop_namespace(namespace);
        }
        removed
    }

    /// Removes all entries of a namespace.
    pub fn drop_namespace(&mut self, namespace: i64) {
        if self.namespaces.remove(&namespace).is_some() && self.last > 0 {
            self.dropped.insert(namespace, self.last);
        }
    }

    /// The namespaces that have entries, in order.
    pub fn namespaces(&self) -> impl DoubleEndedIterator<Item = i64> {
        let used = self.namespaces.iter().filter(|(_, it)| it.len() > 0);
        used.map(|(namespace, _)| *namespace)
    }

    /// Number of namespaces, with those without entries.
    #[cfg(test)]
    pub(crate) fn all_namespaces(&self) -> usize {
        self.namespaces.len()
    }

    /// The entries of a namespace, in any order.
    pub fn entries(&self, namespace: i64) -> impl Iterator<Item = (&[u8], &V)> {
        let directory = self.namespaces.get(&namespace);
        let pages = directory.into_iter().flat_map(Directory::pages);
        let entries = pages.flat_map(|page| page.entries().iter());
        entries.map(|entry| (entry.key.bytes(), &entry.value))
    }

    /// Removes all entries of a namespace, and returns them in any order.
    pub fn take(&mut self, namespace: i64) -> TakenEntries<V> {
        let directory = self.namespaces.remove(&namespace);
        if directory.is_some() && self.last > 0 {
            self.dropped.insert(namespace, self.last);
        }
        let entries = directory.into_iter().flat_map(Directory::into_entries);
        TakenEntries {
            entries: Box::new(entries.map(|entry| (entry.key, entry.value))),
        }
    }

    /// Adds the table, as it is, to a snapshot. Takes well below a millisecond for a gigabyte in few namespaces: it is
    /// encoded later. Costs a look at each namespace.
    pub fn freeze(&mut self, snapshot: &mut Snapshot) {
        let (number, newest) = (snapshot.number(), snapshot.newest());
        let base = match newest >= self.durable {
            true => snapshot.base(self.name),
            false => Vec::new(),
        };
        self.learn(newest, &base);
        // Numbers between the durable one and this one were aborted, so no snapshot names their segments.
        self.known.retain(|number, _| *number <= newest);
        let whole = Subject::whole(self.signature.clone(), self.groups, number);
        let entries = self.len() as u64;
        let mut plan = plan(whole, entries, newest, base, &self.known, self.limits);
        if is_planted(Fault::ChangesSinceAnAbortedNumber) && plan.subject.base > 0 {
            plan.subject.base = self.last;
        }
        let known = KnownSlices::default();
        self.known.insert(number, Arc::clone(&known));
        let namespaces = self.namespaces.iter();
        let namespaces = namespaces.map(|(namespace, directory)| (*namespace, directory.share()));
        let namespaces = namespaces.collect();
        let dropped = self.dropped.iter();
        let dropped = dropped.filter(|(_, changed)| **changed >= plan.subject.base);
        let frozen = Frozen {
            namespaces,
            dropped: match plan.kept.is_empty() {
                // No older segment has anything of them.
                true => Vec::new(),
                false => dropped.map(|(namespace, _)| *namespace).collect(),
            },
            subject: plan.subject,
            write: self.write,
        };
        self.last = self.last.max(number);
        let (name, groups) = (self.name, self.groups);
        snapshot.freeze(self.memory(), move |is_wanted| {
            let encoded = frozen.encode(is_wanted);
            let Some(encoded) = encoded.map_err(|problem| problem.of(name))? else {
                return Ok(None);
            };
            let mut segments = plan.kept;
            segments.extend(encoded.into_segment(name, number, groups, &known));
            Ok(Some(segments))
        });
    }

    /// Records that a snapshot is durable. `base` are its segments; empty: they are not known. Only now removals that
    /// it has are forgotten: before, a later snapshot might go on from an older one and need them.
    fn learn(&mut self, newest: u64, base: &[StateSegment]) {
        if newest <= self.durable {
            return;
        }
        self.durable = newest;
        self.known.retain(|number, _| {
            *number >= newest || base.iter().any(|segment| segment.written_in == *number)
        });
        let in_it = match is_planted(Fault::RemovalForgottenTooEarly) {
            true => self.last + 1,
            false => newest,
        };
        self.dropped.retain(|_, changed| *changed >= in_it);
        let mut pages = SWEPT_PAGES;
        for directory in self.namespaces.values_mut() {
            pages = directory.forget_removals(in_it, pages);
        }
        self.namespaces.retain(|_, it| !it.is_unused());
    }
}

/// The entries of a namespace of a table, to be changed.
#[derive(Debug)]
pub struct NamespaceMut<'t, V> {
    directory: &'t mut Directory<V>,
    /// The highest snapshot, as in the table.
    last: u64,
}

impl<V: Clone> NamespaceMut<'_, V> {
    /// The value of a key, to be changed; `make` makes it if there is none.
    #[inline]
    pub fn get_or_insert_with(&mut self, key: &[u8], make: impl FnOnce() -> V) -> &mut V {
        self.directory.change(key_hash(key), key, self.last, make)
    }
}

/// The entries of a namespace that a table has no more: keys and values.
pub struct TakenEntries<V> {
    entries: Box<dyn Iterator<Item = (StateKey, V)> + Send>,
}

impl<V> Iterator for TakenEntries<V> {
    type Item = (StateKey, V);

    fn next(&mut self) -> Option<(StateKey, V)> {
        self.entries.next()
    }
}

impl<V> fmt::Debug for TakenEntries<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakenEntries").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod incremental_tests;
#[cfg(test)]
mod size_tests;
#[cfg(test)]
mod tests;
