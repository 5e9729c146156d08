//! State by key: a value, a list or a map for each key.
//!
//! Keys are those of the key-by before the step, as [`KeyColumns`] encodes them. So all records of a key meet the
//! subtask that has its state, at any parallelism. Each kind is one table; a list or a map is one entry of it, which is
//! written whole when it has changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::RecordBatch;
use tanist_proto::v1 as pb;

use super::timers::{EventTimers, ProcessingTimers};
use super::value::{StateValue, written};
use crate::key::{KeyColumns, Keys};
use crate::operator::{OperatorContext, OperatorError};
use crate::record::type_name;
use crate::state::{KeyGroups, Restored, Snapshot, StateTable};

/// Creates the keyed states of an operator, which have its keys in common.
#[derive(Debug, Clone)]
pub struct KeyedStates {
    pub(super) groups: KeyGroups,
    pub(super) columns: KeyColumns,
}

impl KeyedStates {
    /// The keyed states of an operator. An error unless its step directly follows a key-by: records of one key would go
    /// to several subtasks.
    pub fn of(context: &OperatorContext) -> Result<KeyedStates, OperatorError> {
        let input = context.input.as_ref().filter(|_| !context.keys.is_empty());
        let Some(input) = input else {
            return Err(OperatorError::specification(
                "it has state by key, and its input is not partitioned by key: put a key-by directly before it",
            ));
        };
        Ok(KeyedStates {
            groups: KeyGroups::of(context),
            columns: KeyColumns::resolve(input, &context.keys)?,
        })
    }

    /// The key columns: they encode the keys of a batch, and decode keys into columns.
    pub fn columns(&self) -> &KeyColumns {
        &self.columns
    }

    /// The keys of a batch, as the states take them.
    pub fn keys_of<'a>(&self, batch: &'a RecordBatch) -> Keys<'a> {
        self.columns.keys_of(batch)
    }

    /// Creates a state with a value for each key. `name` is its name in snapshots; `signature` says what the values
    /// are.
    pub fn value<V: StateValue>(&self, name: &'static str, signature: &str) -> ValueState<V> {
        KeyedState::new(self, name, signature)
    }

    /// Creates a state with a list for each key.
    pub fn list<V: StateValue>(&self, name: &'static str, signature: &str) -> ListState<V> {
        KeyedState::new(self, name, signature)
    }

    /// Creates a state with a map for each key.
    pub fn map<K: StateValue + Ord, V: StateValue>(
        &self,
        name: &'static str,
        signature: &str,
    ) -> MapState<K, V> {
        KeyedState::new(self, name, signature)
    }

    /// Creates timers of event time.
    pub fn timers(&self, name: &'static str) -> EventTimers {
        EventTimers::new(self, name)
    }

    /// Creates timers of processing time.
    pub fn processing_timers(&self, name: &'static str) -> ProcessingTimers {
        ProcessingTimers::new(self, name)
    }

    /// The signature of a keyed state: what it holds, and the key columns with their types.
    pub(super) fn signature(&self, of: &str) -> String {
        let keys = self.columns.fields();
        let keys = keys.map(|it| format!("{}: {}", it.name(), type_name(it.data_type())));
        let keys: Vec<String> = keys.collect();
        format!("{of} by {}", keys.join(", "))
    }
}

/// The key of an entry in its namespace: `key`, which is in namespace 0, or `(namespace, key)`.
///
/// A namespace holds the entries that are dropped together, such as those of a window.
#[derive(Debug, Clone, Copy)]
pub struct EntryKey<'k> {
    namespace: i64,
    key: &'k [u8],
}

impl<'k> From<&'k [u8]> for EntryKey<'k> {
    fn from(key: &'k [u8]) -> EntryKey<'k> {
        (0, key).into()
    }
}

impl<'k> From<(i64, &'k [u8])> for EntryKey<'k> {
    fn from((namespace, key): (i64, &'k [u8])) -> EntryKey<'k> {
        EntryKey { namespace, key }
    }
}

/// The content of a key: a value, a list or a map. Only this module implements it.
pub trait Content: Clone + Send + Sync + 'static {
    /// As a program sees it.
    type Seen: ?Sized;
    #[doc(hidden)]
    const KIND: &'static str;
    #[doc(hidden)]
    fn seen(&self) -> &Self::Seen;
    #[doc(hidden)]
    fn write(&self, bytes: &mut Vec<u8>);
    #[doc(hidden)]
    fn read(bytes: &[u8]) -> Result<Self, String>;
}

/// One value.
#[derive(Debug, Clone)]
pub struct Single<V>(V);

/// A list. A snapshot that is being written shares it; a change copies it first.
#[derive(Debug, Clone)]
pub struct Elements<V>(Arc<Vec<V>>);

/// A map. Shared and copied in the same way.
#[derive(Debug, Clone)]
pub struct Entries<K, V>(Arc<BTreeMap<K, V>>);

impl<V: StateValue> Content for Single<V> {
    type Seen = V;
    const KIND: &'static str = "value";

    fn seen(&self) -> &V {
        &self.0
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        self.0.write(bytes);
    }

    fn read(bytes: &[u8]) -> Result<Single<V>, String> {
        V::read(bytes).map(Single)
    }
}

impl<V: StateValue> Content for Elements<V> {
    type Seen = [V];
    const KIND: &'static str = "list";

    fn seen(&self) -> &[V] {
        &self.0
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        let elements = self.0.iter().map(written).collect();
        pb::StateList { elements }.write(bytes);
    }

    fn read(bytes: &[u8]) -> Result<Elements<V>, String> {
        let list = pb::StateList::read(bytes)?;
        let elements = list.elements.iter().map(|it| V::read(it));
        let elements: Vec<V> = elements.collect::<Result<_, _>>()?;
        Ok(Elements(Arc::new(elements)))
    }
}

impl<K: StateValue + Ord, V: StateValue> Content for Entries<K, V> {
    type Seen = BTreeMap<K, V>;
    const KIND: &'static str = "map";

    fn seen(&self) -> &BTreeMap<K, V> {
        &self.0
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        saved_map(&self.0).write(bytes);
    }

    fn read(bytes: &[u8]) -> Result<Entries<K, V>, String> {
        let map = restored_map(&pb::StateMap::read(bytes)?)?;
        Ok(Entries(Arc::new(map)))
    }
}

/// A map as it is saved.
pub(super) fn saved_map<K: StateValue, V: StateValue>(map: &BTreeMap<K, V>) -> pb::StateMap {
    let entries = map.iter().map(|(key, value)| pb::StateMapEntry {
        key: written(key),
        value: written(value),
    });
    pb::StateMap {
        entries: entries.collect(),
    }
}

/// A map that was saved.
pub(super) fn restored_map<K: StateValue + Ord, V: StateValue>(
    map: &pb::StateMap,
) -> Result<BTreeMap<K, V>, String> {
    let entries = map.entries.iter();
    let entries = entries.map(|entry| Ok((K::read(&entry.key)?, V::read(&entry.value)?)));
    entries.collect()
}

/// A state by key: a [`ValueState`], a [`ListState`] or a [`MapState`].
#[derive(Debug)]
pub struct KeyedState<C> {
    name: &'static str,
    keys: CheckedKeys,
    table: StateTable<C>,
}

/// Checks the keys that an operator adds to a state: they must be keys of the step's key columns, of this subtask's key
/// groups. Others could not be restored. The methods that add keys return no error, so the next snapshot fails.
#[derive(Debug)]
pub(super) struct CheckedKeys {
    columns: KeyColumns,
    groups: KeyGroups,
    /// What is wrong with the first invalid key.
    invalid: Option<String>,
}

impl CheckedKeys {
    pub(super) fn new(states: &KeyedStates) -> CheckedKeys {
        CheckedKeys {
            columns: states.columns.clone(),
            groups: states.groups,
            invalid: None,
        }
    }

    /// Whether the bytes are a key of the columns.
    pub(super) fn check(&self, key: &[u8]) -> Result<(), String> {
        self.columns.check(key)
    }

    /// Checks a key that is added, and notes what is wrong with it.
    pub(super) fn note(&mut self, key: &[u8]) {
        if self.invalid.is_some() {
            return;
        }
        self.invalid = match self.columns.check(key) {
            Err(reason) => Some(reason),
            Ok(()) if !self.groups.contain(key) => {
                Some("it is a key of another subtask".to_owned())
            }
            Ok(()) => None,
        };
    }

    /// An error if there was a key that could not be restored.
    pub(super) fn all_valid(&self, name: &str) -> Result<(), OperatorError> {
        match &self.invalid {
            None => Ok(()),
            Some(reason) => Err(OperatorError::specification(format!(
                "the state `{name}` has a key that no record of this subtask has: {reason}; take keys from `keys_of`"
            ))),
        }
    }
}

/// A value for each key.
pub type ValueState<V> = KeyedState<Single<V>>;

/// A list for each key.
pub type ListState<V> = KeyedState<Elements<V>>;

/// A map for each key.
pub type MapState<K, V> = KeyedState<Entries<K, V>>;

impl<C: Content> KeyedState<C> {
    fn new(states: &KeyedStates, name: &'static str, signature: &str) -> KeyedState<C> {
        let signature = states.signature(&format!("{} of {signature}", C::KIND));
        KeyedState {
            name,
            keys: CheckedKeys::new(states),
            table: StateTable::new(name, signature, states.groups, C::write),
        }
    }

    /// Takes the state from the snapshot that the task is restored from.
    pub fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        self.table.restore(restored, |entry| {
            self.keys.check(entry.key())?;
            C::read(entry.value())
        })?;
        Ok(())
    }

    /// Saves the state. It is frozen here, and encoded later, outside the task's loop.
    pub fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        snapshot.begin(self.name)?;
        self.keys.all_valid(self.name)?;
        self.table.freeze(snapshot);
        Ok(())
    }

    /// Memory of the state, in bytes, partly estimated. For [`Operator::state_bytes`](crate::Operator::state_bytes).
    pub fn memory(&self) -> u64 {
        self.table.memory()
    }

    /// Number of keys, of all namespaces together.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no key has anything.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The namespaces that have keys, in order.
    pub fn namespaces(&self) -> impl DoubleEndedIterator<Item = i64> {
        self.table.namespaces()
    }

    /// The keys of a namespace with what they have, in any order.
    pub fn entries(&self, namespace: i64) -> impl Iterator<Item = (&[u8], &C::Seen)> {
        let entries = self.table.entries(namespace);
        entries.map(|(key, content)| (key, content.seen()))
    }

    /// Removes all keys of a namespace. That costs little, also if there are many.
    pub fn drop_namespace(&mut self, namespace: i64) {
        self.table.drop_namespace(namespace);
    }

    /// Number of namespaces that the table has, with those without keys.
    #[cfg(test)]
    pub(super) fn table_namespaces(&self) -> usize {
        self.table.all_namespaces()
    }

    fn content(&self, at: EntryKey<'_>) -> Option<&C> {
        self.table.get(at.namespace, at.key)
    }

    fn change(&mut self, at: EntryKey<'_>, make: impl FnOnce() -> C) -> &mut C {
        let KeyedState { keys, table, .. } = self;
        table.get_or_insert_with(at.namespace, at.key, || {
            keys.note(at.key);
            make()
        })
    }

    fn put(&mut self, at: EntryKey<'_>, content: C) {
        let mut content = Some(content);
        let place = self.change(at, || content.take().expect("it is made at most once"));
        if let Some(content) = content {
            *place = content;
        }
    }

    fn take(&mut self, at: EntryKey<'_>) -> Option<C> {
        self.table.remove(at.namespace, at.key)
    }
}

impl<V: StateValue> KeyedState<Single<V>> {
    /// The value of a key.
    pub fn get<'k>(&self, at: impl Into<EntryKey<'k>>) -> Option<&V> {
        self.content(at.into()).map(Single::seen)
    }

    /// The value of a key, to be changed; `make` makes it if there is none.
    pub fn get_or_insert_with<'k>(
        &mut self,
        at: impl Into<EntryKey<'k>>,
        make: impl FnOnce() -> V,
    ) -> &mut V {
        &mut self.change(at.into(), || Single(make())).0
    }

    /// Sets the value of a key.
    pub fn set<'k>(&mut self, at: impl Into<EntryKey<'k>>, value: V) {
        self.put(at.into(), Single(value));
    }

    /// Removes a key. Returns its value.
    pub fn clear<'k>(&mut self, at: impl Into<EntryKey<'k>>) -> Option<V> {
        self.take(at.into()).map(|Single(value)| value)
    }
}

impl<V: StateValue> KeyedState<Elements<V>> {
    /// The list of a key; empty if there is none.
    pub fn get<'k>(&self, at: impl Into<EntryKey<'k>>) -> &[V] {
        self.content(at.into()).map_or(&[], Elements::seen)
    }

    /// Adds an element to the list of a key.
    pub fn push<'k>(&mut self, at: impl Into<EntryKey<'k>>, element: V) {
        let Elements(list) = self.change(at.into(), || Elements(Arc::default()));
        Arc::make_mut(list).push(element);
    }

    /// Sets the list of a key; an empty one removes the key.
    pub fn set<'k>(&mut self, at: impl Into<EntryKey<'k>>, list: Vec<V>) {
        let at = at.into();
        match list.is_empty() {
            true => drop(self.take(at)),
            false => self.put(at, Elements(Arc::new(list))),
        }
    }

    /// Removes a key. Returns its list.
    pub fn clear<'k>(&mut self, at: impl Into<EntryKey<'k>>) -> Vec<V> {
        let taken = self.take(at.into());
        taken.map_or_else(Vec::new, |Elements(list)| Arc::unwrap_or_clone(list))
    }
}

impl<K: StateValue + Ord, V: StateValue> KeyedState<Entries<K, V>> {
    /// The map of a key; `None` if it has no entries.
    pub fn map<'k>(&self, at: impl Into<EntryKey<'k>>) -> Option<&BTreeMap<K, V>> {
        self.content(at.into()).map(Entries::seen)
    }

    /// The value of an entry in the map of a key.
    pub fn get<'k>(&self, at: impl Into<EntryKey<'k>>, entry: &K) -> Option<&V> {
        self.map(at)?.get(entry)
    }

    /// Sets an entry in the map of a key. Returns the value that it had.
    pub fn insert<'k>(&mut self, at: impl Into<EntryKey<'k>>, entry: K, value: V) -> Option<V> {
        let Entries(map) = self.change(at.into(), || Entries(Arc::default()));
        Arc::make_mut(map).insert(entry, value)
    }

    /// Removes an entry from the map of a key; with its last entry the key is removed. Returns the entry's value.
    pub fn remove<'k>(&mut self, at: impl Into<EntryKey<'k>>, entry: &K) -> Option<V> {
        let at = at.into();
        let map = self.map(at)?;
        if !map.contains_key(entry) {
            return None;
        }
        if map.len() == 1 {
            let Entries(map) = self.take(at)?;
            return map.get(entry).cloned();
        }
        let Entries(map) = self.change(at, || Entries(Arc::default()));
        Arc::make_mut(map).remove(entry)
    }

    /// Removes a key. Returns its map.
    pub fn clear<'k>(&mut self, at: impl Into<EntryKey<'k>>) -> BTreeMap<K, V> {
        let taken = self.take(at.into());
        taken.map_or_else(BTreeMap::new, |Entries(map)| Arc::unwrap_or_clone(map))
    }
}
